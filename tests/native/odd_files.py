"""JPEGs as they should not be, made anew: what libjpeg reads all the same, and what it does not."""

from __future__ import annotations

import math

import numpy as np

from .reference import photo, pillow_jpeg

__all__ = ["damaged", "flat_jpeg", "one_block", "readable", "segment", "with_codes"]

END = b"\xff\xd9"


def segment(marker: int, body: bytes) -> bytes:
    """A marker with its length and body."""
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def _before_end(data: bytes, extra: bytes) -> bytes:
    at = data.rindex(END)
    return data[:at] + extra + data[at:]


def _before(data: bytes, marker: bytes, extra: bytes) -> bytes:
    at = data.index(marker)
    return data[:at] + extra + data[at:]


def _equal_ids(data: bytes) -> bytes:
    changed, frame, scan = bytearray(data), data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    for component in range(3):
        changed[frame + 10 + 3 * component] = changed[scan + 5 + 2 * component] = 7
    return bytes(changed)


def _empty_tables(data: bytes) -> bytes:
    """As WhatsApp writes them: DHT segments without a table, before each scan."""
    return data.replace(b"\xff\xda", b"\xff\xc4\x00\x02\xff\xda")


def readable() -> dict[str, tuple[bytes, bytes]]:
    """Name -> (a JPEG whose pixels libjpeg delivers without a warning that concerns them, the plain file)."""
    pixels = photo(61, 83, 1)
    kinds = {
        "plain": pillow_jpeg(pixels),
        "4:4:4": pillow_jpeg(pixels, subsampling=0),
        "markers": pillow_jpeg(pixels, restart_marker_blocks=3),
        "gray": pillow_jpeg(pixels[:, :, 0]),
        "progressive": pillow_jpeg(pixels, progressive=True),
    }
    found: dict[str, tuple[bytes, bytes]] = {}
    for kind, data in kinds.items():
        odd = {
            "stray bytes before the end": _before_end(data, b"\0\1\2"),
            "stray stuffing before the end": _before_end(data, b"\xff\0\xff\0\5"),
            "a stray restart marker before the end": _before_end(data, b"\xff\xd0"),
            "two zeros before the end": _before_end(data, b"\0\0"),
            "fill bytes before the end": _before_end(data, b"\xff" * 9),
            "a comment behind the scan": _before_end(data, segment(0xFE, b"late")),
            "DNL behind the scan": _before_end(data, segment(0xDC, b"\0\x3d")),
            "tables behind the scan": _before_end(data, segment(0xDB, b"\1" + bytes(range(1, 65)))),
            "junk between the headers": data[:20] + b"\0junk" + data[20:],
            "junk before the frame": _before(data, b"\xff\xdb", b"\xff\0junk\xff\0"),
            "junk behind the first marker": data[:2] + b"\0" + data[2:],
            "DNL among the headers": _before(data, b"\xff\xda", segment(0xDC, b"\0\x3d")),
            "a restart marker among the headers": _before(data, b"\xff\xdb", b"\xff\xd3"),
            "a comment of length 0": _before(data, b"\xff\xdb", b"\xff\xfe\0\0"),
            "a comment of length 1": _before(data, b"\xff\xdb", b"\xff\xfe\0\1"),
            "APP9 of length 0": _before(data, b"\xff\xdb", b"\xff\xe9\0\0"),
            "empty DHT": _empty_tables(data),
            "empty DQT": _before(data, b"\xff\xdb", b"\xff\xdb\0\2"),
            "garbage behind the end": data + b"\0garbage\xff\xd8\xff" * 20,
        }
        if kind in (
            "plain",
            "4:4:4",
            "markers",
        ):  # among equal ids the scans of a progressive file cannot be told apart
            odd["no Huffman tables, as in motion JPEG"] = data.replace(b"\xff\xc4", b"\xff\xfe")
            odd["equal component ids"] = _equal_ids(data)
        if kind == "markers":
            for number in (0, 4):
                marker = bytes([0xFF, 0xD0 + number])
                odd[f"stray bytes before RST{number}"] = data.replace(marker, b"\0\1\2" + marker)
        found |= {f"{kind}: {what}": (changed, data) for what, changed in odd.items()}
    return found


