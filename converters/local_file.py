"""The command line's files of this machine: what lies in a store is refused in words that help."""

from __future__ import annotations

import os
from typing import Any

import click

__all__ = ["LocalFile"]


class LocalFile(click.Path):
    """An existing file, for verbs that read it in many places through a memory map."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse URLs, and what `click.Path` refuses."""
        text = os.fspath(value)
        from dataloading.tools import is_url  # not at the top: `beton --help` does without

        if is_url(text):
            self.fail(
                f"{text} lies in a store, and this reads files of this machine: copy it here first (aws s3 cp, gcloud "
                "storage cp, hf download, curl). `beton convert` and Loader read stores themselves",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)
