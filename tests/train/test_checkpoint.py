"""Checkpoints in the background, the best one, damaged ones, and runs that get longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint import FileSystemWriter

from dataloading import BetonError, UsageError
from train.options import make_options
from train.schedule import Schedule
from train.step import NetworkCompute
from train.trainer import Trainer

from .conftest import SMALL, losses, only
from .conftest import train_here as train_anywhere

STEPS_PER_EPOCH = 7


def train_here(output: Path, **values: Any) -> list[dict[str, Any]]:
    """Run one training of seven steps an epoch, and return its log."""
    return train_anywhere(output, tail="pad", **values)


def names(output: Path) -> list[str]:
    """List the folder of checkpoints."""
    return sorted(path.name for path in (output / "checkpoints").iterdir())


def test_a_checkpoint_written_during_later_steps_holds_its_own_step(
    beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is held back until two more steps were taken."""
    taken, step_two_later = [], threading.Event()
    real_step, real_write = Trainer.train_step, FileSystemWriter.write_data

    def step(self: Trainer, *arguments: Any) -> None:
        real_step(self, *arguments)
        taken.append(self.progress.step)
        if self.progress.step == 6:
            step_two_later.set()

    def write(self: FileSystemWriter, *arguments: Any) -> Any:
        assert step_two_later.wait(120)
        assert 6 in taken
        return real_write(self, *arguments)

    monkeypatch.setattr(Trainer, "train_step", step)
    monkeypatch.setattr(FileSystemWriter, "write_data", write)
    values = {"data": str(beton), "epochs": 1, "checkpoint_steps": 4, "async_checkpoints": True, "ema": 0.5}
    whole = train_here(tmp_path / "whole", **values)
    assert names(tmp_path / "whole") == ["step-00000004", "step-00000007"]
    assert [record["step"] for record in only(whole, "checkpoint")] == [4, 7]
    monkeypatch.undo()
    saved = str(tmp_path / "whole" / "checkpoints" / "step-00000004")
    assert losses(train_here(tmp_path / "on", **values, resume=saved)) == losses(whole)[4:]


def test_a_checkpoint_that_cannot_be_written_in_the_background_ends_the_run(
    beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileSystemWriter, "write_data", write)
    with pytest.raises(BetonError, match=r"step-00000007 could not be written: .*No space left"):
        train_here(tmp_path, data=str(beton), epochs=2, async_checkpoints=True)


def test_the_best_checkpoint_stays_and_has_a_link(beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([10.0, 50.0, 20.0, 50.0, 30.0])

    def evaluate(*_arguments: Any) -> dict[str, float]:
        return {"num_images": 27, "loss": 1.0, "top1": next(scores), "top5": 90.0}

    monkeypatch.setattr(NetworkCompute, "evaluate", evaluate)
    train_here(tmp_path, data=str(beton), val=str(beton), epochs=5, keep=1, keep_best=True, checkpoint_steps=5)
    assert names(tmp_path) == ["best", "step-00000014", "step-00000035"]
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step-00000014"
    with pytest.raises(UsageError, match="--keep-best needs validation data"):
        make_options(data=str(beton), keep_best=True)


def cut(path: Path) -> None:
    """Leave half of a file, as a full disk does."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "harm", "words"),
    [
        ("__0_0.distcp", cut, "bytes, "),
        ("__0_0.distcp", flip, "the bytes of __0_0.distcp have changed"),
        (".metadata", flip, "the bytes of .metadata have changed"),
        ("rank-0.pt", Path.unlink, "rank-0.pt is missing"),
        ("meta.json", cut, "meta.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(
    file: str, harm: Callable[[Path], None], words: str, beton: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"data": str(beton), "epochs": 1, "checkpoint_steps": 3, "keep": 9}
    whole = train_here(tmp_path, **values)
    harm(tmp_path / "checkpoints" / "step-00000007" / file)
    harm(tmp_path / "checkpoints" / "step-00000006" / file)
    capsys.readouterr()
    with pytest.raises(UsageError, match="--resume auto takes the newest checkpoint that is sound"):
        train_here(tmp_path, **values, resume=str(tmp_path / "checkpoints" / "step-00000006"))
    resumed = train_here(tmp_path, **values, resume="auto")
    said = capsys.readouterr().err
    assert words in said and "step-00000007 is damaged" in said and "Resuming from" in said
    assert only(resumed, "start")[-1]["step"] == 3
    assert losses(resumed) == losses(whole)
    assert names(tmp_path) == [
        "damaged-step-00000006",
        "damaged-step-00000007",
        "step-00000003",
        "step-00000006",
        "step-00000007",
    ]


def test_nothing_starts_anew_if_every_checkpoint_is_damaged(beton: Path, tmp_path: Path) -> None:
    values = {"data": str(beton), "epochs": 1}
    train_here(tmp_path, **values)
    cut(tmp_path / "checkpoints" / "step-00000007" / "rank-0.pt")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"all checkpoints in .* are damaged \(step-00000007: rank-0.pt has"):
            train_here(tmp_path, **values, resume="auto")


def test_a_finished_run_goes_on_with_more_epochs(beton: Path, tmp_path: Path) -> None:
    """The learning rate is that of the longer run from there on."""
    values = {"data": str(beton), "keep": 9}
    train_here(tmp_path, **values, epochs=2)
    records = train_here(tmp_path, **values, epochs=4, resume="auto")
    assert [record["step"] for record in only(records, "step")] == list(range(4 * STEPS_PER_EPOCH))
    schedule = Schedule(peak=SMALL["lr"], warmup=SMALL["warmup_epochs"] / 4)
    assert only(records, "step")[14]["lr"] == pytest.approx(schedule(2 / 4, (2 + 4 / 27) / 4))
    with pytest.raises(UsageError, match="is at epoch 4, after the end of this run of --epochs 3; pass more"):
        train_here(tmp_path, **values, epochs=3, resume="auto")


def test_a_resumed_run_uses_the_weight_decay_that_it_was_given(beton: Path, tmp_path: Path) -> None:
    values = {"data": str(beton), "epochs": 2, "keep": 9}
    whole = losses(train_here(tmp_path / "whole", **values))
    saved = str(tmp_path / "whole" / "checkpoints" / "step-00000007")
    assert losses(train_here(tmp_path / "same", **values, resume=saved)) == whole[7:]
    other = losses(train_here(tmp_path / "other", **values, weight_decay=0.5, resume=saved))
    assert other[0] == whole[7] and other[-1] != whole[-1]
