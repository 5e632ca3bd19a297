"""Reports benchmark results as text, Markdown, JSON and plots.

Each result file states hardware, versions, command and noise, so that it can be judged and reproduced.
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.bench.harness import Result
from train.bench.spec import PIPELINES
from train.charts import OURS, one_chart, set_title
from train.machine import hardware, hardware_slug
from train.machine import versions as installed_versions
from train.summaries import compare

__all__ = [
    "RATE_HEAD",
    "bars",
    "noise",
    "rate_rows",
    "rates_by_workers",
    "result_stem",
    "results_as_data",
    "write_report",
]

RATE_HEAD = ("loader", "images/s", "min-max", "x baseline", "CPU ms/image", "memory MiB", "note")
_OTHER, _CEILING = "#7F7F7F", "#FFFFFF"  # ceilings are drawn hollow
_STATED = ("beton", "torch", "torchvision", "numpy", "numba", "pillow", "ffcv")
_CEILINGS = ("kernels", "synthetic")
_BUSY_NEIGHBOUR = 0.1


def rate_rows(results: Sequence[Result], baseline: str) -> list[list[str]]:
    """Return one row of text per loader, for `RATE_HEAD`.

    Parameters
    ----------
    results : sequence of Result
        In row order.
    baseline : str
        Label whose rate is 1.
    """
    base = next((result for result in results if result.spec.label == baseline and result.rates), None)
    rows = []
    for result in results:
        summary = result.summary
        if summary is None:
            rows.append([result.spec.label, "-", "", "", "", "", result.status])
            continue
        ratio = ""
        if base is not None:
            factor = compare(result.rates, base.rates)
            ratio = f"{factor.of_medians:.2f}"
            if result is not base:
                ratio += f" ({factor.low:.2f}-{factor.high:.2f})"
        cpu, memory = result.median_of("cpu_seconds_per_image"), result.median_of("own_bytes")
        rows.append(
            [
                result.spec.label,
                f"{summary.median:,.0f}",
                f"{summary.low:,.0f}-{summary.high:,.0f}",
                ratio,
                "" if cpu is None else f"{cpu * 1e3:.2f}",
                "" if memory is None else f"{memory / 2**20:,.0f}",
                "" if result.status == "ok" else result.status,
            ]
        )
    return rows


def rates_by_workers(results: Sequence[Result]) -> dict[str, list[tuple[float, float]]]:
    """Return ``(workers, images/s)`` of each loader, for `train.charts.lines`."""
    series: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        if result.rates and result.spec.loader != "synthetic":
            series.setdefault(result.spec.loader, []).append((result.spec.num_workers, result.median))
    return series


def noise(results: Sequence[Result]) -> str | None:
    """Return a warning if other processes used the CPU, or None."""
    shares = [
        entry["other_cores"] for result in results for entry in result.rounds if entry.get("other_cores") is not None
    ]
    if not shares or max(shares) < _BUSY_NEIGHBOUR:
        return None
    middle = statistics.median_high(shares)
    return (
        f"Other processes used {middle:.2f} cores in the median and {max(shares):.2f} at most during the rounds: "
        "trust ratios and CPU ms/image more than rates."
    )


def result_stem(topic: str, host: Mapping[str, object], day: datetime.date) -> str:
    """Return the name of a result file without its ending: ``<topic>_<hardware>_<yyyymm>``.

    Examples
    --------
    >>> result_stem("jpeg500", {"cpu": "AMD EPYC", "cores": 2}, datetime.date(2026, 11, 27))
    'jpeg500_epyc-2core_202611'
    """
    return f"{topic}_{hardware_slug(dict(host))}_{day:%Y%m}"


def write_report(
    out: Path,
    topic: str,
    *,
    title: str,
    command: str,
    sections: Sequence[str],
    data: Any,
    results: Sequence[Result] = (),
    versions: Mapping[str, str] | None = None,
    figure: Any = None,
) -> list[Path]:
    """Write ``<topic>_<hardware>_<yyyymm>`` as .md, .json and, with a figure, .png.

    Parameters
    ----------
    out : Path
        Folder; created if missing.
    topic, title : str
        For the file name and the heading.
    command : str
        Command that reproduces it.
    sections : sequence of str
        Markdown, in order.
    data : JSON-able
        The underlying figures.
    results : sequence of Result
        Results whose versions and noise are stated.
    versions : mapping, optional
        Further versions to state.
    figure : matplotlib Figure, optional
        The plot.

    Returns
    -------
    list of Path
        The files written.
    """
    host = hardware()
    day = datetime.date.today()
    stem = result_stem(topic, host, day)
    out.mkdir(parents=True, exist_ok=True)
    known = {**installed_versions(_STATED), **(versions or {})}
    others: dict[str, list[str]] = {}
    for result in results:
        for name, version in result.start.get("versions", {}).items():
            # The peers' environment may have other versions of the same packages.
            if known.setdefault(name, version) != version:
                others.setdefault(f"{name} {version}", []).append(result.spec.label)
    stated = [f"{name} {version}" for name, version in sorted(known.items())]
    stated += [f"{name} for {', '.join(labels)}" for name, labels in others.items()]
    text = [
        f"# {title}",
        "",
        f"- Machine: {host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, Linux {host['kernel']}",
        f"- Date: {day:%Y-%m-%d}",
        "- Versions: " + "; ".join(stated),
        f"- Command: `{command}`",
    ]
    warning = noise(results)
    if warning:
        text.append(f"- Noise: {warning}")
    if figure is not None:
        text += ["", f"![{title}]({stem}.png)"]
    for section in sections:
        text += ["", section]
    paths = [out / f"{stem}.md", out / f"{stem}.json"]
    paths[0].write_text("\n".join(text) + "\n", encoding="utf-8")
    payload = {"title": title, "hardware": host, "date": str(day), "versions": stated, "command": command}
    payload["data"] = data
    paths[1].write_text(json.dumps(names_only(payload), indent=1, default=str) + "\n", encoding="utf-8")
    if figure is not None:
        paths.append(out / f"{stem}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths


def results_as_data(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return all measurements as JSON values."""
    return [
        {
            "label": result.spec.label,
            "status": result.status,
            "spec": {**result.spec.as_dict(), "pipeline_words": PIPELINES[result.spec.pipeline]},
            "images_per_second": result.rates,
            "median": result.median if result.rates else None,
            "rounds": result.rounds,
            "start": result.start,
            "report": result.report,
        }
        for result in results
    ]


