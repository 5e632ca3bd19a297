"""Command-line arguments that must be local files: URLs are refused with advice."""

from __future__ import annotations

import os
from typing import Any

import click

__all__ = ["LocalFile"]


class LocalFile(click.Path):
    """An existing local file, for commands that memory-map it."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse URLs, and everything that `click.Path` refuses."""
        text = os.fspath(value)
        from dataloading.tools import is_url  # imported here, since `beton --help` does not need it

        if is_url(text):
            self.fail(
                f"{text} lies in a store, and this reads files of this machine: copy it here first (aws s3 cp, gcloud "
                "storage cp, hf download, curl). `beton convert` and Loader read stores themselves",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)
