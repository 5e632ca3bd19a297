"""Several files into one: `merge`, which copies stored bytes and brings labels under one list of classes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from converters.beton_files import list_files
from converters.report import Progress
from converters.tools.derived_files import (
    InputFile,
    Stored,
    check_sources,
    derived_writer,
    file_name,
    open_inputs,
    stored_bytes,
)
from converters.tools.new_files import check_target, make_room
from dataloading import UsageError
from dataloading.messages import counted
from dataloading.tools import check_all_named, label_field

__all__ = ["Classes", "MergeReport", "agreed_classes", "merge"]

Classes = Literal["equal", "union"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeReport:
    """What `merge` made.

    Parameters
    ----------
    path : str
        The file.
    num_samples, num_bytes : int
        Its size.
    num_classes : int or None
        Classes it names.
    sources : tuple of (str, int)
        Each source and its number of samples.
    num_relabelled : int
        Samples whose label changed because their class has another place in the union.
    """

    path: str
    num_samples: int
    num_bytes: int
    num_classes: int | None
    sources: tuple[tuple[str, int], ...]
    num_relabelled: int


def merge(
    out: str | os.PathLike[str],
    paths: Sequence[str],
    *,
    classes: Classes = "equal",
    assume_classes: bool = False,
    overwrite: bool = False,
    verify: bool = True,
    num_workers: int = 1,
    quiet: bool = True,
) -> MergeReport:
    """Write the samples of several files into one, in the order given; stored bytes stay as they are.

    Parameters
    ----------
    out : str or path-like
        The file to make; it appears when it is complete.
    paths : sequence of str
        Files of equal fields, and manifests of shard sets.
    classes : {"equal", "union"}
        Whether all must name the same classes, or labels are mapped by name into the union: the first file's classes,
        then the new ones of the second, and so on.
    assume_classes : bool
        With "equal": take the caller's word that in files without class names labels mean what they do in the others.
        The provenance's history names these files.
    overwrite : bool
        Whether ``out`` may be replaced.
    verify : bool
        Whether to compare the sources with their checksums first.
    num_workers : int
        Threads for that.
    quiet : bool
        No progress on stderr.

    Returns
    -------
    MergeReport

    Raises
    ------
    UsageError
        If fields or classes do not fit together, or ``out`` cannot be written.
    ConvertError
        If a source is damaged.
    """
    target = os.fspath(out)
    if not paths:
        raise UsageError("merge needs at least one file to take samples from")
    named, paths = paths, list_files(paths)
    check_target(target, overwrite=overwrite, inputs=[*named, *paths])
    with contextlib.ExitStack() as stack:
        input_files = [stack.enter_context(input_file) for input_file in open_inputs(paths)]
        names, maps = agreed_classes(
            input_files,
            classes,
            assume=assume_classes,
            hint="; --classes union maps labels by name",
            advice="; `beton merge --assume-classes` (assume_classes=True) takes your word for it",
        )
        if verify:
            check_sources(paths, num_workers=num_workers)
        make_room(target)
        total = sum(map(len, input_files))
        step: dict[str, Any] = {"command": "merge", "classes": classes}
        assumed = [file_name(input_file.path) for input_file in input_files if input_file.reader.class_names is None]
        if names is not None and assumed:
            step["assumed_classes_of"] = assumed
        writer = stack.enter_context(
            derived_writer(target, input_files, num_samples=total, step=step, class_names=names, overwrite=overwrite)
        )
        progress = stack.enter_context(contextlib.closing(Progress(total, what="merging", quiet=quiet)))
        num_relabelled = 0
        for input_file, mapping in zip(input_files, maps, strict=True):
            label = label_field(input_file.reader)
            for sample in input_file.samples():
                changed = sample if mapping is None or label is None else _relabel(sample, label, mapping)
                num_relabelled += changed is not sample
                writer.append(changed)
                progress.advance(stored_bytes(sample))
            input_file.rest()
        writer.finish()
        return MergeReport(
            path=target,
            num_samples=total,
            num_bytes=os.stat(target).st_size,
            num_classes=None if names is None else len(names),
            sources=tuple((input_file.path, len(input_file)) for input_file in input_files),
            num_relabelled=num_relabelled,
        )


def _relabel(sample: dict[str, Stored], label: str, mapping: Mapping[int, int]) -> dict[str, Stored]:
    old = int(sample[label][0][0])
    new = mapping[old]
    return sample if new == old else {**sample, label: ((new,), None)}


def agreed_classes(
    input_files: Sequence[InputFile], classes: Classes, *, assume: bool = False, hint: str = "", advice: str = ""
) -> tuple[tuple[str, ...] | None, list[Mapping[int, int] | None]]:
    """Return the class names of a file made of ``input_files``, and for each how its labels become the new ones.

    Parameters
    ----------
    input_files : sequence of InputFile
        The files, with equal fields.
    classes : {"equal", "union"}
        See `merge`.
    assume : bool
        Whether files without class names have those of the others.
    hint : str
        Ends the message about classes that differ.
    advice : str
        Ends the message about files without class names.

    Returns
    -------
    names : tuple of str or None
    maps : list of (mapping of int to int, or None)
        None where labels stay.

    Raises
    ------
    UsageError
        If the classes do not fit together, or a label has no name.
    """
    if classes not in ("equal", "union"):
        raise UsageError(f"classes must be 'equal' or 'union', got {classes!r}")
    if assume and classes != "equal":
        raise UsageError("assume_classes goes with classes='equal': a union is made of names, which every file needs")
    lists = [input_file.reader.class_names for input_file in input_files]
    named = [names for names in lists if names is not None]
    if not named:
        return None, [None] * len(input_files)
    if classes == "equal":
        for input_file, names in zip(input_files, lists, strict=True):
            if names is not None and names != named[0]:
                first = input_files[lists.index(named[0])].path
                raise UsageError(_difference(first, named[0], input_file.path, names) + hint)
        if not assume:
            check_all_named([input_file.reader for input_file in input_files], advice)
        for input_file in input_files:
            _check_labels(input_file, len(named[0]))
        return named[0], [None] * len(input_files)
    return _united_classes(input_files)


def _united_classes(input_files: Sequence[InputFile]) -> tuple[tuple[str, ...], list[Mapping[int, int] | None]]:
    """Return the names of all files, in order of first appearance, and how each file's labels become theirs."""
    place: dict[str, int] = {}
    lists = []
    for input_file in input_files:
        names = input_file.reader.class_names
        if names is None:
            raise UsageError(
                f"{input_file.path} records no class names, so its labels cannot be mapped by name; give it names with "
                "`beton upgrade --class-names-from`"
            )
        if label_field(input_file.reader) is None:
            raise UsageError(f"{input_file.path} has no field of labels: integers named 'label', or the only integers")
        _check_labels(input_file, len(names))
        lists.append(names)
        for name in names:
            place.setdefault(name, len(place))
    return tuple(place), [{old: place[name] for old, name in enumerate(names)} for names in lists]


def _check_labels(input_file: InputFile, num_classes: int) -> None:
    label = label_field(input_file.reader)
    if label is None:
        return
    column = input_file.reader.column(label)
    for start in range(0, len(column), 1 << 20):
        part = np.asarray(column[start : start + (1 << 20)])
        bad = np.flatnonzero((part < 0) | (part >= num_classes))
        if len(bad):
            raise UsageError(
                f"{input_file.path}: sample {start + int(bad[0])} has the label {int(part[bad[0]])}, which has no "
                f"class name ({counted(num_classes, 'name')}: 0 to {num_classes - 1})"
            )


def _difference(first: str, names: Sequence[str], other: str, others: Sequence[str]) -> str:
    pairs: list[tuple[Any, Any]] = list(zip_longest(names, others))
    label = next(position for position, (one, two) in enumerate(pairs) if one != two)
    one, two = ("no such class" if name is None else repr(name) for name in pairs[label])
    return (
        f"the files name different classes. Label {label} is {one} in {first} ({counted(len(names), 'class')}) and "
        f"{two} in {other} ({counted(len(others), 'class')})"
    )
