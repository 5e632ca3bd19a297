"""From the geometry at the front of a pipeline to the decoder's requests, one sample after the other.

An interpreter rather than generated code: all pipelines share this one compiled function, and it takes well
under a microsecond per sample. It keeps, for each sample, the state of the image so far::

    source --box--> crop --scaled--> resized crop --window--> part of it (or beyond: padding) --flips--> image

and every operation, given in coordinates of the image as it stands (flipped, if flips came before), changes
that state the way torchvision's functions would change the pixels. Formulas and rounding are torchvision's
(``torchvision/transforms/v2/_geometry.py`` and ``functional/_geometry.py``), named at each place.

Rows of the operations (float64, ``base.ROW_LENGTH`` numbers; sizes in pixels):

=====================  ==================================================================================
RANDOM_RESIZED_CROP    out_h, out_w, scale_low, scale_high, log_ratio_low, log_ratio_high, ratio_low,
                       ratio_high, interpolation, antialias
RESIZE                 out_h, out_w, 0, 0, 0, 0, 0, 0, interpolation, antialias
RESIZE_SHORT           size, max_size (0: none), 0, 0, 0, 0, 0, 0, interpolation, antialias
RESIZE_LONG            max_size, 0, 0, 0, 0, 0, 0, 0, interpolation, antialias
CENTER_CROP            out_h, out_w
RANDOM_CROP            out_h, out_w, left, top, right, bottom, pad_if_needed, pad_mode, fill word
RANDOM_TRANSLATE       padding, fill word
HORIZONTAL_FLIP        p
VERTICAL_FLIP          p
=====================  ==================================================================================
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.rng import child, randint, uniform

__all__ = ["COLUMNS", "FAILURES", "plan_requests", "random_resized_box"]

RANDOM_RESIZED_CROP = 0
RESIZE = 1
RESIZE_SHORT = 2
RESIZE_LONG = 3
CENTER_CROP = 4
RANDOM_CROP = 5
RANDOM_TRANSLATE = 6
HORIZONTAL_FLIP = 7
VERTICAL_FLIP = 8

# Columns of a request that the geometry decides, in the order plan_requests expects their offsets.
COLUMNS = (
    "box_x", "box_y", "box_w", "box_h", "scaled_w", "scaled_h", "window_x", "window_y", "out_w", "out_h",
    "pad_mode", "fill", "flip", "interpolation", "antialias",
)  # fmt: skip

# Why a sample cannot be planned, by code; formatted with (current height, width, wanted height, width).
FAILURES = {
    1: "the image is {0}x{1} here, smaller than the crop {2}x{3} even with its padding",
    2: "the image is {0}x{1} here and would need padding to {2}x{3} after an earlier resize and crop, "
    "which decoding cannot do",
    3: "the image is {0}x{1} here and already padded by an earlier transform; padding it to {2}x{3} or resizing it "
    "again is not possible",
    4: "the image would be resized to {2}x{3}, which is empty",
}


@kernel
def random_resized_box(height: Any, width: Any, row: Any, stream: Any, box: Any) -> None:
    """Write (x, y, width, height) of torchvision's ``RandomResizedCrop.make_params`` to ``box``.

    Attempt ``a`` of up to 10 draws the numbers ``4 a .. 4 a + 3`` of the stream: area, log aspect ratio, top, left.
    """
    for attempt in range(10):
        counter = 4 * attempt
        target = height * width * (row[2] + uniform(stream, counter) * (row[3] - row[2]))
        ratio = math.exp(row[4] + uniform(stream, counter + 1) * (row[5] - row[4]))
        w = int(np.rint(math.sqrt(target * ratio)))
        h = int(np.rint(math.sqrt(target / ratio)))
        if 0 < w <= width and 0 < h <= height:
            box[0] = randint(stream, counter + 3, width - w + 1)
            box[1] = randint(stream, counter + 2, height - h + 1)
            box[2] = w
            box[3] = h
            return
    # The central part of the nearest allowed shape.
    w = width
    h = height
    if width / height < row[6]:
        h = int(np.rint(w / row[6]))
    elif width / height > row[7]:
        w = int(np.rint(h * row[7]))
    box[0] = (width - w) // 2
    box[1] = (height - h) // 2
    box[2] = w
    box[3] = h


@kernel
def _resized_size(code: Any, row: Any, height: Any, width: Any) -> Any:
    """Return (height, width) after a resize: ``_compute_resized_output_size`` of torchvision."""
    if code == RESIZE:
        return int(row[0]), np.int64(row[1])
    short = float(min(width, height))
    long = float(max(width, height))
    if code == RESIZE_LONG:
        new_short = int(row[0] * short / long)
        new_long = int(row[0])
    else:
        new_short = int(row[0])
        new_long = int(row[0] * long / short)
        if row[1] > 0 and new_long > row[1]:
            new_short = int(row[1] * new_short / new_long)
            new_long = int(row[1])
    if width <= height:
        return new_long, new_short
    return new_short, new_long


@kernel
def plan_requests(
    codes: Any, positions: Any, rows: Any, widths: Any, heights: Any, keys: Any, offsets: Any, words: Any, start: Any
) -> Any:
    """Fill the geometry columns of the requests ``start ..``; return the first sample that failed, or -1.

    Parameters
    ----------
    codes, positions : ndarray of int64, shape (k,)
        Operation, and its place in the user's list (which selects its random stream).
    rows : ndarray of float64, shape (k, ROW_LENGTH)
        See the module docstring.
    widths, heights : ndarray of int64, shape (n,)
        Of the stored images.
    keys : ndarray of uint64, shape (n,)
        Sample keys.
    offsets : ndarray of int64, shape (15,)
        Where each of ``COLUMNS`` lies in a request, in 4-byte words.
    words : ndarray of int32, shape (n, words per request)
        The requests. On failure the row of the failed sample holds, in its first five geometry columns:
        reason, place of the transform, current height and width, and wanted height; then the wanted width.
    """
    box = np.zeros(4, dtype=np.int64)
    for i in range(start, widths.shape[0]):
        box_x = 0
        box_y = 0
        box_w = widths[i]
        box_h = heights[i]
        scaled_w = box_w
        scaled_h = box_h
        window_x = 0
        window_y = 0
        w = box_w  # of the window, which is the image as it stands
        h = box_h
        flip = 0
        pad_mode = 0
        fill = 0
        interpolation = 1
        antialias = 1
        resized = False
        padded = False
        failure = 0
        failed_at = 0
        want_h = 0
        want_w = 0
        for k in range(codes.shape[0]):
            code = codes[k]
            row = rows[k]
            if code >= HORIZONTAL_FLIP:
                if uniform(child(keys[i], positions[k]), 0) < row[0]:
                    flip ^= 1 if code == HORIZONTAL_FLIP else 2
                continue
            failed_at = positions[k]
            stream = child(keys[i], positions[k])

            # Every other operation takes a rectangle of the image as it stands: x, y, new_w, new_h.
            x = 0
            y = 0
            new_w = w
            new_h = h
            target_w = 0  # size to resize the rectangle to; 0: no resize
            target_h = 0
            mode = 0
            colour = 0
            if code == RANDOM_RESIZED_CROP:
                random_resized_box(h, w, row, stream, box)
                x = box[0]
                y = box[1]
                new_w = box[2]
                new_h = box[3]
                target_h = int(row[0])
                target_w = int(row[1])
            elif code == CENTER_CROP:
                want_h = int(row[0])
                want_w = int(row[1])
                # Padding (crop - size) // 2 in front where the crop is larger, else int(round((size - crop) / 2)).
                y = -((want_h - h) // 2) if want_h > h else int(np.rint((h - want_h) / 2.0))
                x = -((want_w - w) // 2) if want_w > w else int(np.rint((w - want_w) / 2.0))
                new_w = want_w
                new_h = want_h
            elif code == RANDOM_CROP:
                want_h = int(row[0])
                want_w = int(row[1])
                left = int(row[2])
                top = int(row[3])
                padded_w = w + left + int(row[4])
                padded_h = h + top + int(row[5])
                if row[6] != 0:
                    # torchvision adds the whole difference on both sides.
                    if padded_h < want_h:
                        top += want_h - padded_h
                        padded_h += 2 * (want_h - padded_h)
                    if padded_w < want_w:
                        left += want_w - padded_w
                        padded_w += 2 * (want_w - padded_w)
                if padded_h < want_h or padded_w < want_w:
                    failure = 1
                    break
                y = randint(stream, 0, padded_h - want_h + 1) - top
                x = randint(stream, 1, padded_w - want_w + 1) - left
                new_w = want_w
                new_h = want_h
                mode = int(row[7])
                colour = int(row[8])
            elif code == RANDOM_TRANSLATE:
                reach = int(row[0])
                y = randint(stream, 0, 2 * reach + 1) - reach
                x = randint(stream, 1, 2 * reach + 1) - reach
                want_h = h
                want_w = w
                colour = int(row[1])
            else:
                target_h, target_w = _resized_size(code, row, h, w)
            if target_h > 0 or target_w > 0 or code <= RESIZE_LONG:
                want_h = target_h
                want_w = target_w
                if target_h < 1 or target_w < 1:
                    failure = 4
                    break

            outside = x < 0 or y < 0 or x + new_w > w or y + new_h > h
            if flip & 1:
                x = w - x - new_w
            if flip & 2:
                y = h - y - new_h

            if (outside or code <= RESIZE_LONG) and padded:
                failure = 3
                break
            if not padded and not resized:
                # Nothing but crops so far: the image as it stands is a box of the source, so that padding is
                # measured from its border and a resize sees no pixel outside it.
                box_x += window_x
                box_y += window_y
                box_w = w
                box_h = h
                scaled_w = w
                scaled_h = h
                window_x = 0
                window_y = 0
            if outside:
                if window_x != 0 or window_y != 0 or w != scaled_w or h != scaled_h:
                    failure = 2
                    break
                padded = True
                pad_mode = mode
                fill = colour
            if code <= RESIZE_LONG:
                box_x += x
                box_y += y
                box_w = new_w
                box_h = new_h
                scaled_w = target_w
                scaled_h = target_h
                w = target_w
                h = target_h
                resized = True
                interpolation = int(row[8])
                antialias = int(row[9])
            else:
                window_x += x
                window_y += y
                w = new_w
                h = new_h

        word = words[i]
        if failure != 0:
            word[offsets[0]] = failure
            word[offsets[1]] = failed_at
            word[offsets[2]] = h
            word[offsets[3]] = w
            word[offsets[4]] = want_h
            word[offsets[5]] = want_w
            return i
        if not padded and not resized:
            box_x += window_x
            box_y += window_y
            box_w = w
            box_h = h
            scaled_w = w
            scaled_h = h
            window_x = 0
            window_y = 0
        word[offsets[0]] = box_x
        word[offsets[1]] = box_y
        word[offsets[2]] = box_w
        word[offsets[3]] = box_h
        word[offsets[4]] = scaled_w
        word[offsets[5]] = scaled_h
        word[offsets[6]] = window_x
        word[offsets[7]] = window_y
        word[offsets[8]] = w
        word[offsets[9]] = h
        word[offsets[10]] = pad_mode
        word[offsets[11]] = fill
        word[offsets[12]] = flip
        word[offsets[13]] = interpolation
        word[offsets[14]] = antialias
    return -1
