"""Several files as one dataset: which files, how they fit together, and that samples are those of the files."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading import DecodeError, FormatError, Loader, Mixture, UsageError, compare_windows
from dataloading import transforms as T
from dataloading.dataset.open_files import listed_files, open_files
from dataloading.dataset.page_layout import page_layout
from dataloading.format import (
    MODE_JPEG,
    MODE_RAW,
    BytesField,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    Manifest,
    NDArrayField,
    Reader,
    Shard,
    Writer,
    manifest_path,
    shard_path,
)
from dataloading.testing import KernelCeiling
from tests.support.files import photo_like, raw, write_images, write_labels
from tests.support.foreign import image_file, patch
from tests.support.huge import make_huge_file

NAMES = ["cat", "dog"]
TO_32 = {"image": [T.Resize(32), T.CenterCrop(32)]}


@pytest.fixture(scope="module")
def photo_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """JPEG, raw and JPEG images."""
    folder = tmp_path_factory.mktemp("several")
    paths = [folder / name for name in ("a.beton", "b-0.beton", "b-1.beton")]
    for number, (path, num, mode) in enumerate(zip(paths, (30, 20, 1), ("jpg", "raw", "jpg"), strict=True)):
        write_images(path, num, seed=number, mode=mode, class_names=NAMES)
    return paths


@pytest.fixture(scope="module")
def alone(photo_files: list[Path]) -> dict[int, tuple[bytes, int]]:
    """Pixels and label of every sample, read file by file."""
    found: dict[int, tuple[bytes, int]] = {}
    for path in photo_files:
        for images, labels in Loader(path, batch_size=8, transforms=TO_32, num_workers=1):
            for image, label in zip(images, labels.tolist(), strict=True):
                found[len(found)] = image.numpy().tobytes(), label
    return found


def write_pages(path: Path, num_pages: int, *, page_size: int = 1 << 21, first: int = 0) -> Path:
    """Two images a page; an image's pixels and label are its number."""
    fields, num = {"image": ImageField(), "label": IntField()}, 2 * num_pages
    side = int((page_size / 2 / 3) ** 0.5) - 4
    with Writer(path, fields, num_samples=num, page_size=page_size) as writer:
        for k in range(first, first + num):
            writer.append({"image": raw(np.full((side, side, 3), k % 251, np.uint8)), "label": k})
    return path


def write_backwards(path: Path, num_pages: int) -> Path:
    """A file as FFCV may leave it: two images a page, the first sample on the last one."""
    side = 590
    image_file(path, [(MODE_RAW, side, side, bytes(side * side * 3).ljust(1 << 20, b"."))] * (2 * num_pages))
    with Reader(path) as reader:
        table = reader.table[::-1].copy()
        table["f1"] = np.arange(len(table))
        start = reader.header.table_start
    return patch(path, start, table.tobytes())


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def write_set(path: Path, sizes: list[int]) -> Path:
    """Shards of labels that count on, and their manifest."""
    shards = []
    for number, num in enumerate(sizes):
        shard = shard_path(path, number, len(sizes))
        write_labels(Path(shard), num)
        with Reader(shard) as reader:
            shards.append(Shard.of(reader, Path(shard).name))
    Manifest(shards=tuple(shards)).save(manifest_path(path))
    return Path(manifest_path(path))


# ---- which files


def test_patterns_are_sorted_and_lists_keep_their_order(photo_files):
    folder = photo_files[0].parent
    everything = [str(path) for path in photo_files]
    assert listed_files(folder / "*.beton") == everything
    assert listed_files([str(folder / "b-*.beton"), folder / "a.beton"]) == [*everything[1:], everything[0]]
    assert Loader(everything[::-1], batch_size=4, transforms=TO_32).dataset.paths == tuple(everything[::-1])


def test_shards_of_two_conversions_are_not_one_dataset(tmp_path):
    for total in (2, 3):
        for number in range(total):
            write_labels(Path(shard_path(tmp_path / "t.beton", number, total)), 4)
    with pytest.raises(UsageError, match=r"two sets of .*t\.beton .*one of 2 and one of 3.*t\.beton\.json.*-of-00003"):
        open_files(str(tmp_path / "t-*.beton"))
    assert listed_files(str(tmp_path / "t-*-of-00002.beton")) == [
        shard_path(str(tmp_path / "t.beton"), number, 2) for number in range(2)
    ]
    assert len(listed_files(shard_path(str(tmp_path / "t.beton"), 0, 3))) == 1


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    write_labels(tmp_path / "part[1].beton", 3)
    assert len(Loader(tmp_path / "part[1].beton", batch_size=3).dataset) == 3


