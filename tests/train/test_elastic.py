"""Runs that are killed and go on with another number of processes and another batch size; checkpoints of torch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from dataloading import Loader, UsageError
from tests.support.processes import init, join, start
from train.checkpoint import newest_checkpoint
from train.launch import free_ports
from train.loaders.base import TrainBatch
from train.metrics import read_log
from train.options import make_options
from train.rank_states import merge_rank_states, seed_rank
from train.schedule import Schedule
from train.trainer import Trainer, run_training

from .conftest import SMALL, losses, only, train_here

NUM_IMAGES = 50  # neither 2, 3 nor any batch below divides it into whole steps
VALUES: dict[str, Any] = {
    **SMALL,
    "loader": "beton",
    "num_workers": 1,
    "model": "tiny-bn",
    "ema": 0.5,
    "epochs": 2,
    "checkpoint_steps": 2,
    "keep": 99,
}


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 images whose label is their number, so that a batch's labels say which images it holds."""
    from dataloading import ImageField, IntField, Writer

    path = tmp_path_factory.mktemp("numbered") / "numbered.beton"
    rng = np.random.default_rng(3)
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=NUM_IMAGES) as writer:
        for label in range(NUM_IMAGES):
            writer.append({"image": rng.integers(0, 256, (40, 40, 3), dtype=np.uint8), "label": label})
    return path


def life(rank: int, world: int, folder: Path, port: int, values: dict[str, Any], killed_at: int | None) -> None:
    """Train as one rank, writing down what each step was given; die by SIGKILL when `killed_at` steps are taken."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}
    real = Trainer.train_step
    with (folder / f"seen-{rank}.jsonl").open("a") as file:

        def step(self: Trainer, batches: Iterator[TrainBatch], micro_batches: int) -> None:
            seen: list[int] = []

            def noted() -> Iterator[TrainBatch]:
                for batch in batches:
                    seen.extend(batch.labels[: batch.num_valid].tolist())
                    yield batch

            number = self.progress.step
            real(self, noted(), micro_batches)
            file.write(json.dumps({"step": number, "images": seen}) + "\n")
            file.flush()
            if number + 1 == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

        Trainer.train_step = step  # type: ignore[method-assign]
        assert run_training(make_options(**values, output=str(folder))) == 0


def live(folder: Path, world: int, values: dict[str, Any], killed_at: int | None = None) -> list[dict[str, Any]]:
    """Start all ranks of one life, wait for its end, and return its log."""
    processes = start(life, world, folder, *free_ports(1), values, killed_at)
    if killed_at is None:
        join(processes)
    else:
        for process in processes:
            process.join(120)
        # A rank may learn of the other's death, and end with an error, before it comes to its own.
        codes = [process.exitcode for process in processes]
        assert -signal.SIGKILL in codes and not {0, None} & set(codes)
    return read_log(folder / "log.jsonl")


def seen(folder: Path, world: int, first: int, last: int) -> list[int]:
    """List the images that the ranks were given in steps `first` to `last`."""
    lines = [line for rank in range(world) for line in (folder / f"seen-{rank}.jsonl").read_text().splitlines()]
    records = [json.loads(line) for line in lines]
    return [image for record in records if first <= record["step"] < last for image in record["images"]]


@pytest.fixture(scope="module")
def lives(numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Whole on 2; killed on 2, on again on 2; or from there on 3, killed, on 1. Directories and logs by name."""
    root = tmp_path_factory.mktemp("lives")
    values = {**VALUES, "data": str(numbered), "val": str(numbered)}
    logs = {"whole": live(root / "whole", 2, values)}
    live(root / "same", 2, values, killed_at=11)
    saved = str(root / "same" / "checkpoints" / "step-00000010")
    logs["three"] = live(root / "three", 3, {**values, "batch_size": 3, "resume": saved}, killed_at=13)
    saved = str(newest_checkpoint(root / "three" / "checkpoints"))
    logs["one"] = live(root / "one", 1, {**values, "batch_size": 5, "accum": 2, "resume": saved})
    logs["same"] = live(root / "same", 2, {**values, "resume": "auto"})
    return {"root": root, "logs": logs}


def test_a_killed_run_goes_on_bit_for_bit_on_as_many_processes(lives: dict[str, Any]) -> None:
    whole, same = lives["logs"]["whole"], lives["logs"]["same"]
    assert [start["step"] for start in only(same, "start")] == [0, 10]
    assert losses(same) == losses(whole) and len(losses(whole)) == 14
    assert [record["loss"] for record in only(same, "eval")] == [record["loss"] for record in only(whole, "eval")]


def test_two_then_three_then_one_process_see_every_image_once(lives: dict[str, Any]) -> None:
    """By the images that were really delivered; of a killed life only the steps before its last checkpoint count."""
    root = lives["root"]
    assert sorted(seen(root / "whole", 2, 0, 7)) == sorted(seen(root / "whole", 2, 7, 14)) == list(range(NUM_IMAGES))
    parts = seen(root / "same", 2, 7, 10), seen(root / "three", 3, 10, 12), seen(root / "one", 1, 12, 99)
    assert [len(part) > 0 for part in parts] == [True] * 3
    assert sorted(image for part in parts for image in part) == list(range(NUM_IMAGES))
    assert only(lives["logs"]["one"], "epoch")[-1]["train_num_images"] == NUM_IMAGES
    assert only(lives["logs"]["one"], "eval")[-1]["num_images"] == NUM_IMAGES
    assert only(lives["logs"]["one"], "done")[-1]["finished"]


