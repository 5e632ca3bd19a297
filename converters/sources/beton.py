"""Existing ``.beton`` files, ours or FFCV's, as a source: to store all or part of them again with other options.

The image policy handles a stored JPEG like any JPEG file, so FFCV's files gain restart markers and checksums without
changing pixels. As in the loader, EXIF orientation is ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from converters.source import SampleFault, printable
from dataloading import (
    ConvertError,
    DecodeError,
    EncodedImage,
    Field,
    FormatError,
    ImageField,
    Reader,
    UsageError,
    decode_image,
    verify_file,
)
from dataloading.tools import MODE_JPEG, FileSet, label_field

from .listing import expand
from .local_copies import local_paths
from .reading import absolute, name_of, open_stream

__all__ = ["BetonFiles", "read_indices"]


class BetonFiles:
    """The samples of ``.beton`` files in sequence, or a selection of them.

    Parameters
    ----------
    patterns : sequence of str
        Files, folders, globs; URLs are copied to this machine first, see ``local_copies.py``.
    indices : int array, shape (n,), optional
        Samples to take, in this order, indexed over all files; duplicates are allowed.
    classes : sequence of str, optional
        Take only the samples of these classes, which get new labels in this order.
    as_stored : bool
        Pass raw pixels and PNGs on unchanged, instead of as pixels for the image policy.
    longest : int, optional
        With ``as_stored``: only images whose longest side is at most this; larger ones are passed as pixels, to shrink.
    verify : bool
        Verify the files' checksums first, so that damaged data never gets a valid checksum.

    Raises
    ------
    UsageError
        If the files differ in their fields or classes, an index or class does not exist, or no sample is left.
    ConvertError
        If a file is damaged outside its samples; damaged samples are faults.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        indices: npt.NDArray[np.int64] | None = None,
        classes: Sequence[str] | None = None,
        as_stored: bool = False,
        longest: int | None = None,
        verify: bool = True,
    ) -> None:
        self._form = _Form(as_stored=as_stored, longest=longest)
        self.paths = expand(patterns, (".beton",))
        self._local_paths, self._copies = local_paths(self.paths)
        readers = [_reader(path, local) for path, local in zip(self.paths, self._local_paths, strict=True)]
        files = FileSet(readers)
        self.fields = dict(files.fields)
        self.class_names = None if files.class_names is None else list(files.class_names)
        self._starts, total = files.starts, files.num_samples
        chosen = np.arange(total, dtype=np.int64) if indices is None else indices
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < total:
            wrong = chosen[(chosen < 0) | (chosen >= total)][0]
            raise UsageError(f"index {wrong} is out of range: there are {total:,} samples")
        self._relabelled: tuple[str, dict[int, int]] | None = None
        if classes is not None:
            chosen = self._of_classes(files, chosen, classes)
        if not len(chosen):
            raise UsageError(f"{printable(self.paths[0])}: no samples are left")
        self._chosen = chosen
        self.provenance = {
            "source": "beton", "source_name": printable(name_of(self.paths[0])), "source_samples": len(self),
            **({"as_stored": True} if as_stored else {}),
        }  # fmt: skip
        for reader in readers:
            reader.close()
        # By the path of the local copy, if there is one, since that is read.
        pairs = zip(self.paths, self._local_paths, strict=True) if verify else ()
        self._damage = [_damage(path, local) for path, local in pairs]

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        return _Load(tuple(zip(self.paths, self._local_paths, strict=True)), self._relabelled, self._form, self._damage)

    def __len__(self) -> int:
        return len(self._chosen)

    def task(self, index: int) -> tuple[int, int, str]:
        """Return the file's number, the sample's index in it, and the file's path."""
        sample = int(self._chosen[index])
        file = int(np.searchsorted(self._starts, sample, side="right")) - 1
        return file, sample - int(self._starts[file]), absolute(self.paths[file])

    def name(self, index: int) -> str:
        """Return the file and the sample's index in it."""
        file, sample, _ = self.task(index)
        return f"{printable(name_of(self.paths[file]))}[{sample}]"

    def _of_classes(
        self, files: FileSet, chosen: npt.NDArray[np.int64], classes: Sequence[str]
    ) -> npt.NDArray[np.int64]:
        field = label_field(files)
        if self.class_names is None or field is None:
            raise UsageError(f"{self.paths[0]} records no class names, so --classes has nothing to choose by")
        missing = [name for name in classes if name not in self.class_names]
        if missing or len(set(classes)) < len(classes):
            what = f"no class {missing[0]!r}" if missing else "a class twice"
            shown = ", ".join(self.class_names[:10]) + (", ..." if len(self.class_names) > 10 else "")
            raise UsageError(f"--classes names {what}; the classes are {shown}")
        new_labels = {self.class_names.index(name): label for label, name in enumerate(classes)}
        labels = np.asarray(files.column(field))
        self._relabelled = (field, new_labels)
        self.class_names = list(classes)
        kept: npt.NDArray[np.int64] = chosen[np.isin(labels[chosen], list(new_labels))]
        return kept


