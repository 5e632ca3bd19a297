"""The first bytes of a file: what is accepted, and what each refusal says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from dataloading.errors import FormatError, UsageError
from dataloading.format import IntField, Reader, Writer, layout
from tests.support.foreign import PAGE, descriptor, foreign_file, image_file


def test_structures_have_the_documented_sizes() -> None:
    assert (layout.HEADER.itemsize, layout.DESCRIPTOR.itemsize, layout.ALLOCATION.itemsize) == (24, 1041, 24)
    assert layout.DESCRIPTOR.fields is not None
    assert [layout.DESCRIPTOR.fields[name][1] for name in ("type_id", "name", "arguments")] == [0, 1, 17]


def test_records_align_numbers_but_not_images() -> None:
    image = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])
    record = layout.record_dtype([image, np.dtype("<i8"), image])
    assert record.fields is not None
    assert [record.fields[name][1] for name in ("f0", "f1", "f2")] == [0, 16, 24]
    assert record.itemsize == 40


def test_a_header_survives_the_round_trip() -> None:
    header = layout.Header(num_fields=3, page_size=1 << 22, num_samples=2**40, alloc_table_ptr=2**50)
    raw = header.to_bytes()
    assert raw == struct.pack("<HHIQQ", 2, 3, 1 << 22, 2**40, 2**50)
    assert layout.parse_header(raw, 2**50 + 48, "f") == header


@pytest.mark.parametrize("name", ["", "seventeen_letters", "größe", "a\0b", "tab\t", 3, None])
def test_names_that_cannot_be_stored_are_refused(name: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name"):
        Writer(tmp_path / "x.beton", [(name, IntField())], num_samples=1)  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_16_characters_is_kept_whole(tmp_path: Path) -> None:
    name = "sixteen_letters_"
    with Writer(tmp_path / "x.beton", {name: IntField()}, num_samples=1) as writer:
        writer.append({name: 1})
    assert list(Reader(tmp_path / "x.beton").fields) == [name]


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two fields are named 'a'"):
        Writer(tmp_path / "x.beton", [("a", IntField()), ("a", IntField())], num_samples=1)
    same = [descriptor(1, "a_name_cut_short"), descriptor(1, "a_name_cut_short")]
    path = foreign_file(tmp_path / "y.beton", descriptors=same, records=[bytes(16)], allocations=[], pages=b"")
    with pytest.raises(FormatError, match="two fields are named 'a_name_cut_short'"):
        Reader(path)


@pytest.mark.parametrize("page_size", [0, 1, 1 << 20, (1 << 21) + 1, 3 << 21, 1 << 32, -(1 << 21), 2.0**21, True])
def test_impossible_page_sizes_are_refused(page_size: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="page_size"):
        Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=1, page_size=page_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version"),
        ({"version": 0}, "version"),
        ({"page_size": 3 << 20}, "page size"),
        ({"num_samples": 0}, "no samples"),
        ({"num_samples": 2**61}, "reach byte"),
        ({"alloc_table_ptr": 0}, "never finished"),
        ({"alloc_table_ptr": 2**63}, "outside the file"),
        ({"alloc_table_ptr": 2 * PAGE + 1}, "multiple of 24"),
        ({"descriptors": [descriptor(2, "image"), descriptor(9, "label")]}, "unknown type 9"),
        ({"descriptors": [descriptor(2, "image"), descriptor(1, "")]}, "name"),
    ],
)
def test_an_invalid_header_is_refused_with_the_reason(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(1, 2, 2, bytes(12))], **change)
    with pytest.raises(FormatError, match=message) as caught:
        Reader(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 23, 24, 500, 2105])
def test_a_file_truncated_within_its_header_is_refused(size: int, tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(1, 2, 2, bytes(12))])
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FormatError):
        Reader(path)
