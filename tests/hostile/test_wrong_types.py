"""Metadata of wrong types with right checksums: a FormatError from whoever opens the file, never a bare exception."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

from converters import ImageFolder, ImagePolicy, Options, convert
from converters.tools.commands import append as append_command
from converters.tools.commands import diff as diff_command
from converters.tools.commands import export as export_command
from converters.tools.commands import merge as merge_command
from converters.tools.commands import repair as repair_command
from converters.tools.commands import split as split_command
from converters.tools.commands import upgrade as upgrade_command
from converters.tools.info import info as info_command
from converters.tools.verify import verify as verify_command
from dataloading import (
    BetonError,
    EncodedImage,
    FormatError,
    IntField,
    Loader,
    Manifest,
    MaskField,
    NDArrayField,
    RasterField,
    Reader,
    UsageError,
    VarArrayField,
    Writer,
    verify_file,
)
from dataloading import transforms as T
from dataloading.format import extension as ext
from dataloading.format.layout import HEADER, parse_header

from ..converters.making import class_folders

WRONG: list[Any] = [None, True, -1, 1 << 70, 1.5, "x", [], {}, [1], {"a": 1}, [["x"]], [{"from": 3}]]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each part of a JSON value is, the whole included."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any, *, remove: bool = False) -> Any:
    """A copy with another value in one place, or without it."""
    if not path:
        return new
    result = copy.deepcopy(value)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return result


def rewritten(path: Path, text: bytes) -> None:
    """Put another text into a file's extension block, with all checksums right."""
    data = bytearray(path.read_bytes())
    with Reader(path) as reader:
        locator, old = reader.locator, reader.extension
        assert locator is not None
        assert old is not None
        table = reader.header.alloc_table_ptr
    start = locator.ptr + locator.text_bytes + -locator.text_bytes % 8
    arrays = data[start : start + 8 * sum(old.num_blocks.values())]
    block = text + bytes(-len(text) % 8) + arrays
    data[locator.ptr : table] = block + bytes(table - locator.ptr - len(block))
    new = ext.Locator(
        ptr=locator.ptr, text_bytes=len(text), text_xxh3=ext.digest(text), header_xxh3=locator.header_xxh3,
        file_bytes=locator.file_bytes,
    )  # fmt: skip
    data[ext.LOCATOR_POSITION : ext.LOCATOR_POSITION + ext.LOCATOR.itemsize] = new.to_bytes()
    path.write_bytes(data)


