"""Finding a sample's bytes: right, vectorised, inside the file, and cheap to open whatever the number of samples."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dataloading.errors import FormatError, UsageError
from dataloading.format import (
    MODE_JPEG,
    MODE_RAW,
    BytesField,
    EncodedImage,
    ImageField,
    IntField,
    JSONField,
    Reader,
    Writer,
)
from dataloading.format.layout import ALLOCATION
from tests.support.foreign import PAGE, image_file, noise, patch
from tests.support.huge import make_huge_file

ROOT = Path(__file__).parents[2]


def payloads(count: int, seed: int = 0) -> list[tuple[int, int, int, bytes]]:
    rng = np.random.default_rng(seed)
    result = []
    for index in range(count):
        width, height = (int(side) for side in rng.integers(1, 12, 2))
        if index % 3:
            result.append((MODE_JPEG, width, height, noise(index, int(rng.integers(1, 300)))))
        else:
            result.append((MODE_RAW, width, height, noise(index, width * height * 3)))
    return result


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_bytes_are_found_whatever_the_order_of_the_allocation_table(order: str, tmp_path: Path) -> None:
    """FFCV's workers each append their own list, so its tables may come in any order."""
    images = payloads(200)
    rows = {
        "ascending": list(range(200)),
        "descending": list(range(199, -1, -1)),
        "shuffled": np.random.default_rng(1).permutation(200).tolist(),
    }[order]
    reader = Reader(image_file(tmp_path / "x.beton", images, order=rows))
    assert reader.extension is None
    indices = np.random.default_rng(2).permutation(200)
    pointers, sizes = reader.locate("image", indices)
    assert pointers.dtype == sizes.dtype == np.uint64
    for index, pointer, size in zip(indices, pointers, sizes, strict=True):
        assert reader.data[int(pointer) : int(pointer + size)].tobytes() == images[index][3]
    assert reader.column("label").tolist() == list(range(200))
    assert reader.column("image")["width"].tolist() == [image[1] for image in images]


def test_direct_lookup_and_search_of_the_allocation_table_agree(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.beton", {"b": BytesField(), "i": ImageField(), "j": JSONField()}, num_samples=300) as w:
        for index, (mode, width, height, data) in enumerate(payloads(300)):
            w.append({"b": bytes(index % 3), "i": EncodedImage(mode, width, height, data), "j": index})
    expected = Reader(tmp_path / "x.beton").locate("i", range(300))
    with (tmp_path / "x.beton").open("r+b") as file:  # in another order, so that every entry must be searched for
        file.seek(Reader(tmp_path / "x.beton").header.alloc_table_ptr)
        entries = np.frombuffer(file.read(), ALLOCATION)
        file.seek(-entries.nbytes, os.SEEK_END)
        file.write(entries[::-1].tobytes())
    reader = Reader(tmp_path / "x.beton")
    found = reader.locate("i", range(300))
    assert np.array_equal(expected, found)
    for index, image in enumerate(payloads(300)):
        assert reader.view("i", index).tobytes() == image[3]


def test_an_empty_value_of_ffcv_with_its_neighbours_address_is_not_mistaken_for_it(tmp_path: Path) -> None:
    images = payloads(4)
    path = image_file(tmp_path / "x.beton", images)
    raw = bytearray(path.read_bytes())
    entries = np.frombuffer(raw[2 * PAGE :], dtype="<u8").reshape(-1, 3)
    empty = entries[1:2].copy()
    empty[0, 2] = 0
    path.write_bytes(
        raw[: 2 * PAGE] + entries[3:].tobytes() + empty.tobytes() + entries[:3].tobytes() + empty.tobytes()
    )
    assert Reader(path).view("image", 1).tobytes() == images[1][3]


@pytest.mark.parametrize("indices", [[], np.empty(0, np.int64), [3], [3, 3, 0], np.array([5], np.uint8), range(2)])
def test_any_sequence_of_whole_numbers_is_an_index(indices: object, tmp_path: Path) -> None:
    images = payloads(10)
    reader = Reader(image_file(tmp_path / "x.beton", images))
    _, sizes = reader.locate("image", indices)  # type: ignore[arg-type]
    assert sizes.tolist() == [len(images[index][3]) for index in indices]  # type: ignore[attr-defined]


@pytest.mark.parametrize("indices", [[-1], [10], [2**63], [0.5], [[0, 1]], ["a"], [True]])
def test_indices_of_other_types_are_refused(indices: list[object], tmp_path: Path) -> None:
    reader = Reader(image_file(tmp_path / "x.beton", payloads(10)))
    with pytest.raises(UsageError):
        reader.locate("image", indices)  # type: ignore[arg-type]


def test_unknown_fields_and_fields_without_bytes_are_refused(tmp_path: Path) -> None:
    reader = Reader(image_file(tmp_path / "x.beton", payloads(3)))
    for call in (reader.column, lambda name: reader.locate(name, [0]), lambda name: reader.value(name, 0)):
        with pytest.raises(UsageError, match=r"no field 'lable'; it has \['image', 'label'\]"):
            call("lable")
    with pytest.raises(UsageError, match="column"):
        reader.locate("label", [0])


RECORD = 24 + 2 * 1041


@pytest.mark.parametrize("pointer", [0, 23, PAGE - 1 - 8, 2 * PAGE - 2, 2 * PAGE, 2**63, 2**64 - 1])
@pytest.mark.parametrize("mode", [MODE_JPEG, MODE_RAW])
def test_a_pointer_out_of_the_pages_names_the_sample(mode: int, pointer: int, tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(mode, 2, 2, bytes(12))] * 5)
    if pointer == PAGE - 1 - 8:
        pointer = RECORD  # inside the tables
    patch(path, RECORD + 3 * 24 + 5, pointer.to_bytes(8, "little"))
    reader = Reader(path)
    reader.locate("image", [0, 1, 2, 4])
    with pytest.raises(FormatError, match="sample 3, field 'image'"):
        reader.locate("image", range(5))


