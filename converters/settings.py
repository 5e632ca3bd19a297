"""The options of a conversion in one list, for the command and for `converters.write` alike.

Each is a parameter of `converters.options.Options` or of `converters.images.policy.ImagePolicy`; a few are spelled as
the command spells them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from converters.images.policy import ImagePolicy, colour
from dataloading import UsageError
from dataloading.cli import Size
from dataloading.messages import did_you_mean

from .options import Options

__all__ = ["option_names", "settings"]

# The command's word -> the parameter that it stands for, and how it is read.
_SPELLINGS = {"orientation": "orient", "shard_size": "shard_bytes"}
_SIZES = ("page_size", "shard_bytes")
_ORIENTATIONS = {"apply": True, "ignore": False}


def settings(given: Mapping[str, Any], *, images: ImagePolicy | None = None) -> tuple[Options, ImagePolicy]:
    """Return how a conversion runs and how images are stored.

    Parameters
    ----------
    given : mapping
        Options by name.
    images : ImagePolicy, optional
        In place of the options for images.

    Raises
    ------
    UsageError
        If there is no such option, a value is out of range, or options for images are given twice.
    """
    running = [field.name for field in dataclasses.fields(Options)]
    storing = [field.name for field in dataclasses.fields(ImagePolicy) if field.name != "seed"]
    values = dict(given)
    for word, name in _SPELLINGS.items():
        if word in values:
            if name in values:
                raise UsageError(f"{word} and {name} are the same option; give one of them")
            values[name] = _oriented(values.pop(word)) if name == "orient" else values.pop(word)
    unknown = sorted(set(values) - {*running, *storing})
    if unknown:
        words = {name: word for word, name in _SPELLINGS.items()}
        known = [*(words.get(name, name) for name in running + storing), "images", "class_names"]
        hint = did_you_mean(unknown[0], known) or f"There are {', '.join(known)}."
        raise UsageError(f"write has no option {unknown[0]!r}. {hint}")
    for name in _SIZES:
        if isinstance(values.get(name), str):
            values[name] = _bytes(name, values[name])
    if isinstance(values.get("background"), str):
        values["background"] = colour(values["background"])
    for_images = {name: value for name, value in values.items() if name in storing}
    if images is not None and for_images:
        raise UsageError(f"images= and {next(iter(for_images))}= both say how images are stored; put it into images=")
    options = Options(**{name: value for name, value in values.items() if name in running})
    return options, images or ImagePolicy(seed=options.seed, **for_images)


def option_names() -> list[str]:
    """Return the names of all options, as Python spells them."""
    return [field.name for kind in (Options, ImagePolicy) for field in dataclasses.fields(kind)] + [*_SPELLINGS]


def _oriented(word: object) -> bool:
    if not isinstance(word, str) or word not in _ORIENTATIONS:
        raise UsageError(f"orientation must be apply or ignore, got {word!r}")
    return _ORIENTATIONS[word]


def _bytes(name: str, text: str) -> int:
    try:
        return Size().convert(text, None, None)
    except click.BadParameter as error:
        raise UsageError(f"{name}: {error.message}") from error
