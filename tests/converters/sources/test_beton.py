"""Existing files, ours and FFCV's, are read back as any dataset: all, some, in another order, relabelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converters
from converters.source import SampleFault
from converters.sources.beton import BetonFiles, read_indices
from dataloading import (
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    RasterField,
    Reader,
    UsageError,
)
from dataloading.cli import main
from dataloading.tools import decode_jpeg

from .making import jpeg, samples

FIELDS = {
    "image": ImageField(), "label": IntField(), "w": FloatField(), "j": JSONField(), "a": NDArrayField("int16", (2,)),
}  # fmt: skip
CLASSES = ["cat", "dog", "emu"]


def value(number: int) -> dict[str, Any]:
    return {
        "image": jpeg(number), "label": number % 3, "w": number / 2, "j": {"n": number},
        "a": np.array([number, -number], np.int16),
    }  # fmt: skip


def made(path: Path, numbers: range, *, mode: Any = "jpg", fields: Any = None, names: Any = CLASSES) -> str:
    fields = fields or FIELDS
    data = [{name: value(number)[name] for name in fields} for number in numbers]
    policy = converters.ImagePolicy(mode=mode)
    converters.write(data, path, fields, images=policy, class_names=names, num_workers=0, quiet=True)
    return str(path)


def beton(*words: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as leave:
        main(words)
    return int(leave.value.code or 0)


def test_all_values_of_several_files_come_back_in_order(tmp_path: Path) -> None:
    paths = [made(tmp_path / "1.beton", range(4)), made(tmp_path / "2.beton", range(4, 6), mode="raw")]
    source = BetonFiles(paths)
    assert source.class_names == CLASSES
    assert source.name(4) == "2.beton[0]"
    for number, sample in enumerate(samples(source)):
        pixels = decode_jpeg(jpeg(number))
        image = sample["image"]
        np.testing.assert_array_equal(decode_jpeg(image) if isinstance(image, bytes) else image, pixels)
        assert isinstance(image, bytes) == (number < 4)
        wanted = value(number)
        assert (sample["label"], sample["w"], sample["j"]) == (wanted["label"], wanted["w"], wanted["j"])
        np.testing.assert_array_equal(sample["a"], wanted["a"])


def test_indices_choose_repeat_and_order(tmp_path: Path) -> None:
    path = made(tmp_path / "1.beton", range(6))
    source = BetonFiles([path], indices=np.array([5, 0, 5]))
    assert [each["w"] for each in samples(source)] == [2.5, 0.0, 2.5]
    with pytest.raises(UsageError, match="index 6 is out of range: there are 6 samples"):
        BetonFiles([path], indices=np.array([0, 6]))


def test_indices_are_ranges_or_files(tmp_path: Path) -> None:
    (tmp_path / "i.txt").write_text("4\n2\n\n4\n")
    np.save(tmp_path / "i.npy", np.array([1, 3]))
    np.save(tmp_path / "f.npy", np.array([1.5]))
    assert read_indices("2:5").tolist() == [2, 3, 4]
    assert read_indices(str(tmp_path / "i.txt")).tolist() == [4, 2, 4]
    assert read_indices(str(tmp_path / "i.npy")).tolist() == [1, 3]
    (tmp_path / "bad.txt").write_text("one\n")
    for text in (str(tmp_path / "bad.txt"), str(tmp_path / "none.txt"), "5", "a:b"):
        with pytest.raises(UsageError, match="holds no indices"):
            read_indices(text)
    with pytest.raises(UsageError, match="expected whole numbers"):
        read_indices(str(tmp_path / "f.npy"))


def test_chosen_classes_are_numbered_in_their_order(tmp_path: Path) -> None:
    path = made(tmp_path / "1.beton", range(6))
    source = BetonFiles([path], classes=["emu", "cat"])
    assert source.class_names == ["emu", "cat"]
    assert [(each["w"], each["label"]) for each in samples(source)] == [(0.0, 1), (1.0, 0), (1.5, 1), (2.5, 0)]
    with pytest.raises(UsageError, match="no class 'cow'; the classes are cat, dog, emu"):
        BetonFiles([path], classes=["cow"])
    with pytest.raises(UsageError, match="a class twice"):
        BetonFiles([path], classes=["cat", "cat"])
    with pytest.raises(UsageError, match="no samples are left"):
        BetonFiles([path], indices=np.array([0]), classes=["dog"])
    with pytest.raises(UsageError, match="records no class names"):
        BetonFiles([made(tmp_path / "2.beton", range(2), names=None)], classes=["cat"])


def test_files_that_do_not_fit_together_are_told_apart(tmp_path: Path) -> None:
    first = made(tmp_path / "1.beton", range(2))
    other = made(tmp_path / "2.beton", range(2), fields={"label": IntField()})
    with pytest.raises(UsageError, match=r"1.beton and .*2.beton have different fields:\n.*'image' .*first"):
        BetonFiles([first, other])
    renamed = made(tmp_path / "3.beton", range(2), names=["a", "b", "c"])
    with pytest.raises(UsageError, match=r"name different classes.* `beton merge"):
        BetonFiles([first, renamed])


def test_storing_a_file_anew_gives_the_same_bytes_but_for_its_origin(tmp_path: Path) -> None:
    path = made(tmp_path / "1.beton", range(5))
    policy, options = converters.ImagePolicy(orient=False), converters.Options()
    converters.convert(BetonFiles([path]), tmp_path / "2.beton", policy=policy, options=options)
    with Reader(path) as first, Reader(tmp_path / "2.beton") as second:
        for index in range(5):
            assert bytes(first.value("image", index).data) == bytes(second.value("image", index).data)


@pytest.mark.ffcv
def test_a_file_of_ffcv_gains_markers_and_keeps_its_pixels(tmp_path: Path) -> None:
    from ffcv.fields import IntField as TheirInt
    from ffcv.fields import RGBImageField
    from ffcv.writer import DatasetWriter

    class Photos:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return decode_jpeg(jpeg(index, 200, 150)), index

    writer = DatasetWriter(
        str(tmp_path / "f.beton"), {"image": RGBImageField(write_mode="jpg"), "label": TheirInt()}, num_workers=1
    )
    writer.from_indexed_dataset(Photos())
    source = BetonFiles([str(tmp_path / "f.beton")])
    policy, options = converters.ImagePolicy(orient=False), converters.Options()
    report = converters.convert(source, tmp_path / "o.beton", policy=policy, options=options)
    assert report.images == {"transcoded": 3}
    with Reader(tmp_path / "f.beton") as theirs, Reader(tmp_path / "o.beton") as ours:
        assert ours.column("label").tolist() == [0, 1, 2]
        for index in range(3):
            before, after = bytes(theirs.value("image", index).data), bytes(ours.value("image", index).data)
            np.testing.assert_array_equal(decode_jpeg(before), decode_jpeg(after))
            assert b"\xff\xdd" in after and b"\xff\xdd" not in before


def test_a_damaged_sample_is_a_fault_of_that_sample(tmp_path: Path) -> None:
    path = made(tmp_path / "1.beton", range(3), fields={"label": IntField(), "j": JSONField()})
    source = BetonFiles([path])
    with Reader(path) as reader:
        start = int(reader.locate("j", [1])[0][0])
        length = int(reader.locate("j", [1])[1][0])
    data = bytearray(Path(path).read_bytes())
    data[start : start + length] = b"\xff" * length
    Path(path).write_bytes(data)
    load = source.load
    assert load(source.task(0))["j"] == {"n": 0}
    with pytest.raises(SampleFault, match="JSON"):
        load(source.task(1))


@pytest.mark.parametrize("extra", [(), ("--max-resolution", "15")])
def test_pixels_stored_without_loss_stay_so_unless_a_mode_is_asked_for(tmp_path: Path, extra: tuple[str, ...]) -> None:
    raw = made(tmp_path / "raw.beton", range(3), mode="raw")
    chosen = ["convert", "beton", raw, str(tmp_path / "out.beton"), "--num-workers", "0", *extra]
    assert beton(*chosen) == 0
    with Reader(raw) as before, Reader(tmp_path / "out.beton") as after:
        same = [np.array_equal(after.value("image", i).data, before.value("image", i).data) for i in range(3)]
        assert same == [not extra] * 3  # what must be shrunk is encoded as --mode says
        assert [after.value("image", index).mode for index in range(3)] == ([0] * 3 if extra else [1] * 3)
    assert beton(*chosen, "--mode", "jpg", "--overwrite") == 0
    with Reader(tmp_path / "out.beton") as after:
        assert after.value("image", 0).mode == 0


def test_a_label_map_and_a_png_stay_as_they_are_stored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [(rng.integers(0, 2, (20, 30), np.uint8) * 255, rng.integers(0, 9, (20, 30), np.uint8)) for _ in range(3)]
    source = tmp_path / "png.beton"
    policy = converters.ImagePolicy(mode="png", channels="gray")
    converters.write(
        data, source, {"image": RasterField(1), "mask": MaskField()}, images=policy, num_workers=0, quiet=True
    )
    assert beton("convert", "beton", str(source), str(tmp_path / "out.beton"), "--num-workers", "0") == 0
    with Reader(source) as before, Reader(tmp_path / "out.beton") as after:
        for index in range(3):
            for name in ("image", "mask"):
                assert bytes(after.value(name, index).data) == bytes(before.value(name, index).data)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_damage_that_decodes_is_found_by_the_checksums_before_it_gets_right_ones(tmp_path: Path, on_error: str) -> None:
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 256, (200, 200, 3), np.uint8) for _ in range(4)]  # over 64 KiB each
    path = str(tmp_path / "1.beton")
    converters.write(
        photos, path, {"image": ImageField()}, images=converters.ImagePolicy(mode="raw"), num_workers=0, quiet=True
    )
    with Reader(path) as reader:
        place = int(reader.locate("image", [2])[0][0]) + 70_000
    data = bytearray(Path(path).read_bytes())
    data[place] ^= 1
    Path(path).write_bytes(data)
    words = ["convert", "beton", path, str(tmp_path / "out.beton"), "--num-workers", "0", "--on-error", on_error]
    assert beton(*words) == (1 if on_error == "raise" else 0)
    if on_error == "raise":
        assert not (tmp_path / "out.beton").exists()
        with pytest.raises(SampleFault, match=r"damaged, pages: bytes have changed"):
            source = BetonFiles([path])
            source.load(source.task(2))
        assert beton(*words, "--no-verify") == 0
    else:
        with Reader(tmp_path / "out.beton") as after:
            assert 2 <= len(after) <= 3
