"""Facts about a ``.beton`` file, gathered column by column: what ``beton info`` prints.

Works on files of FFCV as well as ours. Columns are read in blocks, so a file with 50 million samples needs little
memory; no image is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading import ImageField, Reader, UsageError, label_field

from .report import human_bytes

__all__ = ["as_text", "first_image_field", "summary"]

_BLOCK = 1 << 20
_NUM_BARS = 12
_BAR_WIDTH = 40
_CLASSES_SHOWN = 8


def first_image_field(reader: Reader, name: str | None = None) -> str:
    """Return the image field called ``name``, or the first one.

    Raises
    ------
    UsageError
        If there is no such field.
    """
    images = [key for key, field in reader.fields.items() if isinstance(field, ImageField)]
    if name is not None and name not in images:
        raise UsageError(f"{reader.path} has no image field '{name}'; its fields are {list(reader.fields)}")
    if not images:
        raise UsageError(f"{reader.path} has no images; its fields are {list(reader.fields)}")
    return name or images[0]


def summary(reader: Reader) -> dict[str, Any]:
    """Return what is worth knowing about a file, as JSON-able values.

    Parameters
    ----------
    reader : Reader
        The file.

    Returns
    -------
    dict
        ``path``, ``num_bytes``, ``num_samples``, ``page_size``, ``writer``, ``fields`` (by name), ``classes`` (name,
        label and count of each, or None) and ``provenance``.
    """
    extension = reader.extension
    return {
        "path": reader.path,
        "num_bytes": reader.num_bytes,
        "num_samples": reader.num_samples,
        "page_size": reader.page_size,
        "writer": None if extension is None else extension.writer,
        "fields": {name: _field_summary(reader, name) for name in reader.fields},
        "classes": _classes(reader),
        "provenance": None if extension is None else dict(extension.provenance),
    }


def _blocks(num_samples: int) -> Iterator[slice]:
    for start in range(0, num_samples, _BLOCK):
        yield slice(start, min(start + _BLOCK, num_samples))


def _field_summary(reader: Reader, name: str) -> dict[str, Any]:
    field = reader.fields[name]
    facts: dict[str, Any] = {"kind": type(field).__name__}
    if hasattr(field, "shape"):
        facts |= {"dtype": str(getattr(field, "dtype", "")), "shape": list(field.shape)}
    if field.has_data:
        total = largest = 0
        for block in _blocks(reader.num_samples):
            sizes = reader.locate(name, np.arange(block.start, block.stop))[1]
            total += int(sizes.sum())
            largest = max(largest, int(sizes.max(initial=0)))
        facts |= {"stored_bytes": total, "largest_bytes": largest}
    elif reader.num_samples:
        column = reader.column(name)
        facts |= {"min": column.min().item(), "max": column.max().item()}
    if isinstance(field, ImageField):
        facts |= _image_facts(reader.column(name))
    return facts


def _image_facts(column: npt.NDArray[Any]) -> dict[str, Any]:
    sides = np.zeros(1 << 16, np.int64)
    num_raw = 0
    low, high = np.full(2, 1 << 16), np.zeros(2, np.int64)
    pixels = 0
    for block in _blocks(len(column)):
        part = column[block]
        size = np.stack([part["width"], part["height"]]).astype(np.int64)
        sides += np.bincount(size.max(axis=0), minlength=1 << 16)
        num_raw += int(np.count_nonzero(part["mode"]))
        pixels += int((size[0] * size[1]).sum())
        low, high = np.minimum(low, size.min(axis=1)), np.maximum(high, size.max(axis=1))
    edges, counts = _histogram(sides)
    return {
        "num_jpeg": len(column) - num_raw,
        "num_raw": num_raw,
        "min_size": low.tolist(),
        "max_size": high.tolist(),
        "mean_pixels": pixels / max(1, len(column)),
        "longest_side": {"edges": edges, "counts": counts},
    }


def _histogram(sides: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return round edges (the last one inclusive) and how many images have a longest side between them."""
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


def _classes(reader: Reader) -> list[dict[str, Any]] | None:
    names = None if reader.extension is None else reader.extension.class_names
    field = label_field(reader)
    if names is None or field is None:
        return None
    column = reader.column(field)
    counts = np.zeros(len(names), np.int64)
    for block in _blocks(len(column)):
        labels = np.asarray(column[block])
        counts += np.bincount(labels[(labels >= 0) & (labels < len(names))], minlength=len(names))
    return [{"name": name, "label": label, "count": int(counts[label])} for label, name in enumerate(names)]


def as_text(facts: dict[str, Any]) -> str:
    """Return the result of `summary` for people.

    Parameters
    ----------
    facts : dict
        As `summary` returns them.
    """
    writer = facts["writer"]
    rows = [
        ("file", f"{facts['path']}, {human_bytes(facts['num_bytes'])}, pages of {human_bytes(facts['page_size'])}"),
        ("written by", f"{writer}: complete, with checksums" if writer else "FFCV: no checksums, no class names"),
        ("samples", f"{facts['num_samples']:,}"),
    ]
    rows += [(f"field '{name}'", _field_line(each)) for name, each in facts["fields"].items()]
    if facts["classes"] is not None:
        rows.append(("classes", _classes_line(facts["classes"])))
    if facts["provenance"]:
        rows += [(key.replace("_", " "), _plain(value)) for key, value in facts["provenance"].items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    for name, each in facts["fields"].items():
        if each.get("longest_side", {}).get("counts"):
            lines += ["", f"longest side of '{name}', pixels", *_bars(each["longest_side"])]
    return "\n".join(lines)


def _field_line(facts: dict[str, Any]) -> str:
    parts = [facts["kind"]]
    if "shape" in facts:
        parts.append(f"{facts['dtype']} {tuple(facts['shape'])}")
    if "num_jpeg" in facts:
        low, high = facts["min_size"], facts["max_size"]
        parts.append(f"{facts['num_jpeg']:,} JPEG, {facts['num_raw']:,} raw")
        parts.append(
            f"{low[0]}x{low[1]} pixels" if low == high else f"{low[0]}..{high[0]} x {low[1]}..{high[1]} pixels"
        )
    if "stored_bytes" in facts:
        parts.append(f"{human_bytes(facts['stored_bytes'])} (largest {human_bytes(facts['largest_bytes'])})")
    if "min" in facts:
        parts.append(f"{facts['min']:,} to {facts['max']:,}")
    return ", ".join(parts)


def _classes_line(classes: list[dict[str, Any]]) -> str:
    counts = [each["count"] for each in classes]
    shown = ", ".join(f"{each['name']} ({each['count']:,})" for each in classes[:_CLASSES_SHOWN])
    more = f", and {len(classes) - _CLASSES_SHOWN:,} more" if len(classes) > _CLASSES_SHOWN else ""
    return f"{len(classes):,}, with {min(counts):,} to {max(counts):,} samples: {shown}{more}"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return (
        {None: "-", True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool | None) else str(value)
    )


def _bars(histogram: dict[str, list[int]]) -> list[str]:
    edges, counts = histogram["edges"], histogram["counts"]
    most = max(counts)
    width = len(str(edges[-1]))
    return [
        f"  {low:>{width}} to {high - 1:>{width}}  {count:>9,}  {'#' * round(_BAR_WIDTH * count / most)}".rstrip()
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    ]