def test_the_learning_rate_follows_the_images_not_the_steps(lives: dict[str, Any]) -> None:
    schedule = Schedule(peak=SMALL["lr"], warmup=SMALL["warmup_epochs"] / 2)
    for name, images in (("whole", 0), ("three", 74), ("one", 92)):
        steps = only(lives["logs"][name], "step")
        for step in steps:
            end = images + step["images"]
            assert step["lr"] == pytest.approx(schedule(images / 100, end / 100), rel=1e-12)
            images = end
        if name != "three":
            assert images == 2 * NUM_IMAGES


def test_shards_of_two_processes_go_on_as_one_replica_with_the_same_losses(numbered: Path, tmp_path: Path) -> None:
    """Weights, momentum, averages and data: equal global batches give equal curves, whoever computes them."""
    values = {**VALUES, "data": str(numbered), "val": str(numbered), "model": "tiny", "tail": "drop"}
    whole = live(tmp_path / "shards", 2, {**values, "strategy": "fsdp"})
    saved = str(tmp_path / "shards" / "checkpoints" / "step-00000004")
    resumed = train_here(tmp_path / "one", **{**values, "batch_size": 8, "resume": saved})
    assert only(resumed, "start")[0]["step"] == 4 and only(resumed, "start")[0]["total_steps"] == 12
    assert losses(resumed) == pytest.approx(losses(whole)[4:], rel=1e-4)
    for record, expected in zip(only(resumed, "eval"), only(whole, "eval"), strict=True):
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_a_stock_loader_goes_on_with_another_batch_size_at_the_end_of_an_epoch_only(
    numbered: Path, tmp_path: Path
) -> None:
    values = {"data": str(numbered), "epochs": 2, "keep": 99}
    train_here(tmp_path / "inside", checkpoint_steps=5, **values)
    saved = str(tmp_path / "inside" / "checkpoints" / "step-00000005")
    with pytest.raises(UsageError, match="batch_size = 4, this run has 7; inside an epoch only --loader beton"):
        train_here(tmp_path / "refused", batch_size=7, resume=saved, **values)
    train_here(tmp_path / "end", **values)
    saved = str(tmp_path / "end" / "checkpoints" / "step-00000012")
    records = train_here(tmp_path / "on", batch_size=7, resume=saved, **values)
    assert [step["images"] for step in only(records, "step")] == [7] * 7


def test_merged_states_keep_sums_and_average_statistics() -> None:
    states = [
        {
            "buffers": {"mean": torch.tensor([1.0, 3.0 * rank]), "count": torch.tensor(5 + rank)},
            "ema_buffers": {},
            "tally": torch.tensor([4.0, 0.5 * rank]),
            "loader": {"consumed": 8},
            "random": {"torch": rank},
        }
        for rank in range(3)
    ]
    merged = merge_rank_states(states)
    assert merged["buffers"]["mean"].tolist() == [1.0, 3.0] and int(merged["buffers"]["count"]) == 5
    assert merged["tally"].tolist() == [12.0, 1.5]
    assert merged["loader"] == {"consumed": 8} and "random" not in merged


def test_every_rank_and_every_new_start_draws_other_numbers() -> None:
    drawn = []
    with torch.random.fork_rng(devices=[]):
        for key in ((0, 0, 0), (0, 0, 1), (0, 10, 0), (1, 0, 0), (0, 0, 0)):
            seed_rank(*key)
            drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[4] and len(set(drawn)) == 4


# ---- torch.distributed.checkpoint with the Loader in it


LOADER: dict[str, Any] = {"batch_size": 4, "shuffle": "global", "seed": 6, "tail": "even", "num_workers": 1}


def save_rank(rank: int, world: int, folder: Path, path: str) -> None:
    """Take three batches; save after the second, once at once and once in the background while the third is taken."""
    init(rank, world, folder)
    loader = Loader(path, fields=["label"], **LOADER)
    batches = iter(loader)
    images = [image for _ in range(2) for image in next(batches).indices.tolist()]
    weight = torch.full((3,), 7.0)
    dcp.save({"loader": loader, "weight": weight}, checkpoint_id=folder / "saved")
    pending: Any = dcp.async_save({"loader": loader, "weight": weight}, checkpoint_id=folder / "later")
    next(batches)
    pending.result()
    (folder / f"seen-{rank}.json").write_text(json.dumps(images))
    dist.barrier()
    dist.destroy_process_group()


def load_rank(rank: int, world: int, folder: Path, path: str, checkpoint: Path) -> None:
    """Load, and see the rest of the epoch."""
    init(rank, world, folder)
    state: dict[str, Any] = {"loader": Loader(path, fields=["label"], **LOADER), "weight": torch.zeros(3)}
    dcp.load(state, checkpoint_id=checkpoint)
    images = [image for batch in state["loader"] for image in batch.indices.tolist()]
    assert state["weight"].tolist() == [7.0] * 3
    (folder / f"seen-{rank}.json").write_text(json.dumps(images))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def saved(numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two ranks that saved twice."""
    folder = tmp_path_factory.mktemp("saved") / "two"
    join(start(save_rank, 2, folder, str(numbered)))
    return folder


@pytest.mark.parametrize(("world", "name"), [(1, "saved"), (3, "saved"), (3, "later")])
def test_a_loader_in_a_distributed_checkpoint_goes_on_on_other_ranks(
    world: int, name: str, numbered: Path, saved: Path, tmp_path: Path
) -> None:
    """Saved by two ranks, also in the background: one or three see exactly the rest."""
    join(start(load_rank, world, tmp_path / "other", str(numbered), saved / name))
    files = [*saved.glob("seen-*.json"), *(tmp_path / "other").glob("seen-*.json")]
    assert len(files) == 2 + world
    images = [image for file in files for image in json.loads(file.read_text())]
    assert sorted(images) == list(range(NUM_IMAGES))
