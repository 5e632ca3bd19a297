"""Values of options that several commands of this package read: lists of numbers and of loaders."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from dataloading.cli import Choice
from dataloading.messages import did_you_mean
from train.loaders import LOADERS, TRAINING_LOADERS, cannot_train

__all__ = ["LoaderChoice", "different_numbers", "measured_loaders", "training_loaders"]


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


def measured_loaders(_ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    """Read different names of loaders, separated by commas, or ``all``."""
    return list(LOADERS) if value == "all" else _different_names(value, LOADERS, param, ", or all")


def training_loaders(_ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    """Read different names of loaders that can train, separated by commas."""
    return _different_names(value, TRAINING_LOADERS, param)


class LoaderChoice(Choice):
    """The name of a loader that can train; a loader that can only be measured is told apart from a wrong name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value``, or fail with what there is."""
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
