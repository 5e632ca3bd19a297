"""Indexes the members of tar files in one pass, without unpacking, with some tens of bytes per member.

Members are read by offset afterwards, so any process can read them in any order. Links inside an archive are followed.
Members that are not files are counted and named (`Unused`). Compressed tar files are first uncompressed into a
temporary file. A truncated or damaged tar file is an error; the standard library would end silently in the middle.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import posixpath
import tarfile
import tempfile
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

from converters.source import printable
from dataloading import ConvertError, UsageError
from dataloading.cli import note
from dataloading.messages import counted

from .local_copies import LocalCopy
from .packed_texts import PackedTexts
from .reading import open_stream

__all__ = ["TAR_ENDINGS", "Member", "TarRange", "Tars", "Unused", "is_hidden", "members"]

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
_BLOCK = 512
_READ_BYTES = 1 << 20
_PACKED_BYTES = 1 << 16
# A longer chain of links is a loop.
_MOST_LINKS = 1000
_KINDS_COUNTED, _NAMES_KEPT = 40, 3
_KINDS = {
    tarfile.CHRTYPE: "device nodes",
    tarfile.BLKTYPE: "device nodes",
    tarfile.FIFOTYPE: "pipes",
}
_UNKNOWN = "entries of the unknown type '{}'"


class Member(NamedTuple):
    """A file in a tar file: its path (bytes that are not UTF-8 as surrogates), and the location of its bytes."""

    name: str
    start: int
    size: int


class Unused:
    """Members that a conversion does not use: the number per kind, and the names of the first.

    Examples
    --------
    >>> unused = Unused()
    >>> for name in ("a.txt", "b.txt"): unused.add(".txt files", name)
    >>> print(unused)
    2 members are not used: .txt files: 2 (a.txt, b.txt)
    """

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, list[str]]] = {}

    def add(self, kind: str, name: str) -> None:
        """Count a member; ``kind`` is a plural."""
        if kind not in self._kinds and len(self._kinds) >= _KINDS_COUNTED:
            kind = "others"
        count, names = self._kinds.get(kind, (0, []))
        if count < _NAMES_KEPT:
            names.append(printable(name))
        self._kinds[kind] = (count + 1, names)

    def add_unnamed(self, number: int) -> None:
        """Count members without kind and name."""
        if number:
            count, names = self._kinds.get("others", (0, []))
            self._kinds["others"] = (count + number, names)

    def __len__(self) -> int:
        return sum(count for count, _ in self._kinds.values())

    def __str__(self) -> str:
        kinds = [
            f"{kind}: {count:,}" + (f" ({', '.join(names)}{', ...' if count > len(names) else ''})" if names else "")
            for kind, (count, names) in self._kinds.items()
        ]
        return f"{counted(len(self), 'member')} {'is' if len(self) == 1 else 'are'} not used: {'; '.join(kinds)}"

    def as_dict(self) -> dict[str, int]:
        """Return the count of each kind."""
        return {kind: count for kind, (count, _) in self._kinds.items()}


def is_hidden(name: str) -> bool:
    """Return whether a member is one of macOS's ``._name`` files or in a hidden folder."""
    *folders, base = name.split("/")
    return base.startswith("._") or any(part.startswith(".") and part not in {".", ".."} for part in folders)


class TarRange(NamedTuple):
    """The location of a tar file that can be read by offset: an open file, its path, start and stop in it."""

    file: BinaryIO
    path: str
    start: int
    stop: int


