"""Option types that several commands share: lists of numbers and of loaders."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from dataloading.cli import Choice
from dataloading.messages import did_you_mean
from train.loaders import LOADERS, TRAINING_LOADERS, cannot_train

__all__ = ["LoaderChoice", "different_numbers", "measured_loaders", "training_loaders"]


def different_numbers(_ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Parse ``1,2,4``: distinct numbers of at least 1.

    Raises
    ------
    click.BadParameter
        The text is anything else.
    """
    if value is None:
        return None
    try:
        numbers = [int(word) for word in value.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise click.BadParameter(f"{value!r}: write distinct numbers of at least 1, such as 1,2,4", param=param)
    return numbers


def measured_loaders(_ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    """Parse distinct loader names, separated by commas, or ``all``."""
    return list(LOADERS) if value == "all" else _different_names(value, LOADERS, param, ", or all")


def training_loaders(_ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    """Parse distinct names of loaders that can train, separated by commas."""
    return _different_names(value, TRAINING_LOADERS, param)


class LoaderChoice(Choice):
    """The name of a loader that can train; loaders that can only be benchmarked get their own error message."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value``, or fail and list the choices."""
        if why_not := cannot_train(str(value)):
            self.fail(f"{why_not}. Choose from {', '.join(map(str, self.choices))}.", param, ctx)
        return super().convert(value, param, ctx)


def _different_names(value: str, known: Collection[str], param: click.Parameter, more: str = "") -> list[str]:
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in known:
            problem = cannot_train(name) or f"no loader is called {name!r}"
            hint = did_you_mean(name, known) or f"There are {', '.join(known)}{more}."
            raise click.BadParameter(f"{problem}. {hint}", param=param)
    if len(set(names)) != len(names):
        raise click.BadParameter("a loader is named twice", param=param)
    return names
