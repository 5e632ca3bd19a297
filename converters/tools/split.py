"""Splits a dataset into disjoint files: by ratio, by class, or in folds.

Assigns samples to parts as a pure function of labels, groups and a seed, and writes all parts in a few passes with
bounded memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from converters.beton_files import stem_of
from converters.report import Progress
from converters.sample_random import sample_uniforms
from converters.tools.agreement import NO_LABELS
from converters.tools.derived_files import derived_writer
from converters.tools.input_files import InputFiles, check_sources, file_name, stored_bytes
from converters.tools.matching import equal_ids, field_keys
from converters.tools.new_files import NewFiles
from dataloading import UsageError

__all__ = ["Part", "SplitReport", "assign", "split"]

Integers = npt.NDArray[np.int64]

_OPEN_AT_ONCE = 16
"""Parts written in one pass over the file; each has buffers of some megabytes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One output file; ``name`` is the text for ``{name}`` in its path."""

    path: str
    name: str
    num_samples: int
    num_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitReport:
    """The result of `split`: the files, in order."""

    source: str
    parts: tuple[Part, ...]


def split(
    path: str | os.PathLike[str],
    *,
    out: str,
    ratio: Sequence[float] | None = None,
    folds: int | None = None,
    by_class: bool = False,
    stratify: bool = True,
    group_field: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    verify: bool = True,
    num_workers: int = 1,
    quiet: bool = True,
) -> SplitReport:
    """Write each sample of a dataset into exactly one of several new files; stored bytes and order stay.

    Parameters
    ----------
    path : str or path-like
        The file, or the manifest of a shard set, which is read as one file.
    out : str
        Pattern of the results' names with ``{index}`` (0, 1, ...) or ``{name}`` (``0.9``, ``fold0``, the class).
    ratio : sequence of float, optional
        Proportions of the parts.
    folds : int, optional
        Number of parts of equal size.
    by_class : bool
        One part for each class.
    stratify : bool
        Whether to split each class in the same proportions, if the file has labels.
    group_field : str, optional
        Integers or bytes; samples with one value there stay together (patients, videos, near-duplicates).
    seed : int
        Seed of the choice.
    overwrite, verify, num_workers, quiet
        See `converters.tools`.

    Returns
    -------
    SplitReport

    Raises
    ------
    UsageError
        If not exactly one way to split is given, a part would be empty, or a name is taken.
    ConvertError
        If the source is damaged.
    """
    source = os.fspath(path)
    if sum([ratio is not None, folds is not None, by_class]) != 1:
        raise UsageError("say how to split: one of ratio, folds and by_class")
    with InputFiles([source]) as input_files:
        step: dict[str, object] = {"command": "split"}
        if by_class:
            names, where = _by_class(input_files)
            step["by_class"] = True
        else:
            if folds is not None and folds < 2:
                raise UsageError(f"folds must be at least 2, got {folds}")
            shares = [1.0] * folds if folds is not None else list(ratio or ())
            names = [f"fold{index}" for index in range(len(shares))] if folds else _share_names(shares)
            label = input_files.label if stratify else None
            labels = None if label is None else np.array(input_files.column(label), dtype=np.int64)
            groups = None if group_field is None else _groups(input_files, group_field)
            where = assign(len(input_files), shares, seed=seed, labels=labels, groups=groups)
            step |= {"ratio": shares} if folds is None else {"folds": folds}
            step |= {"stratify": stratify, "group_field": group_field, "seed": seed}
        targets = _targets(out, names, stem_of(file_name(source)))
        counts = np.bincount(where, minlength=len(names))
        if (counts == 0).any():
            empty = int(np.flatnonzero(counts == 0)[0])
            raise UsageError(
                f"part {empty} ({names[empty]}) would have no sample of the {len(input_files)}, and an empty file "
                "cannot be written; ask for fewer or other parts"
            )
        inputs = [source, *input_files.paths]
        identity = {**step, "from": input_files.identity()}
        with NewFiles(targets, overwrite=overwrite, inputs=inputs, identity=identity) as files:
            if not files.is_done:
                if verify:
                    check_sources(input_files.paths, num_workers=num_workers)
                _write(input_files, where, names, targets, step, files, quiet=quiet)
                files.publish()
    parts = [
        Part(path=target, name=name, num_samples=int(count), num_bytes=os.stat(target).st_size)
        for target, name, count in zip(targets, names, counts, strict=True)
    ]
    return SplitReport(source=source, parts=tuple(parts))


def _share_names(shares: Sequence[float]) -> list[str]:
    words = [f"{share:g}" for share in shares]
    return [word if words.count(word) == 1 else f"{word}-{index}" for index, word in enumerate(words)]


def assign(
    num_samples: int,
    shares: Sequence[float],
    *,
    seed: int,
    labels: Integers | None = None,
    groups: Integers | None = None,
) -> npt.NDArray[np.int32]:
    """Return the part of each sample, a pure function of the arguments.

    Every class is shuffled (one number per sample, see `converters.sample_random`), and the classes are concatenated.
    Then each sample goes to the part that is furthest behind its share so far. So part sizes are exact to one sample,
    over the whole file and in each class. With groups the same is done with whole groups, largest first, each counted
    in the class of its first sample.

    Parameters
    ----------
    num_samples : int
        Number of samples.
    shares : sequence of float
        A positive number per part; only proportions matter.
    seed : int
        Seed of the order.
    labels : int64[num_samples], optional
        Classes to split in the same proportions.
    groups : int64[num_samples], optional
        Samples of one number stay together.

    Returns
    -------
    int32[num_samples]

    Examples
    --------
    >>> np.bincount(assign(10, [0.8, 0.2], seed=0)).tolist()
    [8, 2]
    """
    weights = np.asarray(shares, dtype=np.float64)
    if len(weights) < 1 or not np.isfinite(weights).all() or (weights <= 0).any():
        raise UsageError(f"the parts' shares must be positive numbers, got {list(shares)}")
    weights = weights / weights.sum()
    if groups is None:
        keys = sample_uniforms(seed, np.arange(num_samples))
        order = np.argsort(keys, kind="stable") if labels is None else np.lexsort((keys, labels))
        where = np.empty(num_samples, np.int32)
        where[order] = _deal(num_samples, weights)
        return where
    _, first, ids, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    keys = sample_uniforms(seed, first.astype(np.int64))
    classes = np.zeros(len(first), np.int64) if labels is None else labels[first]
    # Large groups first, while later ones can balance them; then by class, so that classes are balanced too.
    order = np.lexsort((keys, classes, -sizes))
    part_of_group = np.empty(len(first), np.int32)
    part_of_group[order] = _deal_groups(sizes[order], classes[order], weights)
    result: npt.NDArray[np.int32] = part_of_group[ids.reshape(-1)]
    return result


def _deal(count: int, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """Return ``count`` parts in a sequence of which every run holds each part in proportion, within one or two."""
    # The j-th turn of a part is due at (j + 1/2) / weight; taking turns in that order keeps each part within one of
    # its share after any number of turns.
    num_turns = np.ceil(weights * count).astype(np.int64) + 1
    parts = np.repeat(np.arange(len(weights), dtype=np.int32), num_turns)
    turns = np.concatenate([np.arange(turn) for turn in num_turns])
    due = (turns + 0.5) / weights[parts]
    dealt: npt.NDArray[np.int32] = parts[np.lexsort((parts, due))][:count]
    return dealt


def _deal_groups(sizes: Integers, classes: Integers, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """Assign each group to the part furthest behind its share, first in the group's class, then over all."""
    shares = weights.tolist()
    total = [0.0] * len(shares)
    of_class: dict[int, list[float]] = {}
    parts = np.empty(len(sizes), np.int32)
    done = 0
    done_of_class: dict[int, int] = {}
    for position, (size, label) in enumerate(zip(map(int, sizes), map(int, classes), strict=True)):
        got = of_class.setdefault(label, [0.0] * len(shares))
        seen = done_of_class.get(label, 0) + size
        owed = [
            (share * seen - mine + share * (done + size) - sum_, -part)
            for part, (share, mine, sum_) in enumerate(zip(shares, got, total, strict=True))
        ]
        part = -max(owed)[1]
        parts[position] = part
        got[part] += size
        total[part] += size
        done += size
        done_of_class[label] = seen
    return parts


