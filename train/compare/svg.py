"""Charts as SVG text, to stand inside a page: no file, no network, colours by the page's style sheet.

A shape has the class ``s-NAME`` of its series (a loader, or a part of a step); the page gives each a colour for light
and for dark. Hovering shows the figure, as SVG's ``<title>``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Line", "bars", "css_name", "histograms", "lines", "number", "stacks", "ticks"]

_WIDTH = 540.0  # as wide as half a page, so that text has its own size
_LEAST_HEIGHT = 190.0  # of rows together: two rows need not look lost beside another chart
_Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: its value, the extremes of the runs, how the value is written, and a remark below that."""

    name: str
    value: float
    low: float
    high: float
    words: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line; `faint` are the points that a smooth line leaves behind."""

    name: str
    points: _Points
    faint: _Points = ()


def css_name(name: str) -> str:
    """Return a series' class.

    Examples
    --------
    >>> css_name("torch-fast"), css_name("host to device")
    ('s-torch-fast', 's-host-to-device')
    """
    return "s-" + re.sub(r"[^a-z0-9]+", "-", name.lower())


def number(value: float) -> str:
    """Return a figure with three significant digits, and no fewer than its whole ones.

    Examples
    --------
    >>> number(1234.5), number(12.34), number(0.01234), number(0.0)
    ('1,234', '12.3', '0.0123', '0')
    """
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def ticks(top: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to `top` or just below it, about `count` of them.

    Examples
    --------
    >>> ticks(940.0)
    [0.0, 200.0, 400.0, 600.0, 800.0]
    """
    if top <= 0:
        return [0.0]
    rough = top / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    return [step * place for place in range(int(top / step * 1.0001) + 1)]


def _tick(value: float) -> str:
    return f"{value:,.10g}"


def _names_width(names: Iterable[str]) -> float:
    """Return the room that names on the left need."""
    return max([80.0, *(8.2 * len(name) + 14.0 for name in names)])


def _row_height(count: int, least: float) -> float:
    return max(least, min(56.0, _LEAST_HEIGHT / max(1, count)))


def _text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
    return f'<rect {box} class="{kind}"><title>{escape(title)}</title></rect>'


def _drawing(height: float, parts: Sequence[str], label: str, width: float = _WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label, quote=True)}">'
        + "".join(parts)
        + "</svg>"
    )


def _x_axis(left: float, right: float, bottom: float, places: Sequence[tuple[float, str]], label: str) -> list[str]:
    """Draw the words below a chart; `places` are shares of its width, 0 to 1."""
    width = right - left
    parts = [_text(left + share * width, bottom + 17, words, anchor="middle", kind="tick") for share, words in places]
    return [*parts, _text((left + right) / 2, bottom + 36, label, anchor="middle", kind="axis")]


def bars(rows: Sequence[Bar], *, unit: str, limit: float = 0.0, limit_words: str = "", label: str) -> str:
    """Draw horizontal bars with whiskers from lowest to highest and a dotted line at `limit`; values on the right."""
    left, right, head = _names_width(row.name for row in rows), _WIDTH - 118.0, 26.0 if limit else 6.0
    row_height = _row_height(len(rows), 36.0)
    top = max([row.high for row in rows] + [limit, 1e-12]) * 1.02
    bottom = head + row_height * len(rows)
    scale = (right - left) / top
    marks = ticks(top, 4)
    parts = [_rule(left + mark * scale, head, left + mark * scale, bottom, "grid") for mark in marks]
    for place, row in enumerate(rows):
        middle = head + (place + 0.5) * row_height
        spread = f" ({number(row.low)} to {number(row.high)})" if row.high > row.low else ""
        told = f"{row.name}: {row.words} {unit}{spread}"
        parts.append(f'<g class="{css_name(row.name)} series">')
        parts.append(_text(left - 10, middle + 4.5, row.name, anchor="end", kind="name"))
        parts.append(_rect(left, middle - 11, row.value * scale, 22, "fill", told))
        if row.high > row.low:
            low, high = left + row.low * scale, left + row.high * scale
            parts.append(_rule(low, middle, high, middle, "whisker"))
            parts += [_rule(at, middle - 5, at, middle + 5, "whisker") for at in (low, high)]
        parts.append(_text(right + 10, middle + (-2.0 if row.note else 4.5), row.words, kind="value"))
        parts.append(_text(right + 10, middle + 13.0, row.note, kind="tick") if row.note else "")
        parts.append("</g>")
    if limit:
        parts.append(_rule(left + limit * scale, head - 4, left + limit * scale, bottom, "limit"))
        parts.append(_text(left + limit * scale + 2, head - 11, limit_words, anchor="end", kind="tick"))
    parts += _x_axis(left, right, bottom, [(mark / top, _tick(mark)) for mark in marks], unit)
    return _drawing(bottom + 44, parts, label)


