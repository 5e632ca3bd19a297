"""Kernels that resample an image along a map of coordinates: affine (rotation, shear ...), perspective, elastic.

For each row of the result a *row function* writes where its pixels come from, in float32; a sampler reads the source
there. Coordinates count from the corner pixel of the source *with a border of one pixel*: the border holds the fill,
so that clamping coordinates to it is all that the outside takes. Definitions: ``torchvision/transforms/v2/functional/
_geometry.py`` and ``torch.nn.functional.grid_sample`` (``align_corners=False``, zeros outside).

Constants of all operations here: ``[has_fill, fill of channel 0, 1, ..., what the operation adds]``. Without
``has_fill``, bilinear results fade to 0 at the edge; with it they fade as torchvision's do: the share ``m`` of the
four neighbours that lies inside weighs the value twice, ``(value - fill) * m + fill``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.filters import STRIP, blurred_rows, gaussian_weights, prepare_blur
from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.memory import numbers_at, plane_of, row_of
from dataloading.transforms.kernels.move import shift
from dataloading.transforms.kernels.rng import child, randint, uniform
from dataloading.transforms.kernels.values import ROUND, rounded

__all__ = [
    "affine_bilinear",
    "affine_bilinear_deep",
    "affine_nearest",
    "affine_params",
    "affine_shift",
    "corners",
    "elastic_bilinear",
    "elastic_bilinear_deep",
    "elastic_field",
    "elastic_nearest",
    "perspective_bilinear",
    "perspective_bilinear_deep",
    "perspective_coefficients",
    "perspective_nearest",
]

# Numba computes in 64 bits unless each intermediate result is cut back to 32: then LLVM vectorises twice as wide.
_F, _I, _U = np.float32, np.int32, np.uint32
_ZERO, _ONE, _TOP = _F(0), _F(1), _F(255)
_ONE_NUMBER = np.zeros(1, np.float32)
_BELOW_ONE = _F(1.0 - 2.0**-23)
_BYTE, _8, _16, _24 = _U(255), _U(8), _U(16), _U(24)


# -- where the pixels of a row come from ---------------------------------------------------------------------------


@kernel
def _affine_row(m: Any, field: Any, y: Any, xs: Any, ys: Any) -> None:
    """``(m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5])``."""
    per_x = _F(m[0])
    per_y = _F(m[3])
    first_x = _F(m[1] * y + m[2])
    first_y = _F(m[4] * y + m[5])
    for x in range(xs.size):
        i = _F(_I(x))
        xs[x] = per_x * i + first_x
        ys[x] = per_y * i + first_y


@kernel
def _perspective_row(m: Any, field: Any, y: Any, xs: Any, ys: Any) -> None:
    """``(m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]) / (m[6] x + m[7] y + 1)`` between centres of pixels."""
    v = y + 0.5
    num_x = _F(m[1] * v + m[2])
    num_y = _F(m[4] * v + m[5])
    den = _F(m[7] * v + 1.0)
    a = _F(m[0])
    d = _F(m[3])
    g = _F(m[6])
    half = _F(0.5)
    for x in range(xs.size):
        u = _F(_I(x)) + half
        w = g * u + den
        xs[x] = (a * u + num_x) / w + half
        ys[x] = (d * u + num_y) / w + half


@kernel
def _elastic_row(m: Any, field: Any, y: Any, xs: Any, ys: Any) -> None:
    """``(x + field[y, x], y + field[height + y, x])``."""
    right = field[y]
    down = field[field.shape[0] // 2 + y]
    v = _F(y + 1)
    for x in range(xs.size):
        xs[x] = right[x] + (_F(_I(x)) + _ONE)
        ys[x] = down[x] + v


# -- reading the source there --------------------------------------------------------------------------------------


@kernel
def _with_border(plane: Any, value: Any, out: Any) -> None:
    """Copy one channel into ``out``, of one dimension: two pixels wider and higher, between pixels of ``value``."""
    height = plane.shape[0]
    width = plane.shape[1]
    stride = width + 2
    for x in range(stride):
        out[x] = value
        out[(height + 1) * stride + x] = value
    for y in range(height):
        row = out[(y + 1) * stride : (y + 2) * stride]
        row[0] = value
        row[width + 1] = value
        pixels = plane[y]
        inside = row[1 : width + 1]
        for x in range(width):
            inside[x] = pixels[x]


@kernel
def _rows_of(work: Any, width: Any) -> Any:
    """Return four rows in the scratch memory, the third of them uint32, the others float32, and what is behind them."""
    first, rest = row_of(work, width, np.float32)
    second, rest = row_of(rest, width, np.float32)
    third, rest = row_of(rest, width, np.uint32)
    fourth, rest = row_of(rest, width, np.float32)
    return first, second, third, fourth, rest


@kernel
def _nearest(source: Any, target: Any, row: Any, m: Any, field: Any, constants: Any, work: Any) -> None:
    """Take the nearest pixel. Any dtype. Scratch: 16 bytes a column, and the source with its border."""
    channels, height, width = source.shape
    columns = target.shape[2]
    xs, ys, offsets, _, rest = _rows_of(work, columns)
    stride = _I(width + 2)
    size = (width + 2) * (height + 2)
    planes = plane_of(rest, channels, size, source)[0]
    for c in range(channels):
        fill = constants[1 + c] if constants[0] > 0 else 0.0
        _with_border(source[c], fill, planes[c])
    right = _F(width + 1)
    bottom = _F(height + 1)
    for y in range(target.shape[1]):
        row(m, field, y, xs, ys)
        for x in range(columns):
            # Written so that "not a number" becomes the border, too.
            fx = xs[x] if xs[x] > _ZERO else _ZERO
            fy = ys[x] if ys[x] > _ZERO else _ZERO
            fx = fx if fx < right else right
            fy = fy if fy < bottom else bottom
            offsets[x] = _U(_I(_I(_I((fy + ROUND) - ROUND) * stride) + _I((fx + ROUND) - ROUND)))
        for c in range(channels):
            plane = planes[c]
            out = target[c, y]
            for x in range(columns):
                out[x] = plane[offsets[x]]


@kernel
def _bilinear(source: Any, target: Any, row: Any, m: Any, field: Any, constants: Any, work: Any) -> None:
    """Mix the four neighbours. uint8. Scratch: 20 bytes a column, and 5 bytes a pixel of each channel with its border.

    The four neighbours of each point between pixels are packed into one 32-bit word first, so that a pixel of the
    result takes one read at a computed address instead of four; those cannot be vectorised.
    """
    channels, height, width = source.shape
    columns = target.shape[2]
    xs, ys, places, insides, rest = _rows_of(work, columns)
    words, rest = row_of(rest, columns, np.uint32)
    stride = _I(width + 1)
    size = (width + 1) * (height + 1)
    quads, rest = plane_of(rest, channels, size, words)
    plane = rest[: (width + 2) * (height + 2)]
    for c in range(channels):
        _with_border(source[c], 0, plane)
        for y in range(height + 1):
            upper = plane[y * (width + 2) : (y + 1) * (width + 2)]
            lower = plane[(y + 1) * (width + 2) : (y + 2) * (width + 2)]
            packed = quads[c, y * (width + 1) : (y + 1) * (width + 1)]
            for x in range(width + 1):
                left = _U(upper[x]) | _U(_U(upper[x + 1]) << _8)
                packed[x] = left | _U(_U(lower[x]) << _16) | _U(_U(lower[x + 1]) << _24)
    last_x = _F(width + 1)
    last_y = _F(height + 1)
    right = last_x * _BELOW_ONE
    bottom = last_y * _BELOW_ONE
    outside = _ZERO if constants[0] > 0 else _ONE  # the least share of a pixel that is taken to lie inside
    for y in range(target.shape[1]):
        row(m, field, y, xs, ys)
        for x in range(columns):
            fx = xs[x] if xs[x] > _ZERO else _ZERO
            fy = ys[x] if ys[x] > _ZERO else _ZERO
            fx = fx if fx < right else right
            fy = fy if fy < bottom else bottom
            ix = _I(fx)
            iy = _I(fy)
            places[x] = _U(_I(_I(iy * stride) + ix))
            xs[x] = fx - _F(ix)
            ys[x] = fy - _F(iy)
            share_x = min(min(fx, last_x - fx), _ONE)
            share_y = min(min(fy, last_y - fy), _ONE)
            insides[x] = max(share_x * share_y, outside)
        for c in range(channels):
            fill = _F(constants[1 + c]) if constants[0] > 0 else _ZERO
            packed = quads[c]
            for x in range(columns):
                words[x] = packed[places[x]]
            out = target[c, y]
            for x in range(columns):
                word = words[x]
                upper_left = _F(_I(word & _BYTE))
                lower_left = _F(_I(_U(word >> _16) & _BYTE))
                upper_mix = upper_left + xs[x] * (_F(_I(_U(word >> _8) & _BYTE)) - upper_left)
                lower_mix = lower_left + xs[x] * (_F(_I(word >> _24)) - lower_left)
                value = upper_mix + ys[x] * (lower_mix - upper_mix)
                out[x] = rounded((value - fill) * insides[x] + fill, target)


@kernel
def _bilinear_deep(source: Any, target: Any, row: Any, m: Any, field: Any, constants: Any, work: Any) -> None:
    """Mix the four neighbours, of any dtype that float32 can hold. Scratch: 16 bytes a column, and one channel.

    Results are rounded where the dtype is of integers.
    """
    channels, height, width = source.shape
    columns = target.shape[2]
    xs, ys, _, _, rest = _rows_of(work, columns)
    stride = width + 2
    plane = plane_of(rest, 1, stride * (height + 2), source)[0][0]
    last_x = _F(width + 1)
    last_y = _F(height + 1)
    right = last_x * _BELOW_ONE
    bottom = last_y * _BELOW_ONE
    outside = _ZERO if constants[0] > 0 else _ONE
    for c in range(channels):
        fill = _F(constants[1 + c]) if constants[0] > 0 else _ZERO
        _with_border(source[c], 0, plane)
        for y in range(target.shape[1]):
            row(m, field, y, xs, ys)
            out = target[c, y]
            for x in range(columns):
                fx = xs[x] if xs[x] > _ZERO else _ZERO
                fy = ys[x] if ys[x] > _ZERO else _ZERO
                fx = fx if fx < right else right
                fy = fy if fy < bottom else bottom
                at = np.uint64(stride * np.int64(_I(fy)) + np.int64(_I(fx)))
                under = at + np.uint64(stride)
                across = fx - _F(_I(fx))
                down = fy - _F(_I(fy))
                upper_left = _F(plane[at])
                lower_left = _F(plane[under])
                upper_mix = upper_left + across * (_F(plane[at + np.uint64(1)]) - upper_left)
                lower_mix = lower_left + across * (_F(plane[under + np.uint64(1)]) - lower_left)
                value = upper_mix + down * (lower_mix - upper_mix)
                share = min(min(fx, last_x - fx), _ONE) * min(min(fy, last_y - fy), _ONE)
                value = (value - fill) * max(share, outside) + fill
                out[x] = rounded(value, target)


# -- affine --------------------------------------------------------------------------------------------------------


@kernel
def _affine_matrix(source: Any, target: Any, params: Any, constants: Any) -> Any:
    """Return the six numbers for ``_affine_row``.

    ``params``: angle, translate_x, translate_y, scale, shear_x, shear_y, in degrees and pixels. ``constants`` behind
    the fill: 1 to turn clockwise or -1 the other way, and the fixed point (x, y), counted from the middle.
    """
    first = 1 + source.shape[0]
    turn = math.radians(params[0]) * constants[first]
    shear_x = math.radians(params[4])
    shear_y = math.radians(params[5])
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    b = -a * math.tan(shear_x) - math.sin(turn)
    d = math.cos(turn) - c * math.tan(shear_x)
    a /= params[3]
    b /= -params[3]
    c /= -params[3]
    d /= params[3]
    # Both images are counted from their middles; the fixed point stays where it is, but for the translation.
    left = 0.5 - 0.5 * target.shape[2] - constants[first + 1] - params[1]
    upper = 0.5 - 0.5 * target.shape[1] - constants[first + 2] - params[2]
    first_x = d * left + b * upper + constants[first + 1] + 0.5 * source.shape[2] + 0.5
    first_y = c * left + a * upper + constants[first + 2] + 0.5 * source.shape[1] + 0.5
    return d, b, first_x, c, a, first_y


@kernel
def affine_shift(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Move right by ``params[1]`` and down by ``params[2]`` whole pixels, which both filters do alike."""
    whole = source.dtype.type(0.5) == 0
    for c in range(source.shape[0]):
        fill = constants[1 + c] if constants[0] > 0 else 0.0
        fill = np.rint(fill) if whole else fill
        shift(source[c], target[c], -int(params[2]), -int(params[1]), source.dtype.type(fill))


