"""Repairing keeps exactly what is sound, says what is lost, and its result verifies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converters.tools.commands import repair as command
from converters.tools.pictures import decode_stored
from converters.tools.repair import repair
from dataloading import ConvertError, Reader, UsageError, verify_file
from tests.converters.tools.making import column, contents, run, run_json, strange_files, write_file
from tests.support.files import jpeg, photo_like
from tests.support.foreign import flip, image_file, patch

NUM = 400


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Large enough for several checksummed blocks of pages."""
    return write_file(tmp_path / "a.beton", [index % 3 for index in range(NUM)], class_names=["x", "y", "z"])


def damage(path: Path, field: str, sample: int) -> list[int]:
    """Flip a bit of a value's stored bytes; returns the samples that verify blames."""
    with Reader(path) as reader:
        flip(path, int(reader.locate(field, [sample])[0][0]) + 3, 2)
    return verify_file(path).samples


def test_damaged_samples_are_left_out_and_listed(file: Path, tmp_path: Path) -> None:
    sound = contents(file)
    lost = damage(file, "image", 77)
    assert 77 in lost and len(lost) < NUM / 2
    facts = run_json(command, file, tmp_path / "o.beton", "-q")
    assert [each["sample"] for each in facts["dropped"]] == lost and facts["blanked"] == []
    assert (facts["num_source_samples"], facts["num_samples"]) == (NUM, NUM - len(lost))
    assert facts["checksums_usable"] and "bytes have changed" in facts["dropped"][0]["reason"]
    assert contents(tmp_path / "o.beton") == [each for index, each in enumerate(sound) if index not in lost]
    assert verify_file(tmp_path / "o.beton", decode=decode_any, decode_all=True).ok
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.extension is not None and reader.extension.class_names == ("x", "y", "z")
        assert reader.extension.provenance["history"][0]["dropped"] == lost


def decode_any(data: object) -> object:
    from dataloading.tools import decode_jpeg

    return decode_jpeg(data)  # type: ignore[arg-type]


def test_zero_keeps_labels_and_undamaged_fields_and_blanks_the_rest(file: Path, tmp_path: Path) -> None:
    sound = contents(file)
    lost = damage(file, "image", 77)
    report = repair(file, tmp_path / "o.beton", zero=True)
    assert report.num_samples == NUM and not report.dropped
    assert [each.sample for each in report.blanked] == lost
    after = contents(tmp_path / "o.beton")
    blanked = {each.sample: each.fields for each in report.blanked}
    with Reader(file) as before, Reader(tmp_path / "o.beton") as reader:
        for index in range(NUM):
            for name in reader.fields:
                if name not in blanked.get(index, ()):
                    assert after[index][name] == sound[index][name], (index, name)
                    continue
                value = reader.value(name, index)
                if name in ("image", "mask", "depth"):
                    old = before.column(name)[index]
                    assert (value.width, value.height) == (old["width"], old["height"])  # type: ignore[attr-defined]
                    assert not decode_stored(value).any()  # type: ignore[arg-type]
                else:
                    empty = {"blob": b"", "meta": None, "text": ""}
                    assert not np.any(value) if name in ("box", "boxes") else value == empty[name]  # type: ignore[arg-type]
    # In the middle of a damaged block all of a sample's values are suspect, at its ends only some are.
    assert set(blanked[77]) == {"image", "blob", "box", "meta", "text", "boxes", "mask", "depth"}


def test_damaged_records_cannot_be_blanked_and_a_file_without_sound_ones_is_not_made(
    file: Path, tmp_path: Path
) -> None:
    with Reader(file) as reader:
        flip(file, reader.header.table_start + 5 * reader.table.dtype.itemsize, 1)
    assert len(verify_file(file).samples) == NUM, "all records lie in one block"
    with pytest.raises(ConvertError, match="none of its 400 samples is sound"):
        repair(file, tmp_path / "o.beton", zero=True)
    assert not (tmp_path / "o.beton").exists() and not strange_files(tmp_path)


