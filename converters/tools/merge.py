"""Merges several files into one: copies stored bytes, and maps labels to one list of classes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from converters.beton_files import list_files
from converters.report import Progress
from converters.tools.agreement import Classes, agreed_classes
from converters.tools.derived_files import copy_samples, derived_writer
from converters.tools.input_files import InputFiles, Sample, check_sources, file_name
from converters.tools.new_files import check_target, remove_leftovers
from dataloading import UsageError

__all__ = ["MergeReport", "merge"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeReport:
    """The result of `merge`.

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
    overwrite, verify, num_workers, quiet
        See `converters.tools`.

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
        sources = stack.enter_context(InputFiles(paths, check_classes=False))
        names, maps = agreed_classes(
            sources.readers,
            classes,
            assume=assume_classes,
            hint="; --classes union maps labels by name",
            advice="; `beton merge --assume-classes` (assume_classes=True) takes your word for it",
        )
        if verify:
            check_sources(paths, num_workers=num_workers)
        remove_leftovers(target)
        step: dict[str, Any] = {"command": "merge", "classes": classes}
        assumed = [file_name(reader.path) for reader in sources.readers if reader.class_names is None]
        if names is not None and assumed:
            step["assumed_classes_of"] = assumed
        writer = stack.enter_context(
            derived_writer(
                target, sources.files, num_samples=len(sources), step=step, class_names=names, overwrite=overwrite
            )
        )
        progress = stack.enter_context(contextlib.closing(Progress(len(sources), what="merging", quiet=quiet)))
        num_relabelled = 0

        def relabelled(samples: Iterator[Sample], new_label: Mapping[int, int]) -> Iterator[Sample]:
            nonlocal num_relabelled
            label = str(sources.label)  # not None with a union of classes
            for sample in samples:
                old = int(sample[label][0][0])
                num_relabelled += new_label[old] != old
                yield {**sample, label: ((new_label[old],), None)}

        for file, new_label in zip(sources.files, maps, strict=True):
            samples = file.samples()
            copy_samples(samples if new_label is None else relabelled(samples, new_label), writer, progress)
            file.close_until_read()
        writer.finish()
        return MergeReport(
            path=target,
            num_samples=len(sources),
            num_bytes=os.stat(target).st_size,
            num_classes=None if names is None else len(names),
            sources=tuple((file.path, len(file)) for file in sources.files),
            num_relabelled=num_relabelled,
        )