def damaged() -> dict[str, bytes]:
    """Name -> a JPEG of which libjpeg makes up pixels, or makes none."""
    pixels = photo(61, 83, 1)
    data, marked = pillow_jpeg(pixels), pillow_jpeg(pixels, restart_marker_blocks=3)
    progressive = pillow_jpeg(pixels, progressive=True)
    frame = data.index(b"\xff\xc0")
    middle = data.index(b"\xff\xda") + (len(data) - data.index(b"\xff\xda")) // 2
    last_scan = progressive.rindex(b"\xff\xda")
    return {
        "no end": data[:-2],
        "cut": data[:middle] + END,
        "progressive cut": progressive[:last_scan] + END,
        "markers cut": marked[: len(marked) * 2 // 3] + END,
        "a lost restart marker": marked.replace(b"\xff\xd3", b"", 1),
        "restart markers out of order": marked.replace(b"\xff\xd3", b"\xff\xd5", 1),
        "a restart marker inside": data[:middle] + b"\xff\xd0" + data[middle:],
        "a second frame": _before_end(data, data[frame : frame + 19]),
        "a second image": _before_end(data, b"\xff\xd8"),
        "a reserved marker": _before(data, b"\xff\xda", segment(0xF0, b"abc")),
        "height 0 and DNL": data[: frame + 5] + b"\0\0" + data[frame + 7 :],
        "a second scan": _before_end(data, data[data.index(b"\xff\xda") :][:14] + b"\x12\x34"),
        "a side of 65,501": data[: frame + 5] + (65_501).to_bytes(2, "big") + data[frame + 7 :],
        "DC 1,200": one_block("111111110" + "10010110000" + "1010"),
        "DC difference of 12 bits": one_block("111111110" + "100000000000" + "1010", dc_symbol=12),
        "AC value of 11 bits": one_block("00" + "1111111110000011" + "1" * 11 + "1010", ac_symbol=0x0B),
        "zeros that leave their block": one_block("00" + 3 * "11111111001" + "1111111111110101" + "1"),
        "no such code": one_block("00" + "1" * 16),
    }


def with_codes(data: bytes, bits: str) -> bytes:
    """The file with other entropy-coded data."""
    scan = data.index(b"\xff\xda")
    head = data[: scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")]
    bits += -len(bits) % 8 * "1"
    return head + int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0") + END


def one_block(bits: str, *, dc_symbol: int = 0, ac_symbol: int = 0) -> bytes:
    """A gray JPEG of 8 x 8 pixels and these codes.

    Parameters
    ----------
    bits : str
        Zeros and ones.
    dc_symbol, ac_symbol : int
        Not 0: stands in the standard table in the place of 11, or of 0x0A.
    """
    data = bytearray(pillow_jpeg(np.full((8, 8), 128, np.uint8)))
    at = 0
    while (at := data.find(b"\xff\xc4", at + 1)) >= 0:
        is_ac, symbols = data[at + 4] >> 4, at + 5 + 16
        count = sum(data[at + 5 : symbols])
        if dc_symbol and not is_ac:
            data[symbols + count - 1] = dc_symbol
        if ac_symbol and is_ac:
            data[symbols + bytes(data[symbols : symbols + count]).index(0x0A)] = ac_symbol
    return with_codes(bytes(data), bits)


def flat_jpeg(size: tuple[int, int], factors: list[tuple[int, int]], *, tables: bytes = b"") -> bytes:
    """A sequential JPEG of one level, one scan a component.

    Parameters
    ----------
    size : (int, int)
        Width and height.
    factors : list of (int, int)
        Horizontal and vertical sampling, by component.
    tables : bytes
        What stands between the scans.
    """
    (width, height), count = size, len(factors)
    frame = bytes([8]) + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes([count])
    for number, (h, v) in enumerate(factors):
        frame += bytes([number + 1, h << 4 | v, 0])
    data = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64)) + segment(0xC0, frame)
    for place in (b"\0", b"\x10"):  # one code of two bits each: no difference, and end of block
        data += segment(0xC4, place + bytes([0, 1] + [0] * 14) + b"\0")
    h_max, v_max = max(h for h, _ in factors), max(v for _, v in factors)
    for number, (h, v) in enumerate(factors):
        blocks = math.ceil(math.ceil(width * h / h_max) / 8) * math.ceil(math.ceil(height * v / v_max) / 8)
        data += segment(0xDA, bytes([1, number + 1, 0, 0, 63, 0])) + bytes(math.ceil(blocks * 4 / 8)) + tables
    return data + END