def lines(
    series: Sequence[Line],
    *,
    x: str,
    y: str,
    label: str,
    y_top: float | None = None,
    y_low: float = 0.0,
    wide: bool = False,
) -> str:
    """Draw lines from x = 0 on, each with a dot at its end; `wide` fills the page."""
    width = 2.05 * _WIDTH if wide else _WIDTH
    left, right, head, bottom = 58.0, width - 16.0, 12.0, 12.0 + _LEAST_HEIGHT + 30.0
    far = max((point[0] for line in series for point in line.points), default=1.0) or 1.0
    highest = max((point[1] for line in series for point in (*line.points, *line.faint)), default=1.0)
    top = y_top if y_top is not None else y_low + (highest - y_low) * 1.06 or 1.0

    def place(point: tuple[float, float]) -> str:
        up = (min(max(point[1], y_low), top) - y_low) / (top - y_low)
        return f"{left + point[0] / far * (right - left):.1f},{bottom - up * (bottom - head):.1f}"

    parts = []
    for mark in ticks(top - y_low):
        up = bottom - mark / (top - y_low) * (bottom - head)
        parts += [_rule(left, up, right, up, "grid")]
        parts += [_text(left - 8, up + 4, _tick(mark + y_low), anchor="end", kind="tick")]
    for line in series:
        parts.append(f'<g class="{css_name(line.name)} series">')
        for points, kind in ((line.faint, "faint"), (line.points, "stroke")):
            if points:
                path = " ".join(map(place, points))
                parts.append(f'<polyline points="{path}" class="{kind}"><title>{escape(line.name)}</title></polyline>')
        if line.points:
            end_x, end_y = place(line.points[-1]).split(",")
            parts.append(f'<circle cx="{end_x}" cy="{end_y}" r="3.5" class="fill"/>')
        parts.append("</g>")
    parts.append(_text(left - 46, (head + bottom) / 2, y, anchor="middle", kind="axis turned"))
    parts += _x_axis(left, right, bottom, [(mark / far, _tick(mark)) for mark in ticks(far, 8)], x)
    return _drawing(bottom + 44, parts, label, width)


def stacks(rows: Mapping[str, Mapping[str, float]], *, unit: str, label: str, shares: bool = True) -> str:
    """Draw one horizontal bar per row, made of named parts in their order; in them their `shares` or their values."""
    left, right, row_height = _names_width(rows), _WIDTH - 70.0, _row_height(len(rows), 32.0)
    top = max((sum(parts.values()) for parts in rows.values()), default=1.0) or 1.0
    scale, bottom = (right - left) / top, 6.0 + row_height * len(rows)
    marks = ticks(top, 4)
    drawn = [_rule(left + mark * scale, 6, left + mark * scale, bottom, "grid") for mark in marks]
    for place, (name, parts) in enumerate(rows.items()):
        middle, at, total = 6.0 + (place + 0.5) * row_height, left, sum(parts.values())
        drawn.append(f'<g class="{css_name(name)} series">')
        drawn.append(_text(left - 10, middle + 4.5, name, anchor="end", kind="name"))
        for part, value in parts.items():
            wide, share = value * scale, 100 * value / total if total else 0.0
            told = f"{name}, {part}: {number(value)} {unit} ({share:.0f} %)"
            drawn.append(_rect(at, middle - 11, wide, 22, f"fill {css_name(part)}", told))
            if wide > 42:
                words = f"{share:.0f} %" if shares else number(value)
                drawn.append(_text(at + wide / 2, middle + 4.5, words, anchor="middle", kind="inside"))
            at += wide
        drawn += [_text(at + 8, middle + 4.5, number(total), kind="value"), "</g>"]
    drawn += _x_axis(left, right, bottom, [(mark / top, _tick(mark)) for mark in marks], unit)
    return _drawing(bottom + 44, drawn, label)


def histograms(series: Mapping[str, Sequence[float]], *, floor: float, x: str, label: str) -> str:
    """Draw one row of columns per series, on a common logarithmic axis with ten columns per factor of ten.

    Parameters
    ----------
    series : mapping
        Values of each; those below `floor` count as `floor`.
    floor : float
        Where the axis begins.
    x, label : str
        Words on the axis, and for those who cannot see the chart.
    """
    left, right, head = _names_width(series), _WIDTH - 124.0, 6.0
    row_height = _row_height(len(series), 46.0)
    values = {name: [max(floor, value) for value in each] for name, each in series.items()}
    highest = max([floor * 10, *(max(each) for each in values.values() if each)])
    decades = math.ceil(math.log10(highest / floor))
    num_columns = 10 * decades
    width, bottom = right - left, head + row_height * len(values)
    marks = [10.0**power * floor for power in range(decades + 1)]
    parts = [_rule(left + place / decades * width, head, left + place / decades * width, bottom, "grid")
             for place in range(len(marks))]  # fmt: skip
    for place, (name, each) in enumerate(values.items()):
        base = head + (place + 1) * row_height
        counts = [0] * num_columns
        for value in each:
            counts[min(num_columns - 1, int(math.log10(value / floor) / decades * num_columns))] += 1
        parts.append(f'<g class="{css_name(name)} series">')
        parts.append(_text(left - 10, base - 8, name, anchor="end", kind="name"))
        for column, count in enumerate(counts):
            if count:
                low, high = (floor * 10 ** ((column + more) / num_columns * decades) for more in (0, 1))
                tall = max(1.5, count / max(counts) * (row_height - 12))
                at = left + column / num_columns * width
                told = f"{name}: {count} of {len(each)} steps waited {number(low)} to {number(high)} ms"
                parts.append(_rect(at + 0.5, base - tall, width / num_columns - 1, tall, "fill", told))
        middle = sorted(each)[len(each) // 2] if each else 0.0
        shown = f"median < {floor:g} ms" if middle <= floor else f"median {number(middle)} ms"
        parts.append(_text(right + 10, base - 8, shown, kind="value"))
        parts += ["</g>", _rule(left, base, right, base, "base")]
    words = [("< " if not place else "") + _tick(mark) for place, mark in enumerate(marks)]
    parts += _x_axis(left, right, bottom, [(place / decades, word) for place, word in enumerate(words)], x)
    return _drawing(bottom + 44, parts, label)
