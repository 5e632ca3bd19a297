"""Verifying finds any changed, missing or added bit, and says where in words."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from dataloading.errors import FormatError, UsageError
from dataloading.format import (
    MODE_JPEG,
    BytesField,
    EncodedImage,
    ImageField,
    IntField,
    JSONField,
    NDArrayField,
    Reader,
    Writer,
    verify_file,
)
from tests.support.foreign import PAGE, flip, image_file, noise, patch
from tests.support.huge import make_huge_file

ROOT = Path(__file__).parents[2]


def jpeg(index: int, width: int = 24, height: int = 16) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), index * 7 % 256, np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def decode(data: object) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(bytes(data))) as image:  # type: ignore[call-overload]
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise ValueError("not a JPEG") from None  # Pillow's own message holds an address


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    fields = {"image": ImageField(), "label": IntField(), "box": NDArrayField("f4", (4,)), "text": JSONField()}
    path = tmp_path / "ours.beton"
    with Writer(path, fields, num_samples=90, page_size=PAGE, class_names=["a", "b"]) as writer:
        for index in range(80):
            pixels = np.frombuffer(noise(index, 90 * 60 * 3), np.uint8).reshape(60, 90, 3)
            image = EncodedImage(MODE_JPEG, 24, 16, jpeg(index)) if index % 2 else pixels
            box = np.full(4, index, np.float32)
            writer.append({"image": image, "label": index, "box": box, "text": {"index": index}})
    return path


def test_a_sound_file_is_reported_as_sound(ours: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = verify_file(ours, decode=decode, decode_all=True, progress=lambda done, total: seen.append((done, total)))
    assert report.ok and report.has_checksums and report.complete
    assert (report.num_samples, report.num_decoded, report.num_bytes) == (80, 40, ours.stat().st_size)
    assert seen[-1][0] == seen[-1][1] > 2 * PAGE
    assert "every byte matches" in str(report)
    assert verify_file(ours, decode=decode).num_decoded == 0


def test_every_flipped_bit_is_found_and_none_crashes(ours: Path) -> None:
    """Each bit of the locator and of every region's border bytes, and random ones everywhere."""
    reader = Reader(ours)
    assert reader.locator is not None and reader.extension is not None
    head = reader.header.table_start
    borders = [0, head, reader.table_end, reader.extension.data_start, reader.locator.ptr]
    borders += [reader.locator.ptr + reader.locator.text_bytes, reader.header.alloc_table_ptr, reader.num_bytes]
    rng = np.random.default_rng(0)
    positions = {
        position for border in borders for position in (border - 1, border) if 0 <= position < reader.num_bytes
    }
    positions |= set(range(24 + 1041 - 64, 24 + 1041, 3))
    for low, high in itertools.pairwise(borders):
        positions |= set(rng.integers(low, high, 12).tolist())
    for position in sorted(positions):
        bit = int(rng.integers(8))
        flip(ours, position, bit)
        report = verify_file(ours, num_workers=1)
        assert not report.ok, f"bit {bit} of byte {position} was flipped unnoticed"
        assert str(report)
        flip(ours, position, bit)
    assert verify_file(ours).ok


def test_every_truncation_and_addition_is_found(ours: Path) -> None:
    data = ours.read_bytes()
    rng = np.random.default_rng(0)
    for size in [0, 1, 23, 24, 25, 1064, 1065, len(data) - 1, len(data) - 24, *rng.integers(0, len(data), 15).tolist()]:
        ours.write_bytes(data[:size])
        assert not verify_file(ours).ok, f"cut to {size} bytes unnoticed"
        with pytest.raises(FormatError):
            Reader(ours)
    for extra in (1, 24, 4096):
        ours.write_bytes(data + bytes(extra))
        assert not verify_file(ours).ok, f"{extra} added bytes unnoticed"


def test_damage_names_region_page_and_samples(ours: Path) -> None:
    reader = Reader(ours)
    pointer = int(reader.locate("image", [33])[0][0])
    cases = [
        (pointer, "pages", pointer // PAGE, 33),
        (reader.header.table_start + 50 * reader.table.dtype.itemsize, "sample table", None, 50),
        (reader.header.alloc_table_ptr + 3 * 60 * 24, "allocation table", None, 60),
    ]
    for position, region, page, sample in cases:
        flip(ours, position, 2)
        report = verify_file(ours)
        first = report.problems[0]
        assert first.region == region and first.page == page, str(report)
        assert first.start <= position < first.stop and first.stop - first.start <= 1 << 16
        assert sample in report.samples and len(report.samples) <= 80
        assert "touches sample" in str(report)
        flip(ours, position, 2)
    flip(ours, reader.table_end + 5, 0)
    [problem] = verify_file(ours).problems
    assert problem.region == "padding" and problem.start == reader.table_end + 5 and problem.samples == ()


def test_damage_in_one_block_names_no_samples_of_another(ours: Path) -> None:
    reader = Reader(ours)
    flip(ours, int(reader.locate("image", [70])[0][0]) + 100, 1)
    touched = verify_file(ours).samples
    assert 70 in touched and 0 not in touched and len(touched) < 12


def test_decoding_finds_the_one_sample_of_a_changed_jpeg(ours: Path) -> None:
    pointer = int(Reader(ours).locate("image", [33])[0][0])
    patch(ours, pointer, bytes(20))
    report = verify_file(ours, decode=decode)
    assert [problem.region for problem in report.problems] == ["pages", "samples"]
    assert report.problems[1].samples == ((33, 34),) and "'image'" in report.problems[1].message
    assert 0 < report.num_decoded < 40


def test_a_wiped_locator_still_leaves_a_file_whose_structure_is_checked(ours: Path) -> None:
    """Sixty-four zeroed bytes turn a file of ours into one of FFCV; that is the price of staying readable for it."""
    patch(ours, 24 + 1041 - 64, bytes(64))
    report = verify_file(ours)
    assert report.ok and not report.has_checksums


def test_a_file_of_ffcv_is_checked_by_structure_and_decoding(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(0, 24, 16, jpeg(index)) for index in range(10)], order=range(9, -1, -1))
    report = verify_file(path, decode=decode)
    assert report.ok and not report.has_checksums and report.num_decoded == 10
    pointer = int(Reader(path).locate("image", [4])[0][0])
    patch(path, pointer, b"not a JPEG")
    report = verify_file(path, decode=decode)
    assert [(problem.region, problem.samples) for problem in report.problems] == [("samples", ((4, 5),))]
    assert verify_file(path).ok, "without a decoder only the structure can be checked"


