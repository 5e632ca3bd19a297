"""torchvision's datasets that lie on disk, made small here in the layout each expects."""

from __future__ import annotations

import os
import pickle
import signal
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters import ImagePolicy, Options, convert
from converters.sources.torchvision import TorchvisionDataset
from dataloading import ConvertError, ImageField, IntField, NDArrayField, UsageError

from ..test_resume import die_at_write, in_a_child, save_in_turn
from .making import jpeg, samples


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchvision believe that files made here are the real ones."""
    from torchvision.datasets import cifar

    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)


def mnist(root: Path, name: str = "MNIST") -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        chosen = images if part == "train" else images[:2]
        head = struct.pack(">4B3I", 0, 0, 8, 3, len(chosen), 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + chosen.tobytes())
        labels = bytes(range(len(chosen)))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, len(labels)) + labels)
    return images


def cifar10(root: Path) -> np.ndarray:
    rows = np.random.default_rng(1).integers(0, 256, (2, 3072), dtype=np.uint8)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": [3, 1]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class{number}" for number in range(10)]}))
    return rows


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_mnists_images_are_gray_and_its_parts_train_and_test(tmp_path: Path, name: str) -> None:
    images = mnist(tmp_path, name)
    source = TorchvisionDataset(name, str(tmp_path), split="train")
    assert [type(field) for field in source.fields.values()] == [ImageField, IntField]
    found = samples(source)
    assert [each["label"] for each in found] == [0, 1, 2, 3]
    for sample, image in zip(found, images, strict=True):
        assert sample["image"].mode == "L"
        np.testing.assert_array_equal(np.asarray(sample["image"]), image)
    assert source.class_names is not None
    assert len(source.class_names) == 10
    assert len(TorchvisionDataset(name, str(tmp_path), split="test")) == 2
    assert source.provenance == {
        "source": "torchvision", "source_name": name, "source_split": "train", "source_samples": 4
    }  # fmt: skip


def test_cifar10_has_its_pixels_labels_and_names(tmp_path: Path, unchecked: None) -> None:
    rows = cifar10(tmp_path)
    source = TorchvisionDataset("CIFAR10", str(tmp_path), split="test")
    assert source.class_names == [f"class{number}" for number in range(10)]
    found = samples(source)
    assert [each["label"] for each in found] == [3, 1]
    np.testing.assert_array_equal(np.asarray(found[1]["image"]), rows[1].reshape(3, 32, 32).transpose(1, 2, 0))
    assert len(TorchvisionDataset("CIFAR10", str(tmp_path), split="train")) == 10


def test_svhn_is_read_from_its_matlab_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat
    from torchvision.datasets import svhn

    monkeypatch.setattr(svhn, "check_integrity", lambda *_: True)
    images = np.random.default_rng(2).integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": images, "y": np.array([[10], [1], [2]], np.uint8)})
    found = samples(TorchvisionDataset("SVHN", str(tmp_path), split="test"))
    assert [each["label"] for each in found] == [0, 1, 2]
    np.testing.assert_array_equal(np.asarray(found[2]["image"]), images[..., 2])


def test_datasets_of_image_files_hand_over_the_files_bytes(tmp_path: Path) -> None:
    import json

    folder = tmp_path / "food-101"
    (folder / "images" / "pie").mkdir(parents=True)
    (folder / "meta").mkdir()
    for number in range(2):
        (folder / "images" / "pie" / f"{number}.jpg").write_bytes(jpeg(number))
    (folder / "meta" / "test.json").write_text(json.dumps({"pie": ["pie/0", "pie/1"]}))
    source = TorchvisionDataset("Food101", str(tmp_path), split="test")
    assert samples(source) == [{"image": jpeg(number), "label": 0} for number in range(2)]
    assert source.class_names == ["pie"]


def test_targets_keep_their_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch
    from torchvision import datasets

    class Odd:
        def __init__(self, root: str, split: str = "train", target: Any = None) -> None:
            self.target = {"tensor": torch.arange(3), "dict": {"a": 1}, "two": None}[str(target)]

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return (jpeg(0),) if self.target is None else (jpeg(0), self.target)

    monkeypatch.setattr(datasets, "SVHN", Odd)
    source = TorchvisionDataset("SVHN", str(tmp_path), options={"target": "tensor"})
    assert source.fields["target"] == NDArrayField("int64", (3,))
    assert samples(source)[0]["target"].tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match="a target of torchvision's SVHN is a dict, which makes no field"):
        TorchvisionDataset("SVHN", str(tmp_path), options={"target": "dict"})
    with pytest.raises(UsageError, match="1 value, expected an image and a target"):
        TorchvisionDataset("SVHN", str(tmp_path), options={"target": "two"})


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("CIFAR11", {}, UsageError, r"no dataset 'CIFAR11'; did you mean CIFAR10"),
        ("cifar10", {}, UsageError, "did you mean CIFAR10"),
        ("FakeData", {}, UsageError, "no dataset 'FakeData'"),
        ("CIFAR10", {"split": "val2"}, UsageError, "has the parts train and test, got 'val2'"),
        ("CIFAR10", {"options": {"trian": 1}}, UsageError, "no argument 'trian'; it has root, train"),
        ("Caltech101", {"split": "train"}, UsageError, "has no parts; leave --split out"),
        ("CIFAR10", {}, ConvertError, r"cannot be opened in .*Nothing is downloaded here"),
        ("SVHN", {"split": "none"}, ConvertError, "cannot be opened"),
    ],
)
def test_what_cannot_be_opened_is_explained(tmp_path: Path, name: str, options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        TorchvisionDataset(name, str(tmp_path), **options)
    assert "download=True" not in str(caught.value)


def names(source: TorchvisionDataset) -> list[str]:
    return sorted(name for name, _ in source.files)


def test_the_files_that_a_change_of_counts_are_those_of_the_dataset(
    tmp_path: Path, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar10(tmp_path)
    mnist(tmp_path)
    (tmp_path / "notes.txt").write_text("of nobody")
    batches = [f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6)]
    expected = ["cifar-10-batches-py/batches.meta", *batches, "cifar-10-batches-py/test_batch"]
    assert names(TorchvisionDataset("CIFAR10", str(tmp_path))) == expected
    assert len(names(TorchvisionDataset("MNIST", str(tmp_path)))) == 4
    monkeypatch.chdir(tmp_path.parent)
    assert names(TorchvisionDataset("CIFAR10", tmp_path.name)) == expected


def test_a_dataset_of_image_files_names_each_and_one_that_tells_nothing_all_of_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    for name in ("ant/0.jpg", "bee/1.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(jpeg(0))
    for name in (".o.beton.part", "o.beton"):
        (tmp_path / name).write_bytes(b"ours")

    class Silent:
        def __init__(self, root: str, ann: str = "") -> None: ...

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return jpeg(0), 1

    assert names(TorchvisionDataset("ImageFolder", str(tmp_path))) == ["ant/0.jpg", "bee/1.jpg"]
    monkeypatch.setattr(datasets, "SVHN", Silent)
    notes = tmp_path.parent / "notes.json"
    notes.write_text("{}")
    source = TorchvisionDataset("SVHN", str(tmp_path), options={"ann": str(notes)})
    assert names(source) == ["../notes.json", "ant/0.jpg", "bee/1.jpg"]


def test_a_file_that_changed_since_the_conversion_was_interrupted_is_refused(tmp_path: Path, unchecked: None) -> None:
    cifar10(tmp_path / "data")
    out = tmp_path / "o.beton"

    def write(**options: Any) -> Any:
        source = TorchvisionDataset("CIFAR10", str(tmp_path / "data"))
        return convert(source, out, policy=ImagePolicy(), options=Options(checkpoint_seconds=1e-9, **options))

    def act() -> None:
        save_in_turn()
        die_at_write(12, 1)
        write()

    assert in_a_child(act) == -signal.SIGKILL
    batch = tmp_path / "data" / "cifar-10-batches-py" / "data_batch_2"
    before = batch.stat()
    batch.touch()
    with pytest.raises(UsageError, match=r"source has changed since .*: cifar-10-batches-py/data_batch_2 \(its size"):
        write(resume=True)
    os.utime(batch, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert write(resume=True).num_resumed > 0
