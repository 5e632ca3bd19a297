"""Stored samples travel from file to file bit for bit, whatever the kind of field, with memory for one at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from converters.tools.derived_files import derived_writer
from converters.tools.input_files import InputFile, InputFiles, Stored, check_sources
from converters.tools.merge import merge
from converters.tools.new_files import NewFiles
from dataloading import ConvertError, FormatError, Reader, UsageError, verify_file
from tests.converters.tools.making import contents, strange_files, write_file, write_set
from tests.support.foreign import flip, image_file, noise

ROOT = Path(__file__).parents[3]


def test_every_kind_of_field_is_copied_bit_for_bit(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", [index % 3 for index in range(30)], class_names=["x", "y", "z"])
    options = {"num_samples": 30, "step": {"command": "test"}, "class_names": None, "overwrite": False}
    with (
        InputFile(source) as input_file,
        derived_writer(tmp_path / "b.beton", [input_file], **options) as writer,
    ):
        for sample in input_file.samples():
            writer.append(sample)
    assert contents(tmp_path / "b.beton") == contents(source)
    assert verify_file(tmp_path / "b.beton").ok
    with Reader(source) as before, Reader(tmp_path / "b.beton") as after:
        assert dict(before.fields) == dict(after.fields)
        assert before.extension is not None and after.extension is not None
        assert before.extension.facts == after.extension.facts
        step = {"command": "test", "from": [{"file": "a.beton", "num_samples": 30}]}
        assert after.extension.provenance == {"source": "test", "seed": 0, "history": [step]}


def test_samples_come_in_the_order_asked_for_and_decode_to_their_values(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.beton", list(range(20)))
    with InputFile(source) as input_file:
        order = [7, 7, 0, 19]
        assert [sample["label"][0][0] for sample in input_file.samples(order)] == order
        for index, sample in enumerate(input_file.samples()):
            for name in input_file.fields:
                expected = input_file.reader.value(name, index)
                got = input_file.decoded(name, sample[name])
                if name in ("image", "mask", "depth"):
                    expected, got = expected.data, got.data  # type: ignore[attr-defined]
                np.testing.assert_array_equal(got, expected)
        some = next(input_file.samples([3], only=["label", "box"]))
        assert list(some) == ["label", "box"]


def test_a_file_without_extension_as_ffcv_writes_it_is_copied_too(tmp_path: Path) -> None:
    payloads = [(0, 9, 9, noise(index, 100 + index)) for index in range(12)] + [(1, 2, 3, noise(99, 18))]
    path = image_file(tmp_path / "f.beton", payloads, order=range(12, -1, -1))
    merge(tmp_path / "o.beton", [str(path)])
    with Reader(tmp_path / "o.beton") as reader:
        for index, (mode, width, height, data) in enumerate(payloads):
            image = reader.value("image", index)
            assert (image.mode, image.width, image.height, bytes(image.data)) == (mode, width, height, data)  # type: ignore[attr-defined]
        assert reader.extension is not None
        [step] = reader.extension.provenance["history"]
        assert step["from"] == [{"file": "f.beton", "num_samples": 13, "writer": "FFCV"}]


def test_fields_that_differ_are_listed(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a.beton", [0], names=("image", "label", "box"))
    two = write_file(tmp_path / "b.beton", [0], names=("label", "image", "blob"))
    with pytest.raises(UsageError, match=r"'box' .* only in the first\n.*'blob' .* only in the second"):
        InputFiles([str(one), str(two)])
    three = write_file(tmp_path / "c.beton", [0], names=("label", "image", "box"))
    with pytest.raises(UsageError, match="their order is image, label, box in the first"):
        InputFiles([str(one), str(three)])


def test_a_damaged_source_is_refused_and_named(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.beton", list(range(10)))
    with Reader(path) as reader:
        flip(path, int(reader.locate("image", [4])[0][0]) + 9, 3)
    with pytest.raises(ConvertError, match=r"a\.beton is damaged.*\n.*touches samples.*\n`beton repair`"):
        check_sources([str(path)], num_workers=1)
    with pytest.raises(ConvertError):
        merge(tmp_path / "o.beton", [str(path)])
    assert not (tmp_path / "o.beton").exists() and not strange_files(tmp_path)
    merge(tmp_path / "o.beton", [str(path)], verify=False)
    assert verify_file(tmp_path / "o.beton").ok, "the copy's checksums are of what was copied"


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.beton", list(range(10)))
    with InputFile(path) as input_file:
        pointer = int(input_file.reader.locate("depth", [9])[0][0])
        input_file.read(0, 1)
        with open(path, "r+b") as file:
            file.truncate(pointer)
        with pytest.raises(FormatError, match="ended at byte"):
            input_file.read(pointer, 10)


def test_a_file_that_is_replaced_before_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.beton", list(range(10)))
    with InputFile(path) as input_file:
        assert next(input_file.samples([0]))["label"] == ((0,), None)
        input_file.close_until_read()
        write_file(tmp_path / "b.beton", list(range(10)), first=5).replace(path)
        with pytest.raises(FormatError, match="was replaced or changed while it was being read"):
            next(input_file.samples([0]))


def flat(stored: Stored) -> tuple[str, bytes | None]:
    return repr(stored[0]), None if stored[1] is None else stored[1].tobytes()


def num_open(paths: list[Path]) -> int:
    """Count this process's descriptors of some files."""
    return sum(link.readlink() in paths for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


def test_several_files_and_shard_sets_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tools.input_files._OPEN_AT_ONCE", 2)
    parts = [
        write_file(tmp_path / f"{name}.beton", list(range(first, last)), first=first)
        for name, first, last in (("a", 0, 4), ("b", 4, 5), ("c", 5, 11), ("d", 11, 13))
    ]
    whole = write_file(tmp_path / "whole.beton", list(range(13)))
    manifest = write_set(tmp_path / "s.beton.json", parts[1:3])
    order = np.random.default_rng(0).integers(0, 13, 60)
    with InputFiles([str(parts[0]), str(manifest), str(parts[3])]) as chain, InputFile(whole) as input_file:
        num_mapped = num_open(parts)
        assert len(chain) == 13 and chain.paths == [str(part) for part in parts] and chain.label == "label"
        assert chain.path == f"{parts[0]} and 2 more"
        assert chain.column("label").tolist() == list(range(13))
        for indices in (None, order):
            for one, two in zip(chain.samples(indices), input_file.samples(indices), strict=True):
                assert {name: flat(stored) for name, stored in one.items()} == {
                    name: flat(stored) for name, stored in two.items()
                }
        assert num_open(parts) - num_mapped == 2
        assert [(chain.split_index(i)[0].path, chain.split_index(i)[1]) for i in (4, 10)] == [
            (str(parts[1]), 0),
            (str(parts[2]), 5),
        ]
        with pytest.raises(UsageError, match="has samples 0 to 12, not 13"):
            chain.split_index(13)


def test_an_output_set_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    targets = [str(tmp_path / name) for name in ("a", "b")]
    with pytest.raises(RuntimeError), NewFiles(targets, overwrite=False, inputs=[]) as files:
        Path(files.part(targets[0])).write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with NewFiles(targets, overwrite=False, inputs=[]) as files:
        for target in targets:
            Path(files.part(target)).write_text("x")
        Path(targets[1]).write_text("meanwhile")
        with pytest.raises(UsageError, match="exists"):
            files.publish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"] and Path(targets[1]).read_text() == "meanwhile"
    with pytest.raises(UsageError, match="is being read"):
        NewFiles([targets[1]], overwrite=True, inputs=[targets[1]])
    with pytest.raises(UsageError, match="two results"):
        NewFiles([targets[0]] * 2, overwrite=True, inputs=[])
    with pytest.raises(UsageError, match="does not exist"):
        NewFiles([str(tmp_path / "none" / "x")], overwrite=True, inputs=[])
    assert not strange_files(tmp_path)


def test_memory_stays_bounded_on_a_file_of_a_hundred_megabytes(tmp_path: Path) -> None:
    """Anonymous memory: pages of the mapped file are the system's cache and go when memory is wanted."""
    code = f"""
import numpy as np
from pathlib import Path
from dataloading import ImageField, IntField, Writer
from converters.tools.diff import compare
from converters.tools.export import export
from converters.tools.merge import merge
from converters.tools.repair import repair
from converters.tools.split import split

folder = Path({str(tmp_path)!r})
pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
with Writer(folder / "a.beton", {{"image": ImageField(), "label": IntField()}}, num_samples=550) as writer:
    for index in range(550):
        pixels[0, 0, 0] = index % 256
        writer.append({{"image": pixels, "label": index % 5}})
assert (folder / "a.beton").stat().st_size > 100e6

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

import threading, time
peak, stop = [0], threading.Event()
def watch():
    while not stop.wait(0.002):
        peak[0] = max(peak[0], anonymous())
source = str(folder / "a.beton")
before = anonymous()
threading.Thread(target=watch, daemon=True).start()
merge(folder / "m.beton", [source])
split(source, out=str(folder / "s-{{index}}.beton"), ratio=[0.5, 0.5])
repair(source, folder / "r.beton")
compare(source, folder / "m.beton", match_by="label")
export(source, folder / "w", format="webdataset", shard_bytes=1 << 26)
stop.set()
print(peak[0] - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 90_000, f"{done.stdout} KiB beyond the start"
