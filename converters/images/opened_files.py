"""Tracks the image files that a dataset opens for a sample, so that their bytes can be stored.

If a dataset returns an image as Pillow read it, it need not be encoded again. `watched` records which files are opened.
`file_of` finds the one that an image was read from, by comparing all pixels, since a dataset may change them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from converters.images.pillow_files import open_pillow
from converters.images.rgb import as_rgb
from converters.source import SampleFault

__all__ = ["FileImage", "Opened", "file_of", "recorded", "watched"]

_MOST_OPENED = 64
_ODD_COLOUR = (1, 254, 77)  # the colour behind transparent pixels, which would show after compositing


@dataclasses.dataclass(frozen=True)
class FileImage:
    """An image of the user's program, and its file's bytes, which have the same RGB pixels.

    ``has_mode_of_file`` tells whether it has the channels and the depth of the file too.
    """

    image: Image.Image
    data: bytes
    has_mode_of_file: bool


@dataclasses.dataclass(frozen=True)
class Opened:
    """A file that was opened: its path or its bytes, and the size of its image."""

    content: str | bytes
    size: tuple[int, int]

    def read(self) -> bytes:
        """Return the file's bytes."""
        return self.content if isinstance(self.content, bytes) else Path(self.content).read_bytes()


class _Watch(threading.local):
    """The files this thread has opened; None while it is not watched."""

    opened: list[Opened] | None = None


_watch = _Watch()
_lock = threading.Lock()
_num_watching = 0
_open: Any = None


def _recording_open(fp: Any, *args: Any, **options: Any) -> Image.Image:
    image: Image.Image = _open(fp, *args, **options)
    opened = _watch.opened
    if opened is not None and len(opened) < _MOST_OPENED:
        # If the file cannot be read again, the program's pixels are stored.
        with contextlib.suppress(Exception):
            opened.append(Opened(_content(fp), image.size))
    return image


def _content(fp: Any) -> str | bytes:
    if isinstance(fp, (str, bytes, os.PathLike)):
        return os.path.abspath(os.fsdecode(fp))
    place = fp.tell()
    try:
        fp.seek(0)  # where Pillow begins
        return bytes(fp.read())
    finally:
        fp.seek(place)


class watched:  # noqa: N801 - used as a function; a generator would take several times as long
    """Record the image files that this thread opens with ``PIL.Image.open``; a context manager."""

    __slots__ = ("_before",)

    def __enter__(self) -> list[Opened]:
        global _num_watching, _open
        with _lock:
            if _num_watching == 0:
                _open, Image.open = Image.open, _recording_open  # type: ignore[assignment]
            _num_watching += 1
        opened: list[Opened] = []
        self._before, _watch.opened = _watch.opened, opened
        return opened

    def __exit__(self, *_: object) -> None:
        global _num_watching
        _watch.opened = self._before
        with _lock:
            _num_watching -= 1
            if _num_watching == 0:
                Image.open = _open


def recorded() -> list[Opened] | None:
    """Return the record of the `watched` that this thread is in, for clearing and reading; None outside of any."""
    return _watch.opened


def file_of(image: object, opened: Sequence[Opened]) -> FileImage | None:
    """Return a Pillow image with the opened file that has its pixels; None if there is none."""
    if not isinstance(image, Image.Image):
        return None
    for each in opened:
        if each.size != image.size:
            continue
        try:
            data = each.read()
            stored = open_pillow(data)
            image.load()
            if np.array_equal(_compared(stored), _compared(image)):
                return FileImage(image, data, stored.mode == image.mode)
        except (SampleFault, OSError, ValueError):  # storing the image will raise the error
            continue
    return None


def _compared(image: Image.Image) -> np.ndarray[Any, Any]:
    if image.mode.startswith(("I", "F")):
        return np.asarray(image)
    return np.asarray(as_rgb(image, background=_ODD_COLOUR))