def _groups(input_files: InputFiles, field: str) -> Integers:
    return np.concatenate(equal_ids([field_keys(each, field) for each in input_files.files]))


def _by_class(input_files: InputFiles) -> tuple[list[str], npt.NDArray[np.int32]]:
    label = input_files.label
    if label is None:
        raise UsageError(f"{input_files.path} has {NO_LABELS}")
    present, where = np.unique(np.asarray(input_files.column(label)), return_inverse=True)
    known = input_files.class_names or ()
    names = [known[value] if 0 <= value < len(known) else str(value) for value in present.tolist()]
    return names, where.reshape(-1).astype(np.int32)


def _targets(pattern: str, names: Sequence[str], stem: str) -> list[str]:
    if "{name}" not in pattern and "{index}" not in pattern:
        raise UsageError(f"the name pattern {pattern!r} needs {{name}} or {{index}}, such as {stem}-{{name}}.beton")
    width = len(str(len(names) - 1))
    targets = []
    for index, name in enumerate(names):
        # A class may be called a/b or ..; it must stay a file's name.
        safe = "".join("_" if letter in "/\\\0" else letter for letter in name)
        safe = f"_{safe}" if safe.startswith(".") else safe
        targets.append(pattern.replace("{index}", f"{index:0{width}}").replace("{name}", safe))
    return targets


def _write(
    input_files: InputFiles,
    where: npt.NDArray[np.int32],
    names: Sequence[str],
    targets: Sequence[str],
    step: dict[str, object],
    files: NewFiles,
    *,
    quiet: bool,
) -> None:
    what = f"splitting {file_name(input_files.path)}"
    with contextlib.closing(Progress(len(input_files), what=what, quiet=quiet)) as progress:
        for first in range(0, len(targets), _OPEN_AT_ONCE):
            chosen = range(first, min(first + _OPEN_AT_ONCE, len(targets)))
            with contextlib.ExitStack() as stack:
                writers = [
                    stack.enter_context(
                        derived_writer(
                            files.part(targets[index]),
                            input_files.files,
                            num_samples=int(np.count_nonzero(where == index)),
                            step={**step, "part": index, "name": names[index], "num_parts": len(names)},
                            class_names=input_files.class_names,
                        )
                    )
                    for index in chosen
                ]
                indices = np.flatnonzero((where >= chosen.start) & (where < chosen.stop))
                for index, sample in zip(map(int, where[indices]), input_files.samples(indices), strict=True):
                    writers[index - first].append(sample)
                    progress.advance(stored_bytes(sample))