class Tars:
    """Opens tar files for the parent's pass over them, and keeps uncompressed ones.

    All compressed tar files of a source go into one temporary file.
    """

    def __init__(self) -> None:
        self._copy: LocalCopy | None = None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[TarRange]:
        """Open a tar file, path or URL; errors as `unpacked`."""
        with open_stream(path) as file:
            yield self.unpacked(TarRange(file, path, 0, file.seek(0, 2)), printable(path))

    def unpacked(self, tar: TarRange, label: str) -> TarRange:
        """Return where a tar file can be read by offset: where it is, or where it has been unpacked to.

        Raises
        ------
        ConvertError
            If it is damaged, cut short, or there is no room for it.
        UsageError
            If the library that unpacks it is missing, or it is compressed in another way.
        """
        tar.file.seek(tar.start)
        unpacker = _unpacker(tar.file.read(min(6, tar.stop - tar.start)), label)
        if unpacker is None:
            return tar
        if self._copy is None:
            note(f"unpacking compressed tar files to a temporary file in {tempfile.gettempdir()}")
            self._copy = LocalCopy(f"the unpacked {label}", "unpack the tar files into a folder that all machines see")
        out = self._copy.file
        start = out.seek(0, 2)
        make, damage = unpacker
        try:
            _unpack(_Part(tar), make, lambda data: _written(out, data))
            out.flush()
        except _NoRoomError as error:
            raise ConvertError(
                f"{label} cannot be unpacked to {tempfile.gettempdir()}: {error}; set TMPDIR to a folder with more "
                "room, or unpack the tar file and convert that"
            ) from error
        except (damage, EOFError) as error:
            raise ConvertError(f"{label} cannot be unpacked, it is damaged: {error}") from error
        return TarRange(out, self._copy.path, start, out.tell())


class _NoRoomError(Exception):
    pass


def _written(file: BinaryIO, data: bytes) -> None:
    try:
        file.write(data)
    except OSError as error:
        raise _NoRoomError(error.strerror or str(error)) from error


def _unpacker(head: bytes, label: str) -> tuple[Callable[[], Any], type[Exception]] | None:
    """Return the factory of a decompressor and its exception, or None if the data is not compressed."""
    if head[:2] == b"\x1f\x8b":
        return partial(zlib.decompressobj, wbits=31), zlib.error
    if head[:3] == b"BZh":
        return bz2.BZ2Decompressor, OSError
    if head == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor, lzma.LZMAError
    # A frame, or a skippable frame, which pzstd writes first.
    if head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        try:
            import zstandard
        except ImportError as error:
            raise UsageError(
                f'{label} is compressed with Zstandard: pip install "beton[zstd]", or uncompress it first'
            ) from error
        return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj, zstandard.ZstdError
    if head[:4] in {b"\x04\x22\x4d\x18", b"LZIP", b"\x89LZO"} or head[:2] in {b"\x1f\x9d", b"\x1f\xa0"}:
        raise UsageError(f"{label} is compressed; .tar.gz, .bz2, .xz and .zst are read, uncompress it first")
    return None


def _unpack(file: _Part, make: Callable[[], Any], write: Callable[[bytes], object]) -> None:
    """Uncompress concatenated streams, as from `cat a.gz b.gz`; zeros between them are padding."""
    current: Any = None
    while block := file.read(_PACKED_BYTES):
        while current is not None or (block := block.lstrip(b"\0")):
            current = make() if current is None else current
            write(current.decompress(block))
            if not current.eof:
                break
            current, block = None, current.unused_data
    if current is not None:
        raise EOFError("it is cut short")


class _Part:
    """A range of a file as a file object, for the standard library's reader."""

    def __init__(self, tar: TarRange) -> None:
        self._file = tar.file
        self._start = tar.start
        self._size = tar.stop - tar.start
        self._at = 0

    def seek(self, offset: int) -> int:
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(size, self._size - self._at)))
        self._at += len(data)
        return data


def members(
    file: BinaryIO, label: str, *, start: int = 0, stop: int | None = None, unused: Unused | None = None
) -> Iterator[Member]:
    """Yield the files in a tar file in order: regular files, and links to them.

    Parameters
    ----------
    file : seekable binary file
        Holds the tar file, or several concatenated ones, as from ``cat a.tar b.tar``.
    label : str
        Its name in messages.
    start, stop : int
        Its range in ``file`` (a tar file may be a member of another); by default all of it.
    unused : Unused, optional
        Counts members that are neither files nor folders, and links out of the archive.

    Raises
    ------
    ConvertError
        If it is not a tar file, is damaged or truncated, or has a loop of links.
    """
    index = _Index(label, Unused() if unused is None else unused)
    index.read(TarRange(file, "", start, file.seek(0, 2) if stop is None else stop))
    return index.members(start)


