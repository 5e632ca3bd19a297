"""A small learnable data set as class folders and as a .beton file, and runs on it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from train.metrics import read_log
from train.options import make_options
from train.trainer import run_training

NUM_IMAGES = 27
COLOURS = ((200, 60, 60), (60, 200, 60), (60, 60, 200))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27 JPEG files in 3 classes of 11, 9 and 7."""
    root = tmp_path_factory.mktemp("folder")
    rng = np.random.default_rng(7)
    for label, count in enumerate((11, 9, 7)):
        directory = root / f"class{label}"
        directory.mkdir()
        for number in range(count):
            height, width = int(rng.integers(40, 60)), int(rng.integers(40, 60))
            smooth = rng.normal(0, 30, (5, 5, 3)).repeat(12, 0).repeat(12, 1)[:height, :width]
            pixels = np.clip(np.array(COLOURS[label]) + smooth, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(directory / f"{number:02}.jpg", quality=90)
    return root


@pytest.fixture(scope="session")
def beton(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same JPEG bytes in the same order, with class names."""
    from dataloading import EncodedImage, ImageField, IntField, Writer

    path = tmp_path_factory.mktemp("file") / "small.beton"
    files = sorted(folder.glob("*/*.jpg"))
    fields = {"image": ImageField(), "label": IntField()}
    names = [directory.name for directory in sorted(folder.iterdir())]
    with Writer(path, fields, num_samples=len(files), class_names=names) as writer:
        for file in files:
            data = file.read_bytes()
            width, height = Image.open(io.BytesIO(data)).size
            image = EncodedImage(mode=0, width=width, height=height, data=data)
            writer.append({"image": image, "label": names.index(file.parent.name)})
    return path


SMALL: dict[str, Any] = {
    "model": "tiny",
    "loader": "torch",
    "batch_size": 4,
    "num_workers": 0,
    "image_size": 32,
    "resize_size": 36,
    "device": "cpu",
    "log_steps": 1,
    "lr": 0.5,
    "scale_lr": False,
    "warmup_epochs": 0.2,
}


def train_here(output: Path, **values: Any) -> list[dict[str, Any]]:
    """Run one training in this process and return its log."""
    threads = torch.get_num_threads()
    status = run_training(make_options(**{**SMALL, "output": str(output), **values}), {})
    assert torch.get_num_threads() == threads
    assert status == 0
    return read_log(output / "log.jsonl")


def losses(records: list[dict[str, Any]]) -> list[float]:
    """Return the loss curve; a step that was logged twice (before a kill, after the resume) counts once."""
    return list({record["step"]: record["loss"] for record in records if record["event"] == "step"}.values())


def only(records: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    """Return the records of one kind."""
    return [record for record in records if record["event"] == event]
