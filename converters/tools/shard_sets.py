"""A new shard set made of another one, shard by shard: which files are to be made, and the manifest that lists them.

Owns the names of the results; what is written into them is the business of the verbs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from converters.tools.new_files import NewFiles
from dataloading import Manifest, Reader, Shard, UsageError
from dataloading.tools import is_manifest, shard_path

__all__ = ["entry", "results", "write_manifest"]


def results(source: str, out: str, num_files: int) -> list[str]:
    """Return the files that a verb makes of ``source``: ``out``, or the shards of a set and its manifest ``out``.

    Parameters
    ----------
    source : str
        A ``.beton`` file or a manifest.
    out : str
        Named likewise.
    num_files : int
        How many shards there will be.

    Raises
    ------
    UsageError
        If one is named as a manifest and the other is not.

    Examples
    --------
    >>> results("a.beton", "b.beton", 1)
    ['b.beton']
    >>> results("a.beton.json", "x/b.beton.json", 2)
    ['x/b-00000-of-00002.beton', 'x/b-00001-of-00002.beton', 'x/b.beton.json']
    """
    if is_manifest(source) and not is_manifest(out):
        raise UsageError(
            f"{source} is a set of shards, and {out} would be one file; name the new set's manifest, NAME.beton.json, "
            "or make one file of the shards with `beton merge`"
        )
    if is_manifest(out) and not is_manifest(source):
        raise UsageError(f"{out} names a set of shards, but {source} is one file; name a .beton file to make")
    if not is_manifest(out):
        return [out]
    stem = out.removesuffix(".json")
    return [*(shard_path(stem, number, num_files) for number in range(num_files)), out]


def entry(path: str | os.PathLike[str], name: str) -> Shard:
    """Return what a manifest says of the file ``path``, which is, or is going to be, called ``name`` beside it."""
    with Reader(path) as reader:
        return Shard.of(reader, name)


def write_manifest(files: NewFiles, targets: Sequence[str]) -> None:
    """Write the manifest, the last of the targets that `results` gave, once the shards are complete."""
    *shards, manifest = targets
    entries = [entry(files.part(path), os.path.basename(path)) for path in shards]
    Manifest(shards=tuple(entries)).save(files.part(manifest))
