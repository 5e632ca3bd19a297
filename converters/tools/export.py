"""Exports ``.beton`` files as an ImageFolder or WebDataset's tar shards.

JPEG and PNG bytes are kept; raw pixels become PNG. The folder appears when it is complete. Names, order, times and
owners depend only on the samples, so equal datasets give equal exports.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from converters.beton_files import stem_of
from converters.report import Progress
from converters.tools.input_files import InputFiles, Stored, check_sources, file_name, stored_bytes
from converters.tools.new_files import remove_leftovers
from dataloading import EncodedImage, ImageField, UsageError
from dataloading.tools import MODE_JPEG, MODE_PNG, PartFolder

__all__ = ["ExportFormat", "ExportReport", "export"]

ExportFormat = Literal["imagefolder", "webdataset"]

TABLE = "samples.csv"
CLASSES = "classes.json"
DEFAULT_SHARD_BYTES = 1 << 30
_MOST_CLASSES = 100_000
_TAR_BLOCK = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportReport:
    """The result of `export`.

    Parameters
    ----------
    source, path, format : str
        The input, the folder, and ``"imagefolder"`` or ``"webdataset"``.
    num_samples, num_bytes : int
        Samples, and bytes of everything written.
    num_classes : int or None
        Class folders, or class names in ``classes.json``.
    num_shards : int
        Tar files.
    left_out : tuple of str
        Fields that the format cannot hold.
    notes : tuple of str
        Remarks for the user about the result.
    """

    source: str
    path: str
    format: str
    num_samples: int
    num_bytes: int
    num_classes: int | None
    num_shards: int = 0
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def export(
    path: str | os.PathLike[str] | Sequence[str],
    out: str | os.PathLike[str],
    *,
    format: ExportFormat = "imagefolder",
    field: str | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    verify: bool = True,
    num_workers: int = 1,
    quiet: bool = True,
) -> ExportReport:
    """Write a dataset's samples into a new folder.

    Parameters
    ----------
    path : str or path-like, or sequence of str
        A file or the manifest of a shard set, or several of them as one dataset.
    out : str or path-like
        The folder to make.
    format : {"imagefolder", "webdataset"}
        ``OUT/CLASS/INDEX.jpg`` with the other fields in ``samples.csv``, or ``OUT/NAME-000000.tar`` and so on (NAME
        from the first path) with an image, ``.cls`` (the label) and ``.json`` (the other fields) a sample, and
        ``classes.json``.
    field : str, optional
        The image field of an ImageFolder, by default the first.
    shard_bytes : int
        A tar ends before it would grow larger, except for a single sample larger than that.
    verify, num_workers, quiet
        See `converters.tools`.

    Returns
    -------
    ExportReport

    Raises
    ------
    UsageError
        If the folder exists, the files do not fit together, or there are no images, or no labels where the format
        needs them.
    ConvertError
        If a file is damaged.
    """
    paths = list(path) if isinstance(path, Sequence) and not isinstance(path, str) else [os.fspath(path)]
    target = Path(out)
    if not paths:
        raise UsageError("export needs at least one file to take samples from")
    if format not in ("imagefolder", "webdataset"):
        raise UsageError(f"format must be 'imagefolder' or 'webdataset', got {format!r}")
    if shard_bytes < 1 << 20:
        raise UsageError(f"a shard must have room for at least 1 MiB, got {shard_bytes} bytes")
    if os.path.lexists(target):
        raise UsageError(f"{target} exists; choose a folder that does not")
    if not target.parent.is_dir():
        raise UsageError(f"the folder {target.parent} does not exist; make it first")
    with InputFiles(paths) as input_files:
        images = [name for name, each in input_files.fields.items() if isinstance(each, ImageField)]
        if not images or (field is not None and field not in images):
            what = "has no images" if field is None else f"has no image field '{field}'"
            raise UsageError(f"{input_files.path} {what}; its fields are {list(input_files.fields)}")
        if verify:
            check_sources(input_files.paths, num_workers=num_workers)
        remove_leftovers(str(target))
        progress = Progress(len(input_files), what=f"exporting {file_name(input_files.path)}", quiet=quiet)
        with PartFolder(str(target)) as folder, contextlib.closing(progress):
            part = Path(folder.part)
            if format == "imagefolder":
                made = _image_folder(input_files, part, field or images[0], progress)
            else:
                stem = stem_of(file_name(paths[0])).replace(".", "_")
                made = _web_dataset(input_files, part, stem, shard_bytes, progress)
            try:
                folder.publish()
            except FileExistsError as error:
                raise UsageError(str(error)) from error
        return ExportReport(
            source=input_files.path, path=str(target), format=format, num_samples=len(input_files), **made
        )  # fmt: skip


def image_file(image: EncodedImage) -> tuple[str, bytes]:
    """Return an image as an image file: its ending, and its bytes, as stored where they are a file already.

    Pixels that image files cannot hold (five channels, three of 16 bits) become ``npy``.

    Examples
    --------
    >>> image_file(EncodedImage(1, 1, 1, bytes(3)))[0]
    'png'
    """
    if image.mode in (MODE_JPEG, MODE_PNG):
        return ("jpg" if image.mode == MODE_JPEG else "png"), bytes(image.data)
    from PIL import Image

    pixels = np.frombuffer(image.data, np.dtype(image.dtype).newbyteorder("<"))
    mode = {(1, "uint8"): "L", (2, "uint8"): "LA", (3, "uint8"): "RGB", (4, "uint8"): "RGBA", (1, "uint16"): "I;16"}
    kind = mode.get((image.channels, image.dtype))
    shaped = pixels.reshape(image.height, image.width, image.channels)
    if kind is None:
        return "npy", array_file(shaped)
    picture = Image.frombytes(kind, (image.width, image.height), shaped.tobytes())
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return "png", buffer.getvalue()


def array_file(array: Any) -> bytes:
    """Return an array as the bytes of a ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


