"""The writer leaves a whole file or none, in one pass, with facts that are true."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloading.errors import FormatError, UsageError
from dataloading.format import (
    MODE_JPEG,
    MODE_RAW,
    BytesField,
    EncodedImage,
    Field,
    FloatField,
    ImageField,
    IntField,
    NDArrayField,
    Reader,
    Writer,
    verify_file,
    writer,
)

ROOT = Path(__file__).parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_has_another_name_until_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "train.beton"
    with Writer(path, {"a": IntField()}, num_samples=2) as open_writer:
        open_writer.append({"a": 1})
        [part] = names(tmp_path)
        assert part.startswith(".train.beton.part-")
        with pytest.raises(FormatError, match="unfinished"):
            (tmp_path / "copy").write_bytes((tmp_path / part).read_bytes().ljust(2000, b"\0"))
            Reader(tmp_path / "copy")
    assert names(tmp_path) == ["copy", "train.beton"]
    open_writer.finish()
    open_writer.abort()
    assert names(tmp_path) == ["copy", "train.beton"], "finish and abort do nothing the second time"
    with pytest.raises(UsageError, match="finished"):
        open_writer.append({"a": 2})


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=2) as w:
        w.append({"a": 1})
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_a_forgotten_writer_leaves_nothing_behind(tmp_path: Path) -> None:
    w = Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=2)
    w.append({"a": 1})
    del w
    assert names(tmp_path) == []


def test_a_forked_child_does_not_remove_the_parents_file(tmp_path: Path) -> None:
    code = f"""
import gc, os, sys
from dataloading.format import IntField, Writer
w = Writer({str(tmp_path / "x.beton")!r}, {{"a": IntField()}}, num_samples=1)
child = os.fork()
if child == 0:
    del w
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
w.append({{"a": 5}})
w.finish()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert Reader(tmp_path / "x.beton").value("a", 0) == 5


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sample"), Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=2):
        pass
    assert names(tmp_path) == []
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(UsageError, match="num_samples"):
            Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=wrong)  # type: ignore[arg-type]


def test_more_samples_than_declared_are_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=1) as w:
        w.append({"a": 1})
        with pytest.raises(UsageError, match="num_samples=1"):
            w.append({"a": 2})
    assert len(Reader(tmp_path / "x.beton")) == 1


def test_a_refused_sample_leaves_no_part_in_the_file(tmp_path: Path) -> None:
    fields = {"b": BytesField(), "a": IntField()}
    for path, refuse in ((tmp_path / "x.beton", True), (tmp_path / "y.beton", False)):
        with Writer(path, fields, num_samples=3, page_size=1 << 21) as w:
            w.append({"b": b"one", "a": 1})
            if refuse:
                for bad in (
                    {"b": b"two", "a": 1.5},
                    {"b": bytes(3 << 20), "a": 2},
                    {"b": b"x"},
                    {"b": b"", "a": 1, "c": 0},
                ):
                    with pytest.raises(UsageError, match="sample 1"):
                        w.append(bad)
            w.append({"b": b"two", "a": 2})
    assert (tmp_path / "x.beton").read_bytes() == (tmp_path / "y.beton").read_bytes()


def test_encoded_values_make_the_same_file_as_the_values(tmp_path: Path) -> None:
    fields = {"image": ImageField(), "label": IntField(), "raw": BytesField()}
    samples = [{"image": np.full((2, n, 3), n, np.uint8), "label": n, "raw": bytes(n)} for n in range(1, 9)]
    with (
        Writer(tmp_path / "a.beton", fields, num_samples=8) as plain,
        Writer(tmp_path / "b.beton", fields, num_samples=8) as encoded,
    ):
        for sample in samples:
            plain.append(sample)
            encoded.append_encoded([field.encode(sample[name]) for name, field in fields.items()])
        with pytest.raises(UsageError, match="more samples than the declared num_samples=8"):
            encoded.append_encoded([])
    assert (tmp_path / "a.beton").read_bytes() == (tmp_path / "b.beton").read_bytes()


