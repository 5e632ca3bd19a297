"""Move stored pixels without mixing them: crop, nearest resize, window, padding and flip in one pass.

For label maps, where the mean of two labels would be a third one, and for 16-bit images. Pixels equal those of
torchvision's ``InterpolationMode.NEAREST``. Knows a request's geometry and nothing of files.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from dataloading._native import FLIP_LEFT_RIGHT, FLIP_TOP_BOTTOM, PAD_CONSTANT, PAD_EDGE, PAD_REFLECT

__all__ = ["gather"]

_EDGE, _REFLECT, _CONSTANT = PAD_EDGE, PAD_REFLECT, PAD_CONSTANT


def gather(source_HWC: npt.NDArray[Any], request: np.void, out_CHW: npt.NDArray[Any]) -> None:
    """Write the pixels that a request describes, with nearest interpolation.

    Parameters
    ----------
    source_HWC : ndarray of uint8 or uint16
        The whole stored image.
    request : record of `_native.REQUEST`
        Its box lies inside the image; ``fill[0]`` is the value of constant padding.
    out_CHW : ndarray of any integer dtype, shape (channels, out_h, out_w)
        Written. Releases the GIL.
    """
    flip = int(request["flip"])
    rows = np.empty(out_CHW.shape[1], np.int64)
    columns = np.empty(out_CHW.shape[2], np.int64)
    mode = int(request["pad_mode"])
    for axis, sources, bit in (("y", rows, FLIP_TOP_BOTTOM), ("x", columns, FLIP_LEFT_RIGHT)):
        length, scaled = ("box_h", "scaled_h") if axis == "y" else ("box_w", "scaled_w")
        _map_axis(
            int(request[f"box_{axis}"]), int(request[length]), int(request[scaled]), int(request[f"window_{axis}"]),
            mode, bool(flip & bit), sources,
        )  # fmt: skip
    _copy(source_HWC, rows, columns, int(request["fill"][0]), out_CHW)


@numba.njit(nogil=True)
def _resolve(position: int, length: int, mode: int) -> int:
    """Return the index in [0, length) for a position under a padding rule, or -1 for the fill value."""
    if 0 <= position < length:
        return position
    if mode == _CONSTANT:
        return -1
    if mode == _EDGE:
        return 0 if position < 0 else length - 1
    if mode == _REFLECT:
        if length == 1:
            return 0
        period = 2 * (length - 1)
        folded = position % period
        return folded if folded < length else period - folded
    period = 2 * length  # symmetric
    folded = position % period
    return folded if folded < length else period - 1 - folded


@numba.njit(nogil=True)
def _map_axis(box: int, length: int, scaled: int, window: int, mode: int, flip: bool, sources: Any) -> None:
    """Find the source row (or column) of each output row."""
    # In float32, as torch computes it.
    step = np.float32(length) / np.float32(scaled)
    num = len(sources)
    for i in range(num):
        at = _resolve(window + (num - 1 - i if flip else i), scaled, mode)
        if at >= 0 and scaled != length:
            at = min(int(np.floor(np.float32(at) * step)), length - 1)
        sources[i] = at + box if at >= 0 else -1


@numba.njit(nogil=True)
def _copy(source_HWC: Any, rows: Any, columns: Any, fill: int, out_CHW: Any) -> None:
    for c in range(out_CHW.shape[0]):
        for i in range(len(rows)):
            y = rows[i]
            for j in range(len(columns)):
                x = columns[j]
                out_CHW[c, i, j] = source_HWC[y, x, c] if y >= 0 and x >= 0 else fill
