"""Reading ahead: the system gets exactly what workers will need into the page cache, and is not asked in vain."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataloading import FormatError, Loader, _native
from dataloading import transforms as T
from dataloading._native import read_ahead
from dataloading.dataset import read_ahead as module
from dataloading.dataset.files import FileSet
from dataloading.dataset.open_files import open_files
from dataloading.dataset.read_ahead import ReadAhead
from dataloading.format import BytesField, ImageField, IntField, NDArrayField, Writer
from dataloading.format.mapping import map_file
from dataloading.stats import Clock
from tests.support.files import photo_like, raw, write_images
from tests.support.page_cache import cached_pages, drop_from_cache
from tests.support.waiting import wait_for

PAGE = mmap.PAGESIZE
Parts = list[tuple[int, int]]
SHUFFLED = np.array([3, 0, 2, 1])


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 64 MiB that occupies one block."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(b"x")
        file.truncate(64 << 20)
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Parts, int]]:
    """What the system is asked for: the parts by address and size, and the size of blocks."""
    calls: list[tuple[Parts, int]] = []

    def note(addresses: Any, sizes: Any, block_bytes: int) -> None:
        calls.append((list(zip(addresses.tolist(), sizes.tolist(), strict=True)), block_bytes))
        read_ahead(addresses, sizes, block_bytes)

    monkeypatch.setattr(module, "read_ahead", note)
    return calls


@pytest.mark.parametrize("block", [PAGE, 1 << 17])
def test_just_the_blocks_of_the_parts_are_read(large: Path, block: int) -> None:
    drop_from_cache(large)
    with large.open("rb") as file:
        data = map_file(file.fileno(), 64 << 20)
    first = -data.ctypes.data % block  # blocks are counted from address 0
    starts = np.array([first + 5000, first + 10 * block - 1, first + 20 * block, first + 30 * block], np.uint64)
    sizes = np.array([10_000, 2, 0, block], np.uint64)
    expected = np.zeros((64 << 20) // PAGE, bool)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        for at in range((start - first) // block * block, start - first + size if size else 0, block):
            expected[(first + at) // PAGE : (first + at + block) // PAGE] = True
    read_ahead(starts + np.uint64(data.ctypes.data), sizes, block)
    wait_for(lambda: cached_pages(large)[expected].all())
    assert np.array_equal(cached_pages(large), expected)


def test_a_part_is_read_to_its_end_however_little_the_system_reads_at_once(large: Path) -> None:
    drop_from_cache(large)
    with large.open("rb") as file:
        data = map_file(file.fileno(), 64 << 20)
    read_ahead(np.array([data.ctypes.data], np.uint64), np.array([64 << 20], np.uint64), PAGE)
    wait_for(lambda: cached_pages(large).all())


def test_what_is_not_mapped_is_no_error() -> None:
    read_ahead(np.array([0, 1 << 46, 2**64 - 1], np.uint64), np.array([1 << 20, 5, 1], np.uint64), PAGE)
    read_ahead(np.empty(0, np.uint64), np.empty(0, np.uint64), PAGE)


def test_samples_are_asked_for_while_some_are_missing(tmp_path: Path, asked: list[Any]) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 64, sizes=(100, 200))
    files, clock = open_files(path), Clock()
    ahead = ReadAhead(files, clock)

    def num_asked() -> int:
        before = len(asked)
        for _ in range(400):
            ahead.samples(SHUFFLED, ["image"])
        return len(asked) - before

    assert num_asked() == 8  # at the start nothing is known
    assert num_asked() == 0
    clock.add_group(0.1, 0.1, page_faults=1)
    assert num_asked() == 256
    assert num_asked() == 0
    ahead = ReadAhead(files, clock)  # of an iteration that begins later
    assert num_asked() == 8
    ahead = ReadAhead(files, clock)
    before = len(asked)
    ahead.samples(np.arange(8), ["image"])
    assert len(asked) == before  # the system reads ahead of reads in order by itself


def test_asking_goes_on_as_long_as_the_system_reads_for_it(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 8)
    clock, read = Clock(), iter(range(0, 10**9, 4096))
    monkeypatch.setattr(module, "_bytes_read", lambda: next(read))
    ahead = ReadAhead(open_files(path), clock)
    for _ in range(50):
        ahead.samples(SHUFFLED, ["image"])
    assert len(asked) == 50
    assert clock.snapshot(1).num_bytes_read_ahead == 50 * 4096
    monkeypatch.setattr(module, "_bytes_read", lambda: 0)
    for _ in range(50):
        ahead.samples(SHUFFLED, ["image"])
    assert len(asked) == 58


@pytest.mark.parametrize(("memory", "block"), [(1 << 40, 1 << 17), (1 << 16, PAGE)])
def test_neighbours_are_read_too_only_where_all_fits_into_memory(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch, memory: int, block: int
) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 16)
    monkeypatch.setattr(module, "memory_bytes", lambda: memory)
    ReadAhead(open_files(path), Clock()).samples(SHUFFLED, ["image"])
    assert [each for _, each in asked] == [block]


def stored_parts(files: FileSet, field: str, indices: Any) -> set[tuple[int, int]]:
    numbers, starts, sizes = files.locate(field, indices)
    return set(zip(files.addresses(numbers, starts).tolist(), sizes.tolist(), strict=True))


@pytest.mark.parametrize("shuffle", ["global", "pages"])
def test_a_loader_asks_for_every_stored_field_of_its_samples_before_it_reads_them(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch, shuffle: str
) -> None:
    paths = [tmp_path / "a.beton", tmp_path / "b.beton"]
    rng = np.random.default_rng(0)
    fields = {
        "image": ImageField(), "label": IntField(), "caption": BytesField(), "unused": BytesField(),
        "vector": NDArrayField("float32", (3,)),
    }  # fmt: skip
    for path in paths:
        with Writer(path, fields, num_samples=20) as writer:
            for k in range(20):
                writer.append({
                    "image": raw(photo_like(rng, 60, 60)), "label": k, "caption": b"x" * (k + 1), "unused": b"y",
                    "vector": np.full(3, k, np.float32),
                })  # fmt: skip
    num_asked = []
    decode_regions = _native.decode_regions

    def note_and_decode(*given: Any) -> int:
        num_asked.append(len(asked))
        return decode_regions(*given)

    monkeypatch.setattr(_native, "decode_regions", note_and_decode)
    loader = Loader(
        paths, batch_size=10, shuffle=shuffle, num_workers=1, transforms={"image": [T.CenterCrop(32)]},
        fields=["image", "label", "caption", "vector"],
    )  # fmt: skip
    batches = [np.array(batch.indices) for batch in loader]
    assert sorted(np.concatenate(batches).tolist()) == list(range(40))
    own = [
        stored_parts(loader._files, field, indices) for indices in batches for field in ("image", "caption", "vector")
    ]
    unused = stored_parts(loader._files, "unused", np.arange(40))
    asked_parts = [set(parts) for parts, _ in asked]
    assert all(each in asked_parts for each in own)
    assert not any(unused & each for each in asked_parts)
    assert num_asked[0] >= 3 * 3  # all fields of the first batch and of the next two


def test_a_sample_outside_its_file_is_reported_by_its_decoder(tmp_path: Path) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 16)
    data = bytearray(path.read_bytes())
    files = open_files(path)
    _, [start], _ = files.locate("image", np.array([3]))
    at = data.index(int(start).to_bytes(8, "little"))
    data[at : at + 8] = (1 << 40).to_bytes(8, "little")
    broken = tmp_path / "broken.beton"
    broken.write_bytes(data)
    loader = Loader(broken, batch_size=16, shuffle="global", transforms={"image": [T.CenterCrop(32)]}, num_workers=1)
    with pytest.raises(FormatError, match="sample 3"):
        list(loader)


def skip_unless_reads_are_counted(path: Path) -> None:
    drop_from_cache(path)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
    with path.open("rb", buffering=0) as file:
        file.read(PAGE)
    if resource.getrusage(resource.RUSAGE_THREAD).ru_inblock == before:
        pytest.skip("the system does not count what it reads from this file system")


def test_a_cold_file_is_loaded_without_page_faults(tmp_path: Path) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 600, sizes=(150, 250), mode="raw")
    size = os.path.getsize(path)
    skip_unless_reads_are_counted(path)
    drop_from_cache(path)
    options = {"batch_size": 50, "shuffle": "global", "num_workers": 1, "transforms": {"image": [T.CenterCrop(100)]}}
    loader = Loader(path, **options)
    cold = [batch["image"].clone() for batch in loader]
    stats = loader.stats()
    assert stats.num_bytes_read_ahead > size / 2
    assert stats.num_page_faults < 20
    warm = [batch["image"].clone() for batch in Loader(path, **options)]
    assert sum(map(len, cold)) == 600
    assert all(torch.equal(one, other) for one, other in zip(cold, warm, strict=True))
