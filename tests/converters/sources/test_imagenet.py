"""ImageNet's tars give the samples and labels of the unpacked folders, for train and val alike."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.source import SampleFault
from converters.sources.devkit import labels_from_devkit, labels_from_text
from converters.sources.imagefolder import ImageFolder
from converters.sources.imagenet import ImageNetTrain, ImageNetVal
from dataloading import ConvertError, UsageError
from tests.support.servers import http_range_server

from .making import jpeg, samples, tar_bytes, tar_of

WNIDS = ["n02099601", "n01440764", "n12998815", "n01443537"]  # the order of the kit, not the sorted one
TRUTH = [1, 2, 3, 4, 4, 1]


def class_images(wnid: str) -> list[tuple[str, bytes]]:
    # Stored in another order than that of the names, as the real tars are.
    return [(f"{wnid}_{number}.JPEG", jpeg(WNIDS.index(wnid) * 10 + number)) for number in (3, 1, 10, 2)]


def train_tar(folder: Path) -> Path:
    return tar_of(
        folder / "ILSVRC2012_img_train.tar", [(f"{wnid}.tar", tar_bytes(class_images(wnid))) for wnid in WNIDS]
    )


def unpacked(folder: Path) -> Path:
    for wnid in WNIDS:
        (folder / "train" / wnid).mkdir(parents=True)
        for name, data in class_images(wnid):
            (folder / "train" / wnid / name).write_bytes(data)
    return folder / "train"


def devkit(folder: Path, truth: list[int] = TRUTH) -> Path:
    from scipy.io import savemat

    rows = np.zeros(
        len(WNIDS) + 1, dtype=[(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children")]
    )
    for place, wnid in enumerate(WNIDS):
        rows[place] = (place + 1, wnid, "words", "gloss", 0)
    rows[-1] = (len(WNIDS) + 1, "n00001740", "entity", "inner node", 4)
    buffer = io.BytesIO()
    savemat(buffer, {"synsets": rows.reshape(-1, 1)})
    return tar_of(
        folder / "ILSVRC2012_devkit_t12.tar.gz",
        [
            ("ILSVRC2012_devkit_t12/data/meta.mat", buffer.getvalue()),
            ("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "\n".join(map(str, truth)).encode()),
        ],
        "w:gz",
    )


def val_tar(folder: Path) -> Path:
    names = [f"ILSVRC2012_val_{number:08}.JPEG" for number in range(1, 7)]
    return tar_of(folder / "ILSVRC2012_img_val.tar", [(name, name.encode()) for name in reversed(names)])


def test_the_tar_of_tars_its_folder_of_tars_and_the_unpacked_folder_are_the_same(tmp_path: Path) -> None:
    tars = tmp_path / "tars"
    tars.mkdir()
    for wnid in WNIDS:
        tar_of(tars / f"{wnid}.tar", class_images(wnid))
    folder = ImageFolder(unpacked(tmp_path))
    for source in map(ImageNetTrain, map(str, (train_tar(tmp_path), tars, tmp_path / "train"))):
        assert source.class_names == folder.class_names == sorted(WNIDS)
        assert samples(source) == samples(folder)
        assert source.provenance == {"source": "imagenet", "source_name": "train", "source_samples": 16}
        assert source.name(0).endswith("n01440764_1.JPEG")


def test_val_has_the_labels_that_train_has(tmp_path: Path) -> None:
    train = ImageNetTrain(str(train_tar(tmp_path)))
    labels, names = labels_from_devkit(str(devkit(tmp_path)))
    val = ImageNetVal(str(val_tar(tmp_path)), labels=labels, class_names=names)
    assert val.class_names == train.class_names
    # What the kit says of an image by its own numbers is the same class by our labels.
    for index, sample in enumerate(samples(val)):
        assert sample["image"] == f"ILSVRC2012_val_{index + 1:08}.JPEG".encode()
        assert val.class_names[sample["label"]] == WNIDS[TRUTH[index] - 1]


def test_labels_agree_with_torchvisions_reading_of_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torchvision.datasets import imagenet

    kit = devkit(tmp_path)
    monkeypatch.setattr(imagenet, "check_integrity", lambda *_: True)  # only the real kit has the real checksum
    imagenet.parse_devkit_archive(str(tmp_path), kit.name)
    _, wnids = torch.load(tmp_path / "meta.bin", weights_only=True)
    labels, names = labels_from_devkit(str(kit))
    ordered = [labels[f"ILSVRC2012_val_{number:08}.JPEG"] for number in range(1, len(TRUTH) + 1)]
    assert [names[label] for label in ordered] == wnids


def test_a_folder_of_images_and_a_text_of_wordnet_ids(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    folder.mkdir()
    for number in (2, 1):
        (folder / f"ILSVRC2012_val_{number:08}.JPEG").write_bytes(jpeg(number))
    text = tmp_path / "labels.txt"
    text.write_text("val/ILSVRC2012_val_00000002.JPEG n02099601\n\nILSVRC2012_val_00000001.JPEG\tn12998815\n")
    labels, names = labels_from_text(str(text))
    assert names == ["n02099601", "n12998815"]
    source = ImageNetVal(str(folder), labels=labels, class_names=names)
    assert samples(source) == [{"image": jpeg(1), "label": 1}, {"image": jpeg(2), "label": 0}]
    labels, names = labels_from_text(str(text), class_names=sorted(WNIDS))
    assert labels == {"ILSVRC2012_val_00000002.JPEG": 2, "ILSVRC2012_val_00000001.JPEG": 3}


def test_a_text_of_numbers_has_labels_and_no_names(tmp_path: Path) -> None:
    text = tmp_path / "labels.txt"
    text.write_text("a.JPEG 0\nb.JPEG,7\n")
    assert labels_from_text(str(text)) == ({"a.JPEG": 0, "b.JPEG": 7}, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.JPEG\n", "line 1: expected a file name and a label, got 'a.JPEG'"),
        ("a.JPEG 1\na.JPEG 2\n", "line 2: a.JPEG is labelled 1 and 2"),
        ("".join(f"{number}.JPEG {number}\n" for number in range(1, 1001)), "run from 1 to 1,000.*--devkit"),
    ],
)
def test_texts_that_mean_something_else_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(UsageError if "--devkit" in words else ConvertError, match=words):
        labels_from_text(str(tmp_path / "labels.txt"))


def test_without_scipy_a_text_of_synsets_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = str(devkit(tmp_path))
    with_scipy = labels_from_devkit(kit)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(UsageError, match=r"pip install scipy, or give --synsets FILE"):
        labels_from_devkit(kit)
    synsets = tmp_path / "map_clsloc.txt"
    synsets.write_text("".join(f"{wnid} {place} a_name\n" for place, wnid in enumerate(WNIDS, 1)))
    assert labels_from_devkit(kit, synsets=str(synsets)) == with_scipy


def test_a_kit_that_contradicts_itself_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"line 2 of .*ground_truth.txt is '9'"):
        labels_from_devkit(str(devkit(tmp_path, [1, 9])))
    with pytest.raises(UsageError, match=r"has no data/meta.mat"):
        labels_from_devkit(str(tar_of(tmp_path / "other.tar.gz", [("x", b"")], "w:gz")))


def test_an_image_without_a_label_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"5 of 6 images of .* have no label; the first: ILSVRC2012_val_00000002"):
        ImageNetVal(str(val_tar(tmp_path)), labels={"ILSVRC2012_val_00000001.JPEG": 0}, class_names=["a"])


def test_val_in_class_folders_is_sent_to_the_other_split(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--split train converts it"):
        ImageNetVal(str(unpacked(tmp_path)), labels={}, class_names=[])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("n01440764.tar", tar_bytes([("readme.txt", b"x")]))], "n01440764.tar holds no images"),
        ([("n01440764.tar", tar_bytes([("a.JPEG", b"x" * 600)])[:700])], "n01440764.tar is cut short"),
        ([("a.JPEG", b"x")], "holds no tar files; expected one per class"),
        (
            [("a/n1.tar", tar_bytes([("a.JPEG", b"x")])), ("b/n1.tar", tar_bytes([("a.JPEG", b"x")]))],
            "the class n1 occurs twice",
        ),
    ],
)
def test_tars_that_are_not_imagenets_are_explained(tmp_path: Path, entries: Any, words: str) -> None:
    with pytest.raises(UsageError if "expected" in words else ConvertError, match=words):
        ImageNetTrain(str(tar_of(tmp_path / "train.tar", entries)))


def test_a_tar_changed_meanwhile_is_a_fault(tmp_path: Path) -> None:
    path = train_tar(tmp_path)
    source = ImageNetTrain(str(path))
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(SampleFault, match="changed since"):
        samples(source)


def test_the_tars_are_read_from_urls(tmp_path: Path, memory: Any) -> None:
    path = train_tar(tmp_path)
    expected = samples(ImageNetTrain(str(path)))
    memory("memory://imagenet/train.tar", path.read_bytes())
    assert samples(ImageNetTrain("memory://imagenet/train.tar")) == expected
    with http_range_server(tmp_path) as server:
        assert samples(ImageNetTrain(f"{server.url}/{path.name}")) == expected
