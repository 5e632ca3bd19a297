"""One flipped bit anywhere is found with the samples it touches; a file cut anywhere is refused; never other data.

What a bit touches is worked out here from the documented layout, not asked of the library.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataloading.errors import BetonError, FormatError
from dataloading.format import (
    BytesField,
    EncodedImage,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    Reader,
    TextField,
    VarArrayField,
    Writer,
    verify_file,
)
from tests.support.files import jpeg, photo_like
from tests.support.foreign import PAGE, image_file

NUM = 120
TRIALS = 1000


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of field; half a megabyte of pages, so that damage touches some samples and not others."""
    path = tmp_path_factory.mktemp("flips") / "x.beton"
    fields = {
        "image": ImageField(),
        "label": IntField(),
        "weight": FloatField(),
        "blob": BytesField(),
        "box": NDArrayField("f4", (4,)),
        "meta": JSONField(),
        "text": TextField(),
        "boxes": VarArrayField("i2", (None, 2)),
        "mask": MaskField(),
    }
    rng = np.random.default_rng(0)
    with Writer(path, fields, num_samples=NUM + 5, page_size=PAGE, class_names=["a", "b"]) as writer:
        for index in range(NUM):
            pixels = photo_like(rng, 40, 50)
            writer.append(
                {
                    "image": pixels if index % 2 else jpeg(pixels),
                    "label": index,
                    "weight": index / 3,
                    "blob": bytes(index % 9),
                    "box": np.full(4, index, np.float32),
                    "meta": {"index": index},
                    "text": f"number {index}",
                    "boxes": np.full((index % 4, 2), index, np.int16),
                    "mask": pixels[..., 0],
                }
            )
    assert verify_file(path, num_workers=1).ok
    return path