def test_a_jpeg_of_another_size_than_declared_is_found(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(0, 24, 16, jpeg(0)), (0, 16, 24, jpeg(1))])
    [problem] = verify_file(path, decode=decode).problems
    assert problem.samples == ((1, 2),) and "24x16 pixels, its record declares 16x24" in problem.message


TABLE, ALLOCATIONS = 24 + 2 * 1041, 2 * PAGE


@pytest.mark.parametrize(
    ("position", "data", "message"),
    [
        (TABLE + 5, (3 * PAGE).to_bytes(8, "little"), "no allocation starts at its pointer"),
        (TABLE + 5, b"\xff" * 8, "no allocation starts at its pointer"),
        (TABLE, b"\x07", "mode"),
        (TABLE, b"\x01", "declares 1,152 bytes where the allocation table has"),
        (ALLOCATIONS, b"\xff" * 8, "belongs to no sample"),
        (ALLOCATIONS + 8, b"\xff" * 8, "outside the pages"),
        (ALLOCATIONS + 16, b"\xff" * 8, "outside the pages"),
        (ALLOCATIONS + 8, (PAGE + 10).to_bytes(8, "little"), "overlaps that of sample 0"),
        (ALLOCATIONS + 24 + 8, (PAGE + 10).to_bytes(8, "little"), "overlaps that of sample 0"),
    ],
)
def test_structural_faults_are_found_without_checksums(
    position: int, data: bytes, message: str, tmp_path: Path
) -> None:
    path = image_file(tmp_path / "x.beton", [(0, 24, 16, jpeg(index)) for index in range(6)])
    assert verify_file(path).ok
    patch(path, position, data)
    assert message in str(verify_file(path))


def test_an_allocation_across_pages_is_found(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(0, 9, 9, bytes(PAGE - 10)), (0, 9, 9, bytes(100))])
    raw = path.read_bytes()
    entries = raw[-48:]
    path.write_bytes(raw[:-48].ljust(3 * PAGE, b"\0") + entries)
    patch(path, 16, (3 * PAGE).to_bytes(8, "little"))
    [problem] = verify_file(path).problems
    assert "crosses the border of a page" in problem.message and problem.samples == ((1, 2),)


def test_json_text_is_checked_in_files_without_checksums(ours: Path) -> None:
    pointer = int(Reader(ours).locate("text", [12])[0][0])
    patch(ours, 24 + 1041 - 64, bytes(64))
    patch(ours, pointer, b"?")
    [problem] = verify_file(ours).problems
    assert problem.samples == ((12, 13),) and "JSON" in problem.message


def test_verify_stops_after_the_maximum_number_of_problems(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(1, 2, 2, bytes(12))] * 50)
    patch(path, TABLE, bytes([9]) * 24 * 50)
    report = verify_file(path, max_problems=7)
    assert len(report.problems) == 7 and not report.complete and "perhaps more" in str(report)


def test_a_file_of_another_format_is_reported_and_a_missing_one_raises(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello" * 1000)
    report = verify_file(tmp_path / "x.txt")
    assert not report.ok and report.num_samples == 0 and "version" in str(report)
    with pytest.raises(FileNotFoundError):
        verify_file(tmp_path / "none.beton")
    with pytest.raises(UsageError, match="num_workers"):
        verify_file(tmp_path / "x.txt", num_workers=0)


def test_a_disk_that_fails_while_reading_is_reported(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, buffers: object, position: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    report = verify_file(ours)
    assert not report.ok and "Input/output error" in str(report)


def test_the_report_does_not_depend_on_the_number_of_threads(ours: Path) -> None:
    reader = Reader(ours)
    for sample in (3, 30, 60):
        flip(ours, int(reader.locate("image", [sample])[0][0]) + 2, 3)
    reports = {str(verify_file(ours, decode=decode, num_workers=workers)) for workers in (1, 2, 5)}
    assert len(reports) == 1


def test_memory_stays_bounded_while_verifying(tmp_path: Path) -> None:
    """A file of half a gigabyte, whose own checksums are wrong on purpose: reading it all must not keep it."""
    path = make_huge_file(tmp_path / "x.beton", 4000, side=200, filled=True, with_extension=True)
    code = f"""
import resource
from dataloading.format import verify_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = verify_file({str(path)!r}, num_workers=2)
assert not report.ok and report.num_bytes > 500_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert int(out.stdout) < 150_000, f"{out.stdout} KiB"


def test_a_file_of_integers_alone_is_sound(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.beton", {"i": IntField(), "e": BytesField()}, num_samples=3) as writer:
        for index in range(3):
            writer.append({"i": index, "e": b""})
    with Writer(tmp_path / "y.beton", {"i": IntField()}, num_samples=3) as writer:
        writer.append({"i": -1})
    assert verify_file(tmp_path / "x.beton").ok and verify_file(tmp_path / "y.beton").ok
