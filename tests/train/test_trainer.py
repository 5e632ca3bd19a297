"""The loop in one process: equal sums, exact resume, checkpoints that are whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from dataloading import BetonError, UsageError
from train.checkpoint import newest_checkpoint
from train.metrics import read_log
from train.options import make_options
from train.trainer import STOPPED, Trainer, run_training

from .conftest import NUM_IMAGES, SMALL, losses, only, train_here


class KilledError(Exception):
    """Stands for the end of the process."""


def interrupted(output: Path, at_step: int, monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Train, and die when the given step has been taken but not saved."""
    real = Trainer.train_step

    def dying(self: Trainer, *arguments: Any) -> None:
        real(self, *arguments)
        if self.progress.step == at_step:
            raise KilledError

    monkeypatch.setattr(Trainer, "train_step", dying)
    with pytest.raises(KilledError):
        run_training(make_options(**{**SMALL, "output": str(output), **values}), {})
    monkeypatch.undo()


RECIPE = {"ema": 0.9, "mixup": 0.2, "cutmix": 1.0, "clip_norm": 1.0, "epochs": 3, "val_fraction": 0.2}


@pytest.mark.parametrize(
    ("loader", "extra"),
    [
        ("torch", {"num_workers": 1, "amp": "fp16"}),
        ("torch-fast", {"accum": 2}),
        ("beton", {"amp": "bf16"}),
        ("beton", {"num_workers": 2, "model": "tiny-bn", "epochs": 2}),
    ],
)
def test_a_killed_run_resumes_bit_for_bit(
    loader: str, extra: dict[str, Any], beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KilledError inside epoch 1, between checkpoints: losses, validation and epoch sums equal the whole run's."""
    values = {**RECIPE, "loader": loader, "data": str(beton), "checkpoint_steps": 2, **extra}
    whole = train_here(tmp_path / "whole", **values)
    at_step = 5 if "accum" in extra else 7
    interrupted(tmp_path / "cut", at_step, monkeypatch, **values)
    torch.manual_seed(12345)  # the generator of a fresh process is somewhere else
    resumed = train_here(tmp_path / "cut", resume="auto", **values)
    starts = only(resumed, "start")
    assert [start["step"] for start in starts] == [0, at_step - 1]
    assert losses(resumed) == losses(whole)
    for event, keys in (("epoch", ("train_loss", "train_top1", "train_num_images")), ("eval", ("loss", "top1"))):
        # The end of an epoch that was saved with its last step is dealt with, and logged, again.
        ends = [{r["epoch"]: [r[key] for key in keys] for r in only(log, event)} for log in (resumed, whole)]
        assert ends[0] == ends[1] and len(ends[0]) == values["epochs"]


def test_dropout_resumes_bit_for_bit(beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from train import trainer

    def with_dropout(name: str, num_classes: int, **layout: Any) -> torch.nn.Module:
        del name, layout
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(3 * 32 * 32, num_classes))

    values = {"data": str(beton), "epochs": 2, "checkpoint_steps": 2, "lr": 0.01}
    monkeypatch.setattr(trainer, "build_model", with_dropout)
    whole = train_here(tmp_path / "whole", **values)
    interrupted(tmp_path / "cut", 5, monkeypatch, **values)
    monkeypatch.setattr(trainer, "build_model", with_dropout)
    torch.manual_seed(99)
    assert losses(train_here(tmp_path / "cut", resume="auto", **values)) == losses(whole)


def test_accumulated_micro_batches_equal_one_big_batch(beton: Path, tmp_path: Path) -> None:
    """Same order, same images: 3 x 3 images a step train like 9, the incomplete last step (27 = 2 x 12 + 3) too."""
    common = {"data": str(beton), "epochs": 2, "tail": "pad", "clip_norm": 0.5, "nesterov": False}
    big = train_here(tmp_path / "big", batch_size=12, **common)
    small = train_here(tmp_path / "small", batch_size=3, accum=4, **common)
    assert [record["images"] for record in only(small, "step")] == [12, 12, 3, 12, 12, 3]
    assert losses(small) == pytest.approx(losses(big), rel=1e-4)


def test_each_epoch_counts_each_image_once(beton: Path, folder: Path, tmp_path: Path) -> None:
    """No image is lost unless --tail drop says so, and validation counts every image of --val."""
    for loader, data, tail in (("torch", folder, "pad"), ("beton", beton, "pad"), ("beton", beton, "auto")):
        values = {"loader": loader, "data": str(data), "val": str(data), "tail": tail}
        records = train_here(tmp_path / f"{loader}-{tail}", val_batch_size=5, epochs=1, **values)
        assert only(records, "epoch")[0]["train_num_images"] == NUM_IMAGES
        evaluation = only(records, "eval")[0]
        assert evaluation["num_images"] == NUM_IMAGES and evaluation["top5"] == 100.0


def test_the_network_learns(beton: Path, tmp_path: Path) -> None:
    records = train_here(tmp_path, data=str(beton), val=str(beton), loader="beton", epochs=8)
    assert only(records, "eval")[-1]["top1"] > 80.0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_like_full_precision(precision: str, beton: Path, tmp_path: Path) -> None:
    exact = losses(train_here(tmp_path / "exact", data=str(beton), epochs=1))
    mixed = losses(train_here(tmp_path / "mixed", data=str(beton), epochs=1, amp=precision))
    assert mixed == pytest.approx(exact, rel=0.05) and mixed != exact


def test_validating_does_not_change_the_training(beton: Path, tmp_path: Path) -> None:
    values = {"data": str(beton), "model": "tiny-bn", "epochs": 2, "ema": 0.5, "batch_size": 9}
    with_val = train_here(tmp_path / "with", val=str(beton), **values)
    without = train_here(tmp_path / "without", **values)
    assert losses(with_val) == losses(without)


def test_records_say_where_the_time_went(beton: Path, tmp_path: Path) -> None:
    records = train_here(tmp_path, data=str(beton), loader="beton", epochs=1, peak_tflops=1.0, log_steps=4)
    steps = only(records, "step")
    assert [step["step"] for step in steps] == list(range(7))
    assert [step["images"] for step in steps] == [4, 4, 4, 4, 4, 4, 3]
    for step in steps:
        assert 0 <= step["wait_s"] <= step["step_s"]
        assert step["images_per_s"] == pytest.approx(step["images"] / step["step_s"])
        assert step["wait_pct"] == pytest.approx(100 * step["wait_s"] / step["step_s"])
        assert 0 < step["mfu_pct"] < 100


def test_a_simulated_device_sleeps_and_trains_nothing(beton: Path, tmp_path: Path) -> None:
    records = train_here(tmp_path, data=str(beton), accelerator="sim:200", epochs=1, val_fraction=0.2)
    for step in only(records, "step"):
        assert step["loss"] is None and 0.02 <= step["sleep_s"] <= step["step_s"]
    (epoch,) = only(records, "epoch")
    assert epoch["images_per_s"] <= 200 and epoch["seconds"] >= 20 / 200 - 1e-9
    assert not only(records, "eval") and not (tmp_path / "checkpoints").exists()
    assert only(records, "start")[0]["options"]["accelerator"] == "sim:200"


@pytest.mark.parametrize("at_step", [4, 7, 14])
def test_sigterm_saves_and_leaves_with_143(
    at_step: int, beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Honoured after the step, be it an epoch's or the run's last; the resumed run ends like an uninterrupted one."""
    values = {**SMALL, "data": str(beton), "loader": "beton", "epochs": 2, "val": str(beton)}
    whole = train_here(tmp_path / "whole", **values)
    real = Trainer.train_step

    def signalled(self: Trainer, *arguments: Any) -> None:
        real(self, *arguments)
        if self.progress.step == at_step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "train_step", signalled)
    before = signal.getsignal(signal.SIGTERM)
    assert run_training(make_options(**values, output=str(tmp_path / "cut")), {}) == STOPPED == 143
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.undo()
    newest = newest_checkpoint(tmp_path / "cut" / "checkpoints")
    assert newest is not None and newest.name == f"step-{at_step:08d}"
    resumed = train_here(tmp_path / "cut", resume="auto", **values)
    assert losses(resumed) == losses(whole)
    assert [r["train_loss"] for r in only(resumed, "epoch")] == [r["train_loss"] for r in only(whole, "epoch")]
    assert [r["loss"] for r in only(resumed, "eval")] == [r["loss"] for r in only(whole, "eval")]


def test_a_checkpoint_that_was_not_finished_is_not_taken(
    beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dying while rank files are written leaves no directory that looks complete, and the one before stays."""
    from train import checkpoint

    values = {"data": str(beton), "epochs": 1, "checkpoint_steps": 2}
    real = torch.save
    written: list[str] = []

    def failing(state: Any, file: Any, *arguments: Any, **options: Any) -> None:
        written.append(Path(str(getattr(file, "name", ""))).name)
        if written.count("rank-0.pt") == 2:
            raise OSError(28, "No space left on device")
        real(state, file, *arguments, **options)

    monkeypatch.setattr(torch, "save", failing)
    with pytest.raises(OSError, match="No space left"):
        run_training(make_options(**{**SMALL, "output": str(tmp_path), **values}), {})
    monkeypatch.undo()
    directory = tmp_path / "checkpoints"
    assert checkpoint.newest_checkpoint(directory) == directory / "step-00000002"
    records = train_here(tmp_path, resume="auto", **values)
    assert only(records, "start")[-1]["step"] == 2 and only(records, "done")[-1]["finished"]


def test_old_checkpoints_go_and_the_newest_stay(beton: Path, tmp_path: Path) -> None:
    train_here(tmp_path, data=str(beton), epochs=2, checkpoint_steps=3, keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000009", "step-00000012"]


def test_a_checkpoint_of_another_run_is_refused(beton: Path, tmp_path: Path) -> None:
    train_here(tmp_path, data=str(beton), steps=2)
    saved = next((tmp_path / "checkpoints").iterdir())
    for name, value, words in (
        ("steps", 3, "steps = 2"),
        ("seed", 1, "seed = 0"),
        ("ema", 0.5, "ema = False"),
    ):
        with pytest.raises(UsageError, match=words):
            train_here(tmp_path / "other", **{"data": str(beton), "steps": 2, "resume": str(saved), name: value})
    with pytest.raises(UsageError, match="not a complete checkpoint"):
        train_here(tmp_path / "other", data=str(beton), steps=2, resume=str(tmp_path))


def test_a_new_run_in_the_same_place_starts_a_new_log(beton: Path, tmp_path: Path) -> None:
    train_here(tmp_path, data=str(beton), steps=2)
    train_here(tmp_path, data=str(beton), steps=2, overwrite_output=True)
    assert len(only(read_log(tmp_path / "log.jsonl"), "start")) == 1


def test_a_new_run_refuses_a_folder_with_another_runs_checkpoints(
    beton: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of the old run is touched, until --overwrite-output removes all of it."""
    values = {"data": str(beton), "epochs": 2, "keep": 1, "tail": "pad"}
    train_here(tmp_path, **values)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"holds 1 checkpoint, up to step 14, of another run: .*--resume auto"):
        train_here(tmp_path, **values, lr=0.1)
    elsewhere = tmp_path / "elsewhere"
    train_here(elsewhere, **values)
    with pytest.raises(UsageError, match="of another run"):
        train_here(tmp_path, **values, resume=str(elsewhere / "checkpoints" / "step-00000014"))
    shutil.rmtree(elsewhere)
    assert kept == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    records = train_here(tmp_path, **{**values, "epochs": 1}, overwrite_output=True)
    assert "removed 1 checkpoint of an earlier run" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]
    assert len(only(records, "start")) == 1


def test_going_back_to_an_older_checkpoint_refuses_to_mix_two_histories(beton: Path, tmp_path: Path) -> None:
    values = {"data": str(beton), "epochs": 3, "keep": 9, "tail": "pad"}
    train_here(tmp_path, **values)
    back = str(tmp_path / "checkpoints" / "step-00000007")
    with pytest.raises(
        UsageError, match="2 checkpoints, up to step 21, later than step 7, from which this run resumes"
    ):
        train_here(tmp_path, **values, resume=back)
    train_here(tmp_path, **{**values, "keep": 1}, resume=back, overwrite_output=True)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000021"]


def test_pruning_keeps_what_was_written_last_whatever_its_step(tmp_path: Path) -> None:
    from train.checkpoint import prune_checkpoints

    for number, step in enumerate((90, 100, 5)):
        path = tmp_path / f"step-{step:08d}"
        path.mkdir()
        (path / "meta.json").write_text("{}")
        os.utime(path / "meta.json", (number, number))
    prune_checkpoints(tmp_path, 2, tmp_path / "step-00000005")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000100"]
    prune_checkpoints(tmp_path, 1, tmp_path / "step-00000005")
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def test_resuming_says_which_run_goes_on_and_what_was_changed(
    beton: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"data": str(beton), "epochs": 2, "resume": "auto", "tail": "pad"}
    started = train_here(tmp_path, **values)
    assert "no checkpoint in" in capsys.readouterr().err and len(only(started, "start")) == 1
    train_here(tmp_path, **values, weight_decay=0.1)
    said = capsys.readouterr().err
    assert f"resumed {tmp_path}/checkpoints/step-00000014" in said and "of the run started 20" in said
    assert "changed since that checkpoint: weight_decay 5e-05 -> 0.1\n" in said


def test_two_runs_at_once_into_one_folder_are_refused(beton: Path, tmp_path: Path) -> None:
    from train.output import lock_folder

    with lock_folder(tmp_path), pytest.raises(UsageError, match=rf"another run is writing .*process {os.getpid()} on"):
        train_here(tmp_path, data=str(beton), steps=1)
    train_here(tmp_path, data=str(beton), steps=1)
    assert (tmp_path / "log.jsonl").read_text()


def test_a_run_without_output_says_that_nothing_will_be_saved(beton: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_training(make_options(**{**SMALL, "data": str(beton), "steps": 1}), {}) == 0
    assert "without --output nothing of this run will be saved" in capsys.readouterr().err


@pytest.mark.parametrize("loader", ["beton", "torch"])
def test_a_loss_that_is_no_number_stops_training_and_names_step_and_samples(
    loader: str, beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 10 of 14 breaks; the checkpoint before it stays, and none is written of what came after."""
    from train.step import NetworkCompute

    real, seen = NetworkCompute.micro_batch, []

    def breaking(self: NetworkCompute, batch: Any, **place: Any) -> torch.Tensor:
        seen.append(batch.indices.tolist())
        return real(self, batch, **place) * (float("inf") if place["step"] == 9 else 1.0)

    monkeypatch.setattr(NetworkCompute, "micro_batch", breaking)
    values = {"data": str(beton), "loader": loader, "epochs": 2, "tail": "pad", "log_steps": 4}
    with pytest.raises(BetonError, match=r"the loss of step 10 \(epoch 1\) is inf: .*rank 0: ") as raised:
        train_here(tmp_path, **values)
    assert f"samples: rank 0: {', '.join(map(str, seen[9]))}. Lower" in str(raised.value)
    assert sorted(index for batch in seen[:7] for index in batch) == list(range(NUM_IMAGES))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]
    assert only(read_log(tmp_path / "log.jsonl"), "failed")[0]["step"] == 9


def test_data_that_gives_no_step_is_refused_with_the_way_out(beton: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lower --batch-size or pass --tail pad"):
        train_here(tmp_path, data=str(beton), batch_size=100)
    with pytest.raises(UsageError, match="--num-classes 2 is less than the 3 classes"):
        train_here(tmp_path, data=str(beton), num_classes=2)
    with pytest.raises(UsageError, match="needs a launcher"):
        train_here(tmp_path, data=str(beton), strategy="fsdp")


def test_every_record_is_one_line_of_json(beton: Path, tmp_path: Path) -> None:
    train_here(tmp_path, data=str(beton), steps=2)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert {json.loads(line)["event"] for line in lines} == {"start", "step", "epoch", "checkpoint", "meters", "done"}
