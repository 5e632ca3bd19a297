"""One stored image to pixels: for tools that show single samples, and for PNG, which is not decoded by regions.

Knows the three ways an image may be stored; no files, regions or batches.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import decode_jpeg, probe_jpeg
from dataloading.errors import DecodeError
from dataloading.format import MODE_JPEG, MODE_RAW, EncodedImage, check_png_chunks

__all__ = ["decode_image", "decode_png"]

# Pillow's modes of the PNGs that we store, by channels and bytes per value. Before 10.3 it opened 16 bits as "I".
_MODES = {(1, 1): ("L",), (2, 1): ("LA",), (3, 1): ("RGB",), (4, 1): ("RGBA",), (1, 2): ("I;16", "I")}


def decode_image(image: EncodedImage) -> npt.NDArray[Any]:
    """Return an image's pixels.

    Parameters
    ----------
    image : EncodedImage
        As `Reader.value` gives it for an image, raster or mask field.

    Returns
    -------
    ndarray of uint8 or uint16, shape (height, width, channels), or (height, width) for one channel
        A view of raw pixels, otherwise new memory.

    Raises
    ------
    DecodeError
        If the bytes are damaged or have another size or kind than the image declares.

    Examples
    --------
    >>> decode_image(EncodedImage(1, 2, 1, bytes([7, 9]), channels=1)).tolist()
    [[7, 9]]
    """
    shape = (image.height, image.width, image.channels)
    if image.mode == MODE_RAW:
        dtype = np.dtype(image.dtype).newbyteorder("<")
        flat = np.frombuffer(image.data, np.uint8)
        if flat.size != math.prod(shape) * dtype.itemsize:
            raise DecodeError(f"the raw image has {flat.size} bytes, expected {shape} values of {image.dtype}")
        pixels = flat.view(dtype).reshape(shape)
    elif image.mode == MODE_JPEG:
        pixels = _decode_jpeg(image)
    else:
        pixels = decode_png(image.data, *shape, np.dtype(image.dtype))
    if pixels.shape != shape:
        raise DecodeError(
            f"the stored image has {pixels.shape[1]}x{pixels.shape[0]} pixels, the sample table says "
            f"{image.width}x{image.height}"
        )
    plane: npt.NDArray[Any] = pixels[:, :, 0] if image.channels == 1 else pixels
    return plane


def _decode_jpeg(image: EncodedImage) -> npt.NDArray[np.uint8]:
    if image.channels == 1:
        found = probe_jpeg(image.data).num_components
        if found != 1:
            raise DecodeError(f"the JPEG has {found} colour components, where a gray image was declared")
    return decode_jpeg(image.data)[:, :, : image.channels]


def decode_png(
    data: Any, height: int, width: int, channels: int, dtype: np.dtype[np.generic]
) -> npt.NDArray[np.generic]:
    """Decode a PNG whose size and kind are known.

    Parameters
    ----------
    data : bytes-like
        The file.
    height, width, channels : int
        Its size.
    dtype : numpy dtype
        uint8 or uint16.

    Returns
    -------
    ndarray of `dtype`, shape (height, width, channels)

    Raises
    ------
    DecodeError
        If it is damaged or of another size or kind.
    """
    from PIL import PngImagePlugin

    try:
        # Not Image.open, which guesses the format and limits the size.
        with PngImagePlugin.PngImageFile(io.BytesIO(data)) as image:
            if image.size != (width, height) or image.mode not in _MODES[channels, dtype.itemsize]:
                raise DecodeError(
                    f"the PNG has {image.size[0]}x{image.size[1]} pixels of mode {image.mode}, expected "
                    f"{width}x{height} of {channels} {dtype.name} channels"
                )
            pixels = np.asarray(image)
        check_png_chunks(np.frombuffer(data, np.uint8))  # Pillow leaves the pixels' chunks unchecked
    except DecodeError:
        raise
    except Exception as error:  # Pillow raises many kinds of errors on damaged data
        raise DecodeError(f"the PNG cannot be decoded: {error or type(error).__name__}") from error
    return pixels.astype(dtype, copy=False).reshape(height, width, channels)
