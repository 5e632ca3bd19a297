"""Files made to break the reader: it answers with FormatError, never with a crash, a hang or foreign memory."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataloading.errors import BetonError, FormatError
from dataloading.format import (
    BytesField,
    EncodedImage,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    NDArrayField,
    Reader,
    Writer,
    extension,
    verify_file,
)
from tests.support.foreign import PAGE, array_arguments, descriptor, foreign_file, image_file, patch

EXTREMES = [0, 1, 2, 23, 24, 255, 2**16 - 1, PAGE, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


def read_all(path: Path) -> None:
    """Open, read every value, verify; any refusal must be one of this project's errors."""
    report = verify_file(path, num_workers=1)
    str(report)
    try:
        reader = Reader(path)
    except FormatError:
        assert not report.ok
        return
    lowest, highest = reader.base_address, reader.base_address + reader.num_bytes
    for name, field in reader.fields.items():
        reader.column(name)[:10].tolist()
        for index in range(min(reader.num_samples, 8)):
            try:
                if field.has_data:
                    view = reader.view(name, index)
                    assert view.size == 0 or lowest <= view.ctypes.data <= view.ctypes.data + view.size <= highest
                reader.value(name, index)
            except BetonError as error:
                assert f"sample {index}" in str(error)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with every kind of field whose locator is wiped: as in FFCV's, nothing but structure protects it."""
    path = tmp_path_factory.mktemp("sound") / "x.beton"
    fields = {
        "image": ImageField(),
        "i": IntField(),
        "f": FloatField(),
        "b": BytesField(),
        "a": NDArrayField("f4", (2, 3)),
        "j": JSONField(),
    }
    with Writer(path, fields, num_samples=8, page_size=PAGE) as writer:
        for index in range(8):
            image = EncodedImage(0, 8, 8, b"\xff\xd8 jpeg") if index % 2 else np.zeros((4, 5, 3), np.uint8)
            array = np.zeros((2, 3), np.float32)
            writer.append({"image": image, "i": index, "f": float("nan"), "b": b"xy", "a": array, "j": [index]})
    patch(path, extension.LOCATOR_POSITION, bytes(64))
    data = path.read_bytes()
    path.write_bytes(data)
    read_all(path)
    assert verify_file(path).ok
    return data


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("value", EXTREMES)
def test_any_header_value_reads_or_is_a_format_error(offset: int, value: int, sound: bytes, tmp_path: Path) -> None:
    code, position = [("H", 0), ("H", 2), ("I", 4), ("Q", 8), ("Q", 16)][offset]
    limit = {"H": 2**16, "I": 2**32, "Q": 2**64}[code]
    path = tmp_path / "x.beton"
    path.write_bytes(sound)
    read_all(patch(path, position, struct.pack(f"<{code}", value % limit)))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_change_to_the_tables_reads_or_is_a_format_error(data: st.DataObject, sound: bytes) -> None:
    """Random bytes over random places of the descriptors, the sample table and the allocation table."""
    table_end = 24 + 6 * 1041 + 8 * 88
    rows = len(sound) - 4 * 8 * 24
    changed = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        low, high = data.draw(st.sampled_from([(0, 24), (24, table_end), (6270, table_end), (rows, len(sound))]))
        position = data.draw(st.integers(low, high - 1))
        piece = data.draw(
            st.binary(min_size=1, max_size=9) | st.sampled_from([number.to_bytes(8, "little") for number in EXTREMES])
        )
        changed[position : position + len(piece)] = piece
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.beton"
        path.write_bytes(changed[: len(sound)])
        read_all(path)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=3000), version=st.booleans())
def test_any_bytes_read_or_are_a_format_error(raw: bytes, version: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.beton"
        path.write_bytes(b"\x02\0\x01\0\0\0\x20\0" + raw if version else raw)
        read_all(path)


def test_more_samples_in_the_header_than_in_the_file_are_refused(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(1, 2, 2, bytes(12))] * 4, num_samples=5)
    with pytest.raises(FormatError, match="sample 4"):
        Reader(path).view("image", 4)
    assert "sample 4" in str(verify_file(path))


