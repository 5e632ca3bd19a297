"""Opens the files of a dataset, given as paths, patterns, manifests of shard sets, or lists of them.

Decides which files are meant and in which order, and checks that they are those that a manifest lists.
"""

from __future__ import annotations

import errno
import glob
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

import numpy as np

from dataloading.dataset.files import FileSet
from dataloading.dataset.remote.addresses import match_urls, read_url
from dataloading.dataset.remote.clients import is_url
from dataloading.errors import FormatError, UsageError
from dataloading.format import Manifest, Reader, Shard, is_manifest, manifest_path, set_of_shard
from dataloading.messages import did_you_mean

__all__ = ["Paths", "check_paths", "listed_files", "open_files", "open_groups"]

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""A file, a `glob` pattern, a set's manifest (``train.beton.json``), each also in a store, or a list of these."""


def open_files(paths: Paths) -> FileSet:
    """Open all files that `paths` stand for.

    Raises
    ------
    UsageError
        A pattern matches nothing, a file is named twice, or files do not fit together.
    FormatError
        A file is not a complete ``.beton`` file, or not the one that its manifest lists.
    OSError
        A file cannot be opened.
    """
    return open_groups([paths])[0]


def open_groups(
    groups: Sequence[Paths], opener: Callable[[Sequence[str]], Sequence[Reader]] | None = None
) -> tuple[FileSet, tuple[int, ...]]:
    """Open the files of several datasets as one, as `open_files` does, and count the samples of each.

    Parameters
    ----------
    groups : sequence of paths
        One per dataset.
    opener : callable, optional
        Opens all files; by default as local ones.
    """
    expanded = [_expanded(paths) for paths in groups]
    _check_distinct(file.path for files in expanded for file in files)
    wanted = [file for files in expanded for file in files]
    try:
        files = FileSet(_opened(wanted, opener or _open_local))
    except (OSError, FormatError):
        _check_local(wanted)
        raise
    ends = np.cumsum([0, *map(len, expanded)])
    return files, tuple(np.diff(files.starts[ends]).tolist())


def listed_files(paths: Paths) -> list[str]:
    """List the files that `paths` stand for: those of a pattern by name, those of a manifest in its order.

    Raises
    ------
    UsageError
        A pattern matches nothing, a file is named twice, or no file is given.
    FormatError
        A manifest is damaged.
    """
    found = [file.path for file in _expanded(paths)]
    _check_distinct(found)
    return found


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file to open, and its entry in a manifest."""

    path: str
    shard: Shard | None = None
    manifest: str = ""


def check_paths(groups: Sequence[Paths]) -> None:
    """Refuse paths that are not datasets, before anything is opened.

    Raises
    ------
    UsageError
        The path must be converted first (the message has the command), or is not a path.
    FileNotFoundError
        The file does not exist; the message suggests the nearest name.
    """
    for paths in groups:
        _check_local(_expanded(paths))


# Suffixes of common training data, and the source of `beton convert` that reads them.
_SOURCES = {
    ".tar": "webdataset",
    ".tar.gz": "webdataset",
    ".tgz": "webdataset",
    ".parquet": "huggingface",
    ".arrow": "huggingface",
    ".csv": "manifest",
    ".tsv": "manifest",
    ".jsonl": "manifest",
    ".npz": "arrays",
    ".npy": "arrays",
}


def _check_local(files: Iterable[_File]) -> None:
    """Refuse local paths that are not .beton files; the message says what to run."""
    for path in (file.path for file in files if file.shard is None and not is_url(file.path)):
        place = Path(path)
        if place.is_dir():
            _refuse_folder(path)
        if place.exists():
            _refuse_source(path)
            continue
        folder = place.parent
        hint = did_you_mean(place.name, [each.name for each in folder.iterdir()]) if folder.is_dir() else ""
        where = "" if folder.is_dir() else f": there is no folder {folder}"
        raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}{where}{'. ' + hint if hint else ''}", path)


def _refuse_folder(path: str) -> None:
    folder = Path(path)
    betons = sorted(each.name for each in folder.glob("*.beton"))
    if betons:
        names = ", ".join(betons[:3]) + (" ..." if len(betons) > 3 else "")
        raise UsageError(
            f"{path} is a folder, with {names} in it: name a file, or all of them with the pattern "
            f"{os.path.join(path, '*.beton')!r}"
        )
    tables = (folder / "dataset_info.json").exists() or any(folder.glob("*.parquet"))
    source = "webdataset" if any(folder.glob("*.tar")) else "huggingface" if tables else "imagefolder"
    raise UsageError(f"{path} is a folder, not a .beton file. {_convert(source, path)}")


def _refuse_source(path: str) -> None:
    """Refuse a file of another format, by its suffix."""
    ending = next((each for each in _SOURCES if path.lower().endswith(each)), None)
    if ending is not None:
        raise UsageError(f"{path} is a {ending} file, not a .beton file. {_convert(_SOURCES[ending], path)}")
    if path.lower().endswith(".zip"):
        folder = Path(path).stem
        command = f"unzip {shlex.quote(path)} -d {shlex.quote(folder)}"
        raise UsageError(
            f"{path} is an archive, not a .beton file. Unpack it first: {command}. {_convert('imagefolder', folder)}"
        )


def _convert(source: str, path: str) -> str:
    stem = Path(path).absolute().name.partition(".")[0] or "train"
    return f"Convert it: beton convert {source} {shlex.quote(path)} {shlex.quote(stem)}.beton"


def _local(path: str | os.PathLike[str]) -> str:
    """Return a path as text; a ``file://`` address becomes a path."""
    if isinstance(path, bytes) or not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"the path of a dataset must be text or a Path, got {type(path).__name__} {path!r}"
            f"{': write ' + repr(os.fsdecode(path)) if isinstance(path, bytes) else ''}"
        )
    text = os.fspath(path)
    if not text.lower().startswith("file:"):
        return text
    address = urlsplit(text)
    if address.netloc not in ("", "localhost") or not address.path.startswith("/"):
        raise UsageError(
            f"{text} is not a local address: write file:///the/whole/path or file://localhost/the/whole/path"
        )
    # In an address '?' and '#' start other parts; in a pattern '?' is a wildcard.
    rest = f"?{address.query}" if address.query else ""
    return unquote(address.path + rest)


