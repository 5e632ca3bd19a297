"""Resolves the files of a command line: ``.beton`` files, and manifests, which stand for their shards.

Looks at names, sizes and manifests only; it opens no ``.beton`` file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dataloading import FormatError, Manifest, UsageError
from dataloading.tools import is_manifest

__all__ = ["fingerprints_of", "list_files", "shards_of", "stem_of"]


def list_files(paths: Iterable[str]) -> list[str]:
    """Return the files that ``paths`` stand for, in the order given, each manifest replaced by its shards.

    Parameters
    ----------
    paths : iterable of str
        ``.beton`` files and ``.beton.json`` manifests.

    Raises
    ------
    FormatError
        If a manifest is damaged, or a shard is missing or differs in size from its manifest.
    UsageError
        If a file is named twice.
    """
    files: list[str] = []
    for path in paths:
        files += shards_of(path) if is_manifest(path) else [path]
    seen: set[Path] = set()
    for file in files:
        real = Path(file).resolve()
        if real in seen:
            raise UsageError(f"{file} is named twice; each file counts once")
        seen.add(real)
    return files


def shards_of(path: str) -> list[str]:
    """Return the paths of a manifest's shards, after checking their sizes.

    Raises
    ------
    FormatError
        If the manifest is damaged, or a shard is missing or has another size.
    """
    folder = Path(path).parent
    files = []
    for shard in Manifest.load(path).shards:
        file = folder / shard.name
        if not file.is_file():
            raise FormatError(f"{path} lists {shard.name}, which is missing; put it back beside the manifest")
        size = file.stat().st_size
        if size != shard.num_bytes:
            raise FormatError(
                f"{file} has {size} bytes where {path} lists {shard.num_bytes}; one of them was changed or cut short"
            )
        files.append(str(file))
    return files


def stem_of(path: str) -> str:
    """Return the path of a file or manifest without its extensions.

    Examples
    --------
    >>> stem_of("data/train.beton"), stem_of("train.beton.json")
    ('data/train', 'train')
    """
    return path.removesuffix(".json").removesuffix(".beton")


def fingerprints_of(paths: Iterable[str]) -> dict[str, str]:
    """Return by path, as `list_files` gives it, the fingerprint that a manifest among ``paths`` lists for a shard."""
    return {
        str(Path(path).parent / shard.name): shard.fingerprint
        for path in paths
        if is_manifest(path)
        for shard in Manifest.load(path).shards
    }
