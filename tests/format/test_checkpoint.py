"""A writer that stops anywhere and is gone on with from its checkpoints comes to the same bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading import BytesField, EncodedImage, FloatField, FormatError, ImageField, IntField, UsageError, Writer
from dataloading.format.checkpoint import Checkpoint
from dataloading.format.verify import verify_file

FIELDS = {"image": ImageField(), "label": IntField(), "note": BytesField(), "weight": FloatField()}


def sample(index: int, size: int) -> dict[str, Any]:
    data = (np.arange(size, dtype=np.uint64) * (2 * index + 1)).astype(np.uint8).tobytes()
    return {
        "image": EncodedImage(0, 1 + index % 70, 2, data),
        "label": index,
        "note": data[: index % 5],
        "weight": index / 2,
    }


def open_writer(path: Path, capacity: int, **options: Any) -> Writer:
    return Writer(path, FIELDS, num_samples=capacity, provenance={"seed": 3}, part=str(path) + ".part", **options)


sizes = st.lists(st.sampled_from([1, 100, 65_536, 70_001, 3 << 20, 9 << 20]), min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), sizes=sizes, spare=st.integers(0, 3))
def test_bytes_are_the_same_wherever_a_writer_stops_and_another_resumes(
    data: Any, sizes: list[int], spare: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, path = Path(folder, "whole.beton"), Path(folder, "pieces.beton")
        capacity = len(sizes) + spare
        with open_writer(whole, capacity) as writer:
            for index, size in enumerate(sizes):
                writer.append(sample(index, size))
        kept: list[bytes] = []
        done = 0
        while True:
            writer = open_writer(path, capacity, checkpoints=kept if kept else None)
            assert writer.num_samples == done
            stop = data.draw(st.integers(done, len(sizes)), label="checkpoint")
            for index in range(done, stop):
                writer.append(sample(index, sizes[index]))
            kept.append(writer.checkpoint())
            writer.sync()
            done = stop
            if done == len(sizes) or not data.draw(st.booleans(), label="stop once more"):
                break
            # What is written behind the checkpoint, even other samples, must leave no trace.
            for index in range(done, min(capacity, done + data.draw(st.integers(0, 3), label="lost"))):
                writer.append(sample(index + 1000, 80_000))
            if data.draw(st.booleans(), label="flushed"):
                writer.checkpoint()
            writer.suspend()
        for index in range(done, len(sizes)):
            writer.append(sample(index, sizes[index]))
        writer.finish()
        assert path.read_bytes() == whole.read_bytes()
        assert verify_file(path).ok
        assert sorted(entry.name for entry in Path(folder).iterdir()) == ["pieces.beton", "whole.beton"]


def test_a_checkpoint_holds_only_what_is_new(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "o.beton", 100)
    lengths = []
    for start in range(0, 90, 30):
        for index in range(start, start + 30):
            writer.append(sample(index, 70_000))
        lengths.append(len(writer.checkpoint()))
    assert lengths[2] < 1.2 * lengths[0]
    writer.abort()


def test_a_changed_part_file_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "o.beton", 10)
    for index in range(5):
        writer.append(sample(index, 70_000))
    kept = [writer.checkpoint()]
    writer.suspend()
    part = Path(str(tmp_path / "o.beton") + ".part")
    data = bytearray(part.read_bytes())
    data[(8 << 20) + 70_000] ^= 1
    part.write_bytes(data)
    with pytest.raises(FormatError, match="does not hold what its checkpoints say"):
        open_writer(tmp_path / "o.beton", 10, checkpoints=kept)
    assert part.read_bytes() == data
    assert not (tmp_path / "o.beton").exists()


def test_arguments_that_differ_from_the_checkpoint_are_refused(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "o.beton", 10)
    writer.append(sample(0, 10))
    kept = [writer.checkpoint()]
    writer.suspend()
    with pytest.raises(UsageError, match="other arguments"):
        open_writer(tmp_path / "o.beton", 11, checkpoints=kept)


def test_a_failed_write_leaves_a_named_part_file_and_removes_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    for part, left in ((str(tmp_path / "mine.part"), ["mine.part"]), (None, [])):
        writer = Writer(tmp_path / "o.beton", FIELDS, num_samples=10, part=part)
        with pytest.raises(OSError, match="No space"):
            writer.append(sample(0, 9 << 20))
        assert [entry.name for entry in tmp_path.iterdir()] == left
        for name in left:
            (tmp_path / name).unlink()


def test_invalid_checkpoint_bytes_are_refused() -> None:
    for data in (b"", b"{}\n", b"[]", b'{"digests": [1, 2, 3], "allocations": 5}\nxx'):
        with pytest.raises(FormatError, match="not a checkpoint"):
            Checkpoint.parse(data)
