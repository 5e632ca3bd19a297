"""Text tables, for terminals and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_table", "markdown_table"]


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, notes: bool = True) -> str:
    """Return a table for a terminal: the first column is left-aligned, figures are right-aligned.

    Parameters
    ----------
    head, rows
        Cells.
    notes : bool
        The last column holds notes, which are left-aligned.
    """
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    left = {0, len(head) - 1} if notes else {0}
    lines = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, with figures right-aligned."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(head), rule, *cells])