def test_records_of_other_blocks_survive(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", list(range(8000)), names=("label", "weight", "blob"))
    with Reader(source) as reader:
        flip(source, reader.header.table_start + 7999 * reader.table.dtype.itemsize, 1)
    report = repair(source, tmp_path / "o.beton")
    kept = column(tmp_path / "o.beton", "label")
    assert 0 < len(kept) < 8000 and kept == list(range(len(kept)))
    assert report.num_samples == len(kept)


def test_sizes_lost_with_the_allocation_table_blank_only_what_needs_them(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [0, 1, 2, 3], names=("image", "label", "box"))
    with Reader(source) as reader:
        flip(source, reader.header.alloc_table_ptr + 16, 0)
    report = repair(source, tmp_path / "o.beton", zero=True)
    assert [(each.sample, each.fields) for each in report.blanked] == [(index, ("image",)) for index in range(4)]
    assert column(tmp_path / "o.beton", "label") == [0, 1, 2, 3]


def test_padding_and_a_sound_file_lose_nothing(file: Path, tmp_path: Path) -> None:
    sound = contents(file)
    repair(file, tmp_path / "o.beton")
    assert contents(tmp_path / "o.beton") == sound
    done = run(command, file, tmp_path / "p.beton", "-q")
    assert done.exit_code == 0 and "was not damaged" in done.stdout
    with Reader(file) as reader:
        flip(file, reader.table_end + 5, 0)
    assert not verify_file(file).ok
    report = repair(file, tmp_path / "q.beton")
    assert report.num_problems == 1 and not report.dropped and contents(tmp_path / "q.beton") == sound


def test_a_damaged_list_of_checksums_is_said_and_replaced(file: Path, tmp_path: Path) -> None:
    with Reader(file) as reader:
        assert reader.locator is not None
        flip(file, (reader.locator.ptr + reader.locator.text_bytes + 15) // 8 * 8, 0)
    done = run(command, file, tmp_path / "o.beton", "-q")
    assert done.exit_code == 0 and "no usable checksums" in done.stderr
    assert contents(tmp_path / "o.beton") == contents(file)
    assert verify_file(tmp_path / "o.beton").ok


def test_a_file_of_ffcv_loses_the_images_that_do_not_decode(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    payloads = [(0, 40, 30, bytes(jpeg(photo_like(rng, 30, 40)).data)) for _ in range(6)]
    path = image_file(tmp_path / "f.beton", payloads, order=range(5, -1, -1))
    with Reader(path) as reader:
        pointers = reader.locate("image", list(range(6)))[0]
    patch(path, int(pointers[3]), b"not a JPEG")
    report = repair(path, tmp_path / "o.beton")
    assert [each.sample for each in report.dropped] == [3] and not report.checksums_usable
    assert column(tmp_path / "o.beton", "label") == [0, 1, 2, 4, 5]
    report = repair(path, tmp_path / "z.beton", zero=True)
    assert [(each.sample, each.fields) for each in report.blanked] == [(3, ("image",))]
    with Reader(tmp_path / "z.beton") as reader:
        assert not decode_stored(reader.value("image", 3)).any()  # type: ignore[arg-type]
        assert column(tmp_path / "z.beton", "label") == list(range(6))


@pytest.mark.parametrize("change", ["head", "cut", "other"])
def test_a_file_that_cannot_be_opened_is_not_repaired(change: str, file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    file.write_bytes({"head": b"\7" + data[1:], "cut": data[:-100], "other": b"no beton at all"}[change])
    with pytest.raises(ConvertError, match=r"a\.beton.*nothing to repair from"):
        repair(file, tmp_path / "o.beton")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.beton"]


def test_repair_writes_only_where_it_may(file: Path, tmp_path: Path) -> None:
    (tmp_path / "o.beton").write_text("mine")
    for target in ("o.beton", "a.beton"):
        with pytest.raises(UsageError):
            repair(file, tmp_path / target)
    with pytest.raises(UsageError, match="is being read"):
        repair(file, file, overwrite=True)
    assert (tmp_path / "o.beton").read_text() == "mine"
    repair(file, tmp_path / "o.beton", overwrite=True)
    assert verify_file(tmp_path / "o.beton").ok