def read_indices(text: str) -> npt.NDArray[np.int64]:
    """Return sample indices from ``START:STOP``, or from a file: ``.npy``, or text with one number per line.

    Raises
    ------
    UsageError
        If it is neither.

    Examples
    --------
    >>> read_indices("3:6").tolist()
    [3, 4, 5]
    """
    start, colon, stop = text.partition(":")
    if colon and start.strip().isdecimal() and stop.strip().isdecimal():
        return np.arange(int(start), int(stop), dtype=np.int64)
    try:
        if text.endswith(".npy"):
            loaded = np.load(text, allow_pickle=False)
        else:
            with open_stream(text) as file:
                loaded = np.array([int(line) for line in file.read().split()], dtype=np.int64)
    except (ConvertError, OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{printable(text)!r} holds no indices ({error}); expected START:STOP, a .npy file, or a text file with "
            "one number per line"
        ) from error
    if loaded.ndim != 1 or loaded.dtype.kind not in "iu":
        raise UsageError(f"{printable(text)}: expected whole numbers in one row, got {loaded.dtype} of {loaded.shape}")
    indices: npt.NDArray[np.int64] = loaded.astype(np.int64)
    return indices


def _reader(path: str, local: str) -> Reader:
    """Open a file, which may be a local copy, with its original name for messages."""
    return Reader(path) if path == local else Reader(path, stored=np.memmap(local, np.uint8, "r"))


def _damage(path: str, local: str) -> list[tuple[int, int, str]]:
    """Return (first sample, last sample + 1, problem) for each damaged range of a file.

    Raises
    ------
    ConvertError
        If other parts than samples are damaged, or there are too many problems.
    """
    found: list[tuple[int, int, str]] = []
    report = verify_file(local)
    for problem in report.problems:
        if not problem.samples:
            raise ConvertError(f"{printable(path)} is damaged, {problem}; `beton repair` makes an intact file of it")
        found += [(first, stop, f"{problem.region}: {problem.message}") for first, stop in problem.samples]
    if not report.complete:
        raise ConvertError(f"{printable(path)} is damaged in {len(report.problems):,} places and perhaps more")
    return found


class _Form(NamedTuple):
    """Decides which images are passed on unchanged, see `BetonFiles`."""

    as_stored: bool
    longest: int | None

    def keeps(self, image: EncodedImage) -> bool:
        """Return whether an image that is not a JPEG is passed on unchanged."""
        return self.as_stored and (self.longest is None or max(image.width, image.height) <= self.longest)


@dataclasses.dataclass
class _Load:
    """Reads stored values; sent to the workers."""

    paths: tuple[tuple[str, str], ...]
    relabelled: tuple[str, dict[int, int]] | None
    form: _Form
    damage: list[list[tuple[int, int, str]]]
    readers: dict[int, Reader] = dataclasses.field(default_factory=dict)

    def __call__(self, task: tuple[int, int, str]) -> dict[str, object]:
        file, sample, _ = task
        for first, stop, what in self.damage[file] if self.damage else ():
            if first <= sample < stop:
                raise SampleFault(f"it is damaged, {what}")
        try:
            reader = self.readers.get(file)
            if reader is None:
                reader = self.readers[file] = _reader(*self.paths[file])
            values = {name: self._plain(field, reader.value(name, sample)) for name, field in reader.fields.items()}
        except (FormatError, DecodeError, OSError) as error:
            raise SampleFault(str(error)) from error
        if self.relabelled is not None:
            name, new_labels = self.relabelled
            values[name] = new_labels[int(values[name])]  # type: ignore[call-overload]
        return values

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "readers": {}}

    def _plain(self, field: Field, value: object) -> object:
        """Return a stored image in the policy's form: a JPEG's bytes, pixels, or an image to keep unchanged."""
        if not isinstance(field, ImageField) or not isinstance(value, EncodedImage):
            return value
        if value.mode == MODE_JPEG:
            return bytes(value.data)
        return value if self.form.keeps(value) else decode_image(value)