def test_an_existing_file_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "x.beton"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="overwrite"):
        Writer(path, {"a": IntField()}, num_samples=1)
    with Writer(path, {"a": IntField()}, num_samples=1, overwrite=True) as w:
        w.append({"a": 1})
        assert path.read_bytes() == b"precious"
    assert Reader(path).value("a", 0) == 1
    with pytest.raises(IsADirectoryError):
        Writer(tmp_path, {"a": IntField()}, num_samples=1, overwrite=True)


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.beton"
    w = Writer(path, {"a": IntField()}, num_samples=1)
    w.append({"a": 1})
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="meanwhile"):
        w.finish()
    assert names(tmp_path) == ["x.beton"] and path.read_bytes() == b"precious"


def test_a_new_file_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=1) as w:
        w.append({"a": 1})
    assert stat.S_IMODE((tmp_path / "x.beton").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("limit", [100_000, 3 << 20, 12 << 20])
def test_a_full_disk_is_an_error_and_leaves_nothing_behind(limit: int, tmp_path: Path) -> None:
    """A limit on the file size stands for a full disk: while appending, and only when finishing."""
    code = f"""
import resource
from dataloading.format import BytesField, Writer
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    with Writer({str(tmp_path / "x.beton")!r}, {{"b": BytesField()}}, num_samples=40, page_size=1 << 21) as w:
        for i in range(40):
            w.append({{"b": bytes([i]) * 300_000}})
except OSError as error:
    print(type(error).__name__)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert out.stdout.strip() == "OSError", out
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounting a small disk needs root")
def test_a_really_full_disk_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("no right to mount here")
    try:
        w = Writer(tmp_path / "x.beton", {"b": BytesField()}, num_samples=100, page_size=1 << 21)
        with pytest.raises(OSError, match="No space left"):
            for _ in range(100):
                w.append({"b": bytes([1]) * 300_000})
        assert names(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_sample_larger_than_the_page_names_itself_and_the_page_it_needs(tmp_path: Path) -> None:
    fields = {"image": BytesField(), "mask": BytesField()}
    with Writer(tmp_path / "x.beton", fields, num_samples=2, page_size=1 << 21) as w:
        w.append({"image": bytes(1 << 20), "mask": b""})
        with pytest.raises(
            UsageError, match=r"sample 1 has 4000000 bytes \('image' 3000000, 'mask' 1000000\).*page_size=4194304"
        ):
            w.append({"image": bytes(3_000_000), "mask": bytes(1_000_000)})


def test_an_array_of_144_megabytes_is_written_with_default_options(tmp_path: Path) -> None:
    array = np.arange(36_000_000, dtype=np.float32)
    with Writer(tmp_path / "x.beton", {"a": NDArrayField("float32", array.shape), "i": IntField()}, num_samples=1) as w:
        w.append({"a": array, "i": 1})
    reader = Reader(tmp_path / "x.beton")
    assert reader.page_size == 1 << 28
    assert np.array_equal(reader.value("a", 0), array)  # type: ignore[arg-type]
    reader.close()
    assert verify_file(tmp_path / "x.beton").ok
    (tmp_path / "x.beton").unlink()


def test_more_samples_than_a_staging_chunk_holds_are_written(tmp_path: Path) -> None:
    count = writer.RECORDS_PER_CHUNK * 2 + 17
    path = tmp_path / "x.beton"
    with Writer(path, {"f": FloatField(), "b": BytesField(), "i": IntField()}, num_samples=count + 100) as w:
        for index in range(count):
            w.append({"f": index / 4, "b": index.to_bytes(3, "little"), "i": index})
    reader = Reader(path)
    assert np.array_equal(reader.column("f"), np.arange(count) / 4)
    assert np.array_equal(reader.column("i"), np.arange(count))
    for index in (0, writer.RECORDS_PER_CHUNK - 1, writer.RECORDS_PER_CHUNK, count - 1):
        assert reader.value("b", index) == index.to_bytes(3, "little")
    assert verify_file(path).ok


def test_facts_describe_the_stored_images(tmp_path: Path) -> None:
    images = [(10, 20, b"abc"), (70, 5, b"defghi"), (64, 64, b"x")]
    fields = {"image": ImageField(), "label": IntField(), "raw": ImageField(), "meta": BytesField()}
    with Writer(
        tmp_path / "x.beton",
        fields,
        num_samples=3,
        class_names=["cat", "dog"],
        provenance={"source": "s"},
        field_facts={"image": {"restart_markers": True}},
    ) as w:
        for width, height, data in images:
            pixels = np.zeros((4, 6, 3), np.uint8)
            w.append({"image": EncodedImage(MODE_JPEG, width, height, data), "label": 0, "raw": pixels, "meta": data})
    extension = Reader(tmp_path / "x.beton").extension
    assert extension is not None
    assert extension.class_to_idx == {"cat": 0, "dog": 1}
    assert extension.provenance == {"source": "s"}
    assert extension.uniform_size("raw") == (6, 4)
    assert extension.uniform_size("image") is None and extension.uniform_size("label") is None
    assert extension.facts["image"] == {
        "total_bytes": 10,
        "max_bytes": 6,
        "max_sample": 1,
        "num_jpeg": 3,
        "num_raw": 0,
        "min_size": [10, 5],
        "max_size": [70, 64],
        "uniform_size": None,
        "longest_sides": {"64": 2, "128": 1},
        "restart_markers": True,
    }
    assert extension.facts["meta"] == {"total_bytes": 10, "max_bytes": 6, "max_sample": 1}
    assert extension.facts["raw"]["num_raw"] == 3


@pytest.mark.parametrize(
    "options",
    [
        {"class_names": ["a", "a"]},
        {"class_names": "abc"},
        {"class_names": [1]},
        {"provenance": {"x": object()}},
        {"provenance": {"x": float("nan")}},
        {"field_facts": {"other": {}}},
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_at_once(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Writer(tmp_path / "x.beton", {"a": IntField()}, num_samples=1, **options)  # type: ignore[arg-type]
    assert names(tmp_path) == []


def test_no_fields_and_unknown_kinds_of_fields_are_refused(tmp_path: Path) -> None:
    for fields in ({}, {"a": "int"}, {"a": IntField}):
        with pytest.raises(UsageError):
            Writer(tmp_path / "x.beton", fields, num_samples=1)  # type: ignore[arg-type]


def test_memory_stays_bounded_while_writing(tmp_path: Path) -> None:
    """400 MB of samples must not need even a quarter of it."""
    code = f"""
import resource
from dataloading.format import BytesField, Writer
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Writer({str(tmp_path / "x.beton")!r}, {{"b": BytesField()}}, num_samples=400) as w:
    for i in range(400):
        w.append({{"b": bytes(1) * 1_000_000}})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    (tmp_path / "x.beton").unlink()
    assert int(out.stdout) < 100_000, f"{out.stdout} KiB"


@pytest.mark.parametrize(
    ("fields", "num_samples"),
    [
        ({"image": ImageField(), "label": IntField()}, 40_000),
        ({"label": IntField(), "image": ImageField(), "points": NDArrayField("float64", (3,))}, 2000),
        ({"points": NDArrayField("float64", (3,)), "crops": NDArrayField("uint16", (5, 1)), "raw": BytesField()}, 2000),
        ({"weight": FloatField(), "label": IntField()}, 40_000),
    ],
)
def test_samples_appended_many_at_a_time_give_the_bytes_of_samples_appended_one_by_one(
    tmp_path: Path, fields: dict[str, Field], num_samples: int
) -> None:
    rng = np.random.default_rng(0)
    sizes = {"image": 9 * 31 * 3, "points": 24, "crops": 10, "raw": 0}
    values = {
        name: rng.integers(0, 256, (num_samples, sizes[name]), dtype=np.uint8)
        if field.has_data
        else rng.integers(0, 99, num_samples).astype(field.record)
        for name, field in fields.items()
    }
    heads = {"image": (MODE_RAW, 31, 9)}

    def write(path: Path, counts: list[int]) -> bytes:
        done = 0
        with Writer(path, fields, num_samples=num_samples, page_size=2 << 20) as writer:
            for count in itertools.cycle(counts):
                rows = slice(done, min(num_samples, done + count))
                if count == 1:
                    writer.append_encoded(
                        [
                            (heads.get(name, ()), values[name][done])
                            if field.has_data
                            else ((values[name][done].item(),), None)
                            for name, field in fields.items()
                        ]
                    )
                else:
                    writer.append_alike(
                        [
                            (heads.get(name, ()), values[name][rows]) if field.has_data else (values[name][rows], None)
                            for name, field in fields.items()
                        ]
                    )
                done = rows.stop
                if done == num_samples:
                    break
        return path.read_bytes()

    one_by_one = write(tmp_path / "one.beton", [1])
    assert write(tmp_path / "many.beton", [2, 700, 1, 3000]) == one_by_one
    assert write(tmp_path / "all.beton", [num_samples]) == one_by_one


def test_packed_samples_give_the_same_bytes_in_any_portions(tmp_path: Path) -> None:
    fields = {"image": ImageField(), "number": FloatField(), "raw": BytesField()}
    rng = np.random.default_rng(0)
    # Empty values, samples that end exactly where a page ends, and more samples than a chunk of the table has.
    sizes = [*rng.integers(0, 300, 20_000).tolist(), *rng.integers(0, 400_000, 60).tolist()]
    images = [(rng.integers(0, 256, int(rng.integers(1, 99)), dtype=np.uint8), i % 500 + 1) for i in range(len(sizes))]
    blocks = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]

    def write(path: Path, portions: Iterable[int]) -> bytes:
        done = 0
        with Writer(path, fields, num_samples=len(sizes), page_size=2 << 20) as writer:
            for count in portions:
                rows = range(done, min(len(sizes), done + count))
                done = rows.stop
                if count == 1:
                    image, width = images[rows.start]
                    heads = [(MODE_JPEG, width, 7), (rows.start / 3,), ()]
                    writer.append_encoded(list(zip(heads, [image, None, blocks[rows.start]], strict=True)))
                    continue
                records: list[list[Any]] = [[], [], []]
                for row in rows:
                    image, width = images[row]
                    records[0].append(fields["image"].entry((MODE_JPEG, width, 7), 0, image.size))
                    records[1].append(row / 3)
                    records[2].append(fields["raw"].entry((), 0, sizes[row]))
                values = [
                    part for row in rows for part in (images[row][0], blocks[row] if sizes[row] else np.zeros(1, "u1"))
                ]
                writer.append_packed(
                    [np.array(own, field.record) for own, field in zip(records, fields.values(), strict=True)],
                    np.array([[images[row][0].size, sizes[row]] for row in rows], np.int64),
                    np.concatenate(values),
                )
                if done == len(sizes):
                    break
        return path.read_bytes()

    one_by_one = write(tmp_path / "one.beton", itertools.repeat(1, len(sizes)))
    assert write(tmp_path / "some.beton", itertools.cycle([1, 2, 300, 7000])) == one_by_one
    assert write(tmp_path / "all.beton", [len(sizes)]) == one_by_one


