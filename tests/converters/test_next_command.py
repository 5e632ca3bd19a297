"""A path in the place of a source is told its command, and messages of the command speak as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from converters.next_command import as_command, next_command
from converters.settings import option_names
from converters.tools.summary import as_text, summary
from dataloading import Reader

from .making import class_folders
from .sources.test_beton import beton


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["cat/a.jpg", "dog/b.png"], "imagefolder {}"),
        (["train/cat/a.jpg", "val/cat/b.jpg"], "imagefolder {}/train"),
        (["shard-000.tar", "shard-001.tar"], "webdataset {}"),
        (["ILSVRC2012_img_train.tar"], "imagenet {}/ILSVRC2012_img_train.tar"),
        (["0.parquet"], "huggingface {}"),
        (["dataset_dict.json", "train/state.json"], "huggingface {}"),
        (["rows.csv", "images/a.jpg"], "imagefolder {}"),
        (["rows.csv"], "manifest {}/rows.csv"),
        (["data.npz"], "arrays {}/data.npz"),
        (["images.npy", "labels.npy"], "arrays {}"),
        (["a.beton"], "beton {}"),
    ],
)
def test_a_folder_is_told_the_command_for_what_it_holds(files: list[str], command: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    said = next_command([str(tmp_path), "o.beton"])
    assert said is not None
    assert said.endswith(f"`beton convert {command.format(tmp_path)} o.beton`")


def test_files_urls_and_what_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    assert f"`beton convert manifest {tmp_path}/a.csv OUT.beton`" in str(next_command([f"{tmp_path}/a.csv"]))
    assert "beton convert webdataset 's3://b/x-*.tar' OUT.beton" in str(next_command(["s3://b/x-*.tar"]))
    assert "does not exist" in str(next_command(["no/such/folder"]))
    (tmp_path / "empty").mkdir()
    assert "`beton convert --help` lists them" in str(next_command([str(tmp_path / "empty"), "o.beton"]))
    assert next_command(["imagefoldr"]) is None  # a misspelt source, which has its own message


def test_the_command_ends_as_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = class_folders(tmp_path / "in", {"cat": 1})
    assert beton("convert", str(source), str(tmp_path / "o.beton")) == 2
    assert f"beton convert imagefolder {source} {tmp_path}/o.beton" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("page_size must be a power of two", "--page-size must be a power of two"),
        ("pass page_size=16777216, or leave page_size out", "pass --page-size 16777216, or leave --page-size out"),
        ('--on-error skip (on_error="skip") leaves such out', "--on-error skip leaves such out"),
        ("num_shards and shard_bytes (--shard-size) both say", "--num-shards and --shard-size both say"),
        ("exists; --overwrite (overwrite=True) replaces it", "exists; --overwrite replaces it"),
        (
            "the seed of the file out/num_shards.beton, mode: raw",
            "the seed of the file out/num_shards.beton, mode: raw",
        ),
        ("of which limit=0 takes none", "of which --limit 0 takes none"),
    ],
)
def test_options_are_spelt_as_they_are_typed(python: str, typed: str) -> None:
    assert as_command(python, option_names()) == typed


def test_errors_of_the_command_have_no_spelling_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(class_folders(tmp_path / "in", {"cat": 2}))
    for words, expected in (
        (["--num-shards", "2", "--shard-size", "1GiB"], "--num-shards and --shard-size both"),
        (["--shard-index", "1"], "--shard-index needs --num-shards"),
        (["--limit", "0"], "--limit 0 takes none"),
    ):
        assert beton("convert", "imagefolder", source, str(tmp_path / "o.beton"), *words) == 2
        told = capsys.readouterr().err
        assert expected in told
        assert "_" not in told.partition("error:")[2].replace(str(tmp_path), "")


def test_info_says_each_number_once_and_nothing_of_options_that_were_not_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = class_folders(tmp_path / "in", {"cat": 3, "dog": 3}, size=(500, 30))
    class_folders(tmp_path / "in", {"cat": 0}, size=(20, 30))
    out = tmp_path / "o.beton"
    assert beton("convert", "imagefolder", str(source), str(out), "--num-workers", "0") == 0
    assert "on the disk: a file has whole pages, here mostly empty; --page-size 2MiB" in capsys.readouterr().err
    with Reader(out) as reader:
        text = as_text(summary(reader))
    assert "2, with 3 samples each: cat (3), dog (3)" in text
    assert "limit" not in text and "max_resolution" not in text and " -," not in text
    assert "on the disk, the rest is empty pages" in text
    assert "500" in text.splitlines()[-1] and " to " not in text.splitlines()[-1]


def test_diff_of_samples_in_another_order_names_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(class_folders(tmp_path / "in", {"cat": 3, "dog": 3}))
    one, two = str(tmp_path / "a.beton"), str(tmp_path / "b.beton")
    for out, words in ((one, []), (two, ["--shuffle", "--seed", "3"])):
        assert beton("convert", "imagefolder", source, out, "--num-workers", "0", "-q", *words) == 0
    assert beton("diff", one, two) == 1
    assert "--match-by content" in capsys.readouterr().out
    assert beton("diff", one, two, "--match-by", "content") == 0
    assert "--match-by" not in capsys.readouterr().out
