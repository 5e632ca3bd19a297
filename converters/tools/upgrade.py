"""Upgrades FFCV's files: `upgrade` adds restart markers, checksums and class names.

JPEGs are re-coded without changing any pixel, which is checked for each; everything else is copied. Workers read and
re-code, the parent writes, so the bytes do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.engine.pool import DeadWorkerError, run_ordered
from converters.report import Progress
from converters.sources.class_lists import class_list
from converters.tools.agreement import NO_LABELS
from converters.tools.derived_files import copy_samples, derived_writer
from converters.tools.input_files import InputFile, InputFiles, Sample, Stored, check_sources
from converters.tools.new_files import NewFiles, new_paths
from dataloading import ConvertError, DecodeError, ImageField, UsageError
from dataloading.tools import MODE_JPEG, decode_jpeg, is_manifest, label_field, transcode_jpeg

__all__ = ["UpgradeReport", "read_class_names", "upgrade"]

_TASK = 16
"""Samples a worker re-codes at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeReport:
    """The result of `upgrade`.

    Parameters
    ----------
    source, path : str
        The old and the new file, or manifest.
    num_samples, num_source_bytes, num_bytes : int
        Sizes; of a set, of all its shards.
    num_recoded, num_kept : int
        Images re-coded as JPEG with the same pixels, and raw images copied.
    num_classes : int or None
        Class names recorded.
    """

    source: str
    path: str
    num_samples: int
    num_source_bytes: int
    num_bytes: int
    num_recoded: int
    num_kept: int
    num_classes: int | None


def upgrade(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    overwrite: bool = False,
    verify: bool = True,
    num_workers: int = 0,
    quiet: bool = True,
) -> UpgradeReport:
    """Write a file's samples into a new one that loads faster and can be verified; a set's shards into a new set.

    Parameters
    ----------
    path : str or path-like
        The file, usually one that FFCV wrote, or the manifest of a shard set.
    out : str or path-like
        The file to make, which appears when it is complete; of a set the new manifest, whose shards appear with it.
    class_names : sequence of str, optional
        Name of each label; by default those the file has.
    overwrite, verify, num_workers, quiet
        See `converters.tools`.

    Returns
    -------
    UpgradeReport

    Raises
    ------
    ConvertError
        If the source is damaged, an image's pixels would change, or a worker dies.
    UsageError
        If there are too few class names, or ``out`` cannot be written.
    """
    source, target = os.fspath(path), os.fspath(out)
    with InputFiles([source]) as input_files:
        targets = new_paths(source, target, len(input_files.files))
        names = input_files.class_names if class_names is None else tuple(class_names)
        if names is not None:
            for input_file in input_files.files:
                _check_names(input_file, names)
        step = {"command": "upgrade"}
        identity = {**step, "class_names": names, "from": input_files.identity()}
        inputs = [source, *input_files.paths]
        with NewFiles(targets, overwrite=overwrite, inputs=inputs, anchor=target, identity=identity) as files:
            if not files.is_done:
                if verify:
                    check_sources(input_files.paths, num_workers=num_workers)
                with contextlib.closing(Progress(len(input_files), what="upgrading", quiet=quiet)) as progress:
                    for input_file, place in zip(input_files.files, targets, strict=False):
                        _write(input_file, files.part(place), names, step, num_workers, progress)
                        input_file.close_until_read()
                if is_manifest(target):
                    files.write_manifest()
                files.publish()
        num_images, num_recoded = _count_images(input_files)
        return UpgradeReport(
            source=source,
            path=target,
            num_samples=len(input_files),
            num_source_bytes=sum(input_file.reader.num_bytes for input_file in input_files.files),
            num_bytes=sum(os.stat(place).st_size for place in targets[: len(input_files.files)]),
            num_recoded=num_recoded,
            num_kept=num_images - num_recoded,
            num_classes=None if names is None else len(names),
        )


def _write(
    input_file: InputFile,
    part: str,
    names: Sequence[str] | None,
    step: dict[str, Any],
    num_workers: int,
    progress: Progress,
) -> None:
    writer = derived_writer(
        part,
        [input_file],
        num_samples=len(input_file),
        step=step,
        class_names=names,
        is_recoded=True,  # restart markers can make a sample larger than its old page
    )
    with writer, contextlib.closing(_recoded(input_file, _images(input_file), num_workers)) as samples:
        copy_samples(samples, writer, progress)


