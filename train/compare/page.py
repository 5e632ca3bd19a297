"""The comparison as one self-contained HTML page: its words and charts; ``page.html`` has the layout and the style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.compare.runs import IMAGENET_IMAGES, Comparison, LoaderResult, RunResult
from train.compare.svg import Bar, Line, bars, css_name, histograms, lines, number, stacks
from train.devices import published
from train.loaders import LOADERS
from train.summaries import Summary

__all__ = ["render_page"]

_WAIT_FLOOR_MS = 0.1


def render_page(comparison: Comparison, *, title: str, verdict: str, busy_words: str) -> str:
    """Return the page's HTML.

    Parameters
    ----------
    comparison : Comparison
        What was measured.
    title, verdict, busy_words : str
        What ran, the outcome, and what utilisation means here.
    """
    # Not at the top: only a report needs it.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    page: str = template.render(
        **_words(comparison),
        headline=title,
        verdict=verdict,
        busy_words=busy_words,
        tiles=_tiles(comparison),
        columns=_columns(comparison),
        rows=_rows(comparison),
        charts=_charts(comparison),
        checks=comparison.data_checks,
        unchecked=[name for name in (each.loader for each in comparison.loaders) if LOADERS[name].ceiling],
        facts=_facts(comparison),
        parts=list(dict.fromkeys(name for run in comparison.runs for name in run.parts_s)),
        series=[(result.loader, css_name(result.loader)) for result in comparison.loaders],
    )
    return page


def _words(comparison: Comparison) -> dict[str, Any]:
    source = published(comparison.accelerator)
    return {
        "simulated": comparison.simulated,
        "tag": "simulated device" if comparison.simulated else "",
        "published": source,
        "baseline": comparison.loaders[0].loader,
        "warmup": comparison.warmup,
        "repeats": comparison.repeats,
        "num_steps": comparison.num_steps,
        "price": f"${comparison.price_per_gpu_hour:.2f}",
        "imagenet_images": f"{IMAGENET_IMAGES:,}",
        "nproc": comparison.nproc_per_node,
        "command": comparison.command,
    }


def _tiles(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return (figure, what it is, remark) of the fastest loader."""
    base, best = comparison.loaders[0], _fastest(comparison)
    tiles = [(f"{number(best.images_per_s.mean)}", "images/s", f"{best.loader}; {base.loader}: "
              f"{number(base.images_per_s.mean)}")]  # fmt: skip
    if best is not base:
        tiles.append((f"{best.ratio.mean:.2f}x", f"the images/s of {base.loader}", _spread(best.ratio, "x")))
    if best.busy_pct is not None:
        other = f"; {base.loader}: {base.busy_pct.mean:.0f} %" if base.busy_pct is not None and best is not base else ""
        tiles.append((f"{best.busy_pct.mean:.0f} %", "utilisation", f"{best.loader}{other}"))
    tiles.append(
        (
            f"${_cost(comparison, best):,.2f}",
            "per ImageNet epoch",
            f"{number(best.imagenet_gpu_hours)} GPU-hours at ${comparison.price_per_gpu_hour:.2f}"
            + (f"; {base.loader}: ${_cost(comparison, base):,.2f}" if best is not base else ""),
        )
    )
    return tiles


def _fastest(comparison: Comparison) -> LoaderResult:
    real = [result for result in comparison.loaders if not LOADERS[result.loader].ceiling]
    return max(real or comparison.loaders, key=lambda result: result.images_per_s.mean)


def _spread(value: Summary, unit: str = "") -> str:
    return f"{value.low:.2f}{unit} to {value.high:.2f}{unit} over the runs" if value.count > 1 else "one run"


def _cost(comparison: Comparison, result: LoaderResult) -> float:
    return result.imagenet_gpu_hours * comparison.price_per_gpu_hour


