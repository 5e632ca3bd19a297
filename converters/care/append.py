"""More files for a shard set: `append`, which checks that they belong to it, then replaces its manifest in one step."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from dataloading import ConvertError, Manifest, Reader, Shard, UsageError, is_manifest

from .copying import Donor, check_sources, field_differences
from .listing import list_files, shards_of
from .merge import agreed_classes

__all__ = ["AppendReport", "append"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppendReport:
    """What `append` did.

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
    """Add files to a shard set; their samples follow those that are in it.

    A file below the manifest's folder is listed where it lies; one from elsewhere is copied beside the manifest first.
    The manifest is replaced in one step, after everything was checked: whoever opens the set sees the old or the new.

    Parameters
    ----------
    manifest : str or path-like
        The set's ``.beton.json``.
    paths : sequence of str
        ``.beton`` files, or manifests of other sets.
    verify : bool
        Whether to compare the new files with their checksums first.
    num_workers : int
        Threads for that.

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
        raise UsageError(f"{target} is no manifest: expected a name that ends with .beton.json")
    if not paths:
        raise UsageError("append needs at least one file to add")
    folder = target.resolve().parent
    with _locked(folder):
        old = Manifest.load(target)
        files = list_files(paths)
        with Donor(shards_of(str(target))[0]) as first:
            for file in files:
                _check(first, file)
        names = [_name_in(folder, file) for file in files]
        _check_new(old, files, names)
        if verify:
            check_sources(files, num_workers=num_workers)
        copied: list[Path] = []
        try:
            added = []
            for file, name in zip(files, names, strict=True):
                place = Path(file)
                if name is None:
                    place = folder / place.name
                    _copy(Path(file), place)
                    copied.append(place)
                added.append(_entry(place, name or place.name))
            new = Manifest(shards=(*old.shards, *added))
            new.save(target, overwrite=True)
        except BaseException:
            for place in copied:
                with contextlib.suppress(OSError):
                    place.unlink()
            raise
    return AppendReport(
        path=str(target),
        added=tuple(added),
        copied=tuple(place.name for place in copied),
        num_shards=len(new.shards),
        num_samples=new.num_samples,
        num_bytes=new.num_bytes,
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep two appends to sets of one folder from overwriting each other's manifest."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems have no such locks; there the user must see to it.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check(first: Donor, file: str) -> None:
    with Donor(file) as donor:
        differing = field_differences(first.fields, donor.fields)
        if differing:
            listed = "\n".join(f"  {line}" for line in differing)
            raise UsageError(f"the set's {first.path} and {file} have different fields:\n{listed}")
        agreed_classes([first, donor], "equal", hint="; `beton merge --classes union` makes one file of both")


def _name_in(folder: Path, file: str) -> str | None:
    """Return how a manifest in ``folder`` names ``file``, or None where the file lies elsewhere."""
    place = Path(file).resolve()
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else None


def _check_new(old: Manifest, files: Sequence[str], names: Sequence[str | None]) -> None:
    listed = {shard.name for shard in old.shards}
    prints = {shard.fingerprint: shard.name for shard in old.shards}
    for file, name in zip(files, names, strict=True):
        if (name or Path(file).name) in listed:
            raise UsageError(f"{file} is in the set already, or a shard has its name")
        with Reader(file) as reader:
            twin = prints.setdefault(reader.fingerprint, file)
            # FFCV's files have no checksums, so two of equal size and fields may well differ.
            if twin != file and reader.extension is not None:
                raise UsageError(f"{file} has the same content as {twin}; its samples would count twice")


def _copy(source: Path, place: Path) -> None:
    part = place.with_name(f".{place.name.removesuffix('.beton')}.beton.part-{secrets.token_hex(4)}")
    try:
        with open(source, "rb") as reading, open(part, "xb") as writing:
            shutil.copyfileobj(reading, writing, 1 << 22)
            writing.flush()
            os.fsync(writing.fileno())
        # Unlike a rename, a link never replaces a file that is there.
        os.link(part, place)
    except FileExistsError as error:
        raise UsageError(f"{place} exists, so {source} cannot be copied beside the manifest; rename one") from error
    except OSError as error:
        raise ConvertError(f"cannot copy {source} to {place}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def _entry(place: Path, name: str) -> Shard:
    with Reader(place) as reader:
        return Shard(
            name=name, num_samples=reader.num_samples, num_bytes=reader.num_bytes, fingerprint=reader.fingerprint
        )
