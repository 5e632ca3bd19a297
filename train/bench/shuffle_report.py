"""Reports the result of `compare_windows` as a table, as data and as a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dataloading import WindowQuality
from dataloading.messages import human_bytes
from train.charts import OURS, one_chart, set_title

__all__ = ["HEAD", "draw_windows", "smallest_window", "window_rows", "windows_as_data"]

HEAD = ("window", "memory MiB", "classes/batch", "true shuffle", "missing", "rank corr.", "distance", "")
_MARK, _IDEAL = "#D55E00", "#7F7F7F"
_MIB = 1 << 20
_OF_WINDOW = ("window_pages", "window_bytes", "memory_bytes")
_QUALITY = ("mean_distinct_classes", "expected_distinct_classes", "missing_classes", "rank_correlation",
            "neighbour_distance", "num_batches", "num_classes")  # fmt: skip


def smallest_window(found: Sequence[WindowQuality], within: float) -> WindowQuality | None:
    """Return the smallest window whose batches lack at most `within` classes, or None."""
    good = [
        each
        for each in found
        if each.quality.missing_classes is not None and each.quality.missing_classes <= within
    ]  # fmt: skip
    return min(good, key=lambda each: each.window_pages, default=None)


def window_rows(found: Sequence[WindowQuality], within: float) -> list[list[str]]:
    """Return one row of text per window, for `HEAD`."""
    best = smallest_window(found, within)
    rows = []
    for each in found:
        quality = each.quality
        classes = (quality.mean_distinct_classes, quality.expected_distinct_classes, quality.missing_classes)
        rows.append(
            [
                f"{each.window_pages:,}",
                f"{each.memory_bytes / _MIB:,.0f}",
                *("-" if value is None else f"{value:.2f}" for value in classes),
                f"{quality.rank_correlation:+.3f}",
                f"{quality.neighbour_distance:.2f}",
                f"<- smallest within {within:g} classes" if each is best else "",
            ]
        )
    return rows


def windows_as_data(found: Sequence[WindowQuality], within: float) -> dict[str, Any]:
    """Return all measurements as JSON values."""
    best = smallest_window(found, within)
    return {
        "within": within,
        "smallest_window_pages": None if best is None else best.window_pages,
        "windows": [
            {name: getattr(each, name) for name in _OF_WINDOW}
            | {name: getattr(each.quality, name) for name in _QUALITY}
            for each in found
        ],
    }


def draw_windows(found: Sequence[WindowQuality], within: float, *, title: str) -> Any:
    """Plot distinct classes per batch against the window, with a true shuffle's; without classes, neighbours' distance.

    Returns
    -------
    matplotlib Figure
    """
    figure, axes = one_chart(7.6, 4.6)
    found = sorted(found, key=lambda each: each.window_pages)
    windows = [each.window_pages for each in found]
    best = smallest_window(found, within)
    distinct = [each.quality.mean_distinct_classes for each in found]
    if None in distinct:
        values = [each.quality.neighbour_distance for each in found]
        ideal = 1.0
        axes.set_ylabel("distance of neighbours in the file\n(a true shuffle: 1)")
    else:
        values = [value for value in distinct if value is not None]
        ideal = found[0].quality.expected_distinct_classes or 0.0
        axes.set_ylabel(f"distinct classes in a batch of {found[0].quality.batch_size}")
        axes.axhspan(ideal - within, ideal, color=_IDEAL, alpha=0.15, lw=0)
    axes.axhline(ideal, color=_IDEAL, ls="--", lw=1)
    axes.annotate(
        f"true shuffle: {ideal:.2f}", (windows[0], ideal), xytext=(0, 4), textcoords="offset points", color="#555555"
    )
    axes.plot(windows, values, "o-", color=OURS, lw=2)
    if best is not None:
        height = values[windows.index(best.window_pages)]
        at_the_end = math.log(best.window_pages / windows[0]) > 0.75 * math.log(windows[-1] / windows[0])
        axes.plot([best.window_pages], [height], "o", color=_MARK, ms=11, zorder=3)
        axes.annotate(
            f"{best.window_pages:,} pages: within {within:g}",
            (best.window_pages, height),
            xytext=(-6, -60) if at_the_end else (6, -26),
            textcoords="offset points",
            ha="right" if at_the_end else "left",
            color=_MARK,
        )
    # The last window is the whole file, and may be close to a power of two.
    shown = [each for k, each in enumerate(found) if k + 1 == len(found) or windows[k + 1] >= 1.4 * windows[k]]
    axes.set_xscale("log", base=2)
    axes.set_xticks([each.window_pages for each in shown], [f"{each.window_pages:,}" for each in shown], rotation=45)
    axes.set_xlim(windows[0] / 1.5, windows[-1] * 1.5)
    axes.minorticks_off()
    axes.set_ylim(0, 1.1 * max(*values, ideal))
    axes.set_xlabel("window_pages")
    memory = axes.secondary_xaxis("top")
    sizes = [human_bytes(each.memory_bytes) for each in shown]
    memory.set_xticks([each.window_pages for each in shown], sizes, rotation=45)
    memory.minorticks_off()
    memory.tick_params(labelsize=8)
    memory.set_xlabel("memory for two windows", fontsize=9)
    set_title(figure, title)
    return figure
