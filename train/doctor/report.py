"""Diagnoses and findings as text and as data."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

from train.charts import OURS, one_chart, set_title
from train.tables import format_table

from .budget import shown
from .findings import Finding, in_order, problems
from .judge import Diagnosis
from .measurements import Measurements

__all__ = ["as_data", "diagnosis_text", "draw", "findings_text"]


def as_data(
    findings: Sequence[Finding], diagnosis: Diagnosis | None = None, measured: Measurements | None = None
) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    data: dict[str, Any] = {}
    if diagnosis is not None:
        data |= {"cause": diagnosis.cause, "verdict": diagnosis.verdict}
        data |= {"images_per_second": diagnosis.rates, "arithmetic": diagnosis.arithmetic}
    data |= {
        "ok": not problems(findings),
        "findings": [dataclasses.asdict(finding) for finding in in_order(findings)],
    }
    if measured is not None:
        data["measured"] = dataclasses.asdict(measured)
    return data


def draw(diagnosis: Diagnosis, title: str) -> Any:
    """Draw the rate that each stage allows as a bar, and the device's as a line."""
    figure, axes = one_chart(7.0, 1.2 + 0.32 * len(diagnosis.rates))
    stages = {name: rate for name, rate in diagnosis.rates.items() if name != "device"}
    names = list(reversed(stages))
    colours = [OURS if name.startswith("run") else "#7F7F7F" for name in names]
    # Much faster stages are cut off: what matters is how near the others are to the device.
    most = 2.0 * max(diagnosis.rates["run"], diagnosis.rates.get("device", 0.0))
    bars = axes.barh(names, [min(stages[name], most) for name in names], color=colours)
    axes.bar_label(bars, [shown(stages[name]) for name in names], padding=3, fontsize=9)
    axes.set_xlim(0, 1.15 * most)
    if "device" in diagnosis.rates:
        rate = diagnosis.rates["device"]
        axes.axvline(rate, color="#D55E00", lw=1.5, label=f"device, {shown(rate)}")
        axes.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes.set_xlabel("images/s per process that each stage allows")
    set_title(figure, title)
    return figure


def diagnosis_text(diagnosis: Diagnosis, measured: Measurements) -> str:
    """Return the table of rates, the arithmetic and the verdict."""
    work, disk, file = measured.work, measured.disk, measured.file
    rows = [[name, shown(rate), ""] for name, rate in diagnosis.rates.items()]
    if measured.loader_rate:
        rows.append(["loader, measured from memory", shown(measured.loader_rate), ""])
    cached = "unknown" if disk.cached_share is None else f"{disk.cached_share:.0%}"
    speeds = []
    if disk.sequential_bytes_per_second:
        speeds.append(f"{disk.sequential_bytes_per_second / 1e6:,.0f} MB/s in order")
    if disk.random_reads_per_second:
        speeds.append(f"{shown(disk.random_reads_per_second)} images/s at random")
    parts = "".join(f"\n    {seconds * 1e3:8.3f} ms  {name}" for name, seconds in work.by_transform.items())
    copies = ", ".join(f"{name} {rate / 1e9:.3g} GB/s" for name, rate in measured.copy_rates.items())
    per_core = 1 / max(1e-12, work.decode_seconds), 1 / max(1e-12, work.transform_seconds)
    return "\n".join(
        [
            f"{file.path}: {file.num_samples:,} images, {file.image_bytes / 1024:,.0f} KiB each, {cached} in the page "
            f"cache",
            f"disk: {', '.join(speeds) or 'could not be read past the cache'}",
            f"a core decodes {shown(per_core[0])} images/s and transforms {shown(per_core[1])} images/s{parts}",
            *([f"copies: {copies}"] if copies else []),
            "",
            format_table(["stage", "images/s", ""], rows, notes=True),
            "",
            *(f"  {line}" for line in diagnosis.arithmetic),
            "",
            textwrap.fill(diagnosis.verdict, 100),
        ]
    )


def findings_text(findings: Sequence[Finding]) -> str:
    """Return one paragraph per finding."""

    def wrapped(text: str, indent: str) -> str:
        return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent="    ")

    paragraphs = []
    for finding in in_order(findings):
        gain = f" (without it: {finding.gain:.1f}x)" if 1.0 < finding.gain < 1e6 else ""
        paragraphs += [
            wrapped(f"{finding.level} {finding.name}{gain}: {finding.what}", ""),
            wrapped(f"measured: {finding.measured}", "    "),
            wrapped(f"expected: {finding.expected}", "    "),
            wrapped(f"do: {finding.advice}", "    "),
        ]
    return "\n".join(paragraphs) or "Nothing is wrong."