class _Folders:
    """The class folders of an ImageFolder, named so that reading it back gives the labels of the files."""

    def __init__(self, input_files: InputFiles, root: Path) -> None:
        label = input_files.label
        if label is None:
            raise UsageError(
                f"{input_files.path} has no label field (integers named 'label', or the only integers), so there "
                "are no class folders to make; --format webdataset needs none"
            )
        self.label = label
        column = input_files.column(label)
        low, high = int(column.min()), int(column.max())
        if low < 0 or high >= _MOST_CLASSES:
            raise UsageError(
                f"{input_files.path} has labels from {low} to {high}; class folders stand for 0 to {_MOST_CLASSES - 1}"
            )
        known = input_files.class_names or ()
        count = max(len(known), high + 1)
        self.note = ""
        names = [_safe(known[number]) if number < len(known) else str(number) for number in range(count)]
        if names != sorted(set(names)):
            # ImageFolder numbers classes in the order of their names, which must give the same labels.
            width = len(str(count - 1))
            names = [f"{number:0{width}}" + (f"_{name}" if known else "") for number, name in enumerate(names)]
            if known:
                self.note = "class folders start with the label: sorted by name alone they would give other labels"
        self.paths = [root / name for name in names]
        for path in self.paths:
            path.mkdir()


def _safe(name: str) -> str:
    """Return a class name as a folder name; invalid characters are percent-encoded."""
    text = "".join(f"%{ord(letter):02X}" if letter in "/\0%" else letter for letter in name)
    return f"%2E{text[1:]}" if text.startswith(".") else text


