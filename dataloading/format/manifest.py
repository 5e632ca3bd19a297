"""Sets of shards: several ``.beton`` files that are one dataset, listed in a small JSON file beside them.

Defines the layout of that manifest and the shards' names: ``train.beton`` in four shards is
``train-00000-of-00004.beton`` to ``train-00003-of-00004.beton`` and the manifest ``train.beton.json``. The manifest is
written last, so if it exists, its shards are complete. It records each shard's size and fingerprint, which identify a
wrong or changed file; this module never opens shards.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataloading.checks import true_or_false
from dataloading.errors import FormatError, UsageError

from .output import whole_file

if TYPE_CHECKING:
    from .file_info import FileInfo

__all__ = ["Manifest", "Shard", "is_manifest", "manifest_path", "set_of_shard", "shard_path"]

MANIFEST_VERSION = 1
_SUFFIX = ".json"
_FILE_SUFFIX = ".beton"
_SHARD = re.compile(r"(.*)-\d{5,}-of-(\d{5,})\.beton", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of a set.

    Parameters
    ----------
    name : str
        File name, relative to the manifest's folder; slashes separate folders.
    num_samples, num_bytes : int
        The expected number of samples and length.
    fingerprint : str
        ``Reader.fingerprint`` of the file.
    """

    name: str
    num_samples: int
    num_bytes: int
    fingerprint: str

    @classmethod
    def of(cls, file: FileInfo, name: str) -> Shard:
        """Return the manifest's entry for a file, such as an open `Reader`, that will be named ``name``."""
        return cls(name=name, num_samples=file.num_samples, num_bytes=file.num_bytes, fingerprint=file.fingerprint)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or self.name.startswith("/") or ".." in self.name.split("/"):
            raise UsageError(f"a shard's name must be a path below the manifest's folder, got {self.name!r}")
        for what in ("num_samples", "num_bytes"):
            value = getattr(self, what)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"shard {self.name!r}: {what} must be a whole number of at least 1, got {value!r}")
        if not isinstance(self.fingerprint, str) or not self.fingerprint:
            raise UsageError(f"shard {self.name!r}: fingerprint must be a string, got {self.fingerprint!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The shards of one dataset, in order.

    Parameters
    ----------
    shards : tuple of Shard
        At least one; their samples follow one another.

    Examples
    --------
    >>> shard = Shard(name="a.beton", num_samples=3, num_bytes=8, fingerprint="f")
    >>> Manifest.from_text(Manifest(shards=(shard,)).to_text(), "a.beton.json").num_samples
    3
    """

    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        if not self.shards:
            raise UsageError("a manifest lists at least one shard, got none")
        names = [shard.name for shard in self.shards]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise UsageError(f"the manifest lists the shard {twice!r} twice")

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.num_bytes for shard in self.shards)

    def to_text(self) -> str:
        """Return the file's text; equal manifests give equal text."""
        content = {
            "beton_manifest": MANIFEST_VERSION,
            "num_samples": self.num_samples,
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str | bytes, path: str) -> Manifest:
        """Return the manifest whose text was read from ``path``.

        Raises
        ------
        FormatError
            If it is not a valid manifest.
        """
        try:
            content: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: not a manifest of .beton shards: {error}") from error
        version = content.get("beton_manifest") if isinstance(content, dict) else None
        if type(version) is not int or version != MANIFEST_VERSION:
            found = "no 'beton_manifest' in it" if version is None else f"its version is {version!r}"
            raise FormatError(
                f"{path}: not a manifest of .beton shards that this library reads ({found}; expected version "
                f"{MANIFEST_VERSION})"
            )
        keys = [field.name for field in dataclasses.fields(Shard)]
        try:
            listed = content["shards"]
            if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
                raise TypeError(f"expected a list of objects, got {json.dumps(listed)[:60]}")
            result = cls(shards=tuple(Shard(**{key: each[key] for key in keys}) for each in listed))
        except (UsageError, KeyError, TypeError) as error:
            what = f"no {error} in it" if isinstance(error, KeyError) else error
            raise FormatError(f"{path}: the manifest's list of shards is damaged: {what}") from error
        if type(content.get("num_samples")) is not int or content["num_samples"] != result.num_samples:
            raise FormatError(
                f"{path}: the manifest declares {content.get('num_samples')!r} samples, its shards add up to "
                f"{result.num_samples}; it was edited or damaged"
            )
        return result

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Manifest:
        """Read a manifest.

        Raises
        ------
        FormatError
            If it is not a valid manifest.
        OSError
            If it cannot be read.
        """
        return cls.from_text(Path(path).read_bytes(), os.fspath(path))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the manifest atomically and durably.

        Raises
        ------
        FileExistsError
            If the file exists and ``overwrite`` is false.
        """
        with whole_file(path, overwrite=true_or_false("overwrite", overwrite)) as part:
            Path(part).write_text(self.to_text(), encoding="utf-8")


def manifest_path(path: str | os.PathLike[str]) -> str:
    """Return where the manifest of the dataset ``path`` lies.

    Examples
    --------
    >>> manifest_path("data/train.beton")
    'data/train.beton.json'
    """
    return os.fspath(path) + _SUFFIX


def shard_path(path: str | os.PathLike[str], number: int, num_shards: int) -> str:
    """Return where shard ``number`` of ``num_shards`` of the dataset ``path`` lies.

    Examples
    --------
    >>> shard_path("data/train.beton", 2, 16)
    'data/train-00002-of-00016.beton'
    """
    assert 0 <= number < num_shards
    stem = os.fspath(path).removesuffix(_FILE_SUFFIX)
    return f"{stem}-{number:05}-of-{num_shards:05}{_FILE_SUFFIX}"


def set_of_shard(path: str) -> tuple[str, int] | None:
    """Return the dataset and number of shards that a shard's file name states; None for other names.

    Examples
    --------
    >>> set_of_shard("data/train-00002-of-00016.beton")
    ('data/train.beton', 16)
    """
    match = _SHARD.fullmatch(path)
    return None if match is None else (match[1] + _FILE_SUFFIX, int(match[2]))


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is named like a manifest."""
    return os.fspath(path).endswith(_FILE_SUFFIX + _SUFFIX)
