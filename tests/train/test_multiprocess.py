"""Two real gloo processes: equal losses for any division of the work, exact sums with uneven tails, signals.

The processes are started once and go through all scenarios, because importing torch is what takes the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dataloading import BetonError
from tests.support.processes import join, start
from train.checkpoint import newest_checkpoint
from train.launch import free_ports, launch_environment, training_arguments
from train.metrics import read_log
from train.options import make_options

from .conftest import NUM_IMAGES, SMALL, losses, only, train_here

pytestmark = pytest.mark.timeout(900)  # a loaded machine needs minutes for the launches

WORLD_SIZE = 2
# 27 images: rank 1's last batch holds one image less, and the last step is incomplete on both.
UNEVEN: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 4,
    "val_batch_size": 3,
    "tail": "pad",
    "clip_norm": 0.5,
    "keep": 99,
}
FSDP_EMA: dict[str, Any] = {"strategy": "fsdp", "ema": 0.9}
BATCH_NORM: dict[str, Any] = {"model": "tiny-bn", "tail": "drop", "val_batch_size": 5}
# Long enough to be hit by a signal: 160 steps.
LONG: dict[str, Any] = {"model": "tiny-bn", "epochs": 40, "val": "", "checkpoint_steps": 1000}
# "resume": the directory of a checkpoint, under the directory of all outputs.
SCENARIOS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"strategy": "fsdp"},
    "ddp-accum": {"batch_size": 2, "accum": 2},
    "fsdp-accum": {"strategy": "fsdp", "batch_size": 2, "accum": 2},
    "ddp-beton": {"loader": "beton", "num_workers": 1},
    "ddp-beton-even": {"loader": "beton", "num_workers": 1, "tail": "even"},
    "fsdp-beton-even": {"loader": "beton", "num_workers": 1, "tail": "even", "strategy": "fsdp"},
    "fsdp-ema": {**FSDP_EMA, "checkpoint_steps": 6},
    "fsdp-ema-resumed": {**FSDP_EMA, "resume": "fsdp-ema/checkpoints/step-00000006"},
    "batchnorm": {**BATCH_NORM, "checkpoint_steps": 4},
    "batchnorm-resumed": {**BATCH_NORM, "resume": "batchnorm/checkpoints/step-00000004"},
    "fewer-than-ranks": {"val_fraction": 1 / NUM_IMAGES, "val": "", "epochs": 1},
    "fewer-than-ranks-even": {"val_fraction": 1 / NUM_IMAGES, "val": "", "epochs": 1, "loader": "beton"},
    "long": LONG,
    "long-resumed": {**LONG, "resume": "launched/checkpoints/newest"},
}


def _rank(rank: int, world_size: int, root: Path, data: str, ports: list[int]) -> None:
    from train.trainer import run_training

    torch.set_num_threads(1)
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    for number, (name, extra) in enumerate(SCENARIOS.items()):
        os.environ |= {**place, "MASTER_PORT": str(ports[number])}
        values = {**SMALL, "data": data, "val": data, **UNEVEN, **extra, "output": f"{root}/{name}"}
        if "resume" in extra:
            values["resume"] = f"{root}/{extra['resume']}"
        assert run_training(make_options(**values)) == 0
    os.environ["MASTER_PORT"] = str(ports[-1])
    values = {**SMALL, "data": data, "loader": "beton", "num_workers": 1, "epochs": 1}
    (root / f"broken-{rank}.txt").write_text(_break_on_rank_1(values))


def _break_on_rank_1(values: dict[str, Any]) -> str:
    """Train until the loss of rank 1's third step is made NaN, and return this rank's error."""
    from train.step import NetworkCompute
    from train.trainer import run_training

    real = NetworkCompute.micro_batch

    def breaking(self: NetworkCompute, batch: Any, **place: Any) -> torch.Tensor:
        loss = real(self, batch, **place)
        return loss * float("nan") if (place["step"], os.environ["RANK"]) == (2, "1") else loss

    NetworkCompute.micro_batch = breaking  # type: ignore[method-assign]
    with pytest.raises(BetonError) as raised:
        run_training(make_options(**values))
    return str(raised.value)


# Rank 0 is killed after step 7. Started again, it sends the launcher a signal after step 10.
INTERRUPTED = """
import os, signal, time
if os.environ.get("RANK") == "0":
    from train.launch import process_parents
    from train.trainer import Trainer
    real = Trainer.train_step

    def step(self, *arguments):
        real(self, *arguments)
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and self.progress.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if not first and self.progress.step == 10:
            noted, heard = signal.getsignal(signal.SIGTERM), []
            signal.signal(signal.SIGTERM, lambda *arguments: (noted(*arguments), heard.append(True)))
            os.kill(process_parents()[os.getppid()], signal.SIGUSR1)
            # No threading.Event: its set() hangs in a handler that runs while wait() holds the event's lock.
            deadline = time.monotonic() + 200
            while not heard:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    Trainer.train_step = step
