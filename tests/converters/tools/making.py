"""Small files with every kind of field, and running a verb as the command line does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from dataloading import (
    BytesField,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    Manifest,
    MaskField,
    NDArrayField,
    RasterField,
    Reader,
    Shard,
    TextField,
    VarArrayField,
    Writer,
)
from tests.support.files import jpeg, photo_like, raw

PAGE = 1 << 21
FIELDS = {
    "image": ImageField(),
    "label": IntField(),
    "weight": FloatField(),
    "blob": BytesField(),
    "box": NDArrayField("float32", (2, 3)),
    "meta": JSONField(),
    "text": TextField(),
    "boxes": VarArrayField("int16", (None, 4)),
    "mask": MaskField(),
    "depth": RasterField(1, "uint16"),
}
FFCVS = ("image", "label", "weight", "blob", "box", "meta")
"""Fields whose kinds FFCV has."""


def sample(index: int, label: int) -> dict[str, Any]:
    """Every kind of value as a function of the index; odd images are raw, sizes differ."""
    rng = np.random.default_rng(index)
    pixels = photo_like(rng, 20 + index % 7, 30 + index % 5)
    return {
        "image": raw(pixels) if index % 2 else jpeg(pixels),
        "label": label,
        "weight": index / 7 if index else float("nan"),
        "blob": bytes([index % 256]) * (index % 4),
        "box": np.full((2, 3), index, np.float32),
        "meta": {"index": index, "name": "\N{SNOWMAN}" * (index % 3)},
        "text": f"number {index}, \N{SNOWMAN}",
        "boxes": rng.integers(0, 99, (index % 3, 4)).astype(np.int16),
        "mask": (pixels[..., 0] > 128).astype(np.uint8),
        "depth": pixels[..., 1].astype(np.uint16) * 257,
    }


def write_file(
    path: Path,
    labels: list[int],
    *,
    first: int = 0,
    names: tuple[str, ...] = tuple(FIELDS),
    class_names: list[str] | None = None,
    **options: Any,
) -> Path:
    """Write samples ``first``, ``first + 1``, ... with the labels given."""
    fields = {name: FIELDS[name] for name in names}
    options = {"page_size": PAGE, "provenance": {"source": "test", "seed": 0}, **options}
    with Writer(path, fields, num_samples=len(labels), class_names=class_names, **options) as writer:
        for index, label in enumerate(labels, start=first):
            values = sample(index, label)
            writer.append({name: values[name] for name in names})
    return path


def write_set(manifest: Path, files: Sequence[Path]) -> Path:
    """List files beside ``manifest`` as its shards."""
    shards = []
    for path in files:
        with Reader(path) as reader:
            shards.append(Shard.of(reader, path.name))
    Manifest(shards=tuple(shards)).save(manifest)
    return manifest


def contents(path: Path | str, *, without: tuple[str, ...] = ()) -> list[dict[str, bytes]]:
    """Every sample's values as they are stored: records without their pointers, and bytes."""
    result = []
    with Reader(path) as reader:
        for index in range(reader.num_samples):
            values = {}
            for name, field in reader.fields.items():
                if name in without:
                    continue
                record = reader.column(name)[index]
                if not field.has_data:
                    values[name] = record.tobytes()
                    continue
                head = b"".join(record[key].tobytes() for key in record.dtype.names or () if "ptr" not in key)
                values[name] = head + b"|" + reader.view(name, index).tobytes()
            result.append(values)
    return result


def column(path: Path | str, name: str) -> list[int]:
    with Reader(path) as reader:
        return [int(value) for value in reader.column(name)]


def run(command: Any, *words: object) -> Any:
    """Run a verb; usage errors of the library come out as exceptions here, as codes in `beton`."""
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def run_json(command: Any, *words: object) -> dict[str, Any]:
    done = run(command, *words, "--json")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def strange_files(folder: Path) -> list[str]:
    """Whatever hidden thing was left behind in a folder."""
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]
