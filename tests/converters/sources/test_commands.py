"""`beton convert SOURCE` from the command line: words to files, whatever the number of workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from converters.sources.arrays import Arrays
from converters.sources.huggingface import HuggingFace
from converters.sources.imagefolder import ImageFolder
from converters.sources.imagenet import ImageNetTrain
from converters.sources.table import Table
from converters.sources.webdataset import WebDataset
from dataloading import Reader
from dataloading.cli import beton, main

from ..making import class_folders
from .making import jpeg, tar_bytes, tar_of


def run(*words: Any, code: int = 0) -> Any:
    """The result of a command that succeeds, or the message of one that fails."""
    done = CliRunner().invoke(beton, ["convert", *map(str, words)])
    if code == 0:
        assert done.exit_code == 0, (done.output, done.exception)
        return done
    assert done.exit_code != 0
    return f"{done.output}{done.stderr}{done.exception}"


def sources(folder: Path) -> dict[str, list[str]]:
    """Three samples of each kind, and the words that convert them."""
    import pyarrow as pa
    import pyarrow.parquet

    photos = class_folders(folder / "photos", {"a": 2, "b": 1})
    files = sorted(photos.rglob("*.jpg"))
    tar_of(folder / "train.tar", [(f"n0000000{k}.tar", tar_bytes([("x.JPEG", jpeg(k))])) for k in range(3)])
    (folder / "val").mkdir()
    (folder / "val" / "v1.JPEG").write_bytes(jpeg(1))
    (folder / "labels.txt").write_text("v1.JPEG n00000002\n")
    (folder / "classes.txt").write_text("n00000000\nn00000001\nn00000002\n")
    shard = [entry for k in range(3) for entry in ((f"{k}.jpg", jpeg(k)), (f"{k}.cls", str(k).encode()))]
    tar_of(folder / "w.tar", shard)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = pa.array([{"bytes": jpeg(k), "path": None} for k in range(3)], kind)
    pa.parquet.write_table(pa.table({"image": rows, "label": [0, 1, 2]}), folder / "h.parquet", row_group_size=2)
    (folder / "m.csv").write_text(
        "path,label,note\n" + "".join(f"{file.relative_to(folder)},c{k},n {k}\n" for k, file in enumerate(files))
    )
    np.savez(folder / "a.npz", images=np.zeros((3, 8, 8, 3), np.uint8), labels=[2, 0, 1])
    return {
        "imagefolder": ["imagefolder", str(photos)],
        "imagenet": ["imagenet", f"{folder}/train.tar"],
        "imagenet val": [
            "imagenet", f"{folder}/val", "--labels", f"{folder}/labels.txt", "--classes", f"{folder}/classes.txt"
        ],
        "webdataset": ["webdataset", f"{folder}/w.tar"],
        "huggingface": ["huggingface", f"{folder}/h.parquet"],
        "manifest": ["manifest", f"{folder}/m.csv", "--field", "note=text"],
        "arrays": ["arrays", f"{folder}/a.npz"],
    }  # fmt: skip


def test_every_source_gives_the_same_bytes_for_any_number_of_workers_and_can_be_shuffled(tmp_path: Path) -> None:
    for name, (kind, src, *more) in sources(tmp_path).items():
        made = []
        for num_workers in (0, 2, 16):
            out = tmp_path / f"{kind}-{num_workers}.beton"
            done = run(kind, *more, src, out, "--num-workers", num_workers, "--overwrite", "--json", "-q")
            made.append(out.read_bytes())
            assert json.loads(done.stdout)["num_samples"] == (1 if name == "imagenet val" else 3)
        assert made[0] == made[1] == made[2], name
        shuffled = tmp_path / "s.beton"
        run(kind, *more, src, shuffled, "--shuffle", "--seed", 1, "--num-workers", 0, "--overwrite", "-q")
        with Reader(tmp_path / f"{kind}-0.beton") as plain, Reader(shuffled) as other:
            assert sorted(plain.column("label").tolist()) == sorted(other.column("label").tolist())
            again = tmp_path / "again.beton"
            run("beton", f"{tmp_path}/{kind}-0.beton", again, "--num-workers", 0, "--overwrite", "-q")
            with Reader(again) as copy:
                assert copy.column("label").tolist() == plain.column("label").tolist()
                assert list(copy.fields) == list(plain.fields)
                assert copy.extension.class_names == plain.extension.class_names


def test_no_samples_are_an_error_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("path,label\n")
    message = run("manifest", tmp_path / "m.csv", tmp_path / "o.beton", "--num-workers", 16, code=1)
    assert "lists no samples" in message
    assert not (tmp_path / "o.beton").exists()


def test_an_image_that_is_gone_gets_a_placeholder_with_its_label(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "m.csv").write_text("path,label,n\n1.jpg,5,1\nnone.jpg,7,2\n")
    shard = tar_of(tmp_path / "w.tar", [("1.jpg", jpeg(1)), ("1.cls", b"5"), ("2.txt", b""), ("2.cls", b"7")])
    for words in (["manifest", tmp_path / "m.csv", "--field", "n=int"], ["webdataset", shard]):
        kind, src, *more = words
        out = tmp_path / f"{kind}.beton"
        run(kind, *more, src, out, "--on-error", "placeholder", "--num-workers", 0, "-q")
        with Reader(out) as reader:
            assert reader.column("label").tolist() == [5, 7]


def test_what_is_not_taken_is_said_even_where_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "m.csv").write_text("path,species,n\n1.jpg,cat,1\n")
    done = run("manifest", tmp_path / "m.csv", tmp_path / "m.beton", "-q", "--json", "--num-workers", 0)
    assert "warning: there are no labels, --label-column NAME takes some; columns not taken: species, n;" in done.stderr
    assert json.loads(done.stdout)["columns_not_taken"] == ["species", "n"]
    shard = tar_of(tmp_path / "w.tar", [("1.jpg", jpeg(1)), ("1.cls", b"5"), ("1.txt", b"x")])
    done = run("webdataset", shard, tmp_path / "w.beton", "-q", "--json", "--num-workers", 0)
    assert "warning: 1 member is not used: .txt files: 1 (1.txt); --map FIELD=ENDING takes" in done.stderr
    assert json.loads(done.stdout)["members_not_used"] == {".txt files": 1}
    tar_of(tmp_path / "t.tar", [("n1.tar", tar_bytes([("a.JPEG", jpeg(1)), ("b.gif", b"x")]))])
    done = run("imagenet", tmp_path / "t.tar", tmp_path / "t.beton", "-q", "--json", "--num-workers", 0)
    assert "warning: 1 member is not used: .gif files: 1 (b.gif)" in done.stderr


def test_classes_of_words_are_stated_and_missing_members_filled_in(tmp_path: Path) -> None:
    shard = tar_of(tmp_path / "w.tar", [("1.jpg", jpeg(1)), ("1.cls", b"dog"), ("2.jpg", jpeg(2))])
    out = tmp_path / "w.beton"
    assert "--fill label=VALUE" in run("webdataset", shard, out, "--num-workers", 0, code=1)
    done = run("webdataset", shard, out, "--fill", "label=cat", "--json", "--num-workers", 0)
    assert "filled in: label=cat in 1 sample" in done.stderr
    assert "labels are words: 2 classes, numbered in sorted order: cat, dog" in done.stderr
    result = json.loads(done.stdout)
    assert (result["num_classes"], result["class_names"], result["num_filled"]) == (2, ["cat", "dog"], {"label": 1})
    with Reader(out) as reader:
        assert (reader.column("label").tolist(), reader.class_names) == ([1, 0], ("cat", "dog"))


def test_a_file_changed_since_an_interruption_is_seen(tmp_path: Path) -> None:
    # The engine compares size and age of the files that a task names.
    for kind, src, *_ in sources(tmp_path).values():
        source = {
            "imagefolder": lambda src: ImageFolder(src),
            "imagenet": lambda src: ImageNetTrain(src) if src.endswith(".tar") else ImageFolder(f"{tmp_path}/photos"),
            "webdataset": lambda src: WebDataset([src]),
            "huggingface": lambda src: HuggingFace([src], random_access=True),
            "manifest": lambda src: Table(src),
            "arrays": lambda src: Arrays([src]),
        }[kind](src)
        named = [item for item in source.task(1) if isinstance(item, str)]
        assert named, kind
        assert all(Path(item).is_absolute() and Path(item).is_file() for item in named), (kind, named)


def test_words_after_map_and_field_belong_to_them(tmp_path: Path) -> None:
    entries = [("1.jpg", jpeg(1)), ("1.cls", b"4"), ("1.json", b"[1]"), ("1.txt", b"hello")]
    shard = tar_of(tmp_path / "w.tar", entries)
    words = ["--map", "image=png,jpg", "label=cls", "raw=txt", "meta=json", "--field", "raw=bytes"]
    out = tmp_path / "o.beton"
    for order in (["webdataset", shard, out, *words], ["webdataset", *words, shard, out]):
        run(*order, "--num-workers", 0, "--overwrite", "-q")
        with Reader(out) as reader:
            assert list(reader.fields) == ["image", "label", "raw", "meta"]
            assert (reader.value("label", 0), reader.value("raw", 0), reader.value("meta", 0)) == (4, b"hello", [1])


def test_a_bad_value_names_sample_field_expected_and_got_or_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "m.csv").write_text("path,n\n1.jpg,1\n1.jpg,one\n")
    words = ["manifest", tmp_path / "m.csv", tmp_path / "o.beton", "--field", "n=int", "--num-workers", 0]
    message = run(*words, code=1)
    assert "sample 1 (1.jpg): field 'n': expected int, got str 'one'" in message
    done = run(*words, "--on-error", "skip", "--json", "--overwrite")
    assert json.loads(done.stdout)["num_skipped"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["manifest", "none.csv"], "'none.csv' does not exist"),
        (["imagefolder", "FILE"], "is a file; expected a folder"),
        (["manifest", "FILE", "--field", "a=nit"], "did you mean 'int'"),
        (["imagenet", "FILE", "--labels", "FILE"], "is for --split val"),
        (["imagenet", "FILE", "--split", "val"], "--devkit ILSVRC2012_devkit_t12.tar.gz (not found beside"),
        (["imagenet", "FILE", "--split", "val", "--labels", "FILE", "--devkit", "FILE"], "one or the other"),
        (["webdataset", "FILE", "--map", "image"], "maps nothing"),
        (["torchvision", "CIFAR10"], "--root"),
        (["torchvision", "CIFAR10", "--root", ".", "--option", "x"], "write NAME=VALUE"),
        (["beton", "FILE", "--indices", "x"], "holds no indices"),
        (["manifest", "quux://a/b.csv"], "quux://a/b.csv cannot be opened"),
    ],
)
def test_wrong_words_are_explained(tmp_path: Path, words: list[str], message: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\n")
    kind, src, *more = [str(path) if word == "FILE" else word for word in words]
    assert message in run(kind, src, tmp_path / "o.beton", *more, code=2)


@pytest.mark.parametrize("source", ["imagefolder", "manifest", "arrays", "webdataset"])
def test_an_empty_name_for_the_file_is_wrong_usage(tmp_path: Path, source: str) -> None:
    src = sources(tmp_path)[source][1]
    done = CliRunner().invoke(beton, ["convert", source, src, ""])
    assert done.exit_code == 2
    assert "OUT" in done.stderr and "it is empty; name the file to make" in done.stderr


def test_help_of_every_source_is_quick_to_import() -> None:
    code = (
        "import sys, converters.cli as c\n"
        "import importlib\n"
        "for verb in c._SOURCES.values(): importlib.import_module(verb.target.partition(':')[0])\n"
        "heavy = {'torch', 'numba', 'PIL', 'pyarrow', 'fsspec', 'numpy', 'datasets'} & set(sys.modules)\n"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def broken_sources(folder: Path) -> dict[str, tuple[int, list[object], str]]:
    """Sources that cannot be converted: the exit code, the words, and what is said."""
    import pyarrow as pa
    import pyarrow.parquet

    photos = [(f"{n}.jpg", jpeg(n)) for n in range(2)] + [(f"{n}.cls", b"0") for n in range(2)]
    loose, empty, bad, damaged, table = (folder / name for name in ("loose", "empty", "bad", "damaged", "table.csv"))
    loose.mkdir()
    (loose / "a.jpg").write_bytes(jpeg(0))
    class_folders(empty, {"ant": 1, "bee": 0})
    class_folders(bad, {"ant": 2})
    (bad / "ant" / "00.jpg").write_bytes(jpeg(0)[:200])
    class_folders(damaged, {"ant": 1})
    table.write_text("path,label\n")
    pa.parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), folder / "none.parquet")
    (folder / "torn.parquet").write_bytes(b"PAR1" + bytes(100))
    (folder / "z.tar").write_bytes(b"\x1f\x9d" + bytes(600))
    (folder / "cut.tar").write_bytes(tar_bytes(sorted(photos))[:900])
    tar_of(folder / "odd.tar", [("readme", b"x")])
    tar_of(folder / "in.tar", [("a.JPEG", jpeg(0))])
    np.savez(folder / "a.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.zeros(3, np.int64))
    return {
        "no class folders": (2, ["imagefolder", loose], "has no class folders (1 image directly in it)"),
        "an empty class": (2, ["imagefolder", empty], "--allow-empty"),
        "nothing left": (2, ["imagefolder", damaged, "--limit", 0], "nothing to write"),
        "an image cut short": (1, ["imagefolder", bad], "ant/00.jpg"),
        "a table without rows": (2, ["manifest", table], "lists no samples"),
        "a column that is not there": (2, ["manifest", table, "--image-column", "x"], "has the columns path, label"),
        "parquet without rows": (2, ["huggingface", folder / "none.parquet"], "has no rows"),
        "no parquet": (1, ["huggingface", folder / "torn.parquet"], "cannot be read as a parquet"),
        "a compressed tar": (2, ["webdataset", folder / "z.tar"], "uncompress it first"),
        "a tar cut short": (1, ["webdataset", folder / "cut.tar"], "cannot be read as a tar file"),
        "no tar of tars": (2, ["imagenet", folder / "in.tar", "--split", "train"], "holds no tar files"),
        "arrays of two lengths": (1, ["arrays", folder / "a.npz"], "different numbers of samples"),
    }


def test_wrong_usage_of_a_source_is_code_2_and_damage_is_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    for name, (code, words, message) in broken_sources(folder).items():
        out = tmp_path / "o.beton"
        with pytest.raises(SystemExit) as left:
            main(["convert", *map(str, [*words[:2], out, *words[2:]]), "--num-workers", "0", "-q"])
        said = capsys.readouterr().err
        assert left.value.code == code and message in said and "Traceback" not in said, (name, left.value.code, said)
        assert [each.name for each in tmp_path.iterdir()] == ["sources"], name
