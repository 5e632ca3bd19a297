"""Image fields: FFCV's RGB images, images of other channels and depths, and label maps.

Defines the valid records and stored bytes of images. Does not check whether a JPEG decodes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.messages import describe

from .base import Bytes, Field, Head, as_bytes, in_order, kind_arguments, same_numbers, unmasked
from .png import can_be_png, check_png_header

__all__ = ["MODE_JPEG", "MODE_PNG", "MODE_RAW", "EncodedImage", "ImageField", "MaskField", "RasterField"]

MODE_JPEG = 0
MODE_RAW = 1
MODE_PNG = 2
"""Only in fields that FFCV does not have; FFCV has the first two modes."""
MODE_NAMES = ("JPEG", "raw", "PNG")
MAX_SIDE = 65_535
"""Width and height are stored in 16 bits."""
MAX_CHANNELS = 16

# NumPy builds a dtype's name at each access.
_DTYPE_NAMES: dict[np.dtype[np.generic], str] = {np.dtype(name): name for name in ("uint8", "uint16")}

IMAGE_RECORD = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])


@dataclasses.dataclass(frozen=True)
class EncodedImage:
    """An image as it is stored: JPEG bytes, PNG bytes, or rows of pixels.

    Parameters
    ----------
    mode : int
        ``MODE_JPEG`` (0), ``MODE_RAW`` (1) or ``MODE_PNG`` (2).
    width, height : int
        Size in pixels, 1 to 65,535.
    data : bytes-like
        The JPEG or PNG file's bytes, or the pixels in row-major HWC order, 16-bit ones little-endian.
    channels : int
        Of the pixels, 1 to 16; 3 is RGB.
    dtype : {"uint8", "uint16"}
        Of the pixels.
    """

    mode: int
    width: int
    height: int
    data: bytes | bytearray | memoryview | Bytes = dataclasses.field(repr=False)
    channels: int = 3
    dtype: str = "uint8"


class ImageField(Field):
    """An RGB image, stored as JPEG bytes or as raw pixels; each sample chooses.

    Values are :class:`EncodedImage`, or a uint8 array of shape (height, width, 3), which is stored raw.

    Examples
    --------
    >>> head, payload = ImageField().encode(np.zeros((2, 5, 3), np.uint8))
    >>> head, payload.size
    ((1, 5, 2), 30)
    """

    type_id = 2
    record = IMAGE_RECORD
    channels: int = 3
    """Channels per pixel."""
    dtype: np.dtype[np.generic] = np.dtype(np.uint8)
    """Type of each channel."""
    modes: range = range(MODE_JPEG, MODE_RAW + 1)
    """The storage modes a sample may use."""

    @property
    def pixel_bytes(self) -> int:
        """Bytes of one raw pixel."""
        return self.channels * self.dtype.itemsize

    def encode(self, value: object) -> tuple[Head, Bytes | None]:
        if isinstance(value, np.ndarray):
            return self._encode_pixels(value)
        if not isinstance(value, EncodedImage):
            raise UsageError(f"expected {self._wanted()}, got {describe(value)}")
        width, height = value.width, value.height
        _check_side(width, height)
        if value.channels != self.channels or value.dtype != _DTYPE_NAMES[self.dtype]:
            raise UsageError(
                f"expected an image of {_pixels(self.channels, self.dtype.name)}, got one of "
                f"{_pixels(value.channels, value.dtype)}"
            )
        if value.mode not in self.modes:
            allowed = " or ".join(f"{mode} ({MODE_NAMES[mode]})" for mode in self.modes)
            raise UsageError(f"the mode of an image in this field is {allowed}, got {value.mode!r}")
        payload = as_bytes(value.data)
        if value.mode == MODE_RAW:
            expected = width * height * self.pixel_bytes
            if payload.size != expected:
                raise UsageError(f"a raw image of {width}x{height} pixels has {expected} bytes, got {payload.size}")
        elif payload.size == 0:
            raise UsageError(f"expected a {MODE_NAMES[value.mode]}'s bytes, got none")
        elif value.mode == MODE_PNG:
            check_png_header(payload, width, height, self.channels, self.dtype.itemsize)
        return (int(value.mode), int(width), int(height)), payload

    def decode(self, record: np.generic, payload: Bytes | None) -> EncodedImage:
        assert payload is not None
        mode, width, height, _ = record.item()
        return EncodedImage(mode, width, height, payload, self.channels, self.dtype.name)

    def _encode_pixels(self, pixels: npt.NDArray[np.generic]) -> tuple[Head, Bytes]:
        flat = pixels.ndim == 2 and self._takes_planes()
        # Either byte order is accepted; values are stored little-endian.
        pixels = unmasked(pixels)
        if not same_numbers(pixels.dtype, self.dtype) or not (
            flat or (pixels.ndim == 3 and pixels.shape[2] == self.channels)
        ):
            raise UsageError(f"expected {self._wanted()}, got {describe(pixels)}")
        height, width = pixels.shape[:2]
        _check_side(width, height)
        return (MODE_RAW, width, height), in_order(pixels, self.dtype.newbyteorder("<"))

    def _takes_planes(self) -> bool:
        return False

    def _wanted(self) -> str:
        shape = f"(height, width, {self.channels})"
        if self._takes_planes():
            shape = f"(height, width) or {shape}"
        return f"an EncodedImage or a {self.dtype.name} array of shape {shape}"


class RasterField(ImageField):
    """An image of 1 to 16 channels and 8 or 16 bits: gray, RGBA, depth, multispectral.

    A kind of our own (type 255): FFCV reads the other fields of such a file, and this one not. Values are
    :class:`EncodedImage` or arrays of shape (height, width, channels), with one channel also (height, width). 8-bit
    images of 1 or 3 channels may be stored as JPEG, those that PNG has (1 to 4 channels of 8 bits, 1 of 16) as PNG,
    all of them raw. An array is stored raw.

    Parameters
    ----------
    channels : int
        1 to 16, the same for every sample.
    dtype : {"uint8", "uint16"}

    Examples
    --------
    >>> head, payload = RasterField(1, "uint16").encode(np.zeros((2, 5), np.uint16))
    >>> head, payload.size
    ((1, 5, 2), 20)
    """

    type_id = 255

    def __init__(self, channels: int = 1, dtype: npt.DTypeLike = "uint8") -> None:
        if isinstance(channels, bool) or not isinstance(channels, int) or not 1 <= channels <= MAX_CHANNELS:
            raise UsageError(f"an image's channels must be 1 to {MAX_CHANNELS}, got {channels!r}")
        self.channels = channels
        self.dtype = _sample_dtype(dtype)
        jpeg = self.dtype.itemsize == 1 and channels in (1, 3)
        png = can_be_png(channels, self.dtype.itemsize)
        self.modes = range(MODE_JPEG if jpeg else MODE_RAW, MODE_PNG + 1 if png else MODE_RAW + 1)
        self.alignment = self.dtype.itemsize

    def arguments(self) -> bytes:
        return kind_arguments("raster", channels=self.channels, dtype=self.dtype.name)

    def _takes_planes(self) -> bool:
        return self.channels == 1

    def __repr__(self) -> str:
        return f"RasterField({self.channels}, {self.dtype.name!r})"


class MaskField(ImageField):
    """A label map: one class number per pixel, stored losslessly.

    A kind of our own (type 255): FFCV reads the other fields of such a file, and this one not. Values are
    :class:`EncodedImage` (PNG or raw) or arrays of shape (height, width), which are stored raw. The Loader samples
    masks without mixing labels, in step with the image of the same sample.

    Parameters
    ----------
    dtype : {"uint8", "uint16"}
        Of the numbers.

    Examples
    --------
    >>> head, payload = MaskField().encode(np.zeros((2, 5), np.uint8))
    >>> head, payload.size
    ((1, 5, 2), 10)
    """

    type_id = 255
    channels = 1
    modes = range(MODE_RAW, MODE_PNG + 1)

    def __init__(self, dtype: npt.DTypeLike = "uint8") -> None:
        self.dtype = _sample_dtype(dtype)
        self.alignment = self.dtype.itemsize

    def arguments(self) -> bytes:
        return kind_arguments("mask", dtype=self.dtype.name)

    def _takes_planes(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"MaskField({self.dtype.name!r})"


def _sample_dtype(dtype: npt.DTypeLike) -> np.dtype[np.generic]:
    try:
        result: np.dtype[np.generic] = np.dtype(dtype)
    except TypeError:
        result = np.dtype(object)
    if result not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise UsageError(f"pixels are uint8 or uint16, got {dtype!r}; keep other numbers in an NDArrayField")
    return result


def _pixels(channels: int, dtype: str) -> str:
    return f"{channels} {dtype} channel{'' if channels == 1 else 's'}"


def _check_side(width: int, height: int) -> None:
    for name, side in (("width", width), ("height", height)):
        if not isinstance(side, (int, np.integer)) or not 1 <= side <= MAX_SIDE:
            raise UsageError(f"an image's {name} must be 1 to {MAX_SIDE} pixels, got {side!r}; resize it first")