def test_files_that_are_missing_or_there_twice_are_named(tmp_path, photo_files):
    a = photo_files[0]
    with pytest.raises(UsageError, match=r"no file matches the pattern '.*c-\*.beton'"):
        Loader(str(a.parent / "c-*.beton"), batch_size=4)
    with pytest.raises(UsageError, match=r"a.beton is there twice: "):
        Loader([str(a), str(a)], batch_size=4)
    link = tmp_path / "link.beton"
    link.symlink_to(a)
    with pytest.raises(UsageError, match=r"link.beton is there twice \(the first time as .*a.beton\)"):
        Loader([a, link], batch_size=4)
    with pytest.raises(UsageError, match="no file was given"):
        Loader([], batch_size=4)
    with pytest.raises(FileNotFoundError, match=r"gone\.beton"):
        Loader([a, tmp_path / "gone.beton"], batch_size=4)


def test_a_manifest_is_its_shards_in_order(tmp_path):
    manifest = write_set(tmp_path / "train.beton", [5, 7, 1])
    loader = Loader(manifest, batch_size=4, num_workers=1)
    assert [Path(path).name for path in loader.dataset.paths] == [f"train-0000{k}-of-00003.beton" for k in range(3)]
    assert [label for _, labels in _columns(loader) for label in labels] == [*range(5), *range(7), 0]


def test_a_shard_that_is_not_the_one_listed_is_refused(tmp_path):
    manifest = write_set(tmp_path / "train.beton", [5, 7])
    second = Path(shard_path(tmp_path / "train.beton", 1, 2))
    second.unlink()
    with pytest.raises(FileNotFoundError, match=r"train-00001-of-00002.beton is missing, which .*train.beton.json"):
        Loader(manifest, batch_size=4)
    write_labels(second, 8)
    with pytest.raises(FormatError, match=r"is not the shard that .* lists: expected num_samples 7, got 8"):
        Loader(manifest, batch_size=4)


# ---- how they fit together


def test_files_with_other_fields_are_refused_naming_the_first_difference(tmp_path):
    def write(name, **fields):
        with Writer(tmp_path / name, fields, num_samples=1) as writer:
            values = {IntField: 0, FloatField: 0.0, JSONField: None}
            writer.append({k: values.get(type(f), np.zeros(getattr(f, "shape", ()), "f4")) for k, f in fields.items()})
        return tmp_path / name

    first = write("first.beton", label=IntField(), v=NDArrayField(np.dtype("f4"), (3,)))
    for name, words, fields in (
        ("more", r"'meta' \(JSONField.*\) is only in the second", {"meta": JSONField()}),
        ("kind", "'label' is IntField.* in the first, FloatField.* in the second", {"label": FloatField()}),
        ("shape", r"'v' is .*\(3,\).* in the first, .*\(4,\)", {"v": NDArrayField(np.dtype("f4"), (4,))}),
    ):
        other = write(f"{name}.beton", **{"label": IntField(), "v": NDArrayField(np.dtype("f4"), (3,))} | fields)
        with pytest.raises(UsageError, match=words):
            Loader([first, other], batch_size=1)
    other = write("order.beton", v=NDArrayField(np.dtype("f4"), (3,)), label=IntField())
    with pytest.raises(UsageError, match="their order is label, v in the first, v, label in the second"):
        Loader([first, other], batch_size=1)


def test_a_file_without_class_names_beside_one_with_names_is_refused_with_the_way_out(tmp_path, photo_files):
    unnamed = [tmp_path / "one.beton", tmp_path / "two.beton"]
    for path in unnamed:
        write_images(path, 1, class_names=None)
    assert Loader(unnamed, batch_size=1).dataset.classes is None
    for files in ([unnamed[0], photo_files[0]], [photo_files[0], unnamed[0]]):
        with pytest.raises(
            UsageError, match=r"one\.beton records no class names, .*a\.beton has 2 names.*beton upgrade .*one\.beton "
            r"NEW\.beton --class-names-from .*a\.beton`"
        ):  # fmt: skip
            Loader(files, batch_size=1)