def text_of(path: Path) -> bytes:
    with Reader(path) as reader:
        assert reader.locator is not None
        return bytes(reader.data[reader.locator.ptr : reader.locator.ptr + reader.locator.text_bytes])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file with classes, provenance and a history."""
    root = tmp_path_factory.mktemp("wrong")
    source = ImageFolder(class_folders(root / "src", {"a": 2, "b": 2}))
    convert(source, root / "o.beton", policy=ImagePolicy(), options=Options(page_size=2 << 20))
    done = run(split_command, str(root / "o.beton"), "--ratio", "0.5,0.5", "--out", str(root / "part{index}.beton"))
    assert done.exit_code == 0, done.output
    return min(root.glob("part*.beton"))


def run(command: click.Command, *words: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, list(words))


def open_it(path: Path) -> None:
    Loader(path, batch_size=1, fields=["image"], transforms={"image": [T.CenterCrop(8)]}, num_workers=1)


def test_every_value_of_a_wrong_type_in_the_extension_is_a_format_error_or_unchecked(
    made: Path, tmp_path: Path
) -> None:
    original = json.loads(text_of(made))
    assert original["provenance"]["history"]
    refused = free = 0
    for path in places(original):
        for new in WRONG:
            values = changed(original, path, new)
            if values == original:
                continue
            text = json.dumps(values).encode()
            try:
                ext.Extension.from_text(text, "f.beton")
                free += 1
            except FormatError as error:
                refused += 1
                assert str(error).startswith("f.beton: the extension block does not describe a file: ")
        if len(path) == 1:
            with pytest.raises(FormatError, match=f"'{path[0]}' must be .*got nothing"):
                ext.Extension.from_text(json.dumps(changed(original, path, None, remove=True)).encode(), "f.beton")
    assert refused > 300
    assert free > 100


ONE_OF_EACH: list[tuple[tuple[Any, ...], Any]] = [
    ((), []),
    (("class_names",), "ab"),
    (("class_names",), [1, 2]),
    (("class_names",), [["a"], ["b"]]),
    (("provenance",), [1]),
    (("provenance", "history"), 3),
    (("provenance", "history"), [3]),
    (("provenance", "history"), [{"from": [3]}]),
    (("facts",), [1]),
    (("facts", "image"), 7),
    (("facts", "image", "uniform_size"), "x"),
    (("facts", "image", "uniform_size"), [1]),
    (("facts", "image", "longest_sides"), [1]),
    (("num_blocks",), {"table": "x", "pages": 1, "allocations": 1}),
    (("block_bytes",), "64"),
    (("data_start",), None),
    (("digests_xxh3",), "x"),
    (("allocations_sorted",), "yes"),
    (("writer",), None),
]


@pytest.mark.parametrize(("place", "value"), ONE_OF_EACH, ids=str)
def test_every_command_says_what_is_wrong_with_the_metadata(
    made: Path, tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    path, out = tmp_path / "f.beton", str(tmp_path / "out")
    shutil.copy(made, path)
    rewritten(path, json.dumps(changed(json.loads(text_of(path)), place, value)).encode())
    for action in (lambda: Reader(path), lambda: open_it(path)):
        with pytest.raises(FormatError, match="the extension block does not describe a file"):
            action()
    report = verify_file(path)
    assert [problem.region for problem in report.problems] == ["header"]
    name, other = str(path), str(made)
    for command, words in (
        (info_command, [name]),
        (verify_command, [name]),
        (diff_command, [name, other]),
        (repair_command, [name, out]),
        (split_command, [name, "--ratio", "0.5,0.5"]),
        (merge_command, [out, name, other]),
        (export_command, [name, out]),
        (upgrade_command, [name, out]),
    ):
        done = run(command, *words)
        assert done.exit_code != 0
        assert done.exception is None or isinstance(done.exception, (BetonError, SystemExit)), (
            command.name,
            done.exception,
        )


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5])
def test_unchecked_metadata_breaks_no_command(made: Path, tmp_path: Path, kind: int) -> None:
    value = [None, 3, "text", [1, {"a": [2]}], {"deep": {"er": [None, 1.5]}}, True][kind]
    path, out = tmp_path / "f.beton", tmp_path / "out.beton"
    shutil.copy(made, path)
    values = json.loads(text_of(path))
    values["provenance"] = {name: value for name in values["provenance"] if name != "history"} | {"new": value}
    values["new"] = value
    rewritten(path, json.dumps(values).encode())
    assert verify_file(path).ok
    open_it(path)
    for command, words in (
        (info_command, [str(path)]), (info_command, [str(path), "--json"]), (verify_command, [str(path)]),
        (diff_command, [str(path), str(made)]), (merge_command, [str(out), str(path), str(made)]),
    ):  # fmt: skip
        done = run(command, *words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (command.name, done.exception)
    source = made.parent / "src"
    with pytest.raises(UsageError, match="exists and is not what this command makes"):
        convert(ImageFolder(source), path, policy=ImagePolicy(), options=Options(resume=True))


def test_every_value_of_a_wrong_type_in_a_manifest_is_a_format_error(made: Path, tmp_path: Path) -> None:
    shard = {"name": made.name, "num_samples": 1, "num_bytes": 10, "fingerprint": "f"}
    original = {"beton_manifest": 1, "num_samples": 2, "shards": [shard, {**shard, "name": "b.beton"}]}
    assert Manifest.from_text(json.dumps(original), "m").num_samples == 2
    path = tmp_path / "m.beton.json"
    for place in places(original):
        for new in WRONG:
            values = changed(original, place, new)
            # Another name, and a number of bytes, are of the right type: the files will tell.
            if (place[-1:], new) in ((("name",), "x"), (("fingerprint",), "x"), (("num_bytes",), 1 << 70)):
                continue
            if json.dumps(values) == json.dumps(original):
                continue
            with pytest.raises(FormatError):
                Manifest.from_text(json.dumps(values), "m")
    path.write_text(json.dumps(changed(original, ("shards", 0), [1])))
    for action in (lambda: Loader(path, batch_size=1), lambda: Manifest.load(path)):
        with pytest.raises(FormatError, match="list of shards is damaged"):
            action()
    for command, more in (
        (info_command, []),
        (verify_command, []),
        (repair_command, [str(tmp_path / "o.beton.json")]),
        (append_command, [str(made)]),
        (diff_command, [str(made)]),
    ):
        done = run(command, str(path), *more)
        assert isinstance(done.exception, FormatError), (command.name, done.exception)


def test_every_value_of_a_wrong_type_in_a_field_description_is_a_format_error(tmp_path: Path) -> None:
    """Descriptors of our own kinds hold JSON as well."""
    path = tmp_path / "f.beton"
    fields = {
        "r": RasterField(2),
        "m": MaskField(),
        "v": VarArrayField("float32", (None, 4)),
        "d": NDArrayField("int16", (3,)),
    }
    values = {"r": EncodedImage(1, 3, 2, bytes(12), 2), "m": EncodedImage(1, 3, 2, bytes(6), 1)}
    with Writer(path, fields, num_samples=1, page_size=2 << 20) as writer:
        writer.append({**values, "v": np.zeros((1, 4), np.float32), "d": np.zeros(3, np.int16)})
    data = path.read_bytes()
    start = HEADER.itemsize
    header = parse_header(data[:start], len(data), str(path))
    size = (header.table_start - start) // header.num_fields
    checked = 0
    for number in range(header.num_fields):
        low = start + number * size
        descriptor = data[low : low + size]
        begin = descriptor.find(b'{"kind"') if b'{"kind"' in descriptor else descriptor.find(b"{")
        if begin < 0:
            continue
        end = descriptor.find(b"\0", begin)
        original = json.loads(descriptor[begin:end])
        for place in places(original):
            for new in WRONG:
                values = changed(original, place, new)
                text = json.dumps(values).encode()
                broken = bytearray(data)
                broken[low + begin : low + begin + max(len(text), end - begin)] = text.ljust(end - begin, b"\0")
                signed(broken)
                target = tmp_path / "x.beton"
                target.write_bytes(broken)
                checked += 1
                with contextlib.suppress(FormatError):
                    Reader(target).close()
    assert checked > 100


def signed(data: bytearray) -> None:
    """Make the header's checksum and the locator's right again."""
    header = parse_header(bytes(data[: HEADER.itemsize]), len(data), "x")
    place = slice(ext.LOCATOR_POSITION, ext.LOCATOR_POSITION + ext.LOCATOR.itemsize)
    record = np.frombuffer(bytes(data[place]), ext.LOCATOR)[0]
    new = ext.Locator(
        ptr=int(record["ptr"]), text_bytes=int(record["text_bytes"]), text_xxh3=int(record["text_xxh3"]),
        header_xxh3=ext.header_digest(bytes(data[: header.table_start])), file_bytes=int(record["file_bytes"]),
    )  # fmt: skip
    data[place] = new.to_bytes()


def test_a_writer_refuses_a_history_that_readers_would_refuse(tmp_path: Path) -> None:
    for value in (3, [3], [{"from": "x"}]):
        with pytest.raises(UsageError, match="'history' is reserved for this library's commands"):
            Writer(tmp_path / "f.beton", {"n": IntField()}, num_samples=1, provenance={"history": value})
    assert not list(tmp_path.iterdir())
