"""Adds files to a shard set: `append` checks that they fit, then replaces the manifest atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from converters.beton_files import list_files, shards_of
from converters.tools.agreement import agreed_classes
from converters.tools.input_files import check_sources
from converters.tools.new_files import NewFiles, shard_entry
from dataloading import ConvertError, Manifest, Reader, Shard, UsageError
from dataloading.tools import check_fields, is_manifest, open_locked

__all__ = ["AppendReport", "append"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppendReport:
    """The result of `append`.

    Parameters
    ----------
    path : str
        The manifest.
    added : tuple of Shard
        The new entries.
    copied : tuple of str
        Which of them were copied beside the manifest.
    num_shards, num_samples, num_bytes : int
        The set's size now.
    """

    path: str
    added: tuple[Shard, ...]
    copied: tuple[str, ...]
    num_shards: int
    num_samples: int
    num_bytes: int


def append(
    manifest: str | os.PathLike[str],
    paths: Sequence[str],
    *,
    verify: bool = True,
    num_workers: int = 1,
) -> AppendReport:
    """Add files to a shard set, after its existing samples.

    A file below the manifest's folder is listed where it lies; one from elsewhere is copied beside the manifest first.
    The manifest is replaced atomically after all checks, so readers see either the old or the new set. If the process
    is killed after the copies were renamed, the next append to the set resumes there.

    Parameters
    ----------
    manifest : str or path-like
        The set's ``.beton.json``.
    paths : sequence of str
        ``.beton`` files, or manifests of other sets.
    verify, num_workers
        See `converters.tools`.

    Returns
    -------
    AppendReport

    Raises
    ------
    UsageError
        If fields or classes differ from the set's, or a file is in the set already.
    ConvertError
        If a new file is damaged.
    FormatError
        If the manifest is damaged or a shard of it is missing.
    """
    target = Path(manifest)
    if not is_manifest(target):
        raise UsageError(f"{target} is not a manifest: expected a name that ends with .beton.json")
    if not paths:
        raise UsageError("append needs at least one file to add")
    folder = target.parent
    with _locked(folder):
        files = list_files(paths)
        names = {file: _name_in(folder, file) for file in files}
        copies = {file: str(folder / Path(file).name) for file, name in names.items() if name is None}
        with _new_files(target, files, copies) as new_files:
            if not new_files.is_done:
                _check(target, names)
                if verify:
                    check_sources(files, num_workers=num_workers)
                for file, place in copies.items():
                    _copy(file, new_files.part(place), place)
                added = [
                    shard_entry(new_files.part(copies[file]) if name is None else file, name or Path(file).name)
                    for file, name in names.items()
                ]
                new = Manifest(shards=(*Manifest.load(target).shards, *added))
                new.save(new_files.part(str(target)))
                new_files.publish()
        new = Manifest.load(target)
    return AppendReport(
        path=str(target),
        added=new.shards[-len(files) :],
        copied=tuple(Path(place).name for place in copies.values()),
        num_shards=len(new.shards),
        num_samples=new.num_samples,
        num_bytes=new.num_bytes,
    )


def _new_files(target: Path, files: Sequence[str], copies: Mapping[str, str]) -> NewFiles:
    """Return the copies and the manifest to write; done if an interrupted equal run was finished."""
    owners: dict[str, str] = {}
    for file, place in copies.items():
        if owners.setdefault(place, file) != file:
            raise UsageError(f"{owners[place]} and {file} would both be copied to {place}; rename one")
    identity = {"command": "append", "files": [_identity(file) for file in files]}
    try:
        return NewFiles(
            [*copies.values(), str(target)],
            overwrite=False,
            inputs=files,
            anchor=str(target),
            replaces=[str(target)],
            identity=identity,
        )
    except UsageError as error:
        for file, place in copies.items():
            if os.path.lexists(place):
                raise UsageError(
                    f"{place} exists, so {file} cannot be copied beside the manifest; rename one"
                ) from error
        raise


def _identity(file: str) -> list[str | int]:
    status = Path(file).stat()
    return [os.path.abspath(file), status.st_ino, status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Prevent two appends in one folder from overwriting each other's manifest."""
    # Some network file systems have no locks; there the user must prevent this.
    descriptor = open_locked(folder, wait_seconds=math.inf, flags=os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
    finally:
        os.close(descriptor)


def _name_in(folder: Path, file: str) -> str | None:
    """Return ``file`` relative to the manifest's ``folder``, or None if it lies elsewhere."""
    place, folder = Path(file).resolve(), folder.resolve()
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else None


def _check(target: Path, names: Mapping[str, str | None]) -> None:
    """Refuse files whose fields or classes are not the set's, or that are in the set already."""
    shards = Manifest.load(target).shards
    listed = {shard.name for shard in shards}
    prints = {shard.fingerprint: shard.name for shard in shards}
    with Reader(shards_of(str(target))[0]) as first:
        for file, name in names.items():
            with Reader(file) as reader:
                check_fields(first, reader, prefix="the set's ")
                hint = "; `beton merge --classes union` makes one file of both"
                agreed_classes([first, reader], "equal", hint=hint)
                if (name or Path(file).name) in listed:
                    raise UsageError(f"{file} is in the set already, or a shard has its name")
                twin = prints.setdefault(reader.fingerprint, file)
                # FFCV's files have no checksums, so two of equal size and fields may well differ.
                if twin != file and reader.extension is not None:
                    raise UsageError(f"{file} has the same content as {twin}; its samples would count twice")


def _copy(source: str, part: str, place: str) -> None:
    try:
        with open(source, "rb") as reading, open(part, "xb") as writing:
            shutil.copyfileobj(reading, writing, 1 << 22)
            writing.flush()
            os.fsync(writing.fileno())
    except OSError as error:
        raise ConvertError(f"cannot copy {source} to {place}: {error.strerror or error}") from error