@pytest.mark.parametrize(("width", "height", "mode"), [(65535, 65535, 1), (0, 2, 1), (2, 0, 0), (2, 2, 2), (2, 2, 255)])
def test_an_impossible_image_names_the_sample(width: int, height: int, mode: int, tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(1, 2, 2, bytes(12))] * 5)
    patch(path, RECORD + 2 * 24, bytes([mode]) + width.to_bytes(2, "little") + height.to_bytes(2, "little"))
    with pytest.raises(FormatError, match="sample 2, field 'image'"):
        Reader(path).locate("image", range(5))


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2 * PAGE, 0])
def test_an_impossible_allocation_names_the_sample(size: int, tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", [(0, 2, 2, bytes(12))] * 5)
    patch(path, 2 * PAGE + 3 * 24 + 16, size.to_bytes(8, "little"))
    with pytest.raises(FormatError, match="sample 3, field 'image'"):
        Reader(path).locate("image", range(5))


def test_damaged_json_text_names_the_sample(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.beton", {"j": JSONField()}, num_samples=2) as w:
        w.append({"j": "first"})
        w.append({"j": "second"})
    pointer = int(Reader(tmp_path / "x.beton").locate("j", [1])[0][0])
    for damage in (b"}", b"\xff\xfe"):
        patch(tmp_path / "x.beton", pointer, damage)
        reader = Reader(tmp_path / "x.beton")
        assert reader.value("j", 0) == "first"
        with pytest.raises(FormatError, match="sample 1, field 'j'"):
            reader.value("j", 1)


def test_views_are_read_only_and_outlive_the_reader(tmp_path: Path) -> None:
    images = payloads(3)
    with Reader(image_file(tmp_path / "x.beton", images)) as reader:
        view = reader.view("image", 1)
        column = reader.column("label")
        assert view.ctypes.data == reader.base_address + int(reader.locate("image", [1])[0][0])
    for array in (view, column):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert view.tobytes() == images[1][3] and column.tolist() == [0, 1, 2]
    with pytest.raises(UsageError):
        reader.view("image", 1)


def test_a_pickled_reader_opens_its_path_again(tmp_path: Path) -> None:
    path = image_file(tmp_path / "x.beton", payloads(3))
    packed = pickle.dumps(Reader(path))
    assert len(packed) < 1000
    assert pickle.loads(packed).view("image", 2).tobytes() == payloads(3)[2][3]
    image_file(path, [*payloads(3), (1, 1, 1, b"abc")])
    with pytest.raises(FormatError, match="replaced"):
        pickle.loads(packed)


def test_a_reader_works_in_a_forked_child(tmp_path: Path) -> None:
    images = payloads(3)
    reader = Reader(image_file(tmp_path / "x.beton", images))
    child = os.fork()
    if child == 0:
        os._exit(0 if reader.view("image", 1).tobytes() == images[1][3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "none.beton")
    with pytest.raises(IsADirectoryError):
        Reader(tmp_path)


@pytest.mark.parametrize("with_extension", [True, False])
def test_opening_millions_of_samples_touches_none_of_them(with_extension: bool, tmp_path: Path) -> None:
    """The tables of 20 million samples take 960 MB; opening and reading a few must stay far below."""
    path = make_huge_file(tmp_path / "x.beton", 20_000_000, filled=False, with_extension=with_extension)
    code = f"""
import resource
from dataloading.format import Reader
before = resource.getrusage(resource.RUSAGE_SELF)
reader = Reader({str(path)!r})
assert len(reader) == 20_000_000
reader.column("label")[[5, 10_000_000, 19_999_999]]
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_maxrss - before.ru_maxrss, after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    grown_kib, faults = map(int, out.stdout.split())
    assert grown_kib < 50_000 and faults < 5_000


def test_the_huge_file_of_the_tests_is_valid(tmp_path: Path) -> None:
    path = make_huge_file(tmp_path / "x.beton", 5000, side=4)
    reader = Reader(path)
    assert np.array_equal(reader.column("label"), np.arange(5000))
    assert (reader.locate("image", range(5000))[1] == 48).all()
    with Writer(tmp_path / "y.beton", {"image": ImageField(), "label": IntField()}, num_samples=1) as w:
        w.append({"image": np.zeros((4, 4, 3), np.uint8), "label": 0})
    assert Reader(tmp_path / "y.beton").table.dtype == reader.table.dtype
