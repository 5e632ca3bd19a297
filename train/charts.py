"""Creates matplotlib figures without a window and without matplotlib's global state."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dataloading import UsageError

__all__ = ["OURS", "lines", "new_figure", "one_chart", "set_title"]

# Okabe and Ito's colour-blind-safe palette; our loader is always the strong blue.
OURS = "#0072B2"


def new_figure(width: float, height: float, **options: Any) -> Any:
    """Create a Figure; its size is in inches.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"plots need matplotlib ({error}); pip install 'beton[plot]'") from error
    figure = Figure(figsize=(width, height), **options)
    FigureCanvasAgg(figure)
    return figure


def one_chart(width: float, height: float) -> tuple[Any, Any]:
    """Create a Figure with one pair of axes, without the top and right lines; its size is in inches."""
    figure = new_figure(width, height, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def set_title(figure: Any, title: str) -> None:
    """Write a title above a chart, wrapped to as many lines as needed; the figure grows with them."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(title, int(11 * width)) or [""]
    figure.set_size_inches(width, height + 0.19 * (len(lines) - 1))
    figure.suptitle("\n".join(lines), fontsize=11)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
) -> Any:
    """Draw a line per series of (x, y) points; our loader is blue.

    Returns
    -------
    matplotlib Figure
    """
    figure, axes = one_chart(7.0, 4.2)
    others = iter(("#E69F00", "#CC79A7", "#009E73", "#7F7F7F", "#56B4E9", "#D55E00", "#F0E442", "#000000") * 3)
    for name, points in series.items():
        colour = OURS if name == "beton" else next(others)
        axes.plot(*zip(*points, strict=True), marker="o", label=name, color=colour, lw=2 if name == "beton" else 1.2)
    axes.set_xscale("log" if log_x else "linear")
    if not log_x:
        axes.xaxis.get_major_locator().set_params(integer=True)  # numbers of workers are integers
    axes.set_yscale("log" if log_y else "linear")
    if not log_y:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    set_title(figure, title)
    axes.legend(frameon=False, fontsize=9)
    return figure
