"""Real processes: a mesh of ranks, and runs that are killed and go on with another number of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dataloading import Loader, UsageError
from dataloading.sampling.ranks import find_ranks
from tests.support.processes import init, join, start
from train.launch import free_ports

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


# ---- meshes


def _mesh_worker(rank: int, world: int, folder: Path, path: str) -> None:
    init(rank, world, folder)
    tensor = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    pipeline_first = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    options = {"batch_size": 6, "shuffle": "global", "seed": 4, "num_workers": 1}

    def labels(**more: object) -> list[int]:
        return [label for batch in Loader(path, **options, **more) for label in batch["label"].tolist()]

    found = {
        "whole": labels(mesh=tensor),
        "named": labels(mesh=tensor, dp_dim="dp"),
        "part": labels(mesh=tensor["dp"]),
        "over tp": labels(mesh=tensor, dp_dim="tp"),
        "hybrid": labels(mesh=hybrid),
        "hybrid named": labels(mesh=hybrid, dp_dim=("dp_replicate", "dp_shard")),
        "shard slowest": labels(mesh=hybrid, dp_dim=("dp_shard", "dp_replicate")),
        "pipeline first": labels(mesh=pipeline_first),
    }
    ranks = find_ranks(mesh=tensor, local_world_size=2, by_node=True)
    found["nodes"] = [ranks.num_nodes, ranks.node, ranks.local_rank]
    try:
        Loader(path, batch_size=6, mesh=tensor, dp_dim="cp")
    except UsageError as error:
        found["error"] = str(error)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_that_differ_in_other_dimensions_than_data_get_the_same_batches(labels_file, tmp_path):
    join(start(_mesh_worker, 4, tmp_path, str(labels_file)))
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]

    def of(rank: int, world: int) -> list[int]:
        loader = Loader(labels_file, batch_size=6, shuffle="global", seed=4, num_workers=1, rank=rank, world_size=world)
        return [label for batch in loader for label in batch["label"].tolist()]

    for rank in range(4):
        row, column = divmod(rank, 2)
        for name in ("whole", "named", "part"):
            assert found[rank][name] == of(row, 2)
        for name in ("over tp", "pipeline first"):
            assert found[rank][name] == of(column, 2)
        for name in ("hybrid", "hybrid named"):
            assert found[rank][name] == of(rank, 4)
        assert found[rank]["shard slowest"] == of(2 * column + row, 4)
        # Both ranks of a data-parallel row are on one node of two processes: a node each.
        assert found[rank]["nodes"] == [2, row, 0]
        assert "no dimension 'cp', only ('dp', 'tp')" in found[rank]["error"]


def _example_worker(rank: int, world: int, folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    for name, value in (("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_RANK", rank), ("MASTER_PORT", port)):
        os.environ[name] = str(value)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / f"rank{rank}.txt").open("w") as sys.stdout:
        runpy.run_path(str(EXAMPLES / "tensor_parallel_mesh.py"))["main"]("", str(folder))


def test_the_tensor_parallel_example_trains_two_replicas_of_two_parts(tmp_path):
    join(start(_example_worker, 4, tmp_path, *free_ports(1)))
    printed = [(tmp_path / f"rank{rank}.txt").read_text().splitlines() for rank in range(4)]
    losses = [[line.split("loss ")[1] for line in lines] for lines in printed]
    assert [lines[0].split(",")[0] for lines in printed] == [f"rank {k}: replica {k // 2} of 2" for k in range(4)]
    assert losses[0] == losses[1] != losses[2] == losses[3]
    assert len(losses[0]) == 2


# ---- killed, and on again


def _train(rank: int, world: int, folder: Path, path: str, checkpoint: str | None, num_steps: int | None) -> None:
    """A training run on numbers: every rank's gradient is summed, and each second step is checkpointed."""
    init(rank, world, folder)
    loader = Loader(path, batch_size=3, shuffle="global", seed=8, tail="even", num_workers=2)
    weight, losses, seen = torch.zeros(1, dtype=torch.float64), [], []
    if checkpoint is not None:
        saved = json.loads(Path(checkpoint).read_text())
        loader.load_state_dict(saved["loader"])
        weight, losses = torch.tensor(saved["weight"], dtype=torch.float64), saved["losses"]
    for number, batch in enumerate(loader, 1):
        error = weight - batch["half"] / 50
        sums = torch.stack([(error**2).sum(), (2 * error).sum()])
        dist.all_reduce(sums)
        losses.append(float(sums[0] / batch.global_size))
        weight = weight - 0.1 * sums[1] / batch.global_size
        seen += batch.indices.tolist()
        if number % 2 == 0:
            (folder / f"seen{rank}.{number}").write_text(json.dumps(seen))
            dist.barrier()
            if rank == 0:
                state = {"loader": loader.state_dict(), "weight": weight.tolist(), "losses": losses}
                (folder / "state.tmp").write_text(json.dumps(state))
                (folder / "state.tmp").rename(folder / f"state.{number}")
        if number == num_steps:
            time.sleep(600)  # until killed
    (folder / f"seen{rank}.end").write_text(json.dumps(seen))
    if rank == 0:
        (folder / "losses").write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()


def _kill_at(processes: list[multiprocessing.Process], state: Path) -> None:
    deadline = time.monotonic() + 200
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state.exists()
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.join()
        assert process.exitcode == -signal.SIGKILL


def _seen(folder: Path, world: int, at: object) -> list[int]:
    return [k for rank in range(world) for k in json.loads((folder / f"seen{rank}.{at}").read_text())]


@pytest.mark.slow
def test_runs_killed_on_two_and_three_ranks_see_every_sample_once_and_the_loss_goes_on_bit_for_bit(
    labels_file, tmp_path
):
    path = str(labels_file)
    whole = start(_train, 2, tmp_path / "whole", path, None, None)
    _kill_at(start(_train, 2, tmp_path / "two", path, None, 5), tmp_path / "two" / "state.4")
    saved = str(tmp_path / "two" / "state.4")
    same = start(_train, 2, tmp_path / "same", path, saved, None)
    _kill_at(start(_train, 3, tmp_path / "three", path, saved, 5), tmp_path / "three" / "state.4")
    join(start(_train, 1, tmp_path / "one", path, str(tmp_path / "three" / "state.4"), None))
    join(whole + same)

    union = _seen(tmp_path / "two", 2, 4) + _seen(tmp_path / "three", 3, 4) + _seen(tmp_path / "one", 1, "end")
    assert sorted(union) == list(range(100))
    losses = {name: json.loads((tmp_path / name / "losses").read_text()) for name in ("whole", "same", "one")}
    assert len(losses["whole"]) == 17
    assert losses["same"] == losses["whole"]
    assert losses["one"][:4] == losses["whole"][:4]
