"""Option types that commands of several sources share: paths that may be URLs, lists, ``--field`` and class files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dataloading.cli import note
from dataloading.messages import counted

if TYPE_CHECKING:
    from converters.fields import FieldSpec

    from ..sources.tar_index import Unused

__all__ = [
    "SourcePath", "WordsCommand", "argument_out", "comma_list", "note_classes", "note_unused", "option_classes",
    "option_columns", "option_field", "split_words",
]  # fmt: skip

_CLASSES_SHOWN = 10
_WORD = re.compile(r"[^\s=/-][^\s=/]*=\S+")


class SourcePath(click.ParamType):  # type: ignore[type-arg]
    """A file or folder, which must exist, or a URL, which is checked when it is read.

    Parameters
    ----------
    folder : bool
        It must be a folder.
    pattern : bool
        It may hold ``* ? [`` or ``{a,b}``, which stand for several files.
    """

    name = "path"

    def __init__(self, *, folder: bool = False, pattern: bool = False) -> None:
        self._folder = folder
        self._pattern = pattern

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path, or fail because it does not exist."""
        text = str(value)
        if "://" in text or (self._pattern and re.search(r"[*?\[{]", text)):
            return text
        if not os.path.exists(text):
            self.fail(f"{'Folder' if self._folder else 'Path'} {text!r} does not exist.", param, ctx)
        if self._folder and not os.path.isdir(text):
            self.fail(f"{text!r} is a file; expected a folder.", param, ctx)
        return text


class WordsCommand(click.Command):
    """A command whose options take several words: ``--map a=b c=d``."""

    words_options: tuple[str, ...] = ("--map", "--field", "--fill")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Expand ``--map a=b c=d`` to ``--map a=b --map c=d``, then parse."""
        spread: list[str] = []
        current: str | None = None
        for position, word in enumerate(args):
            if word == "--":
                spread += args[position:]
                break
            follows = current is not None and spread[-1] != current
            if follows and _WORD.fullmatch(word):
                spread += [str(current), word]
                continue
            if word in self.words_options:
                current = word
            elif follows:
                current = None
            spread.append(word)
        return super().parse_args(ctx, spread)


def split_words(texts: Sequence[str]) -> list[str]:
    """Split several values, each of which may hold several words."""
    return [word for text in texts for word in text.split()]


def comma_list(text: str | None) -> list[str] | None:
    """Split at commas; None for None."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _named(_ctx: click.Context, _param: click.Parameter, path: str) -> str:
    if not path:  # for example an unset variable of a script
        raise click.BadParameter("it is empty; name the file to make")
    return path


def _fields(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, FieldSpec]:
    from converters.fields import parse_fields

    return parse_fields(texts)


def _class_names(ctx: click.Context, _param: click.Parameter, path: str | None) -> list[str] | None:
    from dataloading import UsageError

    from ..sources.class_lists import class_list

    if path is None:
        return None
    try:
        return class_list(path, order=ctx.params.get("class_order", "name"))
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


argument_out = click.argument("out", type=click.Path(dir_okay=False), callback=_named)
option_field = click.option(
    "--field", "fields", multiple=True, metavar="NAME=KIND[@COLUMN] ...", callback=_fields,
    help="Further fields: weight=float caption=text meta=json raw=bytes emb=array:float32:512; @COLUMN where the name "
         "differs.",
)  # fmt: skip
option_classes = click.option(
    "--classes", type=SourcePath(), metavar="FILE|FOLDER", callback=_class_names,
    help="The classes in the order of their labels: a text file with one per line, a JSON list or {name: label}, a "
         "folder of class folders, or a .beton file.",
)  # fmt: skip
option_columns = click.option(
    "--columns", metavar="A,B,...", default=None, callback=lambda _ctx, _param, text: comma_list(text),
    help="Take only these columns.",
)  # fmt: skip


def note_unused(unused: Unused, advice: str = "") -> dict[str, int]:
    """Warn about data of the source that is not used, even if the command is quiet; return the counts."""
    if unused:
        note(f"warning: {unused}{advice and f'; {advice}'}")
    return unused.as_dict()


def note_classes(names: Sequence[str] | None, *, are_words: bool, quiet: bool) -> dict[str, object]:
    """Print the classes made of text labels; return the classes for the JSON result."""
    names = names or ()
    if are_words and not quiet:
        shown = ", ".join(names[:_CLASSES_SHOWN]) + (", ..." if len(names) > _CLASSES_SHOWN else "")
        note(f"labels are words: {counted(len(names), 'class')}, numbered in sorted order: {shown}")
    return {"num_classes": len(names), **({"class_names": list(names)} if are_words else {})}