"""


@pytest.fixture(scope="module")
def launched(beton: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `beton train --nproc-per-node 2`: killed, started again, then stopped by SLURM's signal."""
    root = tmp_path_factory.mktemp("ranks")
    (root / "sitecustomize.py").write_text(INTERRUPTED)
    output = root / "launched"
    values = {**SMALL, **UNEVEN, **LONG, "checkpoint_steps": 5, "data": str(beton), "output": str(output)}
    command = [sys.executable, "-m", "train", *training_arguments(values), "--nproc-per-node=2", "--max-restarts=1"]
    environ = launch_environment(os.environ)
    environ["PYTHONPATH"] = f"{root}:{environ['PYTHONPATH']}"
    with (root / "said.txt").open("w") as stream:
        done = subprocess.run(command, env=environ, stderr=stream, check=False)
    assert done.returncode != 0, (root / "said.txt").read_text()
    return output


@pytest.fixture(scope="module")
def logs(beton: Path, launched: Path) -> dict[str, list[dict[str, Any]]]:
    """Logs of all scenarios, by name."""
    root = launched.parent
    newest = newest_checkpoint(launched / "checkpoints")
    assert newest is not None
    (launched / "checkpoints" / "newest").symlink_to(newest.name)
    join(start(_rank, WORLD_SIZE, root, str(beton), free_ports(len(SCENARIOS) + 1)), seconds=800)
    return {name: read_log(root / name / "log.jsonl") for name in SCENARIOS}