def test_packed_samples_that_cannot_be_written_are_refused_and_leave_the_writer_usable(tmp_path: Path) -> None:
    def packed(count: int, size: int) -> tuple[Any, ...]:
        records = np.array([(0, size)] * count, BytesField.record)
        return [records], np.full((count, 1), size, np.int64), np.full(count * size, 7, np.uint8)

    with Writer(tmp_path / "a.beton", {"raw": BytesField()}, num_samples=3, page_size=2 << 20) as writer:
        with pytest.raises(UsageError, match="more samples than the declared num_samples=3"):
            writer.append_packed(*packed(4, 1))
        with pytest.raises(UsageError, match="more than a page of 2097152; append it by itself"):
            writer.append_packed(*packed(2, (2 << 20) + 1))
        writer.append_packed(*packed(3, 2))
    with Reader(tmp_path / "a.beton") as reader:
        assert [reader.value("raw", index) for index in range(3)] == [b"\7\7"] * 3
    with Writer(tmp_path / "b.beton", {"x": NDArrayField("float32", (1,))}, num_samples=1) as writer:
        with pytest.raises(UsageError, match="append them one by one"):
            writer.append_packed([np.zeros(1, "<u8")], np.full((1, 1), 4, np.int64), np.zeros(4, np.uint8))
        writer.append({"x": np.zeros(1, np.float32)})


def test_many_samples_that_do_not_fit_are_refused_and_leave_the_writer_usable(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.beton", {"raw": BytesField()}, num_samples=3, page_size=2 << 20) as writer:
        with pytest.raises(UsageError, match="more samples than the declared num_samples=3"):
            writer.append_alike([((), np.zeros((4, 1), np.uint8))])
        with pytest.raises(UsageError, match="more than a page"):
            writer.append_alike([((), np.zeros((2, (2 << 20) + 1), np.uint8))])
        writer.append_alike([((), np.full((3, 2), 7, np.uint8))])
    with Reader(tmp_path / "a.beton") as reader:
        assert [reader.value("raw", index) for index in range(3)] == [b"\7\7"] * 3
