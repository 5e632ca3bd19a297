"""Reports a comparison as a text table, JSON, a plot and an HTML page."""

from __future__ import annotations

from pathlib import Path

from dataloading.messages import counted
from train.compare.runs import Comparison
from train.summaries import Summary
from train.tables import format_table

_BUSY = {
    "nvml": "GPU utilisation as NVML reports it",
    "step": "share of the step not spent waiting for data (CPU training)",
    "simulated": "share of the step in which the simulated device was busy",
}


def headline(comparison: Comparison) -> str:
    """Return a one-line description of the runs, and whether the device was simulated."""
    training = comparison.training
    if comparison.simulated:
        what = (
            f"SIMULATED device: each process sleeps like a device of "
            f"{comparison.simulated_images_per_s:g} images/s; no network was trained"
        )
    else:
        what = f"{training['model']} ({training['strategy']}) on {comparison.machine['device']}"
    return (
        f"{what}; {counted(comparison.nproc_per_node, 'process')} x batch {training['batch_size']}, "
        f"{training['image_size']} px, {counted(comparison.num_steps, 'step')}, {counted(comparison.repeats, 'run')} "
        "of each loader"
    )


def verdict(comparison: Comparison) -> str:
    """Return one sentence that compares the fastest loader with the baseline."""
    base = comparison.loaders[0]
    best = max(comparison.loaders, key=lambda result: result.images_per_s.mean)
    if best is base:
        return f"{base.loader} was the fastest."
    return (
        f"{best.loader} delivered {best.ratio.mean:.2f}x the images/s of {base.loader} and kept the device waiting "
        f"{best.wait_pct.mean:.0f} % of the time instead of {base.wait_pct.mean:.0f} %."
    )


def comparison_table(comparison: Comparison) -> str:
    """Return the figures as text: mean ± sample standard deviation over the runs."""
    base = comparison.loaders[0].loader
    head = [
        "loader",
        "images/s",
        f"x {base}",
        "data wait %",
        "device busy %",
        f"{comparison.num_steps} steps, s",
        "first batch, s",
    ]
    rows = [
        [
            result.loader,
            _cell(result.images_per_s, 0),
            _cell(result.ratio, 2),
            _cell(result.wait_pct, 1),
            _cell(result.busy_pct, 1),
            _cell(result.time_to_steps_s, 1),
            _cell(result.first_batch_s, 2),
        ]
        for result in comparison.loaders
    ]
    machine = comparison.machine
    source = f"data: {comparison.training['data']}"
    if comparison.stock_data:
        source += f"; the torch loaders read {comparison.stock_data}"
    notes = [
        "",
        verdict(comparison),
        f"Mean ± standard deviation; rates exclude the first {comparison.warmup} steps. "
        f"Device busy: {_BUSY[comparison.loaders[0].busy_source]}.",
        f"{machine['processor']}, {machine['num_cores']} cores, torch {machine['torch']}; {source}",
    ]
    return "\n".join([headline(comparison), "", format_table(head, rows, notes=False), *notes])


def _cell(value: Summary | None, digits: int) -> str:
    if value is None:
        return "n/a"
    text = f"{value.mean:.{digits}f}"
    return text if len(value.values) == 1 else f"{text} ± {value.std:.{digits}f}"


def write_reports(comparison: Comparison, out: str) -> list[Path]:
    """Write ``compare.json``, ``compare.png`` and ``compare.html`` into `out` and return their paths."""
    from train.compare.page import render_page
    from train.compare.plot import draw

    directory = Path(out)
    directory.mkdir(parents=True, exist_ok=True)
    json_path, png_path, html_path = (directory / f"compare.{kind}" for kind in ("json", "png", "html"))
    json_path.write_text(comparison.to_json() + "\n", encoding="utf-8")
    words = {"title": headline(comparison), "verdict": verdict(comparison)}
    draw(comparison, png_path, **words)
    busy_words = _BUSY[comparison.loaders[0].busy_source]
    html_path.write_text(render_page(comparison, **words, busy_words=busy_words), encoding="utf-8")
    return [json_path, png_path, html_path]
