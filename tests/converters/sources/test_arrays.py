"""Arrays on disk are mapped, checked for what they are, and taken sample by sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from converters import ImagePolicy, Options, convert
from converters.source import SampleFault
from converters.sources.arrays import Arrays
from dataloading import ConvertError, FloatField, ImageField, IntField, Loader, NDArrayField, TextField, UsageError
from dataloading import transforms as T

from .making import samples

NUM = 5


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "images": rng.integers(0, 256, (NUM, 6, 4, 3), dtype=np.uint8),
        "labels": np.arange(NUM, dtype=np.uint8)[:, None],
        "weight": rng.normal(size=NUM).astype(np.float32),
        "emb": rng.normal(size=(NUM, 2, 3)).astype(np.float32),
    }


def saved(folder: Path, kind: str) -> list[str]:
    """The arrays in one of the ways NumPy has."""
    if kind == "npz":
        np.savez(folder / "a.npz", **arrays())
        return [str(folder / "a.npz")]
    if kind == "compressed":
        np.savez_compressed(folder / "a.npz", **arrays())
        return [str(folder / "a.npz")]
    for name, array in arrays().items():
        np.save(folder / f"{name}.npy", np.asfortranarray(array) if name == "emb" else array)
    return [str(folder)] if kind == "folder" else [str(folder / f"{name}.npy") for name in arrays()]


@pytest.mark.parametrize("kind", ["npz", "compressed", "folder", "npy"])
def test_every_way_to_store_arrays_gives_the_same_samples(tmp_path: Path, kind: str) -> None:
    source = Arrays(saved(tmp_path, kind))
    fields = dict(source.fields)
    assert (type(fields["image"]), type(fields["label"]), type(fields["weight"])) == (ImageField, IntField, FloatField)
    assert fields["emb"] == NDArrayField("float32", (2, 3))
    assert list(fields)[:2] == ["image", "label"]
    expected = arrays()
    found = samples(source)
    assert len(found) == NUM
    for index, sample in enumerate(found):
        np.testing.assert_array_equal(sample["image"], expected["images"][index])
        assert sample["image"].dtype == np.uint8
        assert (sample["label"], sample["weight"]) == (index, expected["weight"][index])
        np.testing.assert_array_equal(sample["emb"], expected["emb"][index])


def test_names_choose_images_labels_and_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", p=np.zeros((2, 3, 3), np.uint8), q=np.ones((2, 3, 3), np.uint8), k=[4, 5], r=[1.0, 2])
    source = Arrays([str(tmp_path / "a.npz")], image="q", label="k", names=["r"])
    assert list(source.fields) == ["image", "label", "r"]
    assert [(each["image"].min(), each["label"], each["r"]) for each in samples(source)] == [(1, 4, 1.0), (1, 5, 2.0)]
    with pytest.raises(UsageError, match="--image z: the arrays are p, q, k, r"):
        Arrays([str(tmp_path / "a.npz")], image="z")


def test_the_only_array_like_images_is_taken_as_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pictures=np.zeros((2, 3, 3), np.uint8), n=[1, 2])
    assert list(Arrays([str(tmp_path / "a.npz")]).fields) == ["image", "n"]


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ({"images": np.zeros((2, 3, 3), np.float32)}, UsageError, r"images 'images' is float32 .*expected uint8"),
        ({"images": np.zeros((2, 3), np.uint8)}, UsageError, r"of shape \(2, 3\); expected uint8 of shape \(N, H, W\)"),
        ({"labels": np.zeros(2)}, UsageError, "labels 'labels' is float64 .*expected whole numbers"),
        ({"labels": np.zeros((2, 10), int)}, UsageError, "one per sample"),
        ({"a": np.zeros(())}, UsageError, "expected samples along its first axis"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, ConvertError, "different numbers of samples: a 2, b 3"),
        ({"a": np.array([{}, []], dtype=object)}, ConvertError, "Python objects"),
        ({}, UsageError, "holds no arrays"),
    ],
)
def test_arrays_that_make_no_samples_are_explained(tmp_path: Path, content: Any, error: Any, words: str) -> None:
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(error, match=words):
        Arrays([str(tmp_path / "a.npz")])


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_files_cut_short_or_foreign_are_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    (np.save if name == "a.npy" else np.savez)(path, np.zeros((100, 8, 8), np.uint8))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(ConvertError, match=rf"{name} cannot be read as NumPy arrays"):
            Arrays([str(path)])


def test_texts_become_texts_and_bytes_of_one_length_stay_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 4, 5), np.uint8), name=np.array(["a", "", "längst"]),
             code=np.array([b"ab", b"c", b""]))  # fmt: skip
    source = Arrays([str(tmp_path / "a.npz")])
    assert source.fields["name"] == TextField()
    assert source.fields["code"] == NDArrayField("S2", (1,))
    found = samples(source)
    assert [sample["name"] for sample in found] == ["a", "", "längst"]
    assert [sample["code"].tolist() for sample in found] == [[b"ab"], [b"c"], [b""]]
    for sample in found:
        source.fields["code"].encode(sample["code"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_in_an_archive_is_found_by_its_checksum(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    save(path, images=np.random.default_rng(0).integers(0, 256, (9, 20, 30), np.uint8))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConvertError, match=r"a\.npz cannot be read as NumPy arrays: (Bad CRC-32|Error -3)"):
        Arrays([str(path)])


ORDERS = {
    "depth": np.arange(24).reshape(2, 3, 4) * 2000, "spectrum": np.arange(10).reshape(2, 5) / 4,
    "when": np.arange(4).reshape(2, 2), "ok": np.array([[True], [False]]), "n": np.array([7, -9]),
}  # fmt: skip


def test_big_endian_and_fortran_arrays_are_read_by_value_from_conversion_to_tensor(tmp_path: Path) -> None:
    arrays = {
        "images": ORDERS["depth"].astype(">u2"), "labels": ORDERS["n"].astype(">i2") + 9,
        "spectrum": np.asfortranarray(ORDERS["spectrum"].astype(">f4")), "when": ORDERS["when"].astype(">i8"),
        "z": ORDERS["spectrum"].astype(">c16"), "half": ORDERS["spectrum"].astype(">f2"), "ok": ORDERS["ok"],
        "n": ORDERS["n"].astype(">i4"),
    }  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays)
    source = Arrays([str(tmp_path / "a.npz")])
    convert(source, tmp_path / "a.beton", policy=ImagePolicy(channels="keep", mode="raw"), options=Options())
    batch = next(iter(Loader(tmp_path / "a.beton", batch_size=2, num_workers=1, transforms={"image": [T.AsList()]})))
    assert torch.stack(list(batch["image"]))[:, 0].numpy().tolist() == ORDERS["depth"].tolist()
    assert batch["label"].tolist() == [16, 0]
    for name in ("spectrum", "z", "half"):
        assert batch[name].tolist() == ORDERS["spectrum"].tolist()
    assert batch["when"].tolist() == ORDERS["when"].tolist()
    assert batch["ok"].tolist() == [[1], [0]]
    assert batch["n"].tolist() == [7, -9]


def test_an_array_that_makes_no_field_is_named_with_the_way_to_leave_it_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", n=[1, 2], pair=np.zeros(2, [("x", "f4"), ("y", "f4")]))
    with pytest.raises(UsageError, match=r"array 'pair' is .*give each of x, y a field of its own; .*--arrays"):
        Arrays([str(tmp_path / "a.npz")])
    np.savez(tmp_path / "b.npz", n=[1, 2], nothing=np.zeros((2, 0)))
    with pytest.raises(UsageError, match=r"array 'nothing' is float64 of shape \(2, 0\).*positive lengths"):
        Arrays([str(tmp_path / "b.npz")])


def test_what_torch_has_no_tensors_for_is_said_when_it_is_converted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", n=[1, 2], when=np.zeros(2, "M8[s]"), code=np.array([b"a", b"b"]))
    assert Arrays([str(tmp_path / "a.npz")]).without_tensors == ["when (datetime64[s])", "code (|S1)"]


def sets(**lengths: int) -> dict[str, np.ndarray]:
    """Images, labels and names of several sets."""
    found: dict[str, np.ndarray] = {}
    for part, length in lengths.items():
        found[f"x_{part}"] = np.full((length, 4, 4, 3), length, np.uint8)
        found[f"y_{part}"] = np.arange(length)
    return found


@pytest.mark.parametrize("num_test", [2, 3])
def test_arrays_of_several_sets_are_refused_with_what_to_type_which_then_works(tmp_path: Path, num_test: int) -> None:
    np.savez(tmp_path / "a.npz", **sets(train=3, test=num_test))
    words = r"several sets of samples: --arrays x_train,y_train or --arrays x_test,y_test takes one of them"
    with pytest.raises(UsageError, match=words):
        Arrays([str(tmp_path / "a.npz")])
    source = Arrays([str(tmp_path / "a.npz")], names=["x_test", "y_test"])
    assert list(source.fields) == ["image", "label"]
    assert [sample["label"] for sample in samples(source)] == list(range(num_test))


@pytest.mark.parametrize(
    ("image", "label"),
    [("x_train", "y_train"), ("train_images", "train_labels"), ("X", "Y"), ("Xtrain", "Ytrain"), ("Images", "Labels")],
)
def test_one_set_is_known_by_its_names(tmp_path: Path, image: str, label: str) -> None:
    np.savez(tmp_path / "a.npz", **{label: np.array([1, 0]), image: np.zeros((2, 3, 3), np.uint8)})
    assert list(Arrays([str(tmp_path / "a.npz")]).fields) == ["image", "label"]


@pytest.mark.parametrize("dtype", ["U", "S"])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_labels_that_are_words_become_classes(tmp_path: Path, dtype: str, shape: Any) -> None:
    words = np.array(["dög", "cat", "emu", "cat "])
    words = np.char.encode(words, "utf-8") if dtype == "S" else words
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 3, 3), np.uint8), labels=words.reshape(shape))
    source = Arrays([str(tmp_path / "a.npz")])
    assert (source.class_names, source.fields["label"]) == (["cat", "dög", "emu"], IntField())
    assert [sample["label"] for sample in samples(source)] == [1, 0, 2, 0]
    given = Arrays([str(tmp_path / "a.npz")], class_names=["emu", "cat", "dög"])
    assert [sample["label"] for sample in samples(given)] == [2, 1, 0, 1]


def test_labels_that_are_numbers_as_texts_stay_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 3), np.uint8), labels=np.array(["7", "3"]))
    source = Arrays([str(tmp_path / "a.npz")])
    assert source.class_names is None
    assert [sample["label"] for sample in samples(source)] == [7, 3]


def test_a_label_that_is_empty_is_a_fault_of_its_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 3), np.uint8), labels=np.array(["cat", ""]))
    source = Arrays([str(tmp_path / "a.npz")])
    with pytest.raises(SampleFault, match="its label is ''"):
        source.load(source.task(1))


def test_an_array_whose_name_no_field_can_have_names_the_option(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 3), np.uint8), a_name_of_17_char=np.zeros(2))
    with pytest.raises(UsageError, match=r"has 17 characters.*leave it out with --arrays"):
        Arrays([str(tmp_path / "a.npz")])


def test_arrays_of_other_lengths_can_be_left_out_as_the_error_says(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 4, 4), np.uint8), labels=[0, 1, 2], names=["a", "b"])
    with pytest.raises(ConvertError, match=r"image 3, label 3, names 2; --arrays images,labels takes those of one"):
        Arrays([str(tmp_path / "a.npz")])
    assert len(Arrays([str(tmp_path / "a.npz")], names=["images", "labels"])) == 3
