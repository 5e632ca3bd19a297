"""The command ``beton bench shuffle FILE...``: shows how well page windows mix, to choose ``window_pages``.

Parses options and prints; `dataloading.compare_windows` measures, ``shuffle_report`` makes table and plot.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from dataloading import compare_windows
from dataloading.cli import note, option_json, option_quiet, option_seed
from train.option_types import different_numbers

__all__ = ["shuffle"]


@click.command("shuffle", context_settings={"show_default": True, "max_content_width": 100})
@click.argument("files", nargs=-1, required=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=256, help="Samples per batch and rank.")
@click.option("--windows", callback=different_numbers, metavar="LIST",
              help="Values of window_pages, such as 64,512.  [default: powers of two up to all pages]")  # fmt: skip
@click.option("--num-nodes", type=click.IntRange(min=1), default=1, help="Number of nodes that share the pages.")
@click.option("--num-batches", type=click.IntRange(min=1), default=1000, help="Batches to examine per window.")
@click.option("--within", type=click.FloatRange(min=0), default=0.5,
              help="Mark the smallest window that lacks at most this many classes per batch.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False), default=None, help="Write a plot (PNG, SVG or PDF).")
@option_seed
@option_json
@option_quiet
def shuffle(
    files: tuple[str, ...],
    batch_size: int,
    windows: list[int] | None,
    num_nodes: int,
    num_batches: int,
    within: float,
    plot: str | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show how well shuffle="pages" mixes FILES for several windows.

    FILES are one dataset: files, patterns or a manifest. Only orders and labels are read, no images. Columns: distinct
    classes per batch, those of a true shuffle, and the difference; rank correlation with the file order (a true
    shuffle: 0); distance of neighbours in a batch relative to a true shuffle (1). Memory is that of two windows: one in
    use, one being read ahead.
    """
    from train.bench.shuffle_report import HEAD, draw_windows, smallest_window, window_rows, windows_as_data
    from train.tables import format_table

    found = compare_windows(
        list(files), batch_size=batch_size, windows=windows, seed=seed, num_nodes=num_nodes, num_batches=num_batches
    )
    nodes = f", {num_nodes} nodes" if num_nodes > 1 else ""
    what = f"{' ...' if len(files) > 1 else ''}: batches of {batch_size}{nodes}"
    if plot is not None:
        draw_windows(found, within, title=Path(files[0]).name + what).savefig(plot, dpi=120)
        if not quiet:
            note(f"wrote {plot}")
    if as_json:
        settings = {"files": list(files), "batch_size": batch_size, "num_nodes": num_nodes, "seed": seed}
        click.echo(json.dumps({**settings, **windows_as_data(found, within)}, indent=1))
        return
    click.echo("\n".join([files[0] + what, "", format_table(HEAD, window_rows(found, within))]))
    if found[0].quality.num_classes is None:
        click.echo("\nThe files have no labels, so only distances are measured.")
    elif smallest_window(found, within) is None:
        click.echo(
            f"\nNo window is within {within:g} classes of a true shuffle: use a larger one, or shuffle on writing."
        )