def test_class_names_must_be_equal(tmp_path, photo_files):
    loader = Loader(photo_files, batch_size=4, transforms=TO_32)
    assert loader.dataset.classes == NAMES
    assert loader.dataset.class_to_idx == {"cat": 0, "dog": 1}
    for number, (names, words) in enumerate(
        [(["cat", "cow"], r"Label 1 is 'dog' in .* and 'cow'"), ([*NAMES, "eel"], "Label 2 is not a class .* 'eel'")]
    ):
        write_images(tmp_path / f"{number}.beton", 1, class_names=names)
        with pytest.raises(UsageError, match=words):
            Loader([photo_files[1], photo_files[0], tmp_path / f"{number}.beton"], batch_size=4)


def test_the_fingerprint_is_of_all_files_and_their_order(photo_files):
    options = {"batch_size": 4, "transforms": TO_32}
    prints = [
        Loader(files, **options).dataset.fingerprint for files in (photo_files, photo_files[::-1], photo_files[:2])
    ]
    assert len(set(prints)) == 3
    with Reader(photo_files[0]) as reader:
        assert Loader([photo_files[0]], **options).dataset.fingerprint == reader.fingerprint
    assert "a.beton and 2 more files" in repr(Loader(photo_files, **options).dataset)


# ---- samples


def _columns(loader):
    return [(batch.indices.tolist(), batch["label"].tolist()) for batch in loader]


