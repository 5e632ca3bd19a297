"""A dry run says what the run would do: which files, how many samples in each, and about how large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.cli import convert as command
from converters.engine.convert import Options, convert, estimate
from converters.images.policy import ImagePolicy
from converters.python_dataset import DatasetSource
from converters.sources.imagefolder import ImageFolder
from dataloading import IntField, Manifest, NDArrayField, TextField, UsageError
from tests.converters.making import class_folders
from tests.converters.tools.making import run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("estimate") / "src", {"ant": 9, "bee": 10})


def dry_run(source: Path, out: Path, *words: object) -> dict[str, Any]:
    done = run(command, "imagefolder", source, out, "--dry-run", "--json", *words)
    assert done.exit_code == 0
    assert not list(out.parent.glob("o*"))
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_number_of_shards_and_their_sizes_are_those_of_the_run(source: Path, tmp_path: Path) -> None:
    facts = dry_run(source, tmp_path / "o.beton", "--num-shards", 4)
    report = convert(ImageFolder(source), tmp_path / "o.beton", policy=ImagePolicy(), options=Options(num_shards=4))
    manifest = Manifest.load(report.path)
    counts = [shard.num_samples for shard in manifest.shards]
    assert facts["path"] == report.path and facts["num_samples"] == 19
    assert facts["num_shards"] == 4 and facts["shards"] == [report.shards[0], report.shards[-1]]
    assert facts["shard_samples"] == [min(counts), max(counts)] == [4, 5]
    largest = max(shard.num_bytes for shard in manifest.shards)
    assert facts["estimated_shard_bytes"] == pytest.approx(largest, rel=0.02)
    assert facts["estimated_bytes"] == pytest.approx(manifest.num_bytes, rel=0.02)


@pytest.mark.parametrize("shard_bytes", [5_000, 9_000_000])
def test_shards_of_a_size_are_as_many_as_the_run_makes(shard_bytes: int, source: Path, tmp_path: Path) -> None:
    options = Options(shard_bytes=shard_bytes)
    facts = estimate(ImageFolder(source), tmp_path / "o.beton", policy=ImagePolicy(), options=options)
    report = convert(ImageFolder(source), tmp_path / "o.beton", policy=ImagePolicy(), options=options)
    assert facts["num_shards"] == len(report.shards)
    assert (facts["num_shards"] > 1) == (shard_bytes == 5_000)


def test_one_shard_is_described_by_itself(source: Path, tmp_path: Path) -> None:
    facts = dry_run(source, tmp_path / "o.beton", "--num-shards", 4, "--shard-index", 3)
    report = convert(
        ImageFolder(source), tmp_path / "o.beton", policy=ImagePolicy(), options=Options(num_shards=4, shard_index=3)
    )
    assert facts["path"] == report.shards[0] and facts["shards"] == report.shards * 2
    assert facts["num_samples"] == report.num_samples == 5 and facts["num_shards"] == 4
    assert facts["estimated_bytes"] == facts["estimated_shard_bytes"]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([], ["would write o.beton: 19 samples, about "]),
        (
            ["--num-shards", 4],
            [
                "would write 4 shards, o-00000-of-00004.beton to o-00003-of-00004.beton, and o.beton.json: 19 samples",
                "each shard: 4 to 5 samples, about ",
            ],
        ),
        (["--num-shards", 1], ["would write 1 shard, o-00000-of-00001.beton, and o.beton.json: 19 samples, about "]),
        (["--num-shards", 4, "--shard-index", 0], ["would write o-00000-of-00004.beton, one of 4 shards: 4 samples, "]),
        (["--limit", 1], ["would write o.beton: 1 sample, about "]),
    ],
)
def test_a_dry_run_in_words(
    words: list[object], lines: list[str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(command, "imagefolder", source, "o.beton", "--dry-run", *words)
    assert done.exit_code == 0 and not list(tmp_path.iterdir())
    said = done.stdout.splitlines()
    assert len(said) == len(lines) and all(map(str.startswith, said, lines)), said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_shards": 20}, "20 shards of 19 samples: a shard needs at least one"),
        ({"shard_bytes": 9_000_000, "shard_index": 1}, r"shard_index must be 0 to 0 \(1 shard of that size\), got 1"),
        ({"limit": 0}, "nothing to write: the source has 19 samples, of which limit=0 takes none"),
    ],
)
def test_what_the_run_would_refuse_the_dry_run_refuses(
    options: dict[str, Any], words: str, source: Path, tmp_path: Path
) -> None:
    for function in (estimate, convert):
        with pytest.raises(UsageError, match=words):
            function(ImageFolder(source), tmp_path / "o.beton", policy=ImagePolicy(), options=Options(**options))
    assert not list(tmp_path.iterdir())


def test_data_that_is_no_image_counts_too(tmp_path: Path) -> None:
    fields = {"label": IntField(), "features": NDArrayField("float32", (50_000,)), "text": TextField()}
    sample = (1, np.zeros(50_000, np.float32), "x" * 50_000)
    source = DatasetSource([sample] * 40, fields)
    options = Options(shard_bytes=4 << 20, page_size=2 << 20)
    facts = estimate(source, tmp_path / "o.beton", policy=ImagePolicy(), options=options)
    report = convert(source, tmp_path / "o.beton", policy=ImagePolicy(), options=options)
    assert facts["num_shards"] == len(report.shards) == 5, "10 MB in shards with room for one page of 2 MiB"


@pytest.mark.parametrize("page_size", [None, 2 << 20, 16 << 20])
@pytest.mark.parametrize("side", [40, 900])
def test_the_estimate_counts_whole_pages_as_the_file_has_them(tmp_path: Path, page_size: int | None, side: int) -> None:
    source = ImageFolder(class_folders(tmp_path / "src", {"a": 12}, size=(side, side * 2 // 3)))
    policy, options = ImagePolicy(mode="raw"), Options(page_size=page_size)  # 900 x 600 pixels: one a page of 2 MiB
    facts = estimate(source, tmp_path / "o.beton", policy=policy, options=options)
    report = convert(source, tmp_path / "o.beton", policy=policy, options=options)
    assert facts["estimated_bytes"] == pytest.approx(report.num_bytes, rel=0.1)
