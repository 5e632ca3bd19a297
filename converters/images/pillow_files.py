"""Opens untrusted image files with Pillow: defines the formats, the size limit, and what counts as damage.

Formats that would start another program (EPS starts Ghostscript) are not opened. Pillow's limits and its leniency are
global variables; they are set here for one image at a time and restored.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from converters.images.pillow_fixes import corrected_pixels, stored_mode
from converters.source import SampleFault
from dataloading.tools import check_png_chunks

__all__ = ["MAX_PIXELS", "DamagedImage", "check_pixels", "open_header", "open_pillow"]

MAX_PIXELS = 1 << 28
"""Pixels an image may have by default: as many as the JPEG decoder takes."""

# In the order they are tried. HEIF and JXL need a plugin.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF", "HEIF", "JXL", "QOI", "PCX",
            "SGI", "ICO", "PSD", "TGA")  # fmt: skip
_PNG_START = b"\x89PNG\r\n\x1a\n"
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_SWITCHES = threading.RLock()


class DamagedImage(SampleFault):
    """An image file of a supported format whose data is damaged or truncated."""


def sniff(data: bytes) -> str:
    """Describe unreadable ``data`` for an error message."""
    if not data:
        return "the file is empty (0 bytes)"
    head = data[:16]
    shown = head.decode("ascii", "replace") if all(32 <= byte < 127 for byte in head) else head.hex(" ")
    return f"not an image that can be read ({len(data):,} bytes, starting with {shown!r})"


def check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    """Raise `SampleFault` for a (width, height) of more than ``max_pixels`` pixels."""
    count = size[0] * size[1]
    if count > max_pixels:
        raise SampleFault(
            f"it has {size[0]:,} x {size[1]:,} = {count:,} pixels, more than the {max_pixels:,} allowed; a larger "
            "--max-pixels (ImagePolicy.max_pixels) takes it"
        )


def open_pillow(
    data: bytes,
    *,
    max_pixels: int = MAX_PIXELS,
    as_shown: bool = False,
    examine: Callable[[Image.Image], None] | None = None,
) -> Image.Image:
    """Open and fully load an image file from memory, first frame.

    Parameters
    ----------
    data : bytes
        A whole image file.
    max_pixels : int
        A larger image is refused before its pixels are read.
    as_shown : bool
        Return for damaged data what Pillow shows with ``LOAD_TRUNCATED_IMAGES``.
    examine : callable, optional
        Gets the image before its pixels are read, and may raise `SampleFault`.

    Raises
    ------
    SampleFault
        If the image cannot be read; `DamagedImage` if the file is damaged.
    """
    errors: list[str] = []
    try:
        if data.startswith(_PNG_START) and not as_shown:
            check_png_chunks(np.frombuffer(data, np.uint8))
        with _pillow_settings(as_shown=as_shown), _libtiff_errors(data, errors):
            image = open_header(data, as_shown=as_shown)
            check_pixels(image.size, max_pixels)
            if examine is not None:
                examine(image)
            stored = stored_mode(image)
            image.load()
    except SampleFault:
        raise
    except MemoryError as error:
        raise SampleFault("not enough memory to decode it") from error
    except UnidentifiedImageError as error:
        raise SampleFault(sniff(data)) from error
    except Exception as error:  # decoders raise any exception on damaged data
        raise DamagedImage(f"cannot be decoded: {'; '.join([str(error) or type(error).__name__, *errors])}") from error
    if errors and not as_shown:
        raise DamagedImage(f"cannot be decoded: {'; '.join(errors)}")
    return corrected_pixels(image, stored)


def open_header(data: bytes, *, as_shown: bool = False) -> Image.Image:
    """Return a Pillow image from a file's header, without reading its pixels."""
    Image.init()  # the formats beyond the five most common ones
    with _pillow_settings(as_shown=as_shown):
        return Image.open(io.BytesIO(data), formats=[name for name in _FORMATS if name in Image.OPEN])


@contextlib.contextmanager
def _pillow_settings(*, as_shown: bool) -> Iterator[None]:
    """Set Pillow's global variables for one image: only our size limit, no warnings, leniency only on request."""
    with _SWITCHES, warnings.catch_warnings():
        # Pillow warns of odd metadata, which does not affect the pixels.
        warnings.simplefilter("ignore")
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = None, as_shown
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


@contextlib.contextmanager
def _libtiff_errors(data: bytes, errors: list[str]) -> Iterator[None]:
    """Put the first error that libtiff prints while a TIFF is read into ``errors``.

    Pillow does not report it, and does not even fail where rows of a fax are damaged. Warnings (of unknown tags) are
    dropped, since they concern no pixel.
    """
    if not data.startswith(_TIFF_STARTS):
        yield
        return
    try:
        stderr = os.dup(2)
    except OSError:  # stderr is closed, so nothing is printed
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            lines = file.read().decode(errors="replace").splitlines()
            errors += [line.strip() for line in lines if "Warning, " not in line or "Corrupt" in line][:1]
