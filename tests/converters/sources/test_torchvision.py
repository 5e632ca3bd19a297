"""torchvision's datasets that lie on disk, made small here in the layout each expects."""

from __future__ import annotations

import io
import os
import pickle
import signal
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from converters import ImagePolicy, Options, convert
from converters.sources.torchvision import TorchvisionDataset
from dataloading import ConvertError, ImageField, IntField, MaskField, NDArrayField, Reader, UsageError, decode_image
from tests.converters.engine.test_resume import die_at_write, in_a_child, save_in_turn

from ..making import encoded
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


def put(root: Path, files: dict[str, bytes | str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def mat(**values: Any) -> bytes:
    from scipy.io import savemat

    buffer = io.BytesIO()
    savemat(buffer, values)
    return buffer.getvalue()


A, B = jpeg(1), jpeg(2)
# Name, split, the files of two samples as the dataset expects them, labels, class names.
LAYOUTS: list[tuple[str, str | None, Any, list[int], list[str] | None]] = [
    ("ImageFolder", None, lambda: {"cat/a.jpg": A, "dog/b.jpg": B}, [0, 1], ["cat", "dog"]),
    ("Imagenette", "train", lambda: {"imagenette2/train/n01440764/a.JPEG": A, "imagenette2/train/n02102040/b.JPEG": B},
     [0, 1], ["tench, Tinca tinca", "English springer, English springer spaniel"]),
    ("Caltech101", None, lambda: {
        "caltech101/101_ObjectCategories/ant/image_0001.jpg": A,
        "caltech101/101_ObjectCategories/bass/image_0001.jpg": B,
        "caltech101/101_ObjectCategories/BACKGROUND_Google/tmp": b"", "caltech101/Annotations/ant/x.mat": b""},
     [0, 1], ["ant", "bass"]),
    ("Caltech256", None, lambda: {
        "caltech256/256_ObjectCategories/001.ak47/001_0001.jpg": A,
        "caltech256/256_ObjectCategories/002.flag/002_0001.jpg": B}, [0, 1], ["001.ak47", "002.flag"]),
    ("Country211", "train", lambda: {"country211/train/AD/a.jpg": A, "country211/train/AE/b.jpg": B},
     [0, 1], ["AD", "AE"]),
    ("DTD", "train", lambda: {
        "dtd/dtd/images/banded/a.jpg": A, "dtd/dtd/images/woven/b.jpg": B,
        "dtd/dtd/labels/train1.txt": "banded/a.jpg\nwoven/b.jpg\n"}, [0, 1], ["banded", "woven"]),
    ("EuroSAT", None, lambda: {"eurosat/2750/Forest/a.jpg": A, "eurosat/2750/River/b.jpg": B},
     [0, 1], ["Forest", "River"]),
    ("FGVCAircraft", "train", lambda: {
        "fgvc-aircraft-2013b/data/variants.txt": "707-320\nA300B4\n",
        "fgvc-aircraft-2013b/data/images_variant_train.txt": "1 A300B4\n2 707-320\n",
        "fgvc-aircraft-2013b/data/images/1.jpg": A, "fgvc-aircraft-2013b/data/images/2.jpg": B},
     [1, 0], ["707-320", "A300B4"]),
    ("Food101", "test", lambda: {
        "food-101/images/pie/a.jpg": A, "food-101/images/soup/b.jpg": B,
        "food-101/meta/test.json": '{"pie": ["pie/a"], "soup": ["soup/b"]}'}, [0, 1], ["pie", "soup"]),
    ("GTSRB", "test", lambda: {
        "gtsrb/GTSRB/Final_Test/Images/a.ppm": A, "gtsrb/GTSRB/Final_Test/Images/b.ppm": B,
        "gtsrb/GT-final_test.csv": "Filename;ClassId\na.ppm;16\nb.ppm;1\n"}, [16, 1], None),
    ("OxfordIIITPet", "trainval", lambda: {
        "oxford-iiit-pet/images/pug_1.jpg": A, "oxford-iiit-pet/images/Bombay_2.jpg": B,
        "oxford-iiit-pet/annotations/trainval.txt": "pug_1 2 2 1\nBombay_2 1 1 1\n"}, [1, 0], ["Bombay", "Pug"]),
    ("RenderedSST2", "val", lambda: {
        "rendered-sst2/valid/negative/a.png": A, "rendered-sst2/valid/positive/b.png": B},
     [0, 1], ["negative", "positive"]),
    ("StanfordCars", "train", lambda: {
        "stanford_cars/cars_train/1.jpg": A, "stanford_cars/cars_train/2.jpg": B,
        "stanford_cars/devkit/cars_meta.mat": mat(class_names=np.array(["Audi", "Fiat"], object)),
        "stanford_cars/devkit/cars_train_annos.mat": mat(annotations=np.array(
            [("1.jpg", 2), ("2.jpg", 1)], [("fname", object), ("class", object)]))}, [1, 0], ["Audi", "Fiat"]),
    ("INaturalist", None, lambda: {
        "2021_train/00000_Animalia_a_b_c_d_e_f/1.jpg": A, "2021_train/00001_Plantae_a_b_c_d_e_f/2.jpg": B},
     [0, 1], ["00000_Animalia_a_b_c_d_e_f", "00001_Plantae_a_b_c_d_e_f"]),
    ("LFWPeople", "train", lambda: {
        "lfw-py/lfw_funneled/Ann/Ann_0001.jpg": A, "lfw-py/lfw_funneled/Bob/Bob_0001.jpg": B,
        "lfw-py/lfw-names.txt": "Ann 1\nBob 1\n", "lfw-py/peopleDevTrain.txt": "2\nAnn\t1\nBob\t1\n"},
     [0, 1], ["Ann", "Bob"]),
    ("CelebA", "all", lambda: {
        "celeba/img_align_celeba/1.jpg": A, "celeba/img_align_celeba/2.jpg": B,
        "celeba/list_eval_partition.txt": "1.jpg 0\n2.jpg 0\n", "celeba/identity_CelebA.txt": "1.jpg 9\n2.jpg 3\n",
        **{f"celeba/{name}": "2\na b\n1.jpg 1 1\n2.jpg 1 1\n" for name in
           ("list_bbox_celeba.txt", "list_landmarks_align_celeba.txt", "list_attr_celeba.txt")}}, [9, 3], None),
    ("CLEVRClassification", "train", lambda: {
        "clevr/CLEVR_v1.0/images/train/a.png": A, "clevr/CLEVR_v1.0/images/train/b.png": B,
        "clevr/CLEVR_v1.0/scenes/CLEVR_train_scenes.json":
            '{"scenes": [{"image_filename": "a.png", "objects": [1]}, {"image_filename": "b.png", "objects": []}]}'},
     [1, 0], None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "split", "files", "labels", "names"), LAYOUTS, ids=[each[0] for each in LAYOUTS])
def test_every_dataset_of_files_keeps_their_pixels_and_its_class_names(
    name: str, split: str | None, files: Any, labels: list[int], names: list[str] | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from torchvision.datasets import celeba, lfw

    for module in (celeba, lfw):
        monkeypatch.setattr(module, "check_integrity", lambda *_: True)
    put(tmp_path / "in", files())
    options = {"target_type": "identity"} if name == "CelebA" else {}
    source = TorchvisionDataset(name, str(tmp_path / "in"), split=split, options=options)
    report = convert(source, tmp_path / "o.beton", policy=ImagePolicy(), options=Options())
    assert report.images == {"transcoded": 2}
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.class_names == (None if names is None else tuple(names))
        assert [reader.value("label", index) for index in range(2)] == labels
        for index, file in enumerate((A, B)):
            pixels = decode_image(reader.value("image", index))  # type: ignore[arg-type]
            np.testing.assert_array_equal(pixels, np.asarray(Image.open(io.BytesIO(file))))


@pytest.mark.parametrize("split", ["train", "val"])
def test_imagenet_names_its_classes_by_all_their_words_and_equal_ones_by_their_ids(tmp_path: Path, split: str) -> None:
    import torch

    ids = ["n01440764", "n02012849", "n03126707"]
    words = dict(zip(ids, [("tench", "Tinca tinca"), ("crane",), ("crane",)], strict=True))
    put(tmp_path, {f"{split}/{wnid}/{wnid}.JPEG": jpeg(number) for number, wnid in enumerate(ids)})
    torch.save((words, ids), tmp_path / "meta.bin")
    source = TorchvisionDataset("ImageNet", str(tmp_path), split=split)
    assert source.class_names == ["tench, Tinca tinca", "crane (n02012849)", "crane (n03126707)"]
    assert samples(source) == [{"image": jpeg(number), "label": number} for number in range(3)]


@pytest.mark.filterwarnings("ignore:unclosed file .*SegmentationClass:ResourceWarning")  # torchvision's to close
def test_masks_of_files_come_with_their_images(tmp_path: Path) -> None:
    mask = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).convert("P")
    root = tmp_path / "VOCdevkit/VOC2012"
    put(root, {"ImageSets/Segmentation/train.txt": "a\n", "JPEGImages/a.jpg": jpeg(1, 4, 3),
               "SegmentationClass/a.png": encoded(mask, "PNG")})  # fmt: skip
    source = TorchvisionDataset("VOCSegmentation", str(tmp_path), split="train")
    assert source.fields == {"image": ImageField(), "mask": MaskField()}
    report = convert(source, tmp_path / "o.beton", policy=ImagePolicy(mode="jpg"), options=Options())
    assert report.images["transcoded"] == 1
    with Reader(tmp_path / "o.beton") as reader:
        assert decode_image(reader.value("mask", 0)).reshape(3, 4).tolist() == np.asarray(mask).tolist()  # type: ignore[arg-type]


def test_places_of_celeba_stop_a_conversion_that_would_resize_their_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import celeba

    monkeypatch.setattr(celeba, "check_integrity", lambda *_: True)
    put(tmp_path / "in", next(files() for name, _, files, *_ in LAYOUTS if name == "CelebA"))
    source = TorchvisionDataset("CelebA", str(tmp_path / "in"), split="all", options={"target_type": "landmarks"})
    with pytest.raises(UsageError, match="field 'landmarks' looks like coordinates in the image"):
        convert(source, tmp_path / "o.beton", policy=ImagePolicy(max_resolution=10), options=Options())
    assert convert(source, tmp_path / "o.beton", policy=ImagePolicy(), options=Options()).num_samples == 2
