"""Files written long ago are read as they were meant, and equal input still gives equal bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dataloading.format import MODE_JPEG, MODE_RAW, EncodedImage, Reader, verify_file
from tests.golden.make import COUNT, HERE, PAGE, sample, write_ours


@pytest.fixture(params=["beton-1", "ffcv-1.0.2"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.beton"
    path.write_bytes(gzip.decompress((HERE / f"{request.param}.beton.gz").read_bytes()))
    return path


def test_every_value_is_the_one_that_was_written(golden: Path) -> None:
    reader = Reader(golden)
    ours = golden.name.startswith("beton")
    assert (reader.num_samples, reader.page_size) == (COUNT, PAGE)
    for index in range(COUNT):
        for name, expected in sample(index).items():
            got = reader.value(name, index)
            if name == "image":
                assert isinstance(got, EncodedImage)
                if ours and index % 2:
                    assert (got.mode, got.width, got.height) == (MODE_JPEG, 6, 4)
                    assert bytes(got.data) == (HERE / "tiny.jpg").read_bytes()
                else:
                    assert (got.mode, got.width, got.height) == (MODE_RAW, 5, 4)
                    assert bytes(got.data) == expected.tobytes()
            elif isinstance(expected, np.ndarray):
                assert isinstance(got, np.ndarray) and got.dtype == expected.dtype and np.array_equal(got, expected)
            else:
                assert got == expected and type(got) is type(expected)


def test_a_golden_file_is_sound(golden: Path) -> None:
    report = verify_file(golden)
    assert report.ok and report.has_checksums == golden.name.startswith("beton"), str(report)


def test_the_golden_extension_has_the_recorded_content(tmp_path: Path) -> None:
    (tmp_path / "x.beton").write_bytes(gzip.decompress((HERE / "beton-1.beton.gz").read_bytes()))
    extension = Reader(tmp_path / "x.beton").extension
    assert extension is not None and extension.writer == "beton 1"
    assert extension.class_to_idx == {"cat": 0, "größer als eine Maus": 1}
    assert extension.provenance == {"source": "golden", "options": {"quality": 90}}
    assert extension.facts["image"]["restart_markers"] is False
    assert (extension.facts["image"]["num_jpeg"], extension.facts["image"]["num_raw"]) == (4, 5)


def test_our_writer_still_makes_the_same_bytes(tmp_path: Path) -> None:
    write_ours(tmp_path / "x.beton")
    assert (tmp_path / "x.beton").read_bytes() == gzip.decompress((HERE / "beton-1.beton.gz").read_bytes())
