"""Summarises a ``.beton`` file column by column, for ``beton info``.

Works on FFCV's files too. Columns are read in blocks, so a file with 50 million samples needs little memory; no image
is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading import ImageField, Reader, UsageError
from dataloading.messages import counted, human_bytes
from dataloading.tools import MODE_JPEG, MODE_PNG, MODE_RAW, FileSet, label_field

__all__ = [
    "as_text",
    "class_counts",
    "column_blocks",
    "find_sample",
    "first_image_field",
    "longest_sides",
    "size_blocks",
    "summary",
]

_BLOCK = 1 << 20
_NUM_BARS = 12
_BAR_WIDTH = 40
_CLASSES_SHOWN = 8
_MOST_CLASSES = 1_000_000


def first_image_field(reader: Reader, name: str | None = None) -> str:
    """Return the image field called ``name``, or the first one; raise `UsageError` if there is none."""
    images = [key for key, field in reader.fields.items() if isinstance(field, ImageField)]
    if name is not None and name not in images:
        raise UsageError(f"{reader.path} has no image field '{name}'; its fields are {list(reader.fields)}")
    if not images:
        raise UsageError(f"{reader.path} has no images; its fields are {list(reader.fields)}")
    return name or images[0]


def find_sample(readers: Sequence[Reader], index: int) -> tuple[Reader, int]:
    """Return the file that holds sample ``index`` of them all, and the sample's index in it, or raise `UsageError`."""
    files = FileSet(readers, check_classes=False)
    if not 0 <= index < files.num_samples:
        where = readers[0].path if len(readers) == 1 else f"{len(readers):,} files"
        raise UsageError(f"there is no sample {index}: {where} has samples 0 to {files.num_samples - 1}")
    number, local = files.split_index(index)
    return readers[number], local


def summary(*readers: Reader) -> dict[str, Any]:
    """Return the output of ``beton info`` for files with equal fields and classes, as JSON values.

    Returns
    -------
    dict
        ``path`` (of a single file), ``paths``, ``num_bytes``, ``disk_bytes`` (empty pages take none), ``num_samples``,
        ``page_size`` (the largest), ``writer`` (None if FFCV wrote one of them), ``fields`` (by name), ``classes``
        (name, label and count of each, or None) and ``provenance`` (common to all files).
    """
    extensions = [reader.extension for reader in readers]
    writers = [None if extension is None else extension.writer for extension in extensions]
    said = [{} if extension is None else dict(extension.provenance) for extension in extensions]
    shared = {key: value for key, value in said[0].items() if all(each.get(key) == value for each in said[1:])}
    return {
        **({"path": readers[0].path} if len(readers) == 1 else {}),
        "paths": [reader.path for reader in readers],
        "num_bytes": sum(reader.num_bytes for reader in readers),
        "disk_bytes": sum(os.stat(reader.path).st_blocks * 512 for reader in readers),
        "num_samples": sum(reader.num_samples for reader in readers),
        "page_size": max(reader.page_size for reader in readers),
        "writer": None if None in writers else ", ".join(sorted({str(writer) for writer in writers})),
        "fields": {name: _field_summary(readers, name) for name in readers[0].fields},
        "classes": _classes(readers),
        "provenance": None if None in extensions else shared,
    }


def _field_summary(readers: Sequence[Reader], name: str) -> dict[str, Any]:
    field = readers[0].fields[name]
    info: dict[str, Any] = {"kind": type(field).__name__}
    if hasattr(field, "shape"):
        info |= {"dtype": str(getattr(field, "dtype", "")), "shape": list(field.shape)}
    elif isinstance(field, ImageField) and type(field) is not ImageField:
        info |= {"dtype": str(field.dtype), "channels": field.channels}
    if field.has_data:
        total = largest = 0
        for sizes in size_blocks(readers, name):
            total += int(sizes.sum())
            largest = max(largest, int(sizes.max(initial=0)))
        info |= {"stored_bytes": total, "largest_bytes": largest}
    else:
        columns = [reader.column(name) for reader in readers]
        info |= {
            "min": min(column.min().item() for column in columns),
            "max": max(column.max().item() for column in columns),
        }
    if isinstance(field, ImageField):
        info |= _image_info(readers, name)
    return info