def _columns(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return (key, heading, unit) of the table's columns of figures."""
    columns = [
        ("images_per_s", "Images", "per second"),
        ("ratio", f"vs {comparison.loaders[0].loader}", "times"),
        ("wait", "Data wait", "% of step"),
        ("busy", "Utilisation", "%"),
    ]
    if comparison.simulated:
        columns.append(("by_rates", "By rates", "%"))
    return [
        *columns,
        ("p50", "Step p50", "ms"),
        ("p99", "Step p99", "ms"),
        ("first", "First batch", "s"),
        ("total", f"{comparison.num_steps} steps", "s"),
        ("cost", "ImageNet", "epoch"),
    ]


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    rows = []
    for result in comparison.loaders:
        entry = LOADERS[result.loader]
        version = comparison.machine.get("versions", {}).get(entry.package, "") if entry.package else ""
        cells = {
            "images_per_s": _cell(result.images_per_s, 0),
            "ratio": _cell(result.ratio, 2),
            "wait": _cell(result.wait_pct, 1),
            "busy": _cell(result.busy_pct, 1),
            "by_rates": (result.busy_by_rates_pct, f"{result.busy_by_rates_pct or 0:.1f}", ""),
            "p50": (result.step_p50_s, number(1e3 * result.step_p50_s), ""),
            "p99": (result.step_p99_s, number(1e3 * result.step_p99_s), ""),
            "first": _cell(result.first_batch_s, 2),
            "total": _cell(result.time_to_steps_s, 1),
            "cost": (
                _cost(comparison, result),
                f"${_cost(comparison, result):,.2f}",
                f"{number(result.imagenet_gpu_hours)} GPU-h",
            ),
        }
        words = f"{entry.summary}{f' ({entry.package} {version})' if version else ''}"
        rows.append({"loader": result.loader, "css": css_name(result.loader), "words": words, "cells": cells})
    return rows


def _cell(value: Summary | None, digits: int) -> tuple[float | None, str, str]:
    """Return (what to sort by, the mean as text, its deviation as text)."""
    if value is None:
        return None, "n/a", ""
    return value.mean, f"{value.mean:,.{digits}f}", f"± {value.std:,.{digits}f}" if value.count > 1 else ""


def _charts(comparison: Comparison) -> dict[str, str]:
    """Return the charts as SVG, by name; a chart that has nothing to show is empty."""
    results = comparison.loaders
    limit = comparison.simulated_images_per_s * comparison.nproc_per_node
    by_loader = {result.loader: _runs(comparison, result.loader) for result in results}
    charts = {
        "throughput": bars(
            [
                Bar(
                    name=each.loader,
                    value=each.images_per_s.mean,
                    low=each.images_per_s.low,
                    high=each.images_per_s.high,
                    words=number(each.images_per_s.mean),
                    note="" if place == 0 else f"{each.ratio.mean:.2f}x",
                )
                for place, each in enumerate(results)
            ],
            unit="images/s, mean; whiskers: slowest and fastest run",
            limit=limit,
            limit_words=f"what the simulated device{'s' if comparison.nproc_per_node > 1 else ''} can take",
            label="Images per second by loader",
        ),
        "parts": stacks(
            {name: _mean_parts(runs) for name, runs in by_loader.items()},
            unit="ms per step",
            label="Where the time of a step goes, by loader",
        ),
        "start": stacks(
            {each.loader: {"until the first batch": each.first_batch_s.mean,
                           "steps": max(0.0, each.time_to_steps_s.mean - each.first_batch_s.mean)} for each in results},
            unit="s",
            label=f"Time to {comparison.num_steps} steps, start-up included, by loader",
            shares=False,
        ),
        "cost": bars(
            [
                Bar(
                    name=each.loader,
                    value=_cost(comparison, each),
                    low=_cost(comparison, each),
                    high=_cost(comparison, each),
                    words=f"${_cost(comparison, each):,.2f}",
                    note=f"{number(each.imagenet_gpu_hours)} GPU-hours",
                )
                for each in results
            ],
            unit="US dollars per epoch of ImageNet",
            label="Cost of an ImageNet epoch by loader",
        ),
        "waits": histograms(
            {name: [1e3 * wait for run in runs for wait in run.wait_s[comparison.warmup :]]
             for name, runs in by_loader.items()},
            floor=_WAIT_FLOOR_MS,
            x="wait for a batch, ms (logarithmic)",
            label="Histogram of the time waiting for a batch, by loader",
        ),
    }  # fmt: skip
    curves = [Line(name=name, points=_utilisation(runs)) for name, runs in by_loader.items()]
    curves = [curve for curve in curves if curve.points]
    charts["utilisation"] = lines(
        curves, x="seconds since the first batch", y="utilisation, %", y_top=100.0, label="Utilisation over time"
    ) if curves else ""  # fmt: skip
    losses = [_loss_line(name, runs) for name, runs in by_loader.items()]
    losses = [line for line in losses if line.points]
    charts["loss"] = ""
    if losses:
        low = min(value for line in losses for _, value in (*line.points, *line.faint))
        charts["loss"] = lines(
            losses, x="step", y="training loss", y_low=math.floor(4 * low) / 4, wide=True, label="Training loss by step"
        )
    return charts


def _runs(comparison: Comparison, loader: str) -> list[RunResult]:
    return [run for run in comparison.runs if run.loader == loader]


def _mean_parts(runs: Sequence[RunResult]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run.parts_s)
    return {name: 1e3 * math.fsum(run.parts_s.get(name, 0.0) for run in runs) / len(runs) for name in names}


def _utilisation(runs: Sequence[RunResult]) -> list[tuple[float, float]]:
    """Return (seconds, %) in equal bins of a run's length: busy time of all runs over their time there."""
    num_bins = min(40, max(6, min(run.num_steps for run in runs) // 3))
    steps, ends = [], []
    for run in runs:
        begin = run.start_s[0] + run.wait_s[0]  # before it workers start and transforms are compiled
        ends.append(run.start_s[-1] + run.step_s[-1] - begin)
        steps += [
            (start - begin, start - begin + seconds, share)
            for start, seconds, share in zip(run.start_s, run.step_s, run.busy, strict=True)
            if share is not None and start >= begin
        ]
    width = sorted(ends)[(len(ends) - 1) // 2] / num_bins
    busy, total = [0.0] * num_bins, [0.0] * num_bins
    for start, end, share in steps:
        for place in range(num_bins):
            inside = min(end, (place + 1) * width) - max(start, place * width)
            if inside > 0:
                busy[place] += share * inside
                total[place] += inside
    return [((place + 0.5) * width, 100 * busy[place] / total[place]) for place in range(num_bins) if total[place] > 0]


def _loss_line(name: str, runs: Sequence[RunResult]) -> Line:
    """Return the mean loss over the runs by step, with a moving average as the strong line."""
    length = min(len(run.loss) for run in runs)
    means = []
    for step in range(length):
        values = [value for run in runs if (value := run.loss[step]) is not None]
        if values:
            means.append((float(step + 1), math.fsum(values) / len(values)))
    window = max(1, len(means) // 20)
    smooth = [
        (means[place][0], math.fsum(value for _, value in near) / len(near))
        for place in range(len(means))
        if (near := means[max(0, place - window) : place + window + 1])
    ]
    return Line(name=name, points=smooth, faint=means if window > 1 else ())


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    """Return what ran where, for the end of the page."""
    machine, training = comparison.machine, comparison.training
    device = machine["device"]
    if comparison.simulated:
        device = f"simulated, {comparison.simulated_images_per_s:g} images/s per process; no network was trained"
    facts = [
        ("Processor", f"{machine['processor']}, {machine['num_cores']} cores usable"),
        ("Memory", f"{machine['memory_gib']} GiB" if "memory_gib" in machine else ""),
        ("Device", device),
        ("System", f"Linux {machine['kernel']}, Python {machine['python']}" if "kernel" in machine else ""),
        ("Versions", ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())),
        ("Processes", f"{comparison.nproc_per_node}, each with batches of {training['batch_size']}"),
        (
            "Data",
            f"{training['data']}" + (f"; torch loaders: {comparison.stock_data}" if comparison.stock_data else ""),
        ),
        (
            "Runs",
            f"{comparison.repeats} of each loader, {comparison.num_steps} steps each, fresh processes, interleaved",
        ),
    ]
    return [(name, words) for name, words in facts if words]
