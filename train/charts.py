"""Empty matplotlib figures: without a window, and without matplotlib's global state."""

from __future__ import annotations

import textwrap
from typing import Any

from dataloading import UsageError

__all__ = ["new_figure", "one_chart", "set_title"]


def new_figure(width: float, height: float, **options: Any) -> Any:
    """Make a Figure of so many inches.

    Parameters
    ----------
    width, height : float
        Inches.
    **options
        Of ``matplotlib.figure.Figure``.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"pictures need matplotlib ({error}); pip install 'beton[plot]'") from error
    figure = Figure(figsize=(width, height), **options)
    FigureCanvasAgg(figure)
    return figure


def one_chart(width: float, height: float) -> tuple[Any, Any]:
    """Make a Figure of so many inches with one pair of axes, open above and on the right."""
    figure = new_figure(width, height, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def set_title(figure: Any, title: str) -> None:
    """Write a title of any length above a chart, in as many lines as it needs; the figure grows by them."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(title, int(11 * width)) or [""]
    figure.set_size_inches(width, height + 0.19 * (len(lines) - 1))
    figure.suptitle("\n".join(lines), fontsize=11)
