"""Comparing finds every difference and calls equal what is equal, in order, by field or by content."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import converters
from converters.engine.convert import Options, convert
from converters.sources.imagefolder import ImageFolder
from converters.tools.commands import diff as command
from converters.tools.diff import compare
from converters.tools.merge import merge
from converters.tools.split import split
from dataloading import DecodeError, EncodedImage, FormatError, ImageField, IntField, Reader, UsageError, Writer
from dataloading.tools import decode_jpeg, transcode_jpeg
from tests.converters.making import class_folders
from tests.converters.tools.making import run, run_json, write_file, write_set
from tests.support.files import jpeg, photo_like, raw


def pictures(path: Path, images: list[EncodedImage], labels: list[int] | None = None, **options: object) -> Path:
    fields = {"image": ImageField(), "label": IntField()}
    with Writer(path, fields, num_samples=len(images), **options) as writer:  # type: ignore[arg-type]
        for index, image in enumerate(images):
            writer.append({"image": image, "label": index if labels is None else labels[index]})
    return path


@pytest.fixture
def photos() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [photo_like(rng, 40 + index, 50) for index in range(8)]


def test_a_file_is_the_same_as_itself_whatever_its_fields(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.beton", [0, 1, 2, 0])
    for words in ([], ["--level", "bytes"], ["--match-by", "content"], ["--match-by", "meta"], ["--match-by", "label"]):
        done = run(command, path, path, "-q", *words)
        assert done.exit_code == 0 and done.stdout.endswith("the same\n"), done.stdout


def test_recoded_images_have_equal_pixels_but_not_equal_bytes(photos: list[np.ndarray], tmp_path: Path) -> None:
    before = [jpeg(image) for image in photos]
    after = [EncodedImage(0, each.width, each.height, transcode_jpeg(bytes(each.data))) for each in before]
    as_raw = [raw(decode_jpeg(bytes(each.data))) for each in before]
    one, two, three = (pictures(tmp_path / f"{n}.beton", each) for n, each in enumerate((before, after, as_raw)))
    for other in (two, three):
        report = compare(one, other)
        assert report.same and report.images["equal_pixels"] == 8 and report.lowest_psnr is None
        strict = compare(one, other, level="bytes")
        assert not strict.same and strict.num_differing == 8
        assert "equal pixels in other bytes" in strict.differing[0].fields["image"]


def test_what_differs_is_measured_and_listed(photos: list[np.ndarray], tmp_path: Path) -> None:
    one = pictures(tmp_path / "a.beton", [raw(image) for image in photos])
    changed = photos[5].copy()
    changed[7, 9, 1] ^= 16
    images = [raw(changed if index == 5 else image) for index, image in enumerate(photos)]
    two = pictures(tmp_path / "b.beton", images, labels=[0, 1, 9, 3, 4, 5, 6, 7])
    facts = run_json(command, one, two, "-q")
    assert run(command, one, two, "-q").exit_code == 1
    assert [(each["first"], each["second"]) for each in facts["differing"]] == [(2, 2), (5, 5)]
    assert facts["differing"][0]["fields"] == {"label": "2 against 9"}
    expected = 10 * np.log10(255**2 / (16**2 / changed.size))
    assert facts["lowest_psnr"] == pytest.approx(expected) and facts["largest_difference"] == 16
    assert facts["images"] == {"equal_bytes": 7, "equal_pixels": 0, "close": 0, "different": 1}
    assert compare(one, two, min_psnr=expected - 0.1).num_differing == 1
    assert compare(one, two, min_psnr=expected + 0.1).num_differing == 2
    text = run(command, one, two, "-q", "--limit", 1).stdout
    assert "sample 2: label: 2 against 9" in text and "... and 1 more pair;" in text and "sample 5" not in text


def test_images_of_other_sizes_and_damaged_ones_differ(photos: list[np.ndarray], tmp_path: Path) -> None:
    one = pictures(tmp_path / "a.beton", [jpeg(photos[0]), jpeg(photos[1])])
    data = bytes(jpeg(photos[0]).data)
    broken = EncodedImage(0, 50, 40, data[: len(data) // 2])
    two = pictures(tmp_path / "b.beton", [broken, jpeg(photos[2])])
    report = compare(one, two)
    words = [each.fields["image"] for each in report.differing]
    assert "the second does not decode" in words[0] and words[1] == "50x41 pixels against 50x42"


def test_shuffled_samples_are_paired_by_field_or_by_content(photos: list[np.ndarray], tmp_path: Path) -> None:
    one = pictures(tmp_path / "a.beton", [jpeg(image) for image in photos])
    order = [3, 1, 7, 0, 2, 6, 5]
    two = pictures(tmp_path / "b.beton", [jpeg(photos[index]) for index in order], labels=order)
    by_order = compare(one, two)
    assert by_order.num_differing == 6 and by_order.only_first == [7], "sample 1 is where it was"
    for how in ("label", "content"):
        report = compare(one, two, match_by=how)
        assert (report.num_pairs, report.num_differing) == (7, 0)
        assert report.only_first == [4] and report.only_second == [] and not report.same


def test_equal_pictures_are_paired_by_their_labels(photos: list[np.ndarray], tmp_path: Path) -> None:
    """One picture under two labels, in another order and by other numbers of the same class names."""
    images = [raw(photos[index]) for index in (0, 1, 0, 0)]
    one = pictures(tmp_path / "a.beton", images, [0, 1, 1, 0], class_names=["ant", "bee"])
    two = pictures(tmp_path / "b.beton", images[::-1], [1, 0, 0, 1], class_names=["bee", "ant"])
    assert compare(one, two, match_by="content").same
    other = pictures(tmp_path / "c.beton", images[:3], [0, 1, 0], class_names=["ant", "bee"])
    report = compare(one, other, match_by="content")
    assert (report.only_first, report.num_differing, report.num_pairs) == ([2], 0, 3)


def test_equal_keys_pair_up_in_order(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [1, 1, 1, 2], names=("label", "weight"))
    two = write_file(tmp_path / "b.beton", [1, 2, 1], names=("label", "weight"))
    report = compare(one, two, match_by="label")
    assert report.num_pairs == 3 and report.only_first == [2] and report.only_second == []


def test_a_split_and_merged_file_is_the_same_by_content(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [index % 3 for index in range(30)])
    parts = split(source, out=str(tmp_path / "{index}.beton"), folds=3).parts
    merge(tmp_path / "m.beton", [part.path for part in parts])
    assert compare(source, tmp_path / "m.beton", match_by="meta", level="bytes").same
    assert not compare(source, tmp_path / "m.beton").same


def test_labels_are_compared_by_class_name_where_both_have_names(photos: list[np.ndarray], tmp_path: Path) -> None:
    images = [raw(image) for image in photos[:2]]
    one = pictures(tmp_path / "a.beton", images, [0, 1], class_names=["ant", "bee"])
    two = pictures(tmp_path / "b.beton", images, [1, 0], class_names=["bee", "ant"])
    assert compare(one, two).same
    three = pictures(tmp_path / "c.beton", images, [0, 1], class_names=["ant", "cow"])
    report = compare(one, three)
    assert report.notes == ["classes only in the first: bee", "classes only in the second: cow"]
    assert report.differing[0].fields == {"label": "bee (1) against cow (1)"}


def test_fields_that_differ_are_notes_and_the_others_are_compared(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0, 1], names=("label", "box"))
    two = write_file(tmp_path / "b.beton", [0, 1], names=("label", "blob"))
    report = compare(one, two)
    assert len(report.notes) == 2 and report.num_differing == 0 and not report.same


def test_differences_in_every_kind_of_field_are_told_apart(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0])
    two = write_file(tmp_path / "b.beton", [0], first=35)
    [difference] = compare(one, two).differing
    assert set(difference.fields) == {"image", "weight", "blob", "box", "meta", "text", "boxes", "mask", "depth"}
    assert difference.fields["box"] == "6 of 6 elements" and "against" in difference.fields["text"]
    assert "pixels" in difference.fields["mask"] and "PSNR" in difference.fields["depth"]


def test_the_report_does_not_depend_on_the_number_of_threads(photos: list[np.ndarray], tmp_path: Path) -> None:
    one = pictures(tmp_path / "a.beton", [jpeg(image, 90) for image in photos * 4])
    two = pictures(tmp_path / "b.beton", [jpeg(image, 80) for image in photos * 4])
    assert compare(one, two, num_workers=1) == compare(one, two, num_workers=3)


def test_what_cannot_be_compared_is_said(photos: list[np.ndarray], tmp_path: Path) -> None:
    path = pictures(tmp_path / "a.beton", [raw(photos[0])])
    with pytest.raises(UsageError, match="has no field 'x'"):
        compare(path, path, match_by="x")
    with pytest.raises(UsageError, match="min_psnr"):
        compare(path, path, min_psnr=30, level="bytes")
    labels = write_file(tmp_path / "b.beton", [0], names=("label",))
    with pytest.raises(UsageError, match="stores no bytes"):
        compare(labels, labels, match_by="content")
    with Reader(path) as reader:
        assert reader.num_samples == 1


@pytest.fixture
def one_file_and_a_set(tmp_path: Path) -> tuple[Path, Path]:
    """Ten samples in one file, and in three shards of 4, 1 and 5."""
    labels = [index % 3 for index in range(10)]
    whole = write_file(tmp_path / "whole.beton", labels)
    cuts = [0, 4, 5, 10]
    shards = [write_file(tmp_path / f"s{low}.beton", labels[low:high], first=low) for low, high in pairwise(cuts)]
    return whole, write_set(tmp_path / "set.beton.json", shards)


def test_a_dataset_converted_in_shards_and_as_one_file_is_the_same(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "src", {"ant": 5, "bee": 6})
    for name, num_shards in (("one", None), ("three", 3), ("four", 4)):
        options = Options(num_shards=num_shards, shuffle=True, seed=5)
        convert(ImageFolder(source), tmp_path / f"{name}.beton", policy=converters.ImagePolicy(), options=options)
    one, three, four = tmp_path / "one.beton", tmp_path / "three.beton.json", tmp_path / "four.beton.json"
    for pair in ((one, three), (three, one), (three, four)):
        for words in ([], ["--level", "bytes"], ["--match-by", "content"]):
            done = run(command, *pair, "-q", *words)
            assert done.exit_code == 0 and done.stdout.endswith("the same\n"), (pair, done.stdout)
            assert "11 samples; " in done.stdout and "11 pairs" in done.stdout


def test_a_set_is_compared_as_one_file_is_whatever_pairs_its_samples(one_file_and_a_set: tuple[Path, Path]) -> None:
    whole, manifest = one_file_and_a_set
    for how in (None, "content", "meta", "label", "weight"):
        report = compare(whole, manifest, match_by=how, level="bytes")
        assert report.same and report.num_pairs == 10, (how, report)


def test_differences_in_a_set_are_counted_through_its_shards(
    one_file_and_a_set: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, _ = one_file_and_a_set
    labels = [index % 3 for index in range(10)]
    labels[6] = 9
    other = write_set(
        tmp_path / "other.beton.json",
        [write_file(tmp_path / "o0.beton", labels[:4]), write_file(tmp_path / "o4.beton", labels[4:9], first=4)],
    )
    report = compare(whole, other)
    assert report.only_first == [9] and not report.only_second
    assert [(each.first, each.second, each.fields) for each in report.differing] == [(6, 6, {"label": "0 against 9"})]


def test_shuffled_shards_are_paired_with_one_file_by_field_and_by_content(
    one_file_and_a_set: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, _ = one_file_and_a_set
    parts = split(whole, out=str(tmp_path / "part{index}.beton"), folds=3, seed=1).parts
    shuffled = write_set(tmp_path / "shuffled.beton.json", [Path(part.path) for part in reversed(parts)])
    assert not compare(whole, shuffled).same
    for how in ("meta", "content"):
        for pair in ((whole, shuffled), (shuffled, whole)):
            assert compare(*pair, match_by=how, level="bytes").same, how


def test_a_damaged_sample_of_a_set_is_named_by_its_file(photos: list[np.ndarray], tmp_path: Path) -> None:
    broken = EncodedImage(0, 50, 40, bytes(jpeg(photos[0]).data)[:300])
    manifest = write_set(
        tmp_path / "set.beton.json",
        [pictures(tmp_path / "a.beton", [jpeg(photos[1])] * 2), pictures(tmp_path / "b.beton", [broken])],
    )
    with pytest.raises(DecodeError, match=r"sample 0 of .*b\.beton: "):
        compare(manifest, manifest, match_by="content")


def test_a_set_whose_shard_is_missing_or_of_other_fields_is_refused(
    one_file_and_a_set: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, manifest = one_file_and_a_set
    mixed = write_set(
        tmp_path / "mixed.beton.json", [whole, write_file(tmp_path / "few.beton", [0], names=("label", "box"))]
    )
    with pytest.raises(UsageError, match="different fields"):
        compare(whole, mixed)
    (tmp_path / "s4.beton").unlink()
    with pytest.raises(FormatError, match=r"lists s4\.beton, which is missing"):
        compare(whole, manifest)
