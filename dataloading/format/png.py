"""Checks a PNG file with the standard library: its header, and that its data is complete.

Parses the container (ISO/IEC 15948) only, without undoing filters. Accepts the variants that we store: not interlaced,
no palette, 8 or 16 bits.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError, UsageError

__all__ = ["can_be_png", "check_png", "check_png_chunks", "check_png_header"]

Bytes = npt.NDArray[np.uint8]
SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""Channels -> gray, gray with alpha, RGB, RGBA."""
_HEADER_BYTES = 33
_STEP = 1 << 20


def can_be_png(channels: int, sample_bytes: int) -> bool:
    """Return whether such pixels can be stored as PNG: 1 to 4 channels of 8 bits, or 1 of 16 (what Pillow decodes)."""
    return channels in COLOUR_TYPES and (sample_bytes == 1 or channels == 1)


def check_png_header(data: Bytes, width: int, height: int, channels: int, sample_bytes: int) -> None:
    """Raise UsageError unless ``data`` starts with the header of a PNG of exactly this size and kind.

    Parameters
    ----------
    data : uint8 array, shape (n,)
        The file.
    width, height : int
        In pixels.
    channels : int
    sample_bytes : int
        1 or 2.
    """
    reason = _header_fault(data[:_HEADER_BYTES].tobytes(), width, height, channels, sample_bytes)
    if reason is not None:
        raise UsageError(reason)


def check_png(data: Bytes, width: int, height: int, channels: int, sample_bytes: int) -> None:
    """Check a whole PNG: header, checksums of all chunks, and number of rows.

    Parameters
    ----------
    data, width, height, channels, sample_bytes
        As `check_png_header`.

    Raises
    ------
    FormatError
        If anything is damaged or missing.
    """
    reason = _header_fault(data[:_HEADER_BYTES].tobytes(), width, height, channels, sample_bytes)
    if reason is not None:
        raise FormatError(reason)
    row_bytes = 1 + width * channels * sample_bytes
    inflate = zlib.decompressobj()
    size = 0
    try:
        for kind, body in _chunks(data):
            if kind == b"IDAT":
                # In steps, and not far beyond the declared size: data can inflate a thousandfold.
                pending: bytes = body
                while pending and size <= row_bytes * height:
                    rows = inflate.decompress(pending, _STEP)
                    size += len(rows)
                    pending = inflate.unconsumed_tail
    except zlib.error as error:
        raise FormatError(f"the PNG's data is damaged: {error}") from error
    if size != row_bytes * height or not inflate.eof:
        raise FormatError(f"the PNG holds {size} bytes of rows, expected {row_bytes * height}")


def check_png_chunks(data: Bytes) -> None:
    """Verify the checksum of every chunk of any PNG; decoders skip those of pixel data.

    Parameters
    ----------
    data : uint8 array, shape (n,)
        The file.

    Raises
    ------
    FormatError
        If a chunk is damaged, or the file ends before its last one.
    """
    for _ in _chunks(data):
        pass


def _header_fault(head: bytes, width: int, height: int, channels: int, sample_bytes: int) -> str | None:
    if len(head) < _HEADER_BYTES or head[:8] != SIGNATURE or head[8:16] != b"\0\0\0\rIHDR":
        return f"expected a PNG file, got bytes that start with {head[:8].hex(' ') or 'nothing'}"
    if zlib.crc32(head[12:29]) != int.from_bytes(head[29:33], "big"):
        return "the PNG's header is damaged"
    found = struct.unpack(">IIBBBBB", head[16:29])
    expected = (width, height, 8 * sample_bytes, COLOUR_TYPES.get(channels), 0, 0, 0)
    if found != expected:
        words = "width, height, bits, colour type, compression, filter, interlace"
        return f"the PNG's header ({words}) is {found}, expected {expected}"
    return None


def _chunks(data: Bytes) -> Iterator[tuple[bytes, bytes]]:
    position = len(SIGNATURE)
    while True:
        head = data[position : position + 8].tobytes()
        if len(head) < 8:
            raise FormatError("the PNG ends early")
        size, kind = int.from_bytes(head[:4], "big"), head[4:]
        body = data[position + 8 : position + 8 + size].tobytes()
        crc = data[position + 8 + size : position + 12 + size].tobytes()
        if len(crc) < 4:
            raise FormatError("the PNG ends early")
        if zlib.crc32(body, zlib.crc32(kind)) != int.from_bytes(crc, "big"):
            raise FormatError(f"the PNG's chunk {kind!r} at byte {position} is damaged")
        yield kind, body
        position += 12 + size
        if kind == b"IEND":
            return
