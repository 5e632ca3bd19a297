"""Real processes: shards, shared memory, and where the rank comes from."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from dataloading import Loader
from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.format import ImageField, IntField, Writer
from dataloading.sampling.ranks import find_ranks
from tests.support.files import raw
from tests.support.processes import init, join, start

WORLD = 4
ROOT = Path(__file__).resolve().parents[2]


def _shard_worker(rank: int, world: int, folder: Path, path: str) -> None:
    init(rank, world, folder)
    result = {}
    for seed, epoch in ((0, 0), (0, 3), (7, 1)):
        loader = Loader(path, batch_size=6, shuffle="global", seed=seed, num_workers=1)  # rank: from torch.distributed
        loader.set_epoch(epoch)
        result[seed, epoch] = [label for batch in loader for label in batch["label"].tolist()]
    torch.save(result, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_four_gloo_processes_share_the_dataset_as_distributed_sampler_does(labels_file, tmp_path):
    join(start(_shard_worker, WORLD, tmp_path, str(labels_file)))
    shards = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(WORLD)]
    for seed, epoch in shards[0]:
        for rank in range(WORLD):
            want = DistributedSampler(range(100), WORLD, rank, shuffle=True, seed=seed)
            want.set_epoch(epoch)
            assert shards[rank][seed, epoch] == list(want)
        assert {label for shard in shards for label in shard[seed, epoch]} == set(range(100))


def _private_kilobytes(pid: str, needle: str) -> dict[str, int]:
    """Sum of smaps' Rss, Private and Shared over the mappings of one file."""
    sums = {"Rss": 0, "Private": 0, "Shared": 0}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            inside = needle in line
        elif inside:
            name, value = line.split(":", 1)
            for key in sums:
                if name == key or name.startswith(f"{key}_"):
                    sums[key] += int(value.split()[0])
    return sums


def _memory_worker(rank: int, world: int, folder: Path, path: str) -> None:
    init(rank, world, folder)
    loader = Loader(path, batch_size=32, transforms={"image": [T.Resize((16, 16))]}, num_workers=1)
    for _ in loader:
        pass
    dist.barrier()  # all four have read their shard, and still hold the mapping
    torch.save(_private_kilobytes("self", path), f"{folder}/memory{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_of_a_node_share_one_copy_of_the_file(tmp_path):
    path = tmp_path / "large.beton"
    pixels = torch.randint(0, 256, (400, 400, 3), dtype=torch.uint8).numpy()
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=128) as writer:
        for k in range(128):
            pixels[0, 0] = k
            writer.append({"image": raw(pixels), "label": k})
    join(start(_memory_worker, WORLD, tmp_path, str(path)))
    sums = [torch.load(tmp_path / f"memory{rank}.pt") for rank in range(WORLD)]
    file_kilobytes = path.stat().st_size / 1024
    assert sum(s["Rss"] for s in sums) > file_kilobytes / 2  # they really have it mapped
    for s in sums:
        assert s["Private"] < 0.1 * file_kilobytes


def test_the_launchers_variables_count_before_a_process_group_exists(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    ranks = find_ranks(None, None)
    assert (ranks.rank, ranks.world_size, ranks.local_world_size) == (3, 8, 4)
    assert (find_ranks(0, 2).rank, find_ranks(0, 2).world_size) == (0, 2)


def test_a_process_group_made_after_the_loader_is_refused_rather_than_read_twice(labels_file, tmp_path):
    loader = Loader(labels_file, batch_size=8)
    code = f"""
import torch.distributed as dist
from dataloading import Loader, UsageError
loader = Loader({str(labels_file)!r}, batch_size=8)
dist.init_process_group("gloo", init_method="file://{tmp_path}/late", rank=0, world_size=1)
next(iter(loader))  # the same numbers: fine
dist.destroy_process_group()
dist.is_initialized = lambda: True
dist.get_rank, dist.get_world_size = lambda *a: 1, lambda *a: 2
try:
    iter(loader)
except UsageError as error:
    assert "rank 1 of 2" in str(error) and "init_process_group before" in str(error), error
else:
    raise SystemExit("not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert loader.world_size == 1


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, None)])
def test_ranks_that_do_not_fit_are_refused(rank, world):
    with pytest.raises(UsageError):
        find_ranks(rank, world)


# ---- nodes


@pytest.fixture
def launched(monkeypatch):
    """Sets a launcher's variables, and no others."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_NNODES", "SLURM_NODEID",
                 "SLURM_LOCALID", "SLURM_PROCID"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return lambda **variables: [monkeypatch.setenv(name, str(value)) for name, value in variables.items()]


def place(*args: object, **options: object) -> tuple[int, int, int]:
    ranks = find_ranks(*args, by_node=True, **options)
    return ranks.num_nodes, ranks.node, ranks.local_rank


def test_torchruns_variables_say_which_node_this_is(launched):
    launched(RANK=5, WORLD_SIZE=8, LOCAL_WORLD_SIZE=4, GROUP_RANK=1, LOCAL_RANK=1)
    assert place() == (2, 1, 1)
    assert place(5, 8) == (2, 1, 1)
    assert place(1, 3) == (1, 0, 1)  # another world than the launcher's: its variables say nothing


def test_slurms_variables_say_which_node_this_is_also_where_ranks_go_round(launched):
    launched(SLURM_NNODES=2, SLURM_NODEID=1, SLURM_LOCALID=1, SLURM_PROCID=3)
    assert place(3, 6) == (2, 1, 1)
    assert place(0, 1) == (1, 0, 0)  # a single process in an allocation of two nodes


def test_nodes_may_be_given_as_arguments(launched):
    launched()
    assert place(5, 8, num_nodes=4) == (4, 2, 1)
    assert place(5, 8, local_world_size=4) == (2, 1, 1)
    assert place(5, 8, num_nodes=2, node_rank=1) == (2, 1, 1)
    assert find_ranks(5, 8, num_nodes=4).num_nodes == 1  # nobody asked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_nodes": 3}, "num_nodes=3 .* do not fit world_size=8"),
        ({"num_nodes": 2, "local_world_size": 3}, "as many ranks"),
        ({"num_nodes": 2, "node_rank": 0}, "node 0 of 2 does not fit rank 5 of 8"),
        ({"dp_dim": "dp"}, "mesh="),
    ],
)
def test_nodes_that_do_not_fit_are_refused(launched, options, words):
    launched()
    with pytest.raises(UsageError, match=words):
        place(5, 8, **options)