def bars(results: Sequence[Result], *, title: str, baseline: str) -> Any:
    """Draw rates as bars with the spread of the rounds, fastest on top; ceilings are hollow.

    Returns
    -------
    matplotlib Figure
    """
    shown = [result for result in results if result.summary is not None and result.spec.loader != "synthetic"]
    shown.sort(key=lambda result: result.median)
    figure, axes = one_chart(8.0, 1.2 + 0.42 * max(1, len(shown)))
    base = next((result.summary for result in shown if result.spec.label == baseline), None)
    for place, result in enumerate(shown):
        summary = result.summary
        assert summary is not None
        ceiling = result.spec.loader in _CEILINGS
        colour = _CEILING if ceiling else OURS if result.spec.loader == "beton" else _OTHER
        axes.barh(place, summary.median, color=colour, edgecolor=OURS if ceiling else colour, height=0.68)
        error = [[summary.median - summary.low], [summary.high - summary.median]]
        axes.errorbar(summary.median, place, xerr=error, color="black", capsize=3, lw=1)
        text = f" {summary.median:,.0f}"
        if base is not None and base.median:
            text += f"  ({summary.median / base.median:.2f}x)"
        axes.annotate(text, (summary.high, place), va="center", xytext=(4, 0), textcoords="offset points", fontsize=9)
    axes.set_yticks(range(len(shown)), [result.spec.label for result in shown])
    axes.set_xlabel(f"images/s (median, whiskers: min-max; ratio to {baseline})")
    axes.margins(x=0.22)
    axes.set_xlim(left=0)
    set_title(figure, title)
    return figure


def names_only(value: Any) -> Any:
    """Replace absolute paths by their last part, since local folders mean nothing to others."""
    if isinstance(value, dict):
        return {key: names_only(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [names_only(item) for item in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
