"""One figure of a dataset: resolutions, stored bytes, samples per class. ``beton info --histogram``.

Reads the tables in blocks, never an image. Matplotlib draws without a display and without touching its global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.output.files import cannot_write
from converters.tools.summary import class_counts, first_image_field, longest_sides, size_blocks
from dataloading import ConvertError, Reader, UsageError
from dataloading.messages import counted, human_bytes
from dataloading.tools import whole_file

__all__ = ["draw"]

_NUM_BINS = 40
_NAMES_SHOWN = 40
_LETTERS_IN_A_ROW = 110
_FEW_BARS = 12
_INK, _BAR, _GRID = "#333333", "#3b75af", "#dddddd"


def draw(readers: Sequence[Reader], out: str, *, field: str | None = None) -> None:
    """Write the figure to ``out``; its ending says which format (png, pdf, svg). By default of the first image field.

    Raises
    ------
    UsageError
        If matplotlib is not installed or does not know the ending, or there are no images.
    ConvertError
        If the figure cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError('a histogram is drawn with matplotlib: pip install "beton[plot]"') from error
    name = first_image_field(readers[0], field)
    classes = class_counts(readers)
    total = sum(reader.num_samples for reader in readers)
    figure = Figure(figsize=(11, 7.6 if classes else 4.2), layout="constrained")
    where = Path(readers[0].path).name if len(readers) == 1 else f"{len(readers):,} files"
    figure.suptitle(f"{_printable(where)}: {counted(total, 'sample')}", fontsize=13, color=_INK)
    grid = figure.add_gridspec(2 if classes else 1, 2)
    _draw_sides(figure.add_subplot(grid[0, 0]), longest_sides(readers, name), name)
    _draw_sizes(figure.add_subplot(grid[0, 1]), readers, name)
    if classes:
        _draw_classes(figure.add_subplot(grid[1, :]), classes)
    try:
        # Without the date and the library's name equal data give an equal file.
        with whole_file(out) as part:
            figure.savefig(part, dpi=120, metadata={"Software": None} if out.lower().endswith(".png") else None)
    except ValueError as error:  # an ending that matplotlib does not know
        raise UsageError(f"cannot write {out}: {error}") from error
    except OSError as error:
        raise ConvertError(cannot_write(out, error)) from error


def _style(axes: Any, title: str, across: str, up: str = "images") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, fontsize=11, color=_INK, loc="left")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_sides(axes: Any, sides: npt.NDArray[np.int64], name: str) -> None:
    present = np.flatnonzero(sides)
    low, high = int(present[0]), int(present[-1])
    step = max(1, -(-(high - low + 1) // _NUM_BINS))
    edges = np.arange(low, high + step + 1, step)
    counts = np.add.reduceat(np.append(sides, 0), np.minimum(edges[:-1], len(sides)))
    counts[-1] = sides[edges[-2] :].sum()
    axes.bar(edges[:-1], counts, width=step, align="edge", color=_BAR, edgecolor="white", linewidth=0.4)
    middle = int(np.searchsorted(np.cumsum(sides), sides.sum() / 2))
    words = f"all {low:,}" if low == high else f"{low:,} to {high:,}, median {middle:,}"
    _style(axes, f"longest side of '{name}': {words}", "pixels")
    if low == high:
        axes.set_xlim(low - 10, low + 11)
        axes.set_xticks([low + 0.5], [f"{low:,}"])


def _draw_sizes(axes: Any, readers: Sequence[Reader], name: str) -> None:
    low = min(int(sizes.min()) for sizes in size_blocks(readers, name))
    high = max(int(sizes.max()) for sizes in size_blocks(readers, name))
    unit, word = next((unit, word) for unit, word in ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")) if high >= unit)
    edges = np.linspace(low, high + 1, _NUM_BINS + 1) if high > low else np.array([low * 0.995, low * 1.005 + 1])
    counts = np.zeros(len(edges) - 1, np.int64)
    total = 0
    for sizes in size_blocks(readers, name):
        counts += np.histogram(sizes.astype(np.float64), edges)[0]
        total += int(sizes.sum())
    widths = np.diff(edges) / unit
    axes.bar(edges[:-1] / unit, counts, width=widths, align="edge", color=_BAR, edgecolor="white", linewidth=0.4)
    mean = total / sum(reader.num_samples for reader in readers)
    words = f"{human_bytes(low)} to {human_bytes(high)}, mean {human_bytes(mean)}"
    _style(axes, f"stored bytes of '{name}': {words if high > low else f'all {human_bytes(low)}'}", word)
    if low == high:
        axes.set_xlim(low * 0.9 / unit, (low * 1.1 + 2) / unit)


def _draw_classes(axes: Any, classes: Sequence[tuple[str | None, int, int]]) -> None:
    counts = np.array([count for _, _, count in classes])
    low, high = int(counts.min()), int(counts.max())
    words = f"{low:,} to {high:,} samples, median {np.median(counts):,.0f}"
    if low == high:
        words = f"{counted(low, 'sample')} each"
    title = f"{counted(len(counts), 'class')}, {words}"
    if len(counts) <= _NAMES_SHOWN:
        axes.bar(np.arange(len(counts)), counts, color=_BAR, width=0.8)
        names = [_printable(str(label) if name is None else name) for name, label, _ in classes]
        names = [name if len(name) <= 18 else name[:17] + "\N{HORIZONTAL ELLIPSIS}" for name in names]
        turned = sum(map(len, names)) > _LETTERS_IN_A_ROW
        axes.set_xticks(
            np.arange(len(counts)),
            names,
            rotation=60 if turned else 0,
            ha="right" if turned else "center",
            rotation_mode="anchor" if turned else "default",
            fontsize=8,
        )
        space = max(0.0, (_FEW_BARS - len(counts)) / 2)
        axes.set_xlim(-0.6 - space, len(counts) - 0.4 + space)
        _style(axes, title, "", "samples")
        return
    # A thousand names cannot be read; how even the classes are can.
    axes.fill_between(np.arange(len(counts)), np.sort(counts)[::-1], step="mid", color=_BAR)
    axes.set_xlim(0, len(counts) - 1)
    axes.set_ylim(bottom=0)
    _style(axes, title, "classes, the largest first", "samples")


def _printable(name: str) -> str:
    # A dollar would start a formula, and names of files need not be text.
    return name.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