class _Link(NamedTuple):
    target: str
    is_hard: bool


class _Index:
    """The members of a tar file by number."""

    def __init__(self, label: str, unused: Unused) -> None:
        self._label = label
        self._unused = unused
        self._names = PackedTexts()
        self._starts, self._sizes = array("Q"), array("Q")
        self._links: dict[int, _Link] = {}
        self._folders: set[str] = set()
        self._archives: list[int] = []  # number of the first member of each archive
        # The rest is filled in if there are links.
        self._numbers: dict[str, list[int]] = {}
        self._inside: dict[str, list[int]] = {}

    def read(self, archive: TarRange) -> None:
        """Read concatenated archives."""
        part = _Part(archive)
        size = archive.stop - archive.start
        at = 0
        while True:
            part.seek(at)
            self._archives.append(len(self._names))
            try:
                with tarfile.open(fileobj=cast(BinaryIO, part), mode="r:", errors="surrogateescape") as tar:
                    while (entry := tar.next()) is not None:
                        tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                        self._take(entry, size)
                    end = tar.offset
            except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
                raise ConvertError(f"{self._label} cannot be read as a tar file: {error}") from error
            part.seek(end)
            self._check_end(part.read(_BLOCK), at, end, size)
            at = _skip_zeros(part, end)
            if at >= size:
                return

    def _check_end(self, mark: bytes, start: int, end: int, size: int) -> None:
        # At a damaged header the standard library stops, as after the last member.
        if mark.strip(b"\0"):
            if start == end:
                raise ConvertError(
                    f"{self._label} has {size - start:,} bytes behind its end mark that are no tar file, from byte "
                    f"{start} on; if nothing is missing, `truncate -s {start} FILE` cuts them off"
                )
            raise ConvertError(f"{self._label} is damaged: there is no member's header at byte {end}")
        if len(mark) < _BLOCK:
            raise ConvertError(
                f"{self._label} has no end mark behind its last member, so it may be cut short; if it is known to be "
                "whole, `truncate -s +1024 FILE` gives it one"
            )

    def _take(self, entry: tarfile.TarInfo, size: int) -> None:
        if entry.sparse is not None:
            raise ConvertError(f"{self._label}: {printable(entry.name)} is a sparse file; make the tar file without -S")
        if entry.isreg() and entry.offset_data + entry.size > size:
            raise ConvertError(
                f"{self._label} is cut short: {printable(entry.name)} reaches beyond its end, byte {size}"
            )
        if entry.isdir():
            self._folders.add(_plain(entry.name))
        elif entry.isreg() or entry.issym() or entry.islnk():
            if not entry.isreg():
                self._links[len(self._names)] = _Link(entry.linkname, entry.islnk())
            self._names.append(entry.name)
            self._starts.append(entry.offset_data)
            self._sizes.append(entry.size)
        else:
            self._unused.add(_KINDS.get(entry.type, _UNKNOWN.format(entry.type.decode("latin-1"))), entry.name)

    def members(self, start: int) -> Iterator[Member]:
        """Yield the files; targets of links at the links' positions."""
        targets = self._resolved() if self._links else {}
        for number in range(len(self._names)):
            yield from self._files(number, targets, start, self._names[number], ())

    def _files(
        self, number: int, targets: dict[int, int | str], start: int, name: str, above: tuple[str, ...]
    ) -> Iterator[Member]:
        target = targets.get(number) if number in self._links else number
        if isinstance(target, int):
            yield Member(name, start + self._starts[target], self._sizes[target])
        elif target is not None:
            own = _plain(name)
            if target in above or target == "" or f"{own}/".startswith(f"{target}/"):
                raise ConvertError(
                    f"{self._label}: the link {printable(self._names[number])} leads to a folder above itself; make "
                    "the tar file without it"
                )
            for inner in self._inside.get(target, ()):
                rest = _plain(self._names[inner])[len(target) :]
                yield from self._files(inner, targets, start, name.rstrip("/") + rest, (*above, target))

    def _resolved(self) -> dict[int, int | str]:
        """Return the target of each link: a file's number, or a folder's path."""
        for number in range(len(self._names)):
            self._numbers.setdefault(_plain(self._names[number]), []).append(number)
        for name in self._numbers:
            self._folders.update(_above(name))
        targets: dict[int, int | str] = {}
        for number in self._links:
            target = self._follow(number)
            if target is None:
                words = f"{self._names[number]} -> {self._links[number].target}"
                self._unused.add("links out of the archive", words)
            else:
                targets[number] = target
        if any(isinstance(target, str) for target in targets.values()):
            for number in range(len(self._names)):
                for folder in _above(_plain(self._names[number])):
                    self._inside.setdefault(folder, []).append(number)
        return targets

    def _follow(self, number: int) -> int | str | None:
        """Return a link's target: a file's number, a folder's path, or None if it does not exist."""
        here: list[str] = []
        rest = self._steps(number)
        found: int | None = None
        for _ in range(_MOST_LINKS):
            while rest:
                step = rest.pop()
                if step == "..":
                    if not here:
                        return None
                    here.pop()
                    found = None
                    continue
                here.append(step)
                found = self._number("/".join(here), number)
                if found in self._links:
                    break
            else:
                path = "/".join(here)
                return found if found is not None else path if path in self._folders or not path else None
            if not self._links[found].is_hard:  # relative to the link's folder
                here.pop()
            else:
                here.clear()
            number = found
            if self._links[found].target.startswith("/"):
                here.clear()
            rest += _reversed_steps(self._links[found].target)
        raise ConvertError(
            f"{self._label}: the links {printable(self._names[number])} and {printable(self._links[number].target)} "
            "lead to one another; make the tar file without them"
        )

    def _steps(self, number: int) -> list[str]:
        name, link = self._names[number], self._links[number]
        if link.is_hard or link.target.startswith("/"):
            return _reversed_steps(link.target)
        return _reversed_steps(f"{posixpath.dirname(name)}/{link.target}")

    def _number(self, path: str, link: int) -> int | None:
        """Return the member of that path that is a link's target.

        For a hard link it is the last one before the link, for a symbolic link the last one of its archive.
        """
        numbers = self._numbers.get(path)
        if not numbers:
            return None
        if self._links[link].is_hard:
            before = bisect_left(numbers, link)
            return numbers[before - 1] if before else numbers[0]
        archive = bisect_right(self._archives, link)
        stop = self._archives[archive] if archive < len(self._archives) else len(self._names)
        last = bisect_left(numbers, stop)
        return numbers[last - 1] if last and numbers[last - 1] >= self._archives[archive - 1] else numbers[-1]


def _skip_zeros(part: _Part, start: int) -> int:
    """Return the offset of the first block that is not all zeros, or the end of the file."""
    part.seek(start)
    at = start
    while block := part.read(_READ_BYTES):
        zeros = len(block) - len(block.lstrip(b"\0"))
        at += zeros
        if zeros < len(block):
            return start + (at - start) // _BLOCK * _BLOCK
    return at


def _plain(name: str) -> str:
    """Return a member's normalised path from the archive's root."""
    return posixpath.normpath("/" + name).lstrip("/")


def _above(name: str) -> Iterator[str]:
    """Yield the parent folders of a path, the nearest first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _reversed_steps(path: str) -> list[str]:
    return [step for step in reversed(path.split("/")) if step not in {"", "."}]