@pytest.fixture(scope="module")
def alone(beton: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The log of the same training in one process with the whole batch."""
    output = tmp_path_factory.mktemp("alone")
    return train_here(output, data=str(beton), val=str(beton), **{**UNEVEN, "batch_size": 8, "val_batch_size": 27})


@pytest.mark.parametrize("name", ["ddp", "fsdp", "ddp-accum", "fsdp-accum"])
def test_two_processes_train_like_one(name: str, logs: dict[str, Any], alone: list[dict[str, Any]]) -> None:
    """Replicas or shards, with or without accumulation: the same losses although the last step is uneven."""
    assert [record["images"] for record in only(logs[name], "step")] == [8, 8, 8, 3] * 3
    assert losses(logs[name]) == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.parametrize("name", ["ddp", "fsdp", "ddp-beton", "ddp-beton-even", "fsdp-beton-even"])
def test_padding_biases_neither_training_sums_nor_validation(
    name: str, logs: dict[str, Any], alone: list[dict[str, Any]]
) -> None:
    """27 images on 2 processes with validation batches of 3: each counts once."""
    assert [record["train_num_images"] for record in only(logs[name], "epoch")] == [NUM_IMAGES] * 3
    assert [record["num_images"] for record in only(logs[name], "eval")] == [NUM_IMAGES] * 3
    if "beton" not in name:  # its augmentation draws differ from torchvision's
        for record, expected in zip(only(logs[name], "eval"), only(alone, "eval"), strict=True):
            assert record["loss"] == pytest.approx(expected["loss"], rel=1e-4)
            assert record["top1"] == pytest.approx(expected["top1"])


def test_even_batches_differ_by_one_image_a_rank(logs: dict[str, Any]) -> None:
    for name in ("ddp-beton-even", "fsdp-beton-even"):
        assert [record["images"] for record in only(logs[name], "step")] == [8, 7, 6, 6] * 3
    assert losses(logs["fsdp-beton-even"]) == pytest.approx(losses(logs["ddp-beton-even"]), rel=1e-4)


@pytest.mark.parametrize("name", ["fewer-than-ranks", "fewer-than-ranks-even"])
def test_a_rank_without_validation_images_takes_part(name: str, logs: dict[str, Any]) -> None:
    assert only(logs[name], "eval")[0]["num_images"] == 1


@pytest.mark.parametrize(("name", "start"), [("fsdp-ema", 6), ("batchnorm", 4)])
def test_two_processes_resume_bit_for_bit(name: str, start: int, logs: dict[str, Any]) -> None:
    """Sharded weights and averages, and each rank's own batch-norm statistics, continue inside an epoch."""
    whole, resumed = logs[name], logs[f"{name}-resumed"]
    assert losses(resumed) == losses(whole)[start:]
    assert [record["loss"] for record in only(resumed, "eval")] == [r["loss"] for r in only(whole, "eval")][-2:]
    kinds = ("train_loss", "train_top1", "train_num_images")
    ends = [[[record[kind] for kind in kinds] for record in only(log, "epoch")] for log in (resumed, whole)]
    assert ends[0] == ends[1][-2:]


def test_a_loss_that_breaks_on_one_rank_ends_all_of_them(logs: dict[str, Any], launched: Path) -> None:
    assert len(logs) == len(SCENARIOS)
    for rank in range(WORLD_SIZE):
        said = (launched.parent / f"broken-{rank}.txt").read_text()
        assert "the loss of step 3 (epoch 0) is nan" in said and "samples: rank 1: " in said, said


def test_validating_averaged_shards_does_not_change_the_training(logs: dict[str, Any]) -> None:
    """FSDP keeps the root gathered after a forward pass; the averages lent to it must not stay."""
    assert losses(logs["fsdp-ema"]) == losses(logs["fsdp"])
    assert [r["loss"] for r in only(logs["fsdp-ema"], "eval")] != [r["loss"] for r in only(logs["fsdp"], "eval")]


def test_a_killed_process_restarts_all_from_the_last_checkpoint(launched: Path) -> None:
    records = read_log(launched / "log.jsonl")
    starts = [(record["step"], record["restart"]) for record in only(records, "start")]
    assert starts == [(0, ""), (5, "1 of 1")]
    assert [record["train_num_images"] for record in only(records, "epoch")] == [NUM_IMAGES] * 2
    said = (launched.parent / "said.txt").read_text().splitlines()
    saved = launched / "checkpoints" / "step-00000005"
    assert said.count(f"a process of this run failed; restart 1 of 1 continues from {saved}") == 1


def test_sigterm_under_torchrun_saves_on_all_ranks_and_resumes(logs: dict[str, Any], launched: Path) -> None:
    """Killed and restarted, and stopped inside an epoch by a signal to the launcher, it ends like one that was not."""
    done = only(read_log(launched / "log.jsonl"), "done")
    assert len(done) == 1 and not done[0]["finished"]
    checkpoint = launched / "checkpoints" / f"step-{done[0]['step']:08d}"
    assert sorted(path.name for path in checkpoint.glob("*.*") if path.name != ".metadata") == [
        "__0_0.distcp",
        "__1_0.distcp",
        "meta.json",
        "rank-0.pt",
        "rank-1.pt",
    ]
    assert losses(read_log(launched / "log.jsonl")) + losses(logs["long-resumed"]) == losses(logs["long"])
