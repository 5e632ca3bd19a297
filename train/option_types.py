"""Forms of options that several commands of this package read. Knows no command."""

from __future__ import annotations

import click

__all__ = ["different_numbers"]


def different_numbers(_ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Read ``1,2,4``: different numbers of at least 1.

    Raises
    ------
    click.BadParameter
        It is something else.
    """
    if value is None:
        return None
    try:
        numbers = [int(word) for word in value.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise click.BadParameter(f"{value!r}: write different numbers of at least 1, such as 1,2,4", param=param)
    return numbers
