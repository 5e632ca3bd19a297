"""A dataset that opens image files gets their bytes stored, if what it returns has exactly their pixels."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder, VisionDataset

import converters
from converters.images.opened_files import watched
from converters.sources.dataset_attributes import class_names_of, has_own_labels, has_transform
from dataloading import ImageField, IntField, MaskField, RasterField, Reader, decode_image
from tests.converters.making import class_folders, encoded, photo

FIELDS = {"image": ImageField(), "label": IntField()}


def write(dataset: Any, path: Path, fields: Any = FIELDS, **options: Any) -> Any:
    return converters.write(dataset, path, fields, **{"num_workers": 0} | options)


def first_image(path: Path, name: str = "image") -> np.ndarray:
    with Reader(path) as reader:
        return decode_image(reader.value(name, 0))  # type: ignore[arg-type]


class Own(Dataset[Any]):
    """A user's dataset: opens a file and does something to it."""

    def __init__(self, data: bytes, change: Callable[[Image.Image], Any] = lambda image: image) -> None:
        self.data, self.change = data, change

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.change(Image.open(io.BytesIO(self.data))), 0


def drawn_upon(image: Image.Image) -> Image.Image:
    image.load()
    ImageDraw.Draw(image).point((3, 3), (255, 0, 0))
    return image


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda image: image, "transcoded"),
        (lambda image: image.convert("RGB"), "transcoded"),
        (lambda image: image.copy().convert("RGBA").convert("RGB"), "transcoded"),
        (lambda image: image.crop((0, 0, image.width, image.height)), "transcoded"),
        (lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "encoded"),
        (lambda image: image.resize((20, 20)), "encoded"),
        (lambda image: image.convert("L"), "encoded"),
        (drawn_upon, "encoded"),
        (np.asarray, "encoded"),
    ],
)
def test_bytes_are_kept_only_where_every_pixel_is_the_files(change: Any, kind: str, tmp_path: Path) -> None:
    data = encoded(photo(30, 20), "JPEG", quality=95, subsampling=0)
    assert write(Own(data, change), tmp_path / "o.beton").images == {kind: 1}
    assert write(Own(data, change), tmp_path / "raw.beton", mode="raw").images == {"raw": 1}
    # The pixels that the dataset returned, whichever way they took.
    given = change(Image.open(io.BytesIO(data)))
    expected = np.asarray(given.convert("RGB") if isinstance(given, Image.Image) else given)
    np.testing.assert_array_equal(first_image(tmp_path / "raw.beton"), expected)
    if kind == "transcoded":
        np.testing.assert_array_equal(first_image(tmp_path / "o.beton"), expected)


def test_an_image_that_a_dataset_leaves_unturned_stays_unturned_and_keeps_its_pixels(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    data = encoded(photo(30, 20), "JPEG", exif=turned.tobytes())
    assert write(Own(data), tmp_path / "o.beton").images == {"transcoded": 1}
    np.testing.assert_array_equal(first_image(tmp_path / "o.beton"), np.asarray(Image.open(io.BytesIO(data))))


def test_a_gray_file_made_rgb_stays_rgb_where_the_field_has_its_channels(tmp_path: Path) -> None:
    data = encoded(photo(30, 20).convert("L"), "JPEG")
    colour = Own(data, lambda image: image.convert("RGB"))
    report = write(colour, tmp_path / "o.beton", {"image": RasterField(3), "label": IntField()})
    assert (report.images, first_image(tmp_path / "o.beton").shape) == ({"encoded": 1}, (20, 30, 3))
    report = write(colour, tmp_path / "p.beton")  # FFCV's field takes a gray JPEG for RGB
    assert report.images == {"transcoded": 1}


def test_of_several_files_each_image_finds_its_own(tmp_path: Path) -> None:
    one, two = (encoded(photo(30, 20, seed=seed), "JPEG") for seed in (1, 2))
    mask = encoded(Image.fromarray(np.eye(20, 30, dtype=np.uint8)), "PNG")

    class Pair(Own):
        def __getitem__(self, index: int) -> Any:
            images = [Image.open(io.BytesIO(data)) for data in (one, two, mask)]
            return images[1], images[0], images[2]

    fields = {"a": ImageField(), "b": ImageField(), "m": MaskField()}
    assert write(Pair(b""), tmp_path / "o.beton", fields).images["transcoded"] == 2
    np.testing.assert_array_equal(first_image(tmp_path / "o.beton", "a"), np.asarray(Image.open(io.BytesIO(two))))
    np.testing.assert_array_equal(first_image(tmp_path / "o.beton", "b"), np.asarray(Image.open(io.BytesIO(one))))
    np.testing.assert_array_equal(first_image(tmp_path / "o.beton", "m").reshape(20, 30), np.eye(20, 30))


def test_subsets_of_folders_keep_files_and_class_names(tmp_path: Path) -> None:
    folder = ImageFolder(str(class_folders(tmp_path / "in", {"cat": 2, "dog": 2})))
    for number, dataset in enumerate((folder, Subset(folder, [3, 0]), ConcatDataset([folder, Subset(folder, [1])]))):
        report = write(dataset, tmp_path / f"{number}.beton")
        assert report.images == {"transcoded": len(dataset)}
        with Reader(tmp_path / f"{number}.beton") as reader:
            assert reader.class_names == ("cat", "dog")
    with Reader(tmp_path / "1.beton") as reader:
        assert [reader.value("label", index) for index in range(2)] == [1, 0]


def test_a_transform_of_the_user_is_kept_by_its_pixels_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(class_folders(tmp_path / "in", {"cat": 1, "dog": 1}))
    smaller = Subset(ImageFolder(root, transform=transforms.Resize(10)), [0, 1])
    assert write(smaller, tmp_path / "o.beton").images == {"encoded": 2}
    assert "the dataset has a transform: its images are encoded" in capsys.readouterr().err
    assert first_image(tmp_path / "o.beton").shape[0] == 10
    swapped = ImageFolder(root, target_transform=lambda label: 1 - label)
    write(swapped, tmp_path / "p.beton")
    with Reader(tmp_path / "p.beton") as reader:
        assert (reader.class_names, reader.value("label", 0)) == (None, 1)
    assert "none are stored; class_names= names them" in capsys.readouterr().err


def test_class_names_follow_the_labels_and_not_the_order_of_a_list() -> None:
    class Folder(VisionDataset):
        classes: Any = ("b", "a")
        class_to_idx: Any = {"b": 1, "a": 0}  # noqa: RUF012

        def __init__(self, **options: Any) -> None:
            super().__init__(root="", **options)

        def __len__(self) -> int:
            return 1

    assert class_names_of(Folder()) == ["a", "b"]
    folder = Folder()
    folder.class_to_idx = {"a": 0, "b": 0}
    assert class_names_of(folder) == ["a, b"]
    folder.class_to_idx = {"a": 5, "b": 7}
    assert class_names_of(folder) is None
    assert class_names_of(ConcatDataset([Folder(), folder])) is None
    assert not has_transform(folder) and not has_own_labels(folder)
    assert has_transform(Folder(transform=str)) and not has_own_labels(Folder(transform=str))
    assert has_own_labels(Folder(target_transform=str)) and not has_transform(Folder(target_transform=str))
    assert has_transform(Folder(transforms=lambda image, target: (image, target)))


def test_pillow_is_as_it_was_after_any_end(tmp_path: Path) -> None:
    before = Image.open
    with pytest.raises(KeyError), watched():
        assert Image.open is not before
        raise KeyError
    assert Image.open is before