def column_blocks(readers: Sequence[Reader], name: str) -> Iterator[npt.NDArray[Any]]:
    """Yield a field's records of all files, a bounded number at a time."""
    for reader in readers:
        column = reader.column(name)
        for start in range(0, len(column), _BLOCK):
            yield column[start : start + _BLOCK]


def size_blocks(readers: Sequence[Reader], name: str) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield the number of stored bytes of each value of a field, a bounded number of values at a time."""
    for reader in readers:
        for start in range(0, reader.num_samples, _BLOCK):
            yield reader.locate(name, np.arange(start, min(start + _BLOCK, reader.num_samples)))[1]


def longest_sides(readers: Sequence[Reader], name: str) -> npt.NDArray[np.int64]:
    """Return how many images have a longest side of so many pixels, for each number of pixels up to 65,535."""
    sides = np.zeros(1 << 16, np.int64)
    for part in column_blocks(readers, name):
        sides += np.bincount(np.maximum(part["width"], part["height"]), minlength=1 << 16)
    return sides


def _image_info(readers: Sequence[Reader], name: str) -> dict[str, Any]:
    modes = np.zeros(256, np.int64)
    low, high = np.full(2, 1 << 16), np.zeros(2, np.int64)
    pixels = 0
    for part in column_blocks(readers, name):
        size = np.stack([part["width"], part["height"]]).astype(np.int64)
        modes += np.bincount(part["mode"], minlength=256)
        pixels += int((size[0] * size[1]).sum())
        low, high = np.minimum(low, size.min(axis=1)), np.maximum(high, size.max(axis=1))
    edges, counts = histogram(longest_sides(readers, name))
    return {
        "num_jpeg": int(modes[MODE_JPEG]),
        "num_raw": int(modes[MODE_RAW]),
        **({"num_png": int(modes[MODE_PNG])} if modes[MODE_PNG] else {}),
        "min_size": low.tolist(),
        "max_size": high.tolist(),
        "mean_pixels": pixels / max(1, int(modes.sum())),
        "longest_side": {"edges": edges, "counts": counts},
    }


def histogram(sides: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return rounded bin edges (the last one inclusive) and the number of images by longest side."""
    present = np.flatnonzero(sides)
    if len(present) == 0:
        return [], []
    low, high = int(present[0]), int(present[-1])
    step = next(step for step in _round_numbers() if low // step * step + _NUM_BARS * step > high)
    edges = list(range(low // step * step, high + step + 1, step))
    edges = edges[: int(np.searchsorted(edges, high, side="right")) + 1]
    counts = [int(sides[a:b].sum()) for a, b in pairwise(edges)]
    return edges, counts


def _round_numbers() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def class_counts(readers: Sequence[Reader]) -> list[tuple[str | None, int, int]] | None:
    """Return (name or None, label, number of samples) of each class, or None where there are no labels.

    With class names there is an entry for each name; without, for each label from 0 to the largest, if it is one that
    stands for a class (at most a million of them).
    """
    field = label_field(readers[0])
    if field is None:
        return None
    names = next((found for reader in readers if (found := reader.class_names) is not None), None)
    count = len(names or ())
    if names is None:
        low = min(int(reader.column(field).min()) for reader in readers)
        count = max(int(reader.column(field).max()) for reader in readers) + 1
        if low < 0 or count > _MOST_CLASSES:
            return None
    counts = np.zeros(count, np.int64)
    for part in column_blocks(readers, field):
        labels = np.asarray(part)
        counts += np.bincount(labels[(labels >= 0) & (labels < count)], minlength=count)
    return [(None if names is None else names[label], label, int(number)) for label, number in enumerate(counts)]


def _classes(readers: Sequence[Reader]) -> list[dict[str, Any]] | None:
    counts = class_counts(readers)
    if not counts or counts[0][0] is None:
        return None
    return [{"name": name, "label": label, "count": count} for name, label, count in counts]


def as_text(info: dict[str, Any]) -> str:
    """Return the result of `summary` as text for people."""
    writer = info["writer"]
    files = info["paths"]
    what = files[0] if len(files) == 1 else f"{len(files):,}: {files[0]} to {files[-1]}"
    used = info["disk_bytes"]
    disk = f" ({human_bytes(used)} on the disk, the rest is empty pages)" if 2 * used < info["num_bytes"] else ""
    size = f"{human_bytes(info['num_bytes'])}{disk}, pages of {human_bytes(info['page_size'])}"
    rows = [
        ("file" if len(files) == 1 else "files", f"{what}, {size}"),
        ("written by", f"{writer}: complete, with checksums" if writer else "FFCV: no checksums, no class names"),
        ("samples", f"{info['num_samples']:,}"),
    ]
    rows += [(f"field '{name}'", _field_line(each)) for name, each in info["fields"].items()]
    if info["classes"] is not None:
        rows.append(("classes", _classes_line(info["classes"])))
    if info["provenance"]:
        for key, value in info["provenance"].items():
            if value is not None:  # skip options that were not given
                rows += _history(value) if key == "history" else [(key.replace("_", " "), _plain(value))]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    for name, each in info["fields"].items():
        if each.get("longest_side", {}).get("counts"):
            lines += ["", f"longest side of '{name}', pixels", *_bars(each["longest_side"], max(each["max_size"]))]
    return "\n".join(lines)


def _field_line(info: dict[str, Any]) -> str:
    parts = [info["kind"]]
    if "shape" in info:
        lengths = ", ".join("any" if length is None else str(length) for length in info["shape"])
        parts.append(f"{info['dtype']} ({lengths})")
    if "channels" in info:
        parts.append(f"{counted(info['channels'], info['dtype'] + ' channel')}")
    if "num_jpeg" in info:
        low, high = info["min_size"], info["max_size"]
        png = f", {info['num_png']:,} PNG" if "num_png" in info else ""
        parts.append(f"{info['num_jpeg']:,} JPEG, {info['num_raw']:,} raw{png}")
        parts.append(
            f"{low[0]}x{low[1]} pixels" if low == high else f"{low[0]}..{high[0]} x {low[1]}..{high[1]} pixels"
        )
    if "stored_bytes" in info:
        parts.append(f"{human_bytes(info['stored_bytes'])} (largest {human_bytes(info['largest_bytes'])})")
    if "min" in info:
        parts.append(f"{info['min']:,} to {info['max']:,}")
    return ", ".join(parts)


def _classes_line(classes: list[dict[str, Any]]) -> str:
    counts = [each["count"] for each in classes]
    shown = ", ".join(f"{each['name']} ({each['count']:,})" for each in classes[:_CLASSES_SHOWN])
    more = f", and {len(classes) - _CLASSES_SHOWN:,} more" if len(classes) > _CLASSES_SHOWN else ""
    low, high = min(counts), max(counts)
    samples = f"{counted(low, 'sample')} each" if low == high else f"{low:,} to {counted(high, 'sample')}"
    return f"{len(classes):,}, with {counted(low, 'sample') if len(classes) == 1 else samples}: {shown}{more}"


def _history(steps: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return a row for each step in the file's history, with its short options; --json has everything."""
    rows = []
    for step in steps:
        options = [
            f"{key} {_plain(value)}"
            for key, value in step.items()
            if key not in ("command", "from") and isinstance(value, (str, int, float, bool))
        ]
        options += [f"{len(step[key]):,} {key}" for key in ("dropped", "blanked") if step.get(key)]
        if assumed := step.get("assumed_classes_of"):
            options.append(f"class names assumed for {', '.join(assumed)}")
        sources = [f"{each['file']} ({each['num_samples']:,})" for each in step.get("from", [])]
        more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
        rows.append((step.get("command", "?"), ", ".join([f"of {', '.join(sources[:3])}{more}", *options])))
    return rows


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return (
        {None: "-", True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool | None) else str(value)
    )


def _bars(histogram: dict[str, list[int]], longest: int) -> list[str]:
    edges, counts = histogram["edges"], histogram["counts"]
    most = max(counts)
    width = len(str(edges[-1]))
    lines = []
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        last = min(high - 1, longest)
        sides = f"{low:>{width}} to {last:>{width}}" if low < last else f"{low:>{width}}{'':>{width + 4}}"
        lines.append(f"  {sides}  {count:>9,}  {'#' * round(_BAR_WIDTH * count / most)}".rstrip())
    return lines
