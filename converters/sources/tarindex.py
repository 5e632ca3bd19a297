"""Where the members of tar files lie, found in one pass without unpacking, held in some tens of bytes a member.

Reading is by offset afterwards, so members can be taken in any order by any process. A tar file that is compressed,
cut short or damaged is an error here, where the standard library would end quietly in the middle.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from dataloading import ConvertError, UsageError

from .base import printable

__all__ = ["Member", "members"]

_BLOCK = 512


class Member(NamedTuple):
    """A file in a tar file.

    Attributes
    ----------
    name : str
        Its path; bytes that are not UTF-8 as surrogates.
    start, size : int
        Where its bytes lie in the tar file.
    """

    name: str
    start: int
    size: int


def members(file: BinaryIO, label: str, *, start: int = 0, stop: int | None = None) -> Iterator[Member]:
    """Yield the regular files in a tar file, in its order.

    Parameters
    ----------
    file : seekable binary file
        Holds the tar file.
    label : str
        What messages call it.
    start, stop : int
        Where in ``file`` it lies (a tar file may be a member of another); by default all of it.

    Raises
    ------
    ConvertError
        If it is no tar file, or is damaged or cut short.
    UsageError
        If it is compressed.
    """
    end = file.seek(0, 2) if stop is None else stop
    file.seek(start)
    head = file.read(min(4, end - start))
    if head[:2] == b"\x1f\x8b" or head[:3] == b"BZh" or head == b"\xfd7zX" or head == b"\x28\xb5\x2f\xfd":
        raise UsageError(f"{label} is compressed, so its members cannot be read by offset; uncompress it first")
    file.seek(start)
    try:
        tar = tarfile.open(fileobj=file, mode="r:", errors="surrogateescape")  # noqa: SIM115 - the file is not ours
        while (entry := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if entry.sparse is not None:
                raise ConvertError(f"{label}: {printable(entry.name)} is a sparse file; make the tar file without -S")
            if entry.offset_data + entry.size > end:
                raise ConvertError(f"{label} is cut short: {printable(entry.name)} reaches beyond its end, byte {end}")
            if entry.isreg():
                yield Member(entry.name, entry.offset_data, entry.size)
        place = tar.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise ConvertError(f"{label} cannot be read as a tar file: {error}") from error
    # After a damaged header the standard library ends as after the last member.
    file.seek(place)
    mark = file.read(max(0, min(_BLOCK, end - place)))
    if mark.strip(b"\0"):
        raise ConvertError(f"{label} is damaged: there is no member's header at byte {place - start}")
    if len(mark) < _BLOCK:
        raise ConvertError(
            f"{label} has no end mark behind its last member, so it may be cut short; if it is known to be whole, "
            "`truncate -s +1024 FILE` gives it one"
        )