def _images(input_file: InputFile) -> list[str]:
    return [name for name, field in input_file.fields.items() if isinstance(field, ImageField)]


def _count_images(input_files: InputFiles) -> tuple[int, int]:
    """Return how many images there are, and how many of them are JPEGs."""
    num_images = num_jpegs = 0
    for input_file in input_files.files:
        for name in _images(input_file):
            num_images += len(input_file)
            records: npt.NDArray[Any] = input_file.reader.column(name)
            num_jpegs += int(np.count_nonzero(records["mode"] == MODE_JPEG))
    return num_images, num_jpegs


def _recoded(input_file: InputFile, images: list[str], num_workers: int) -> Generator[Sample, None, None]:
    """Yield each sample with its images in their new form, all else as it is stored."""
    others = [name for name in input_file.fields if name not in images]
    tasks = ((start, min(start + _TASK, len(input_file))) for start in range(0, len(input_file), _TASK))
    results = run_ordered(_Recode(input_file.path, images), tasks, num_workers=num_workers)
    try:
        with contextlib.closing(results):
            for start, found in zip(range(0, len(input_file), _TASK), results, strict=True):
                if isinstance(found, DecodeError):
                    raise ConvertError(f"{found}. `beton repair` makes a file without damaged samples") from found
                rest = input_file.samples(range(start, start + len(found)), only=others)
                yield from ({**sample, **recoded} for sample, recoded in zip(rest, found, strict=True))
    except DeadWorkerError as error:
        where = "while it was starting" if error.position is None else f"near sample {error.position * _TASK}"
        raise ConvertError(f"a worker process {error.how} {where} of {input_file.path}; nothing was written") from error


@dataclasses.dataclass
class _Recode:
    """Re-codes the images of some samples in a worker, or returns the `DecodeError` of one."""

    path: str
    images: list[str]
    input_file: InputFile | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "input_file": None}

    def __call__(self, task: tuple[int, int]) -> list[Sample] | DecodeError:
        if self.input_file is None:
            self.input_file = InputFile(self.path)
        result: list[Sample] = []
        try:
            for index, sample in enumerate(self.input_file.samples(range(*task), only=self.images), start=task[0]):
                result.append({name: self._image(name, index, sample[name]) for name in self.images})
        except DecodeError as error:
            return error
        return result

    def _image(self, name: str, index: int, stored: Stored) -> Stored:
        head, data = stored
        mode, width, height = head
        if mode != MODE_JPEG:
            return stored
        assert data is not None
        try:
            new = transcode_jpeg(data)
            before, after = decode_jpeg(data), decode_jpeg(new)
        except DecodeError as error:
            raise DecodeError(error.reason, sample=index, field=name, path=self.path) from error
        if before.shape[:2] != (height, width):
            reason = f"the JPEG has {before.shape[1]}x{before.shape[0]} pixels, its record declares {width}x{height}"
            raise DecodeError(reason, sample=index, field=name, path=self.path)
        if not np.array_equal(before, after):
            raise DecodeError("its pixels change when it is re-coded", sample=index, field=name, path=self.path)
        return head, np.frombuffer(new, np.uint8)


def _check_names(input_file: InputFile, names: Sequence[str]) -> None:
    label = label_field(input_file.reader)
    if not names:
        raise UsageError("the list of class names is empty")
    if label is None:
        raise UsageError(f"{input_file.path} has {NO_LABELS}")
    column = input_file.reader.column(label)
    low, high = int(column.min()), int(column.max())
    if low < 0 or high >= len(names):
        raise UsageError(
            f"{input_file.path} has labels from {low} to {high}, which {len(names)} class names (0 to {len(names) - 1}"
            ") do not cover"
        )


def read_class_names(*, file: str | None = None, like: str | None = None) -> list[str]:
    """Return class names from a text file with one per line, or those of another dataset.

    Parameters
    ----------
    file : str, optional
        UTF-8 text; line ``n`` names label ``n``.
    like : str, optional
        A ``.beton`` file or manifest, or a folder whose sub-folders, sorted, are the classes.

    Raises
    ------
    UsageError
        If there are none, or a name is empty.
    """
    if like is not None:
        return class_list(like)
    assert file is not None
    try:
        names = Path(file).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: {error}") from error
    if not names or not all(name.strip() for name in names):
        raise UsageError(f"{file} must hold one class name per line and no empty lines")
    return [name.strip() for name in names]
