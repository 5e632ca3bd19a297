"""Small datasets of each kind, and one way to look at all samples of a source."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..making import encoded, photo

Samples = list[dict[str, Any]]


def jpeg(seed: int, width: int = 24, height: int = 18) -> bytes:
    """The bytes of a small JPEG file; equal for equal seeds."""
    return encoded(photo(width, height, seed=seed), "JPEG", quality=92)


def samples(source: Any) -> Samples:
    """All samples as the workers get them: source and load have been through pickle."""
    load = pickle.loads(pickle.dumps(source.load))
    return [load(pickle.loads(pickle.dumps(source.task(index)))) for index in range(len(source))]


def tar_of(path: Path, entries: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    """A tar file with these members."""
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as tar:
        for name, data in entries:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def tar_bytes(entries: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of such a file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in entries:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
