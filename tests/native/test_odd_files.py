"""What libjpeg decodes without a warning that concerns pixels comes out alike on every path; all else on none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dataloading import _native as native
from dataloading.errors import DecodeError

from .odd_files import damaged, flat_jpeg, one_block, readable, segment, with_codes
from .reference import Region, Table, decode, expected, photo, pillow_jpeg, pillow_pixels

READABLE, DAMAGED = readable(), damaged()
# No difference, three runs of 16 zeros, then 15 zeros and a 1, with the standard tables.
BAD_RUN = "00" + 3 * "11111111001" + "1111111111110101" + "1"
WHOLE_FILE = (native.decode_jpeg, native.check_jpeg, native.transcode_jpeg)


def refusal(function: Callable[[bytes], object], data: bytes) -> str | None:
    try:
        function(data)
    except DecodeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", READABLE)
def test_what_libjpeg_reads_is_read_on_every_path_with_its_pixels(name: str, kernels: str) -> None:
    data, plain = READABLE[name]
    pixels = pillow_pixels(plain)
    if "behind the first marker" not in name:  # Pillow wants three bytes, libjpeg two
        np.testing.assert_array_equal(pillow_pixels(data), pixels)
    np.testing.assert_array_equal(native.decode_jpeg(data), pixels)
    native.check_jpeg(data)
    clean = native.transcode_jpeg(data)
    np.testing.assert_array_equal(pillow_pixels(clean), pixels)
    for region in (Region(box=(0, 0, 83, 61)), Region(box=(40, 37, 43, 24)), Region(box=(3, 5, 30, 20))):
        np.testing.assert_array_equal(decode(data, (83, 61), region), expected(pixels, region))
    for box in ((0, 0, 83, 61), (50, 30, 33, 31)):
        region = Region(box=box, scaled=(31, 23))
        np.testing.assert_allclose(
            decode(data, (83, 61), region).astype(int), decode(clean, (83, 61), region).astype(int), atol=5
        )


@pytest.mark.parametrize("name", [name for name in READABLE if name.startswith("gray")])
def test_gray_regions_of_odd_files_are_those_of_the_plain_one(name: str, kernels: str) -> None:
    data, plain = READABLE[name]
    out = np.zeros((61, 83), np.uint8)
    source = np.frombuffer(data, np.uint8)
    request = np.zeros(1, native.REQUEST)
    request["src"], request["src_bytes"], request["dst"] = source.ctypes.data, source.size, out.ctypes.data
    request["plane_stride"], request["row_stride"], request["channels"] = out.size, 83, 1
    for side, size in (("w", 83), ("h", 61)):
        request[f"box_{side}"] = request[f"scaled_{side}"] = request[f"out_{side}"] = size
    request["src_width"], request["src_height"] = 83, 61
    assert native.decode_regions(request) == 0
    np.testing.assert_array_equal(out, pillow_pixels(plain)[:, :, 0])


@pytest.mark.parametrize("name", DAMAGED)
def test_what_libjpeg_makes_up_is_refused_on_every_path_for_the_same_reason(name: str, kernels: str) -> None:
    data = DAMAGED[name]
    found = {(refusal(function, data) or "decoded").split(" (")[0] for function in WHOLE_FILE}
    assert len(found) == 1
    assert "decoded" not in found
    size = (8, 8) if len(data) < 400 else (83, 61)
    table = Table()
    table.add(data, size, Region(box=(0, 0, *size)))
    table.add(data, size, Region(box=(0, 0, *size), scaled=(9, 9)))
    assert table.run()[0] == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plain: stray bytes before the end", "3 stray bytes between the segments"),
        ("gray: junk behind the first marker", "1 stray byte between the segments"),
        ("progressive: junk between the headers", "5 stray bytes between the segments"),
        ("markers: stray bytes before RST0", None),
        ("plain: equal component ids", ""),
        ("plain: a comment of length 0", ""),
        ("plain: plain", ""),
    ],
)
def test_stray_bytes_are_reported_and_nothing_else_is(name: str, words: str | None) -> None:
    data = READABLE[name][0] if name in READABLE else pillow_jpeg(photo(20, 20))
    for function in WHOLE_FILE:
        notes: list[str] = []
        function(data, notes=notes)
        if words is None:
            assert len(notes) == 1
            assert notes[0].endswith("stray bytes between the segments")
        else:
            assert notes == ([words] if words else [])
        function(data)  # without a list there is nothing to tell
    clean: list[str] = []
    native.check_jpeg(native.transcode_jpeg(data), notes=clean)
    assert clean == []


def test_large_images_are_checked_for_the_same_codes_as_small_ones() -> None:
    """Beyond 2**24 pixels libjpeg decodes; it lets runs of zeros leave their block."""
    side = 4112
    gray = pillow_jpeg(np.full((side, side), 128, np.uint8))
    scan = gray.index(b"\xff\xda")
    head = gray[: scan + 2 + int.from_bytes(gray[scan + 2 : scan + 4], "big")]
    four_flat = bytes.fromhex("28a28a")  # four times 00 1010: no difference, end of block
    groups = (side // 8) ** 2 // 4
    whole = head + four_flat * groups + b"\xff\xd9"
    broken = head + four_flat * (groups - 1) + with_codes(one_block("00"), BAD_RUN + 3 * "001010")[-12:]
    assert all(refusal(function, whole) is None for function in WHOLE_FILE)
    for function in WHOLE_FILE:
        assert refusal(function, broken) == "JPEG data holds an invalid entropy code"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("more blocks in an MCU than one scan may have", flat_jpeg((50, 40), [(4, 2), (2, 2), (1, 1)])),
        (
            "a quantisation table that is defined anew between scans",
            flat_jpeg((50, 40), [(2, 2), (1, 1), (1, 1)], tables=segment(0xDB, b"\0" + bytes([3] * 64))),
        ),
        ("four components", flat_jpeg((20, 20), [(2, 2), (1, 1), (1, 1), (2, 2)])),
    ],
)
def test_what_can_be_decoded_can_be_transcoded(name: str, data: bytes) -> None:
    native.check_jpeg(data)
    clean = native.transcode_jpeg(data)
    native.check_jpeg(clean)
    np.testing.assert_array_equal(pillow_pixels(clean), pillow_pixels(data))


@pytest.mark.parametrize("factors", [[(3, 1), (2, 1), (1, 1)], [(3, 1), (1, 1), (2, 1)], [(1, 4), (1, 3), (1, 1)]])
def test_sampling_that_libjpeg_cannot_upsample_is_refused_by_all(factors: list[tuple[int, int]]) -> None:
    data = flat_jpeg((40, 40), factors)
    assert all("not supported" in (refusal(function, data) or "") for function in WHOLE_FILE)


def test_a_component_that_never_comes_is_missing_data() -> None:
    data = flat_jpeg((40, 40), [(1, 1), (1, 1), (1, 1)])
    third = data.rindex(b"\xff\xda")
    assert pillow_pixels(data).shape == (40, 40, 3)
    for function in WHOLE_FILE:
        assert "ends early" in (refusal(function, data[:third] + b"\xff\xd9") or "")


@pytest.mark.parametrize("seed", range(4))
def test_decoding_checking_and_transcoding_judge_mutated_files_alike(seed: int, kernels: str) -> None:
    rng = np.random.default_rng(seed)
    names = sorted(READABLE)
    agreed = {True: 0, False: 0}
    for _ in range(120):
        data = bytearray(READABLE[names[int(rng.integers(len(names)))]][0])
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(2, len(data)))
            kind = int(rng.integers(3))
            if kind == 0:
                data[at] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                data[at:at] = rng.bytes(int(rng.integers(1, 5)))
            else:
                del data[at : at + int(rng.integers(1, 5))]
        verdicts = {refusal(function, bytes(data)) is None for function in WHOLE_FILE}
        assert len(verdicts) == 1, data.hex()
        sound = verdicts.pop()
        agreed[sound] += 1
        if sound:
            info = native.probe_jpeg(bytes(data))
            box = (0, 0, info.width, info.height)
            region = decode(bytes(data), box[2:], Region(box=box))
            np.testing.assert_array_equal(region.transpose(1, 2, 0), native.decode_jpeg(bytes(data)))
    assert min(agreed.values()) > 5