def _image_folder(input_files: InputFiles, part: Path, image: str, progress: Progress) -> dict[str, Any]:
    folders = _Folders(input_files, part)
    others = [name for name, field in input_files.fields.items() if name != image and not isinstance(field, ImageField)]
    width = max(8, len(str(len(input_files) - 1)))
    num_bytes = 0
    with open(part / TABLE, "x", encoding="utf-8", newline="", errors="surrogateescape") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", *others])
        for index, sample in enumerate(input_files.samples()):
            ending, data = image_file(input_files.decoded(image, sample[image]))
            if ending == "npy":
                raise UsageError(
                    f"{input_files.path}: no image file holds the pixels of field '{image}' "
                    f"({input_files.fields[image]!r}); --format webdataset stores them as .npy"
                )
            folder = folders.paths[int(sample[folders.label][0][0])]
            name = f"{index:0{width}}.{ending}"
            (folder / name).write_bytes(data)
            table.writerow([f"{folder.name}/{name}", *(_cell(input_files.decoded(key, sample[key])) for key in others)])
            num_bytes += len(data)
            progress.advance(len(data))
    left_out = tuple(name for name in input_files.fields if name != image and name not in others)
    return {
        "num_bytes": num_bytes + (part / TABLE).stat().st_size,
        "num_classes": len(folders.paths),
        "left_out": left_out,
        "notes": (folders.note,) if folders.note else (),
    }


def _cell(value: Any) -> str:
    """Return a value as the text of one cell: numbers and text as they are, bytes in base64, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode("ascii")
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.dtype.kind in "biuf" else value.astype(str).tolist()
    return repr(value) if isinstance(value, (int, float)) else json.dumps(value)


def _web_dataset(
    input_files: InputFiles, part: Path, stem: str, shard_bytes: int, progress: Progress
) -> dict[str, Any]:
    label = input_files.label
    width = max(8, len(str(len(input_files) - 1)))
    names = input_files.class_names
    if names is not None:
        (part / CLASSES).write_text(json.dumps(list(names), indent=1) + "\n")
    with _Shards(part, stem, shard_bytes) as shards:
        for index, sample in enumerate(input_files.samples()):
            shards.add(list(_members(input_files, sample, f"{index:0{width}}", label)))
            progress.advance(stored_bytes(sample))
    num_classes = None if names is None else len(names)
    return {"num_bytes": shards.num_bytes, "num_classes": num_classes, "num_shards": shards.count}


def _members(
    input_files: InputFiles, sample: Mapping[str, Stored], key: str, label: str | None
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of one sample: its first image under the plain ending, other fields' bytes under their names."""
    plain: dict[str, Any] = {}
    first = True
    for name, field in input_files.fields.items():
        value = input_files.decoded(name, sample[name])
        own = f"{key}.{name.replace('/', '_')}"
        if isinstance(field, ImageField):
            ending, data = image_file(value)
            yield (f"{key}.{ending}" if first else f"{own}.{ending}"), data
            first = False
        elif name == label:
            yield f"{key}.cls", str(value).encode("ascii")
        elif isinstance(value, bytes):
            yield f"{own}.bin", value
        elif isinstance(value, np.ndarray):
            yield f"{own}.npy", array_file(value)
        else:
            plain[name] = value
    if plain:
        yield f"{key}.json", json.dumps(plain, allow_nan=True).encode("utf-8")


class _Shards:
    """Tar files of at most ``limit`` bytes; their bytes depend on their contents alone."""

    def __init__(self, folder: Path, stem: str, limit: int) -> None:
        self._folder, self._stem, self._limit = folder, stem, limit
        self._tar: tarfile.TarFile | None = None
        self._file: IO[bytes] | None = None
        self._position = 0
        self.count = self.num_bytes = 0

    def add(self, members: Sequence[tuple[str, bytes]]) -> None:
        """Store the files of one sample, which stay together."""
        size = sum(_TAR_BLOCK + -(-len(data) // _TAR_BLOCK) * _TAR_BLOCK for _, data in members)
        # The two empty blocks at a tar's end are filled up to ten kilobytes.
        if self._tar is None or (self._position and self._position + size + tarfile.RECORDSIZE > self._limit):
            self._next()
        assert self._tar is not None
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            self._tar.addfile(entry, io.BytesIO(data))
            self.num_bytes += len(data)
        self._position += size

    def _next(self) -> None:
        self.close()
        path = self._folder / f"{self._stem}-{self.count:06}.tar"
        self._file = open(path, "xb")  # noqa: SIM115
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.count += 1
        self._position = 0

    def close(self) -> None:
        """End the tar that is being written."""
        if self._tar is not None and self._file is not None:
            self._tar.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._tar = self._file = None

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