def _expanded(paths: Paths) -> list[_File]:
    if isinstance(paths, Mapping):
        raise UsageError(f"pass several files as a list, and files in proportions as Mixture({{...}}), got {paths!r}")
    given = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str | bytes) else [paths]
    if not given:
        raise UsageError("no file was given: pass the path of a .beton file, a pattern, or a list of them")
    found: list[_File] = []
    for each in given:
        for path in _matches(_local(each)):
            if is_url(path):
                found += _listed_at(path)
            elif is_manifest(path):
                folder = Path(path).parent
                shards = Manifest.load(path).shards
                found += [_File(path=str(folder / shard.name), shard=shard, manifest=path) for shard in shards]
            else:
                found.append(_File(path=path))
    _check_one_set(file.path for file in found)
    return found


def _check_one_set(paths: Iterable[str]) -> None:
    """Refuse shards of two conversions of the same dataset: samples would count twice."""
    totals: dict[str, int] = {}
    for path in paths:
        stem, total = set_of_shard(path) or (path, 0)
        other = totals.setdefault(stem, total)
        if other != total:
            pattern = f"{stem.removesuffix('.beton')}-*-of-{total:05}.beton"
            raise UsageError(
                f"shards of two sets of {stem} are among the files, one of {other} and one of {total}: name the "
                f"manifest ({manifest_path(stem)}) or a pattern such as {pattern!r}, and remove what an older "
                "conversion left"
            )


def _check_distinct(paths: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for path in paths:
        target = path if is_url(path) else os.path.realpath(path)
        if target in seen:
            other = "" if seen[target] == path else f" (the first time as {seen[target]})"
            raise UsageError(
                f"{path} is there twice{other}: every file of a dataset counts once; to repeat samples pass indices= "
                f"or weights="
            )
        seen[target] = path


def _matches(path: str) -> list[str]:
    """Expand a pattern; a path that exists stands for itself, whatever its name."""
    if is_url(path):
        return match_urls(path)
    if not glob.has_magic(path) or Path(path).exists():
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # Path.glob needs the folder separately
    if not found:
        raise UsageError(f"no file matches the pattern {path!r} (from {Path.cwd()})")
    return found


def _listed_at(url: str) -> list[_File]:
    """List a remote file, or what a remote manifest lists."""
    folder, _, name = url.rpartition("/")
    if not name.endswith(".json"):
        return [_File(path=url)]
    shards = Manifest.from_text(read_url(url), url).shards
    return [_File(path=f"{folder}/{shard.name}", shard=shard, manifest=url) for shard in shards]


def _open_local(paths: Sequence[str]) -> list[Reader]:
    for path in paths:
        if is_url(path):
            raise UsageError(f"{path} lies in a store, which only Loader can read; download the file first")
    # In parallel, since opening files on network storage is mostly waiting.
    with ThreadPoolExecutor(min(16, len(paths))) as pool:
        return list(pool.map(Reader, paths))


def _opened(files: Sequence[_File], opener: Callable[[Sequence[str]], Sequence[Reader]]) -> Sequence[Reader]:
    """Open files, and compare them with their manifests' entries."""
    try:
        readers = opener([file.path for file in files])
    except FileNotFoundError as error:
        lost = next((file for file in files if file.path == error.filename and file.shard is not None), None)
        if lost is None:
            raise
        raise FileNotFoundError(f"{lost.path} is missing, which {lost.manifest} lists as one of its shards") from error
    for file, reader in zip(files, readers, strict=True):
        for what in ("num_samples", "num_bytes", "fingerprint") if file.shard is not None else ():
            expected, got = getattr(file.shard, what), getattr(reader, what)
            if expected != got:
                raise FormatError(
                    f"{file.path} is not the shard that {file.manifest} lists: expected {what} {expected}, got {got}; "
                    f"restore the file or convert again"
                )
    return readers
