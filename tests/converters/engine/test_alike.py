"""Samples that are converted together give the bytes and the report of samples that are converted one by one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import converters
from converters import ImagePolicy, Options, convert
from converters.sources.arrays import Arrays
from dataloading import ConvertError, FloatField, ImageField, IntField, NDArrayField, Reader

NUM = 3000
FIELDS = {"image": ImageField(), "label": IntField(), "weight": FloatField(), "points": NDArrayField("float32", (2,))}


class Samples:
    """Small images and numbers; ``as_objects`` as Pillow images and tensors, which are converted one by one."""

    def __init__(self, *, as_objects: bool) -> None:
        self._as_objects = as_objects
        self._buffer = np.zeros((8, 6, 3), np.uint8)  # filled anew for each sample

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> Any:
        if index % 500 == 7:
            raise ValueError("no such sample")
        image = self._buffer
        image[:] = np.arange(3) + index % 200
        if index % 400 == 9:
            image = np.full((5, 4, 3), index % 256, np.uint8)
        points = np.array([index, 0.5], np.float32)
        label = True if index % 700 == 3 else index if index % 2 else np.int64(-index)
        if self._as_objects:
            return Image.fromarray(image), label, index / 7, torch.from_numpy(points)
        return image, label, index / 7, points


@pytest.mark.parametrize("num_workers", [0, 2, None])
def test_arrays_give_the_bytes_and_the_report_of_objects(tmp_path: Path, num_workers: int | None) -> None:
    def written(name: str, as_objects: bool, workers: int | None) -> tuple[bytes, Any]:
        report = converters.write(
            Samples(as_objects=as_objects), tmp_path / name, FIELDS, mode="raw", on_error="skip", quiet=True,
            page_size=2 << 20, num_workers=workers, class_names=[],
        )  # fmt: skip
        return (tmp_path / name).read_bytes(), report

    expected, of_objects = written("objects.beton", as_objects=True, workers=0)
    found, of_arrays = written("arrays.beton", as_objects=False, workers=num_workers)
    assert found == expected
    assert of_arrays.images == of_objects.images == {"raw": NUM - 6}
    assert [item.index for item in of_arrays.skipped] == list(range(7, NUM, 500))
    assert of_arrays.skipped == of_objects.skipped


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_on_disk_give_their_values_in_the_order_of_the_file(tmp_path: Path, shuffle: bool) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (NUM, 6, 4, 3), dtype=np.uint8)
    emb = np.asfortranarray(rng.normal(size=(NUM, 2, 3)).astype(np.float32))
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(NUM, dtype=">i2")[:, None], emb=emb)
    options = Options(shuffle=shuffle, num_workers=2)
    report = convert(
        Arrays([str(tmp_path / "a.npz")]), tmp_path / "a.beton", policy=ImagePolicy(mode="raw"), options=options
    )
    assert (report.num_samples, report.num_workers) == (NUM, 0)
    assert "no worker processes" in str(report)
    with Reader(tmp_path / "a.beton") as reader:
        labels = np.asarray(reader.column("label"))
        assert sorted(labels.tolist()) == list(range(NUM))
        assert (labels.tolist() == list(range(NUM))) is not shuffle
        for place in range(0, NUM, 97):
            assert (reader.view("image", place) == images[labels[place]].reshape(-1)).all()
            np.testing.assert_array_equal(reader.value("emb", place), emb[labels[place]])


class Deadly(Samples):
    def __getitem__(self, index: int) -> Any:
        if index == 1234:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros((8, 6, 3), np.uint8), 0, 0.0, np.zeros(2, np.float32)


def test_a_sample_that_kills_its_worker_among_others_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"SIGKILL.*on sample 1234 "):
        converters.write(Deadly(as_objects=False), tmp_path / "a.beton", FIELDS, mode="raw", num_workers=1, quiet=True)


class Large(Samples):
    def __getitem__(self, index: int) -> Any:
        return np.zeros((8, 6, 3), np.uint8), 1 << 70 if index == 60 else 0, 0.0, np.zeros(2, np.float32)


def test_a_value_that_does_not_fit_among_others_is_named_with_its_sample(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"sample 60 .*field 'label'.*does not fit 64 bits"):
        converters.write(Large(as_objects=False), tmp_path / "a.beton", FIELDS, mode="raw", num_workers=0, quiet=True)


class Interrupted:
    """Gives samples until ``stop``, where Ctrl-C comes."""

    stop: int | None = None

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> Any:
        if index == self.stop:
            raise KeyboardInterrupt
        return np.full((32, 32, 3), index % 251, np.uint8), index


def test_an_interrupted_conversion_of_small_samples_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    fields = {"image": ImageField(), "label": IntField()}
    options: dict[str, Any] = {"mode": "raw", "quiet": True}
    dataset = Interrupted()
    converters.write(dataset, tmp_path / "whole.beton", fields, num_workers=0, **options)
    dataset.stop = 4001
    with pytest.raises(KeyboardInterrupt):
        converters.write(dataset, tmp_path / "a.beton", fields, num_workers=0, checkpoint_seconds=0.001, **options)
    dataset.stop = None
    report = converters.write(dataset, tmp_path / "a.beton", fields, resume=True, **options)
    assert 0 < report.num_resumed <= 4001
    assert (tmp_path / "a.beton").read_bytes() == (tmp_path / "whole.beton").read_bytes()
