"""One channel in, one plane out: the same bytes as any of the three equal planes of an RGB request."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataloading import _native as native
from dataloading.format import MODE_JPEG, MODE_RAW

from .reference import photo, pillow_jpeg

WIDTH, HEIGHT = 61, 45


def gray_photo() -> np.ndarray:
    return np.asarray(Image.fromarray(photo(HEIGHT, WIDTH)).convert("L"))


def gray_jpeg(**options: object) -> bytes:
    return pillow_jpeg(gray_photo(), **options)


def kept(data: bytes) -> bytes:
    return native.transcode_jpeg(data)


SOURCES = {
    "raw": gray_photo(),
    "baseline": gray_jpeg(),
    "restart markers": kept(gray_jpeg()),
    "progressive": gray_jpeg(progressive=True),
}


def render(source: np.ndarray | bytes, channels: int, columns: dict[str, object], out: tuple[int, int]) -> np.ndarray:
    """Pixels of one request, shape (channels, height, width); raises with the status' text."""
    if isinstance(source, np.ndarray):
        pixels = source if channels == 1 else np.repeat(source[:, :, None], 3, axis=2)
        data = np.ascontiguousarray(pixels).reshape(-1)
    else:
        data = np.frombuffer(source, np.uint8)
    result = np.full((channels, *out), 0xA5, np.uint8)
    request = np.zeros(1, native.REQUEST)
    request["src"], request["src_bytes"] = data.ctypes.data, data.size
    request["mode"] = MODE_RAW if isinstance(source, np.ndarray) else MODE_JPEG
    request["src_width"], request["src_height"], request["channels"] = WIDTH, HEIGHT, channels
    request["dst"], request["plane_stride"], request["row_stride"] = result.ctypes.data, out[0] * out[1], out[1]
    request["out_h"], request["out_w"] = out
    for name, value in columns.items():
        request[name] = value
    if native.decode_regions(request):
        raise ValueError(native.status_text(int(request["status"][0])))
    return result


@st.composite
def regions(draw: st.DrawFn) -> tuple[dict[str, object], tuple[int, int]]:
    box_w, box_h = draw(st.integers(1, WIDTH)), draw(st.integers(1, HEIGHT))
    exact = draw(st.booleans())
    scaled_w = box_w if exact else draw(st.integers(1, 90))
    scaled_h = box_h if exact else draw(st.integers(1, 90))
    out = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    columns = {
        "box_x": draw(st.integers(0, WIDTH - box_w)),
        "box_y": draw(st.integers(0, HEIGHT - box_h)),
        "box_w": box_w,
        "box_h": box_h,
        "scaled_w": scaled_w,
        "scaled_h": scaled_h,
        "window_x": draw(st.integers(-10, 20)),
        "window_y": draw(st.integers(-10, 20)),
        "pad_mode": draw(st.sampled_from([native.PAD_CONSTANT, native.PAD_EDGE, native.PAD_REFLECT])),
        "fill": (7, 7, 7, 0),
        "flip": draw(st.integers(0, 3)),
        "interpolation": draw(st.sampled_from([native.NEAREST, native.BILINEAR, native.BICUBIC])),
        "antialias": draw(st.booleans()),
    }
    return columns, out


@pytest.mark.parametrize("kind", SOURCES)
@given(region=regions())
def test_one_plane_is_any_of_three(kind: str, region: tuple[dict[str, object], tuple[int, int]]) -> None:
    columns, out = region
    three = render(SOURCES[kind], 3, columns, out)
    one = render(SOURCES[kind], 1, columns, out)
    np.testing.assert_array_equal(one[0], three[0])
    np.testing.assert_array_equal(three[1], three[0])


def whole() -> dict[str, object]:
    return {"box_w": WIDTH, "box_h": HEIGHT, "scaled_w": WIDTH, "scaled_h": HEIGHT}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_whole_gray_image_equals_pillows(kind: str) -> None:
    source = SOURCES[kind]
    expected = source if isinstance(source, np.ndarray) else np.asarray(Image.open(io.BytesIO(source)))
    np.testing.assert_array_equal(render(source, 1, whole(), (HEIGHT, WIDTH))[0], expected)


def test_a_colour_jpeg_is_refused_where_gray_was_declared() -> None:
    colour = pillow_jpeg(photo(HEIGHT, WIDTH))
    with pytest.raises(ValueError, match="colours, where a gray image was declared"):
        render(colour, 1, whole(), (HEIGHT, WIDTH))


def test_raw_gray_of_another_byte_count_is_refused() -> None:
    with pytest.raises(ValueError, match="byte count"):
        render(gray_photo()[:-1], 1, whole(), (HEIGHT, WIDTH))
