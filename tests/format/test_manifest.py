"""A manifest lists shards exactly, and damage or nonsense in it is refused with its name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloading import FormatError, IntField, Manifest, Reader, Shard, UsageError, Writer
from dataloading.tools import manifest_path, shard_path

NAMES = st.text("abcdefgh-_0123456789é", min_size=1, max_size=12).map(lambda name: f"{name}.beton")
SHARDS = st.builds(
    Shard,
    name=NAMES,
    num_samples=st.integers(1, 1 << 40),
    num_bytes=st.integers(1, 1 << 50),
    fingerprint=st.text("0123456789abcdef", min_size=16, max_size=16),
)


@given(st.lists(SHARDS, min_size=1, max_size=8, unique_by=lambda shard: shard.name))
def test_a_manifest_survives_the_round_trip_through_text(shards):
    manifest = Manifest(shards=tuple(shards))
    assert Manifest.from_text(manifest.to_text(), "m") == manifest
    assert manifest.num_samples == sum(shard.num_samples for shard in shards)


def test_saving_is_atomic_and_refuses_to_replace(tmp_path):
    first = Manifest(shards=(Shard(name="a.beton", num_samples=1, num_bytes=2, fingerprint="f"),))
    second = Manifest(shards=(Shard(name="b.beton", num_samples=1, num_bytes=2, fingerprint="f"),))
    path = tmp_path / "set.beton.json"
    first.save(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        second.save(path)
    assert Manifest.load(path) == first
    second.save(path, overwrite=True)
    assert Manifest.load(path) == second
    assert [each.name for each in tmp_path.iterdir()] == ["set.beton.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.pop("beton_manifest"), "not a manifest"),
        (lambda content: content.update(beton_manifest=99), "99"),
        (lambda content: content.update(num_samples=7), "7 samples"),
        (lambda content: content.update(shards=[]), "at least one"),
        (lambda content: content["shards"][0].pop("fingerprint"), "damaged"),
        (lambda content: content["shards"][0].update(num_samples="3"), "num_samples"),
        (lambda content: content["shards"][0].update(name="../../etc/passwd"), "below"),
        (lambda content: content["shards"].append(content["shards"][0]), "twice"),
    ],
)
def test_a_changed_manifest_is_refused_by_name(change, words):
    content = json.loads(
        Manifest(shards=(Shard(name="a.beton", num_samples=3, num_bytes=2, fingerprint="f"),)).to_text()
    )
    change(content)
    with pytest.raises(FormatError, match=words) as caught:
        Manifest.from_text(json.dumps(content), "here.json")
    assert "here.json" in str(caught.value)


def test_text_that_is_not_json_is_refused():
    with pytest.raises(FormatError, match=r"x\.json"):
        Manifest.from_text(b"\xff\xd8\xff", "x.json")


def test_impossible_numbers_of_a_shard_are_refused():
    with pytest.raises(UsageError, match="num_bytes"):
        Shard(name="a", num_samples=1, num_bytes=0, fingerprint="f")


def test_names_sort_in_the_order_of_the_shards():
    names = [shard_path("d/train.beton", number, 12) for number in range(12)]
    assert names == sorted(names)
    assert names[3] == "d/train-00003-of-00012.beton"
    assert manifest_path("d/train.beton") == "d/train.beton.json"


def test_a_readers_fingerprint_is_that_of_its_content(tmp_path):
    def made(name, values):
        with Writer(tmp_path / name, {"label": IntField()}, num_samples=len(values)) as writer:
            for value in values:
                writer.append({"label": value})
        return Reader(tmp_path / name).fingerprint

    assert made("a.beton", [1, 2]) == made("b.beton", [1, 2])
    assert made("c.beton", [1, 3]) != made("d.beton", [1, 2])