class Layout:
    """Which bytes belong to what, from the documented structure alone."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        header = np.frombuffer(data[:24], "<u2,<u2,<u4,<u8,<u8")[0]
        num_fields, self.num_samples, self.allocations = int(header[1]), int(header[3]), int(header[4])
        locator = np.frombuffer(data[24 + 1041 - 64 : 24 + 1041], "S8,<u4,<u4,<u8,<u8,<u8,<u8,<u8,<u8")[0]
        self.table, self.extension = 24 + 1041 * num_fields, int(locator[3])
        self.text_end = self.extension + int(locator[4])
        self.num_bytes = len(data)
        with Reader(path) as reader:
            self.record_bytes = reader.table.dtype.itemsize
        self.entries = np.frombuffer(data[self.allocations :], "<u8,<u8,<u8")
        self.table_end = self.table + self.num_samples * self.record_bytes
        self.pages = PAGE

    def regions(self) -> dict[str, tuple[int, int]]:
        end = int(max(pointer + size for _, pointer, size in self.entries.tolist()))
        return {
            "header": (0, 24),
            "descriptors": (24, self.table),
            "locator": (24 + 1041 - 64, 24 + 1041),
            "table": (self.table, self.table_end),
            "gap": (self.table_end, self.pages),
            "values": (self.pages, end),
            "after the values": (end, self.extension),
            "text": (self.extension, self.text_end),
            "checksums": (self.text_end, self.text_end + 2048),
            "after the checksums": (self.text_end + 2048, self.allocations),
            "allocations": (self.allocations, self.num_bytes),
        }

    def touched(self, position: int) -> set[int]:
        if self.table <= position < self.table_end:
            return {(position - self.table) // self.record_bytes}
        if position >= self.allocations:
            return {int(self.entries[(position - self.allocations) // 24][0])}
        return {owner for owner, pointer, size in self.entries.tolist() if pointer <= position < pointer + size}


def values(reader: Reader, index: int) -> Iterator[tuple[str, object]]:
    for name in reader.fields:
        value = reader.value(name, index)
        if isinstance(value, EncodedImage):
            value = (value.mode, value.width, value.height, bytes(value.data))
        yield name, value.tobytes() if isinstance(value, np.ndarray) else value


def all_values(path: Path) -> list[dict[str, object]]:
    with Reader(path) as reader:
        return [dict(values(reader, index)) for index in range(reader.num_samples)]


def test_each_of_a_thousand_flipped_bits_is_found_with_the_samples_it_touches(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.beton"
    path.write_bytes(sound.read_bytes())
    layout, original = Layout(sound), all_values(sound)
    rng = np.random.default_rng(1)
    regions = list(layout.regions().values())
    assert all(start < stop for start, stop in regions)
    # Half of them anywhere in the file, half shared out among its regions, some of which are small.
    positions = rng.integers(0, layout.num_bytes, TRIALS // 2).tolist()
    positions += [int(rng.integers(*regions[trial % len(regions)])) for trial in range(TRIALS - len(positions))]
    unreadable = 0
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for position in positions:
            bit = 1 << int(rng.integers(8))
            data[position] ^= bit
            report = verify_file(path, num_workers=1)
            where = f"bit {bit} of byte {position}"
            assert not report.ok, f"{where} was flipped unnoticed"
            assert str(report)
            try:
                reader = Reader(path)
            except FormatError as error:
                assert str(path) in str(error)
                unreadable += 1
            else:
                blamed = set(report.samples)
                touched = layout.touched(position)
                assert touched <= blamed, f"{where} touches {touched}, blamed are {sorted(blamed)}"
                assert touched or len(blamed) < NUM, f"{where} touches nothing, yet all samples are blamed"
                # What is not blamed is as it was; a few of them each time, all of them over the trials.
                for index in rng.choice(NUM, 4, replace=False).tolist():
                    if index not in blamed:
                        assert dict(values(reader, index)) == original[index], (
                            f"{where} changed sample {index} unblamed"
                        )
                for index in touched:
                    try:
                        list(values(reader, index))
                    except BetonError as error:
                        assert f"sample {index}" in str(error)
                reader.close()
            data[position] ^= bit
    assert 50 < unreadable < TRIALS / 2
    assert verify_file(path, num_workers=1).ok, "every bit was put back"


def test_a_file_truncated_at_any_of_two_hundred_positions_is_refused(sound: Path, tmp_path: Path) -> None:
    data = sound.read_bytes()
    layout = Layout(sound)
    rng = np.random.default_rng(2)
    borders = [edge for region in layout.regions().values() for edge in region if edge < len(data)]
    rows = [len(data) - 24 * count for count in (1, 2, 9, NUM)]
    places = [*borders, *rows]
    places += rng.integers(0, len(data), 200 - len(places)).tolist()
    assert len(places) == 200
    path = tmp_path / "x.beton"
    path.write_bytes(data)
    for size in sorted(places, reverse=True):
        with open(path, "r+b") as file:
            file.truncate(size)
        with pytest.raises(FormatError, match=r"x\.beton: "):
            Reader(path)
        report = verify_file(path, num_workers=1)
        assert not report.ok and report.num_samples == 0 and str(report)


def test_a_truncated_ffcv_file_is_refused_or_its_damaged_samples_are_named(tmp_path: Path) -> None:
    """Without checksums and a recorded length: the table at the end is what is missing first."""
    rng = np.random.default_rng(3)
    payloads = [(0, 50, 40, bytes(jpeg(photo_like(rng, 40, 50)).data)) for _ in range(40)]
    path = image_file(tmp_path / "x.beton", payloads)
    data = path.read_bytes()
    start = len(data) - 24 * 40
    places = [len(data) - 24 * count for count in range(1, 41)] + [start - 1, PAGE, 24, 23, 0]
    places += rng.integers(0, len(data), 200 - len(places)).tolist()
    for size in sorted(places, reverse=True):
        with open(path, "r+b") as file:
            file.truncate(size)
        report = verify_file(path, num_workers=1)
        assert not report.ok, f"cut to {size} of {len(data)} bytes unnoticed"
        try:
            reader = Reader(path)
        except FormatError:
            continue
        # Whole entries are missing: exactly the samples without one are blamed, and cannot be read.
        missing = set(range((size - start) // 24, 40))
        assert set(report.samples) == missing
        for index in range(40):
            if index in missing:
                with pytest.raises(FormatError, match=f"sample {index}"):
                    reader.view("image", index)
            else:
                assert reader.view("image", index).tobytes() == payloads[index][3]
        reader.close()