@kernel
def affine_nearest(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Rotate, move, scale and shear; nearest pixels. Params and constants: ``_affine_matrix``."""
    m = _affine_matrix(source, target, params, constants)
    _nearest(source, target, _affine_row, m, 0, constants, work)


@kernel
def affine_bilinear(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Rotate, move, scale and shear; bilinear. Params and constants: ``_affine_matrix``."""
    m = _affine_matrix(source, target, params, constants)
    _bilinear(source, target, _affine_row, m, 0, constants, work)


@kernel
def affine_bilinear_deep(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do the same with deeper images than uint8."""
    m = _affine_matrix(source, target, params, constants)
    _bilinear_deep(source, target, _affine_row, m, 0, constants, work)


@kernel
def affine_params(key: Any, height: Any, width: Any, constants: Any, params: Any) -> None:
    """Draw the six params of ``RandomAffine``.

    The last 12 ``constants``: low and high of each; those of the translation are shares of the image's sides, and what
    is drawn is rounded to whole pixels. Number drawn for param k: k.
    """
    ranges = constants[-12:]
    for k in range(6):
        side = width if k == 1 else (height if k == 2 else 1)
        low = ranges[2 * k] * side
        params[k] = low + uniform(key, k) * (ranges[2 * k + 1] * side - low)
    params[1] = np.rint(params[1])
    params[2] = np.rint(params[2])


# -- perspective ---------------------------------------------------------------------------------------------------


@kernel
def corners(key: Any, height: Any, width: Any, constants: Any, params: Any) -> None:
    """Draw the eight coefficients of ``RandomPerspective``: each corner of the image moves inwards.

    ``constants[-1]``: the greatest move, as a share of half the side. Numbers drawn: 1 + 2 k and 2 + 2 k, the move of
    corner k in x and y; corners from the upper left one clockwise.
    """
    bound_x = int(constants[-1] * (width // 2)) + 1
    bound_y = int(constants[-1] * (height // 2)) + 1
    for k in range(4):
        x = randint(key, 1 + 2 * k, bound_x)
        y = randint(key, 2 + 2 * k, bound_y)
        params[k] = width - bound_x + x if k == 1 or k == 2 else x
        params[4 + k] = height - bound_y + y if k >= 2 else y
    perspective_coefficients(params, width - 1.0, height - 1.0)


@kernel
def perspective_coefficients(params: Any, right: Any, bottom: Any) -> None:
    """Replace the corners of a quadrilateral by the map that takes it to the rectangle from (0, 0) to (right, bottom).

    ``params``: four x, then four y, from the upper left one clockwise; then the eight coefficients. The map of the
    unit square to a quadrilateral has a closed form (Heckbert, "Fundamentals of texture mapping and image warping",
    1989); its inverse is that matrix's adjugate.
    """
    x0, x1, x2, x3 = params[0], params[1], params[2], params[3]
    y0, y1, y2, y3 = params[4], params[5], params[6], params[7]
    dx1 = x1 - x2
    dx2 = x3 - x2
    dy1 = y1 - y2
    dy2 = y3 - y2
    sx = x0 - x1 + x2 - x3
    sy = y0 - y1 + y2 - y3
    det = dx1 * dy2 - dx2 * dy1
    g = (sx * dy2 - dx2 * sy) / det
    h = (dx1 * sy - sx * dy1) / det
    a = x1 - x0 + g * x1
    b = x3 - x0 + h * x3
    d = y1 - y0 + g * y1
    e = y3 - y0 + h * y3
    c = x0
    f = y0
    scale = a * e - b * d
    params[0] = right * (e - f * h) / scale
    params[1] = right * (c * h - b) / scale
    params[2] = right * (b * f - c * e) / scale
    params[3] = bottom * (f * g - d) / scale
    params[4] = bottom * (a - c * g) / scale
    params[5] = bottom * (c * d - a * f) / scale
    params[6] = (d * h - e * g) / scale
    params[7] = (b * g - a * h) / scale


@kernel
def perspective_nearest(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Map by the eight coefficients in ``params``, as ``functional.perspective`` takes them; nearest pixels."""
    _nearest(source, target, _perspective_row, params, 0, constants, work)


@kernel
def perspective_bilinear(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Map by the eight coefficients in ``params``, as ``functional.perspective`` takes them; bilinear."""
    _bilinear(source, target, _perspective_row, params, 0, constants, work)


@kernel
def perspective_bilinear_deep(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do the same with deeper images than uint8."""
    _bilinear_deep(source, target, _perspective_row, params, 0, constants, work)


# -- elastic -------------------------------------------------------------------------------------------------------


@kernel
def elastic_field(height: Any, width: Any, params: Any, constants: Any, work: Any) -> Any:
    """Return the moves in pixels, float32, two planes one below the other, and the scratch memory behind them.

    ``params[0]`` holds the bits of a random stream: its number i moves pixel i right (upper half) and down (lower
    half), uniformly within -1 and 1; then each of the two fields is blurred and scaled. The last four ``constants``
    are alpha and sigma, each for x and y. Scratch: 12 bytes a pixel, and
    that of ``gaussian_blur``.
    """
    alpha = constants[constants.size - 4 : constants.size - 2]
    sigma = constants[constants.size - 2 :]
    key = numbers_at(params, 1, np.uint64)[0]
    field, rest = plane_of(work, 2 * height, width, _ONE_NUMBER)
    noise, rest = plane_of(rest, height, width, _ONE_NUMBER)
    numbers = numbers_at(rest, rest.size // 4, np.float32)
    for axis in range(2):
        shift = np.uint64(32 if axis == 0 else 0)
        for y in range(height):
            row = noise[y]
            first = y * width
            for x in range(width):
                bits = _U(child(key, first + x) >> shift)
                row[x] = _F(_I(bits)) * _F(2.0**-31)
        scale = _F(alpha[axis] * 0.5)
        reach = int(8 * sigma[axis] + 1) // 2
        across = gaussian_weights(max(sigma[0], 1e-3), reach, numbers)
        down = gaussian_weights(max(sigma[1], 1e-3), reach, numbers[reach + 2 :])
        copied = numbers[(2 * reach + 4 + 15) & -16 :]
        memory = prepare_blur(noise, down, copied)
        for top in range(0, height, STRIP):
            rows, pitch = blurred_rows(copied, top, width, across, down, memory)
            for y in range(top, min(top + STRIP, height)):
                blurred = rows[(y - top) * pitch : (y - top) * pitch + width]
                row = field[axis * height + y]
                for x in range(width):
                    row[x] = scale * blurred[x]
    return field, rest


@kernel
def elastic_nearest(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Move each pixel by a smooth random field; nearest pixels. Params and constants: ``elastic_field``."""
    field, rest = elastic_field(source.shape[1], source.shape[2], params, constants, work)
    _nearest(source, target, _elastic_row, params, field, constants, rest)


@kernel
def elastic_bilinear(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Move each pixel by a smooth random field; bilinear. Params and constants: ``elastic_field``."""
    field, rest = elastic_field(source.shape[1], source.shape[2], params, constants, work)
    _bilinear(source, target, _elastic_row, params, field, constants, rest)


@kernel
def elastic_bilinear_deep(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Do the same with deeper images than uint8."""
    field, rest = elastic_field(source.shape[1], source.shape[2], params, constants, work)
    _bilinear_deep(source, target, _elastic_row, params, field, constants, rest)
