"""Plots a comparison: bars for the results, lines for the wait in each step."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from train.charts import OURS, new_figure
from train.compare.runs import Comparison
from train.summaries import Summary

_COLOURS = {
    "beton": OURS,
    "torch": "#7F7F7F",
    "torch-fast": "#E69F00",
    "ffcv": "#CC79A7",
    "dali": "#76B041",
    "webdataset": "#8B5A2B",
    "litdata": "#6A51A3",
    "mosaicml-streaming": "#00857A",
    "synthetic": "#333333",
}


# Left margin, wide enough for a label of two lines beside four digits.
_LEFT = 0.075


def draw(comparison: Comparison, path: Path, *, title: str, verdict: str) -> None:
    """Write the plot.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    results = comparison.loaders
    names = [result.loader for result in results]
    figure = new_figure(13.5, 9.0 if _crowded(names) else 8.4, dpi=110)
    grid = figure.add_gridspec(
        2,
        4,
        height_ratios=[1.0, 0.95],
        hspace=0.75 if _crowded(names) else 0.42,
        wspace=0.32,
        top=0.84,
        bottom=0.115,
        left=_LEFT,
        right=0.98,
    )
    busy_name = "Simulated device busy" if comparison.simulated else "Device busy"
    limit = comparison.simulated_images_per_s * comparison.nproc_per_node
    panels: list[tuple[str, str, list[Summary | None], float | None]] = [
        ("Throughput", "images/s (higher is better)", [result.images_per_s for result in results], None),
        ("Waiting for data", "% of step time (lower is better)", [result.wait_pct for result in results], 100.0),
        (busy_name, "% of step time (higher is better)", [result.busy_pct for result in results], 100.0),
        (
            f"Time to {comparison.num_steps} steps",
            "s, start-up included (lower is better)",
            [result.time_to_steps_s for result in results],
            None,
        ),
    ]
    for column, (name, unit, values, ceiling) in enumerate(panels):
        _bars(figure.add_subplot(grid[0, column]), names, name, unit, values, ceiling, line=0.0 if column else limit)
    first = figure.axes[0]
    if comparison.simulated:
        # Beside the axis, where no bar, number or line can be.
        first.set_ylabel(f"{first.get_ylabel()}\ndotted: capacity of the simulated devices", fontsize=9)
    for index, result in enumerate(results[1:], 1):
        first.text(
            index,
            result.images_per_s.mean / 2,
            f"{result.ratio.mean:.2f}x",
            ha="center",
            va="center",
            color="white",
            fontsize=9,
            fontweight="bold",
            rotation=90 if _crowded(names) else 0,
        )
    _timeline(figure.add_subplot(grid[1, :]), comparison)
    figure.text(_LEFT, 0.955, "\n".join(textwrap.wrap(verdict, 105)), va="top", fontsize=14, fontweight="bold")
    figure.text(_LEFT, 0.92, "\n".join(textwrap.wrap(title, 165)), va="top", fontsize=9.5, color="#333333")
    if comparison.simulated:
        badge = {"facecolor": "#B22222", "edgecolor": "none", "pad": 3}
        figure.text(
            _LEFT + 0.003,
            0.985,
            "SIMULATED DEVICE",
            va="top",
            fontsize=10,
            fontweight="bold",
            color="white",
            bbox=badge,
        )
    figure.savefig(path, metadata={"Software": "beton compare"})


def _crowded(names: list[str]) -> bool:
    return len(names) > 4


def _bars(
    axes: Any,
    names: list[str],
    title: str,
    unit: str,
    values: list[Summary | None],
    ceiling: float | None,
    line: float,
) -> None:
    """Draw one bar per loader with its value above, and a dotted line at `line` unless it is 0."""
    highest = max([value.high for value in values if value is not None], default=1.0) or 1.0
    top = max(highest * 1.15, line * 1.25) if ceiling is None else ceiling * 1.1
    if line:
        axes.axhline(line, color="black", linestyle=":", linewidth=1.2)
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is None:
            axes.text(place, 0.02 * top, "n/a", ha="center", va="bottom", fontsize=10)
            continue
        axes.bar(place, value.mean, width=0.68, color=_COLOURS.get(name, "#009E73"))
        reach = [[value.mean - value.low], [value.high - value.mean]]
        if len(value.values) > 1:
            axes.errorbar(place, value.mean, yerr=reach, color="black", capsize=4, linewidth=1.2)
        digits = 0 if value.mean >= 100 else 1
        base = value.high + 0.015 * top
        if base - 0.01 * top < line < base + 0.08 * top:  # the number would touch the line, so write it above
            base = line + 0.015 * top
        axes.text(place, base, f"{value.mean:.{digits}f}", ha="center", va="bottom", fontsize=10)
    axes.set_title(title, fontsize=11, fontweight="bold")
    axes.set_ylabel(unit, fontsize=9)
    turned: dict[str, Any] = {"rotation": 35, "ha": "right"} if _crowded(names) else {}
    axes.set_xticks(range(len(names)), names, fontsize=9, **turned)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(0, top)
    _clean(axes)


def _timeline(axes: Any, comparison: Comparison) -> None:
    floor = 0.05  # milliseconds; a logarithmic axis cannot show zero
    for result in comparison.loaders:
        runs = [run for run in comparison.runs if run.loader == result.loader]
        length = min(run.num_steps for run in runs)
        waits = np.maximum(np.array([run.wait_s[:length] for run in runs]) * 1000.0, floor)
        steps = np.arange(1, length + 1)
        colour = _COLOURS.get(result.loader, "#009E73")
        axes.plot(steps, np.median(waits, axis=0), color=colour, linewidth=1.8, label=result.loader)
        if len(runs) > 1:
            axes.fill_between(steps, waits.min(axis=0), waits.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    if comparison.warmup:
        axes.axvspan(0.5, comparison.warmup + 0.5, color="black", alpha=0.06, linewidth=0)
        axes.text(0.7, 0.03, "warm-up", transform=axes.get_xaxis_transform(), fontsize=8, color="#555555")
    axes.set_yscale("log")
    axes.set_xlim(0.5, comparison.num_steps + 0.5)
    label = "Time waiting for the next batch, step by step"
    axes.set_title(label + (" (line: median run, band: extremes)" if comparison.repeats > 1 else ""), fontsize=11,
                   fontweight="bold")  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("wait, ms (log scale)")
    # Below the axis: above it, the names of many loaders would run into the title.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=len(comparison.loaders), frameon=False)
    _clean(axes)


def _clean(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