@pytest.mark.parametrize("shuffle", ["none", "global", "pages"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_samples_are_those_of_the_files_in_every_order(photo_files, alone, shuffle, num_workers):
    loader = Loader(photo_files, batch_size=7, shuffle=shuffle, transforms=TO_32, num_workers=num_workers, seed=4)
    seen = []
    for batch in loader:
        for index, image, label in zip(batch.indices.tolist(), batch["image"], batch["label"].tolist(), strict=True):
            assert (image.numpy().tobytes(), label) == alone[index]
            seen.append(index)
    assert sorted(seen) == list(range(51))
    assert (seen == list(range(51))) == (shuffle == "none")


def test_every_kind_of_field_comes_from_the_right_file(tmp_path):
    rng = np.random.default_rng(0)
    paths, samples = [], []
    for number in range(4):
        paths.append(tmp_path / f"{number}.beton")
        fields = {
            "label": IntField(),
            "half": FloatField(),
            "v": NDArrayField(np.dtype("f4"), (3,)),
            "text": BytesField(),
            "meta": JSONField(),
            "image": ImageField(),
        }
        num = (3, 2, 5, 1)[number]
        with Writer(paths[-1], fields, num_samples=num) as writer:
            for _ in range(num):
                samples.append(
                    {
                        "label": len(samples),
                        "half": len(samples) / 2,
                        "v": rng.random(3).astype("f4"),
                        "text": b"" if len(samples) % 3 == 0 else f"text {len(samples)}".encode(),
                        "meta": {"number": len(samples)},
                        "image": raw(photo_like(rng, 32, 32)),
                    }
                )
                writer.append(samples[-1])
    order = rng.permutation(11)
    for batch in Loader(paths, batch_size=4, indices=order, num_workers=2):
        for row, index in enumerate(batch.indices.tolist()):
            expected = samples[index]
            assert batch["label"][row].item() == expected["label"]
            assert batch["half"][row].item() == expected["half"]
            np.testing.assert_array_equal(batch["v"][row].numpy(), expected["v"])
            assert bytes(batch["text"][row]) == expected["text"]
            assert batch["meta"][row] == expected["meta"]
            assert batch["image"][row].permute(1, 2, 0).numpy().tobytes() == bytes(expected["image"].data)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_an_index_is_a_file_and_a_place_in_it(tmp_path_factory, sizes, seed):
    folder = tmp_path_factory.mktemp("sizes")
    files = open_files([write_labels(folder / f"{k}.beton", num) for k, num in enumerate(sizes)])
    expected = [(k, place) for k, num in enumerate(sizes) for place in range(num)]
    assert files.num_samples == len(expected)
    assert [files.split_index(index) for index in range(len(expected))] == expected
    chosen = np.random.default_rng(seed).permutation(len(expected))
    numbers, places = files.split_indices(chosen)
    assert list(zip(numbers.tolist(), places.tolist(), strict=True)) == [expected[k] for k in chosen]
    assert files.records("label", chosen).tolist() == [expected[k][1] for k in chosen]
    assert files.column("label").tolist() == [place for _, place in expected]


def test_stored_bytes_are_found_as_each_file_alone_finds_them(photo_files):
    files = open_files(photo_files)
    indices = np.random.default_rng(1).integers(0, 51, 200)
    numbers, pointers, sizes = files.locate("image", indices)
    for row, index in enumerate(indices.tolist()):
        number, place = files.split_index(index)
        pointer, size = files.readers[number].locate("image", [place])
        assert (numbers[row], pointers[row], sizes[row]) == (number, pointer[0], size[0])
        np.testing.assert_array_equal(files.view("image", index), files.readers[number].view("image", place))


def test_a_file_whose_table_needs_searching_is_searched(tmp_path):
    """Several workers of FFCV's writer leave allocations in any order."""
    paths = [tmp_path / f"{k}.beton" for k in range(2)]
    for k, path in enumerate(paths):
        write_images(path, 12, seed=k)
    paths[1].unlink()
    rng = np.random.default_rng(0)
    payloads = [(MODE_JPEG, 8, 8, rng.bytes(100 + k)) for k in range(12)]
    image_file(paths[1], payloads, order=rng.permutation(12).tolist())
    files = open_files(paths)
    numbers, _, sizes = files.locate("image", np.arange(23, 5, -1))
    assert numbers.tolist() == [1] * 12 + [0] * 6
    assert sizes[:12].tolist() == list(range(111, 99, -1))
    assert [files.view("image", 12 + k).tobytes() for k in range(12)] == [payload[3] for payload in payloads]


def test_an_index_outside_is_refused(photo_files):
    files = open_files(photo_files)
    for wrong in (-1, 51):
        with pytest.raises(UsageError, match="range"):
            files.records("label", np.array([0, wrong]))


def test_a_damaged_sample_is_named_with_its_file_its_place_and_its_index(tmp_path, photo_files):
    content = bytearray(photo_files[0].read_bytes())
    with Reader(photo_files[0]) as reader:
        pointers, _ = reader.locate("image", [7])
    content[int(pointers[0]) : int(pointers[0]) + 16] = bytes(16)
    damaged = tmp_path / "damaged.beton"
    damaged.write_bytes(content)
    files = [photo_files[1], damaged]
    with pytest.raises(
        DecodeError, match=r"sample 7, field 'image' of .*damaged.beton \(sample 27 of the dataset\)"
    ) as e:
        list(Loader(files, batch_size=8, transforms=TO_32, num_workers=2))
    again = pickle.loads(pickle.dumps(e.value))
    assert (again.sample, again.index, again.path) == (7, 27, str(damaged))
    assert f"beton verify {damaged}" in str(e.value)
    loader = Loader(files, batch_size=8, transforms=TO_32, on_error="skip", num_workers=2)
    assert sorted(index for indices, _ in _columns(loader) for index in indices) == [*range(27), *range(28, 50)]
    assert [(error.sample, error.index) for error in loader.errors] == [(7, 27)]


def test_subsets_weights_and_measures_count_over_all_files(photo_files):
    loader = Loader(photo_files, batch_size=51, fields=["label"], num_workers=1)
    labels = np.array([*range(30), *range(20), 0])
    some = loader.filter(lambda label: label == 0)
    assert _columns(some) == [([0, 30, 50], [0, 0, 0])]
    assert _columns(loader.with_indices([50, 29, 31])) == [([50, 29, 31], [0, 29, 1])]
    weights = (labels == 5).astype(float)
    drawn = Loader(photo_files, batch_size=51, fields=["label"], weights=weights, num_workers=1)
    assert {index for indices, _ in _columns(drawn) for index in indices} == {5, 35}
    assert loader.shuffle_quality().num_classes == 30
    found = compare_windows(photo_files, batch_size=5)
    assert [each.window_pages for each in found] == [1, 2, 3]
    assert found[-1].window_bytes == sum(Reader(path).page_size for path in photo_files)
    assert KernelCeiling(photo_files, transforms=TO_32["image"], num_workers=1).run(200).num_samples == 200


def test_a_place_fits_the_same_files_in_the_same_order_only(photo_files):
    options = {"batch_size": 4, "shuffle": "global", "fields": ["label"], "num_workers": 1}
    loader = Loader(photo_files, **options)
    batches = iter(loader)
    received = [index for _ in range(5) for index in next(batches).indices.tolist()]
    state = loader.state_dict()
    again = Loader(photo_files, **options)
    again.load_state_dict(state)
    rest = [index for indices, _ in _columns(again) for index in indices]
    assert sorted(received + rest) == list(range(51))
    with pytest.raises(UsageError, match="another dataset"):
        Loader(photo_files[::-1], **options).load_state_dict(state)


def test_a_thousand_files_are_open_without_a_file_descriptor_each(tmp_path):
    first = write_labels(tmp_path / "0000.beton", 3)
    for k in range(1, 1000):
        os.link(first, tmp_path / f"{k:04}.beton")
    before = num_descriptors()
    loader = Loader(str(tmp_path / "*.beton"), batch_size=100, shuffle="global", num_workers=1)
    assert num_descriptors() < before + 20
    assert sum(len(batch["label"]) for batch in loader) == 3000


# ---- pages


def test_pages_carry_their_file_and_its_page_size(tmp_path):
    sizes = [1 << 21, 1 << 22, 1 << 21]
    files = open_files(
        [write_pages(tmp_path / f"{k}.beton", 3, page_size=size, first=6 * k) for k, size in enumerate(sizes)]
    )
    layout = page_layout(files)
    assert layout.files.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert layout.sizes.tolist() == [size for size in sizes for _ in range(3)]
    for page in range(9):
        for element in layout.listed(np.array([page])).tolist():
            number, pointers, _ = files.locate("image", np.array([element]))
            assert number[0] == layout.files[page]
            assert layout.offsets[page] <= pointers[0] < layout.offsets[page] + layout.sizes[page]
    subset = np.array([17, 3, 4, 16])
    chosen = layout.select(subset)
    assert chosen.files.tolist() == [0, 0, 2]
    assert sorted(subset[chosen.listed(np.arange(3))].tolist()) == [3, 4, 16, 17]


@pytest.mark.parametrize("backwards", [False, True])
def test_two_nodes_of_two_ranks_share_the_pages_of_all_files(tmp_path, backwards):
    paths = [write_pages(tmp_path / f"{k}.beton", 6, first=12 * k) for k in range(4)]
    num = 48
    if backwards:
        paths[2].unlink()
        write_backwards(paths[2], 6)
        layout = page_layout(open_files(paths))
        assert layout.listed(np.flatnonzero(layout.files == 2)[-1:]).tolist() == [24, 25]
    pages: list[set[tuple[int, int]]] = []
    seen: list[int] = []
    for node in range(2):
        used: set[tuple[int, int]] = set()
        for local in range(2):
            loader = Loader(
                paths, batch_size=3, shuffle="pages", window_pages=4, num_workers=1, tail="even", fields=["label"],
                rank=node * 2 + local, world_size=4, num_nodes=2, node_rank=node, local_world_size=2,
            )  # fmt: skip
            files = open_files(paths)
            for batch in loader:
                seen += batch.indices.tolist()
                numbers, pointers, _ = files.locate("image", batch.indices)
                used |= {(int(n), int(p) >> 21) for n, p in zip(numbers, pointers, strict=True)}
        pages.append(used)
    assert sorted(seen) == list(range(num))
    assert len(pages[0] | pages[1]) == 24
    assert max(map(len, pages)) <= 13


def test_two_files_of_ten_million_samples_start_without_a_list_of_them(tmp_path):
    paths = [make_huge_file(tmp_path / f"{k}.beton", 10_000_000, filled=False) for k in range(2)]
    options = {"batch_size": 256, "shuffle": "global", "fields": ["label"], "num_workers": 1}
    for source, more in ((paths, {"permutation": "cipher"}), (Mixture({paths[0]: 2, paths[1]: 1}), {})):
        tracemalloc.start()
        loader = Loader(source, **options, **more)
        batch = next(iter(loader))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(batch["label"]) == 256
        assert peak < 8 << 20  # a list of all samples would take 160 MB


def test_files_that_are_removed_while_they_are_read_are_read_to_their_end(tmp_path):
    paths = [tmp_path / f"{k}.beton" for k in range(3)]
    pixels = [image for k, path in enumerate(paths) for image in write_images(path, 20, seed=k, mode="raw")]
    options = {"shuffle": "pages", "window_pages": 1, "num_workers": 1, "prefetch_batches": 1}
    loader = Loader(paths, batch_size=4, transforms={"image": [T.CenterCrop(16)]}, **options)
    for epoch in range(2):
        seen = []
        for batch in loader:
            for path in paths:
                path.unlink(missing_ok=True)
            for row, index in enumerate(batch.indices.tolist()):
                top, left = (round((side - 16) / 2) for side in pixels[index].shape[:2])
                expected = pixels[index][top : top + 16, left : left + 16].transpose(2, 0, 1)
                np.testing.assert_array_equal(batch["image"][row].numpy(), expected)
                seen.append(index)
        assert sorted(seen) == list(range(60)), epoch
