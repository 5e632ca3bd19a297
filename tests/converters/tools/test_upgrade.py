"""Upgrading adds markers, checksums and names and changes no pixel, whatever the number of workers."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from converters.tools.commands import upgrade as command
from converters.tools.diff import compare
from converters.tools.upgrade import read_class_names, upgrade
from dataloading import ConvertError, Reader, UsageError, verify_file
from dataloading.tools import decode_jpeg, probe_jpeg
from tests.converters.tools.making import FFCVS, column, run, run_json, sample, strange_files, write_file
from tests.support.files import jpeg, photo_like
from tests.support.foreign import image_file, noise, patch


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """As FFCV with several workers leaves it: no extension, the allocation table in any order."""
    rng = np.random.default_rng(0)
    payloads = [(0, 300, 200, bytes(jpeg(photo_like(rng, 200, 300)).data)) for _ in range(20)]
    payloads[7] = (1, 8, 6, noise(1, 8 * 6 * 3))
    return image_file(tmp_path / "theirs.beton", payloads, order=[*range(10, 20), *range(10)])


def test_jpegs_get_restart_markers_and_keep_their_pixels(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("".join(f"class {label}\n" for label in range(20)))
    facts = run_json(command, theirs, tmp_path / "o.beton", "--class-names", tmp_path / "names.txt", "-q",
                     "--num-workers", 0)  # fmt: skip
    assert (facts["num_recoded"], facts["num_kept"], facts["num_classes"]) == (19, 1, 20)
    report = compare(theirs, tmp_path / "o.beton")
    assert report.same and report.images["equal_pixels"] == 19 and report.images["equal_bytes"] == 1
    assert verify_file(tmp_path / "o.beton", decode=decode_jpeg, decode_all=True).has_checksums
    with Reader(tmp_path / "o.beton") as reader:
        assert probe_jpeg(reader.view("image", 3)).restart_interval > 0
        assert reader.extension is not None and reader.extension.class_names is not None
        assert reader.extension.class_names[19] == "class 19"


def test_the_bytes_do_not_depend_on_the_number_of_workers(theirs: Path, tmp_path: Path) -> None:
    for workers in (0, 1, 2):
        upgrade(theirs, tmp_path / f"{workers}.beton", num_workers=workers)
    assert len({(tmp_path / f"{workers}.beton").read_bytes() for workers in (0, 1, 2)}) == 1


def test_a_file_of_ours_with_every_kind_of_field_can_be_upgraded_and_upgrading_twice_changes_no_image(
    tmp_path: Path,
) -> None:
    source = write_file(tmp_path / "a.beton", list(range(20)))
    upgrade(source, tmp_path / "b.beton")
    upgrade(tmp_path / "b.beton", tmp_path / "c.beton")
    assert compare(source, tmp_path / "b.beton").same
    assert compare(tmp_path / "b.beton", tmp_path / "c.beton", level="bytes").same


def test_class_names_come_from_a_folder_as_imagefolder_numbers_them(tmp_path: Path) -> None:
    for name in ("b", "a", "10"):
        (tmp_path / "src" / name).mkdir(parents=True)
    (tmp_path / "src" / "file.txt").write_text("x")
    assert read_class_names(like=str(tmp_path / "src")) == ["10", "a", "b"]
    with pytest.raises(UsageError, match="no sub-folders"):
        read_class_names(like=str(tmp_path / "src" / "a"))


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"", "one class name per line"), (b"a\n\nb\n", "one class name per line"), (b"\xff\xfe", "not UTF-8"),
     (b"a\nb\n", "labels from 0 to 19, which 2 class names"), (b"a\n" * 20, "more than once")],
)  # fmt: skip
def test_class_names_that_do_not_fit_are_refused(text: bytes, message: str, theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes(text)
    with pytest.raises(UsageError, match=message):
        upgrade(theirs, tmp_path / "o.beton", class_names=read_class_names(file=str(tmp_path / "names.txt")))
    assert not (tmp_path / "o.beton").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_stops_it_and_is_named(workers: int, theirs: Path, tmp_path: Path) -> None:
    with Reader(theirs) as reader:
        pointer = int(reader.locate("image", [17])[0][0])
    patch(theirs, pointer, b"not a JPEG")
    with pytest.raises(ConvertError, match=r"sample 17, field 'image' of .*theirs\.beton.*`beton repair`"):
        upgrade(theirs, tmp_path / "o.beton", num_workers=workers)
    assert not (tmp_path / "o.beton").exists() and not strange_files(tmp_path)


def test_only_one_way_to_give_names(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("a\n")
    done = run(command, theirs, tmp_path / "o", "--class-names", tmp_path / "n.txt", "--class-names-from", tmp_path)
    assert done.exit_code == 2 and "not both" in done.stderr


class Samples:
    """What FFCV's writer indexes: values of the kinds it has."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[object, ...]:
        values = sample(int(index), int(index) % 3)
        rng = np.random.default_rng(int(index))
        values["image"] = photo_like(rng, 60 + int(index) % 7, 90)
        values["blob"] = np.frombuffer(values["blob"], np.uint8)
        return tuple(values[name] for name in FFCVS)


@pytest.mark.ffcv
@pytest.mark.slow
def test_a_file_that_ffcv_wrote_goes_through_every_verb_and_ffcv_reads_the_result(tmp_path: Path) -> None:
    from ffcv import fields as ffcv_fields
    from ffcv.writer import DatasetWriter

    from converters.tools.export import export
    from converters.tools.merge import merge
    from converters.tools.repair import repair
    from converters.tools.split import split

    theirs = tmp_path / "theirs.beton"
    fields = {
        "image": ffcv_fields.RGBImageField(write_mode="proportion", compress_probability=0.6),
        "label": ffcv_fields.IntField(),
        "weight": ffcv_fields.FloatField(),
        "blob": ffcv_fields.BytesField(),
        "box": ffcv_fields.NDArrayField(np.dtype("float32"), (2, 3)),
        "meta": ffcv_fields.JSONField(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DatasetWriter(str(theirs), fields, page_size=1 << 21, num_workers=2).from_indexed_dataset(
            Samples(), chunksize=4
        )
    report = upgrade(theirs, tmp_path / "up.beton", class_names=["a", "b", "c"])
    assert report.num_recoded > 0 and report.num_kept > 0
    assert compare(theirs, tmp_path / "up.beton").same
    parts = split(theirs, out=str(tmp_path / "{index}.beton"), folds=2).parts
    merge(tmp_path / "m.beton", [part.path for part in parts])
    assert compare(theirs, tmp_path / "m.beton", match_by="meta", level="bytes").same
    repair(theirs, tmp_path / "r.beton")
    assert compare(theirs, tmp_path / "r.beton", level="bytes").same
    export(theirs, tmp_path / "w", format="webdataset")
    # In a process of its own: Numba's clean-up of FFCV's compiled pipelines complains.
    paths = [str(tmp_path / f"{name}.beton") for name in ("up", "m", "r")]
    done = subprocess.run(
        [sys.executable, "-c", _ITERATE, *paths], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    for path, labels in zip(paths, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert labels == column(path, "label")


_ITERATE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from ffcv.loader import Loader, OrderOption
result = []
for path in sys.argv[1:]:
    loader = Loader(path, batch_size=8, num_workers=1, order=OrderOption.SEQUENTIAL, drop_last=False,
                    pipelines={"image": None})
    result.append([int(label) for batch in loader for label in batch[0].reshape(-1)])
print(json.dumps(result))
"""
