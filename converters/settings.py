"""The options of a conversion by name, for the command and for `converters.write`."""

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

# Command-line names that differ from the parameters of `Options` or `ImagePolicy`.
_SPELLINGS = {"orientation": "orient", "shard_size": "shard_bytes"}
_RUN = [field.name for field in dataclasses.fields(Options)]
_IMAGES = [field.name for field in dataclasses.fields(ImagePolicy) if field.name != "seed"]


def settings(given: Mapping[str, Any], *, images: ImagePolicy | None = None) -> tuple[Options, ImagePolicy]:
    """Return the options of the conversion and the image policy.

    Parameters
    ----------
    given : mapping
        Options by name: parameters of `Options` and `ImagePolicy`; some also by the command-line name.
    images : ImagePolicy, optional
        Replaces the options for images.

    Raises
    ------
    UsageError
        If there is no such option, a value is out of range, or options for images are given twice.
    """
    values = dict(given)
    for word, name in _SPELLINGS.items():
        if word in values and name in values:
            raise UsageError(f"{word} and {name} are the same option; give one of them")
    if "orientation" in values:
        word = values.pop("orientation")
        if word not in ("apply", "ignore"):
            raise UsageError(f"orientation must be apply or ignore, got {word!r}")
        values["orient"] = word == "apply"
    if "shard_size" in values:
        values["shard_bytes"] = values.pop("shard_size")
    if unknown := sorted(set(values) - {*_RUN, *_IMAGES}):
        words = {name: word for word, name in _SPELLINGS.items()}
        known = [*(words.get(name, name) for name in _RUN + _IMAGES), "images", "class_names"]
        hint = did_you_mean(unknown[0], known) or f"There are {', '.join(known)}."
        raise UsageError(f"write has no option {unknown[0]!r}. {hint}")
    for name in ("page_size", "shard_bytes"):
        if isinstance(values.get(name), str):
            try:
                values[name] = Size().convert(values[name], None, None)
            except click.BadParameter as error:
                raise UsageError(f"{name}: {error.message}") from error
    if isinstance(values.get("background"), str):
        values["background"] = colour(values["background"])
    for_images = {name: value for name, value in values.items() if name in _IMAGES}
    if images is not None and for_images:
        raise UsageError(f"images= and {next(iter(for_images))}= both say how images are stored; put it into images=")
    options = Options(**{name: value for name, value in values.items() if name in _RUN})
    return options, images or ImagePolicy(seed=options.seed, **for_images)


def option_names() -> list[str]:
    """Return the names of all options in Python spelling."""
    return [*_RUN, *_IMAGES, *_SPELLINGS]
