"""A folder of images behind the stock DataLoader."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dataloading import DecodeError, JpegFolder, TransformError, UsageError
from dataloading import transforms as T
from tests.support.files import photo_like


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes: JPEGs in colour and in gray, a PNG, a progressive and a CMYK JPEG."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(3)
    for number in range(8):
        place = root / ("cat", "dog")[number % 2]
        place.mkdir(exist_ok=True)
        image = Image.fromarray(photo_like(rng, 50 + 7 * number, 90 - 5 * number))
        if number == 3:
            image = image.convert("L")
        if number == 4:
            image = image.convert("CMYK")
        image.save(place / f"{number}.{'png' if number == 2 else 'jpg'}", progressive=number == 5)
    return root


def test_without_a_resize_images_and_labels_are_those_of_imagefolder(folder: Path) -> None:
    ours = JpegFolder(folder, [T.CenterCrop(48)])
    theirs = ImageFolder(folder, transform=v2.Compose([v2.CenterCrop(48), v2.PILToTensor()]))
    assert len(ours) == len(theirs) == 8
    assert ours.classes == ["cat", "dog"]
    for (image, label), (wanted, wanted_label) in zip(ours, theirs, strict=True):
        assert label == wanted_label
        assert torch.equal(image, wanted)


def test_images_of_any_size_come_whole(folder: Path) -> None:
    theirs = ImageFolder(folder, transform=v2.PILToTensor())
    for (image, _), (wanted, _) in zip(JpegFolder(folder, [T.AsList()]), theirs, strict=True):
        assert torch.equal(image, wanted)


def test_a_batch_is_what_single_samples_are_and_follows_torchs_seed(folder: Path) -> None:
    dataset = JpegFolder(folder, [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ColorJitter(0.4)])
    torch.manual_seed(5)
    batch = dataset.__getitems__([4, 1, 7])
    torch.manual_seed(5)
    assert all(torch.equal(image, dataset[index][0]) for (image, _), index in zip(batch, (4, 1, 7), strict=True))
    assert not torch.equal(batch[0][0], dataset[4][0])


def test_the_stock_dataloader_takes_it_with_and_without_workers(folder: Path) -> None:
    dataset = JpegFolder(folder, [T.Resize((24, 24)), T.ToDtype("bfloat16")], target_transform=lambda label: label + 10)
    batches = list(DataLoader(dataset, batch_size=3))
    assert [images.shape[0] for images, _ in batches] == [3, 3, 2]
    assert batches[0][0].dtype == torch.bfloat16
    assert torch.cat([labels for _, labels in batches]).tolist() == [10] * 4 + [11] * 4
    for got, want in zip(DataLoader(dataset, batch_size=3, num_workers=1), batches, strict=True):
        assert torch.equal(got[0], want[0])


def test_it_travels_to_other_processes(folder: Path) -> None:
    dataset = JpegFolder(folder, [T.Resize((24, 24))])
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[3][0], dataset[3][0])


def test_damage_and_impossible_crops_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "1.jpg"
    Image.fromarray(photo_like(np.random.default_rng(1), 60, 50)).save(path)
    with pytest.raises(TransformError, match=r"1\.jpg: transform 0 \(RandomCrop\)"):
        JpegFolder(tmp_path, [T.RandomCrop(64)])[0]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DecodeError, match=r"1\.jpg: JPEG data ends early\. Take the file out"):
        JpegFolder(tmp_path, [T.Resize((8, 8))])[0]
    path.write_bytes(b"text")
    with pytest.raises(DecodeError, match=r"1\.jpg: Pillow knows no image of this kind"):
        JpegFolder(tmp_path, [T.Resize((8, 8))])[0]


def test_transforms_of_batches_and_of_other_fields_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="MixUp works on batches: apply it to the batches that the DataLoader gives"):
        JpegFolder(folder, [T.Resize((8, 8)), T.Normalize(0.5, 0.5), T.MixUp(num_classes=2)])
    with pytest.raises(UsageError, match="reads the boxes of stored samples"):
        JpegFolder(folder, [T.CropAroundBox(8)])
