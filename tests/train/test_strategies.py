"""Every strategy on four gloo processes gives the loss curve of one process.

The processes are started once and train with one strategy after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dataloading import UsageError
from tests.support.processes import init, join, start
from train.distributed import World
from train.metrics import read_log
from train.options import STRATEGIES as NAMES
from train.options import make_options
from train.strategies import STRATEGIES
from train.trainer import Trainer

from .conftest import NUM_IMAGES, SMALL, losses, only, train_here

WORLD_SIZE, PER_NODE = 4, 2
VALUES: dict[str, Any] = {
    **SMALL,
    "loader": "beton",
    "num_workers": 1,
    "tail": "pad",
    "batch_size": 2,
    "epochs": 2,
    "clip_norm": 0.5,
    "ema": 0.5,
    "checkpoints": False,
}
SAVED: dict[str, Any] = {"checkpoints": True, "async_checkpoints": True, "checkpoint_steps": 3, "keep": 9}
RUNS: dict[str, dict[str, Any]] = {
    "ddp-static": {"strategy": "ddp", "static_graph": True, "bucket_mb": 1},
    "ddp-bf16-gradients": {"strategy": "ddp", "grad_compression": "bf16"},
    "fsdp": {"strategy": "fsdp"},
    "fsdp-offload": {"strategy": "fsdp", "fsdp_offload": True},
    "fsdp-bf16": {"strategy": "fsdp", "fsdp_dtype": "bf16"},
    "hsdp": {"strategy": "hsdp"},
    "hsdp-accum": {"strategy": "hsdp", "batch_size": 1, "accum": 2},
    "zero1": {"strategy": "zero1"},
    "zero1-accum": {"strategy": "zero1", "batch_size": 1, "accum": 2},
    # Saved in the background after step 3, and continued from there.
    "ddp-saved": {"strategy": "ddp", **SAVED},
    "fsdp-from-ddp": {"strategy": "fsdp", "resume": "ddp-saved"},
    "fsdp-saved": {"strategy": "fsdp", **SAVED},
    "ddp-from-fsdp": {"strategy": "ddp", "resume": "fsdp-saved"},
    "hsdp-from-fsdp": {"strategy": "hsdp", "resume": "fsdp-saved"},
}
# Relative to the loss. Sums in another order differ by 1e-6; bfloat16 has 8 bits.
TOLERANCE = {"ddp-bf16-gradients": 2e-3, "fsdp-bf16": 2e-2}


def train_ranks(rank: int, world_size: int, folder: Path, data: str) -> None:
    """Train with each strategy, as two nodes of two processes."""
    init(rank, world_size, folder)
    world = World(
        rank=rank, world_size=world_size, local_rank=rank % PER_NODE, local_world_size=PER_NODE, launcher="torchrun"
    )
    for name, values in RUNS.items():
        saved = folder / values["resume"] / "checkpoints" / "step-00000003" if "resume" in values else None
        values = {
            **VALUES,
            "data": data,
            "val": data,
            **values,
            "output": str(folder / name),
            "resume": str(saved or "no"),
        }
        trainer = Trainer(make_options(**values), world, torch.device("cpu"), saved)
        assert trainer.fit() == 0
        trainer.close()
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def logs(beton: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Logs of all runs, and of one process with the whole batch."""
    root = tmp_path_factory.mktemp("strategies")
    join(start(train_ranks, WORLD_SIZE, root, str(beton)))
    found = {name: read_log(root / name / "log.jsonl") for name in RUNS}
    values = {**VALUES, "data": str(beton), "val": str(beton)}
    found["one"] = train_here(root / "one", **{**values, "batch_size": VALUES["batch_size"] * WORLD_SIZE})
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_strategy_trains_and_validates_like_one_process(name: str, logs: dict[str, list[dict[str, Any]]]) -> None:
    tolerance = TOLERANCE.get(name, 1e-4)
    found, expected = logs[name], logs["one"]
    first = 3 if "resume" in RUNS[name] else 0
    assert losses(found) == pytest.approx(losses(expected)[first:], rel=tolerance)
    assert losses(expected)[-1] < losses(expected)[0]
    assert [record["train_num_images"] for record in only(found, "epoch")] == [NUM_IMAGES] * 2
    for record, right in zip(only(found, "eval"), only(expected, "eval"), strict=True):
        assert record["num_images"] == NUM_IMAGES
        assert record["loss"] == pytest.approx(right["loss"], rel=tolerance)


def test_every_strategy_of_the_command_line_has_a_file() -> None:
    assert tuple(STRATEGIES) == NAMES


def test_an_option_of_another_strategy_is_refused(tmp_path: Path) -> None:
    for strategy, name, value in (("fsdp", "bucket_mb", 50), ("ddp", "fsdp_offload", True), ("zero1", "group_size", 2)):
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} works with --strategy"):
            make_options(data=str(tmp_path), loader="torch", strategy=strategy, **{name: value})
    with pytest.raises(UsageError, match="--static-graph with --accum 2"):
        make_options(data=str(tmp_path), loader="torch", static_graph=True, accum=2)
