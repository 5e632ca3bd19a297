"""NumPy arrays on disk: ``.npz`` archives and ``.npy`` files whose first axis counts the samples.

Every worker memory-maps the arrays and never loads them whole. URLs are copied first (``local_copies.py``), and
compressed members of an archive are unpacked into a temporary file.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from converters.fields import name_fault
from converters.source import printable
from dataloading import ConvertError, Field, FloatField, ImageField, IntField, NDArrayField, TextField, UsageError

from .labels import Labels, class_label, label_numbers, usual_name
from .listing import expand
from .local_copies import LocalCopy, local_paths
from .reading import absolute, name_of

__all__ = ["Arrays"]

_IMAGES, _LABELS = ("image", "images", "x", "data"), ("label", "labels", "y", "target", "targets")
_LABELS_AT_ONCE = 1 << 16
_MOST_AT_ONCE, _BYTES_AT_ONCE = 1024, 1 << 20
_WORD = "(?P<set>train|training|test|testing|val|valid|validation|dev|eval)"
_SETS = [
    re.compile(form.format(_WORD), re.IGNORECASE)
    for form in ("(?P<name>.+)[_.-]{}", "{}[_.-](?P<name>.+)", "(?P<name>[xy]){}")
]
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: lengths of its name and extra field


@dataclasses.dataclass(frozen=True)
class _Stored:
    """The location of an array, for mapping it in any process."""

    path: str
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool

    def open(self) -> npt.NDArray[Any]:
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.start, self.shape, "F" if self.is_fortran else "C")


class Arrays:
    """Samples along the first axis of arrays.

    Parameters
    ----------
    paths : sequence of str
        One ``.npz``, or ``.npy`` files, or a folder of the latter. An array's name is that in the archive, or the
        file's.
    image : str, optional
        Name of the array of images, uint8 of shape (N, H, W) or (N, H, W, C). By default one of the usual names, or
        the only array of that dtype and number of axes.
    label : str, optional
        Name of the array of labels, integers or texts of shape (N,) or (N, 1); texts become classes. By default one of
        the usual names, also with the word of a set as in ``y_train``.
    names : sequence of str, optional
        Further arrays to include; by default all.
    class_names : sequence of str, optional
        Names of the labels.

    Raises
    ------
    ConvertError
        If an array cannot be read, or their lengths differ.
    UsageError
        If an array is missing, its dtype or name does not suit a field, or there are arrays of several sets of samples.

    Attributes
    ----------
    files : list of (str, str)
        See `converters.source.files_of`.
    has_words : bool
        Whether labels are text; labels are then positions among the sorted texts.
    """

    starts_here = True
    """Whether the engine may read samples in its own process; see `converters.source.Source`."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        image: str | None = None,
        label: str | None = None,
        names: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self._copies: list[LocalCopy]
        self._shown = printable(name_of(paths[0]))
        self._path = absolute(paths[0])
        stored: dict[str, _Stored] = {}
        paths = expand(paths, (".npy",))
        local_files, self._copies = local_paths(paths)
        self.files: list[tuple[str, str]] = []
        for path, local in zip(paths, local_files, strict=True):
            self.files.append((name_of(path), absolute(path)))
            for name, array in self._found(path, local).items():
                if name in stored:
                    raise UsageError(f"{printable(path)}: there is an array '{name}' already")
                stored[name] = array
        self.class_names = None if class_names is None else list(class_names)
        for name in names or ():
            _pick(stored, name, (), (), "--arrays")
        chosen = [name for name in stored if names is None or name in names]
        if names is None:
            self._check_one_set(stored)
        image = _pick(stored, image, _IMAGES, chosen, "--image")
        if image is None:
            alike = [name for name in chosen if stored[name].dtype == np.uint8 and len(stored[name].shape) in {3, 4}]
            image = alike[0] if len(alike) == 1 else None
        label = _pick(stored, label, _LABELS, chosen, "--label")
        taken = [name for name in stored if names is None or name in names or name in {image, label}]
        self._arrays: dict[str, _Stored] = {}
        self.fields: dict[str, Field] = {}
        for name in sorted(taken, key=lambda name: (name != image, name != label)):
            role = "image" if name == image else "label" if name == label else name
            self._arrays[role] = stored[name]
            self.fields[role] = _field(name, stored[name], role)
        if not self._arrays:
            raise UsageError(f"{self._shown} holds no arrays")
        lengths = {name: array.shape[0] for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            alike = [name for name in sorted(taken) if stored[name].shape[0] == stored[image or taken[0]].shape[0]]
            raise ConvertError(
                f"{self._shown}: the arrays have different numbers of samples: {shown}; --arrays "
                f"{','.join(alike)} takes those of one number"
            )
        self._length = next(iter(lengths.values()))
        self._label: str | None = None
        if "label" in self._arrays and self._arrays["label"].dtype.kind in "US":
            self._label = "label"
            found = self._classes_of_words()
            self.class_names = self.class_names or found
        self.provenance = {"source": "arrays", "source_name": self._shown, "source_samples": len(self)}
        self.has_words = class_names is None and self.class_names is not None

    @property
    def without_tensors(self) -> list[str]:
        """The fields that torch has no dtype for, with their dtypes: byte strings, dates, long floats."""
        return [
            f"{name} ({field.dtype})"
            for name, field in self.fields.items()
            if isinstance(field, NDArrayField) and (field.dtype.kind not in "biufc" or field.dtype.char in "gG")
        ]

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        return _Load(self._arrays, self.fields, self._label, label_numbers(self.class_names))

    def __len__(self) -> int:
        return self._length

    def task(self, index: int) -> tuple[int, str]:
        """Return the index and the first file's path."""
        return index, self._path

    def name(self, index: int) -> str:
        """Return the file and the index."""
        return f"{self._shown}[{index}]"

    def _check_one_set(self, stored: Mapping[str, _Stored]) -> None:
        """Refuse arrays of different samples, such as x_train and x_test."""
        sets: dict[str, list[str]] = {}
        for name in stored:
            if part := _set_of(name)[1]:
                sets.setdefault(part, []).append(name)
        if len(sets) > 1:
            options = " or ".join(f"--arrays {','.join(names)}" for names in sets.values())
            raise UsageError(f"{self._shown} holds several sets of samples: {options} takes one of them")

    def _classes_of_words(self) -> list[str] | None:
        labels = Labels()
        array = self._arrays["label"].open().reshape(-1)
        for start in range(0, len(array), _LABELS_AT_ONCE):
            for label in np.unique(array[start : start + _LABELS_AT_ONCE]).tolist():
                labels.add(_text(label))
        return labels.names()

    def _found(self, path: str, local: str) -> dict[str, _Stored]:
        try:
            if path.lower().endswith(".npz"):
                with zipfile.ZipFile(local) as archive:
                    return {
                        entry.filename.removesuffix(".npy"): self._member(path, local, archive, entry)
                        for entry in archive.infolist()
                    }
            with open(local, "rb") as file:
                return {Path(name_of(path)).stem: _header(file, local, 0)}
        except (OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConvertError(f"{printable(path)} cannot be read as NumPy arrays: {reason}") from error

    def _member(self, path: str, local: str, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Stored:
        if entry.compress_type == zipfile.ZIP_STORED:
            with archive.open(entry) as packed:  # a memory map does not verify the member's checksum
                while packed.read(1 << 20):
                    pass
            with open(local, "rb") as file:
                file.seek(entry.header_offset)
                lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
                start = entry.header_offset + _LOCAL_HEADER.size + sum(lengths)
                file.seek(start)
                return _header(file, local, start)
        copy = LocalCopy(
            f"the unpacked array '{printable(entry.filename)}' of {printable(path)}",
            "save it without compression (numpy.savez or .npy) in a folder that all machines see, or convert with "
            "--engine local",
        )
        self._copies.append(copy)
        with archive.open(entry) as packed:
            shutil.copyfileobj(packed, copy.file, 1 << 20)
        copy.file.flush()
        copy.file.seek(0)
        return _header(copy.file, copy.path, 0)


def _header(file: BinaryIO, path: str, start: int) -> _Stored:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which only their program can read; store numbers or texts")
    stored = _Stored(path, file.tell(), dtype, tuple(shape), bool(fortran))
    end = file.seek(0, 2)
    if stored.start + math.prod(shape) * dtype.itemsize > end:
        raise ValueError(f"it ends early, at byte {end - start}")
    return stored


def _pick(
    stored: Mapping[str, _Stored], name: str | None, usual: Sequence[str], chosen: Sequence[str], option: str
) -> str | None:
    if name is None:
        known = {_set_of(each)[0]: each for each in reversed(chosen)}
        return usual_name(usual, list(stored)) or known.get(usual_name(usual, list(known)) or "")
    if name not in stored:
        raise UsageError(f"{option} {name}: the arrays are {', '.join(map(printable, stored))}")
    return name


def _set_of(name: str) -> tuple[str, str]:
    """Split an array's name into the name and the word for a set of samples.

    Examples
    --------
    >>> _set_of("x_train"), _set_of("test-images"), _set_of("Xval"), _set_of("interval")
    (('x', 'train'), ('images', 'test'), ('x', 'val'), ('interval', ''))
    """
    for pattern in _SETS:
        if match := pattern.fullmatch(name):
            return match["name"].lower(), match["set"].lower()
    return name, ""


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def _field(name: str, array: _Stored, role: str) -> Field:
    described = f"'{printable(name)}' is {array.dtype} of shape {array.shape}"
    if not array.shape:
        raise UsageError(f"the array {described}; expected samples along its first axis")
    if role == "image":
        if array.dtype.newbyteorder("=") not in (np.uint8, np.uint16) or len(array.shape) not in {3, 4}:
            raise UsageError(f"the images {described}; expected uint8 of shape (N, H, W) or (N, H, W, channels)")
        return ImageField()
    inner = tuple(length for length in array.shape[1:])
    single = inner in {(), (1,)}
    if role == "label":
        if array.dtype.kind not in "iubUS" or not single:
            raise UsageError(f"the labels {described}; expected whole numbers or names, one per sample")
        return IntField()
    if fault := name_fault(role):
        raise UsageError(f"the array {described}: {fault}; leave it out with --arrays NAME,NAME (the others)")
    if array.dtype.kind in "iub" and inner == ():
        return IntField()
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8 and inner == ():
        return FloatField()
    if array.dtype.kind == "U" and inner == ():
        return TextField()
    try:
        return NDArrayField(array.dtype, inner or (1,))
    except UsageError as error:
        raise UsageError(
            f"the array {described}: {error}; leave it out with --arrays NAME,NAME (the others)"
        ) from error


@dataclasses.dataclass
class _Load:
    """Maps the arrays on first use and reads one sample of each; sent to the workers."""

    arrays: Mapping[str, _Stored]
    fields: Mapping[str, Field]
    label: str | None
    labels: Mapping[str, int] | None
    mapped: dict[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)

    def __call__(self, task: tuple[int, str]) -> dict[str, object]:
        index = task[0]
        self._map()
        values: dict[str, object] = {}
        for name, array in self.mapped.items():
            field = self.fields[name]
            value = array[index]
            if name == self.label:
                text = _text(np.asarray(value).reshape(-1)[0])
                values[name] = class_label(text, self.labels, "the array of labels")
            elif isinstance(field, (IntField, FloatField)):
                values[name] = np.asarray(value).reshape(-1)[0].item()
            elif isinstance(field, TextField):
                values[name] = str(value)
            elif isinstance(field, NDArrayField):
                # Not the dtype of the single value, which may be shorter: byte strings lose their padding.
                values[name] = np.asarray(array[index : index + 1]).reshape(field.shape)
            else:
                values[name] = np.array(value)  # a copy, since not every decoder accepts the read-only map
        return values

    @property
    def most_at_once(self) -> int:
        """Number of samples per call of `columns`."""
        sample_bytes = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in self.arrays.values())
        return max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1, sample_bytes)))

    def columns(self, tasks: Sequence[tuple[int, str]]) -> dict[str, npt.NDArray[Any]] | None:
        """Return the values of several samples as arrays, with samples along the first axis.

        None for texts, and for numbers that the file's types do not hold exactly.
        """
        self._map()
        indices = [index for index, _ in tasks]
        first = indices[0]
        follow_one_another = indices == list(range(first, first + len(indices)))
        chosen = slice(first, first + len(indices)) if follow_one_another else np.array(indices)
        columns: dict[str, npt.NDArray[Any]] = {}
        for name, array in self.mapped.items():
            field = self.fields[name]
            values = np.asarray(array[chosen])
            if isinstance(field, (IntField, FloatField)):
                if name == self.label or not np.can_cast(values.dtype, field.record):
                    return None
                values = values.reshape(-1).astype(field.record)
            elif isinstance(field, NDArrayField):
                values = values.reshape(-1, *field.shape)
            columns[name] = values
        return columns

    def _map(self) -> None:
        if not self.mapped:
            self.mapped = {name: array.open() for name, array in self.arrays.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "mapped": {}}