def test_fewer_samples_in_the_header_than_in_the_file_are_refused(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(1, 2, 2, bytes(12))] * 4, num_samples=3)
    assert "belongs to no sample" in str(verify_file(path))


def test_a_shared_pointer_is_an_overlap(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(1, 2, 2, bytes(12))] * 4)
    patch(path, 24 + 2 * 1041 + 24 * 2 + 5, PAGE.to_bytes(8, "little"))
    patch(path, 2 * PAGE + 24 * 2 + 8, PAGE.to_bytes(8, "little"))
    assert "overlaps" in str(verify_file(path))


def test_an_empty_allocation_table_is_refused(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(0, 2, 2, bytes(12))] * 4, allocations=[])
    with pytest.raises(FormatError, match="sample 0"):
        Reader(path).locate("image", [0])
    assert not verify_file(path).ok


def test_arrays_larger_than_the_file_are_refused(tmp_path: Path) -> None:
    for shape in [(2**40,), (2**62, 2**62), (2**64 - 1,)]:
        path = foreign_file(
            tmp_path / "x.beton",
            descriptors=[descriptor(4, "a", array_arguments("<f8", shape))],
            records=[PAGE.to_bytes(8, "little")],
            allocations=[(0, PAGE, 8)],
            pages=bytes(PAGE),
        )
        with pytest.raises(FormatError, match="'a'"):
            Reader(path)


def test_json_nested_deeper_than_the_recursion_limit_is_refused(tmp_path: Path) -> None:
    text = b"[" * 200_000 + b"\0"
    path = foreign_file(
        tmp_path / "x.beton",
        descriptors=[descriptor(5, "j")],
        records=[struct.pack("<QQ", PAGE, len(text))],
        allocations=[(0, PAGE, len(text))],
        pages=text.ljust(PAGE, b"\0"),
    )
    with pytest.raises(FormatError, match="sample 0, field 'j'"):
        Reader(path).value("j", 0)
    assert not verify_file(path).ok


def forged(path: Path, **changes: object) -> Path:
    """A file whose locator carries other values under a right checksum: made by hand, not by accident."""
    with Writer(path, {"i": IntField()}, num_samples=1, page_size=PAGE) as writer:
        writer.append({"i": 1})
    reader = Reader(path)
    assert reader.locator is not None
    values = {name: getattr(reader.locator, name) for name in ("ptr", "text_bytes", "text_xxh3", "header_xxh3")}
    text = changes.pop("text", None)
    if isinstance(text, bytes):
        patch(path, reader.locator.ptr, text)
        changes |= {"text_bytes": len(text), "text_xxh3": extension.digest(text)}
    finished = changes.pop("finished", True)
    options = {**values, "file_bytes": path.stat().st_size, **changes}
    locator = extension.Locator(**options, finished=bool(finished))  # type: ignore[arg-type]
    return patch(path, extension.LOCATOR_POSITION, locator.to_bytes())


@pytest.mark.parametrize(
    "changes",
    [
        {"ptr": 0},
        {"ptr": 2**64 - 1},
        {"text_bytes": 2**63},
        {"text_bytes": 0},
        {"text_xxh3": 1},
        {"header_xxh3": 1},
        {"file_bytes": 7},
        {"finished": False},
        {"text": b"[]"},
        {"text": b"{}"},
        {"text": b"[" * 5000},
        {"text": b'{"class_names": 3}'},
        {"text": b"\xff\xff"},
    ],
)
def test_a_forged_locator_or_text_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    path = forged(tmp_path / "x.beton", **changes)
    with pytest.raises(FormatError):
        Reader(path)
    assert not verify_file(path).ok


def test_an_extension_of_a_later_version_asks_for_an_update(tmp_path: Path) -> None:
    path = forged(tmp_path / "x.beton")
    raw = bytearray(path.read_bytes()[extension.LOCATOR_POSITION :][:56])
    raw[8] = 2
    patch(path, extension.LOCATOR_POSITION, bytes(raw) + extension.digest(bytes(raw)).to_bytes(8, "little"))
    with pytest.raises(FormatError, match=r"version 2.*update"):
        Reader(path)
