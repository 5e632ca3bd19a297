"""Decoders of our own kinds of images: other channels, 16 bits, label maps, and lists of images of any size.

Most are an `ImageDecoder`. 8-bit pixels go through the native core, plane by plane unless there are 1 or 3; 16-bit
pixels and labels are moved without being mixed. PNGs are unpacked first.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import gather
from dataloading.arrays import Indices
from dataloading.dataset.files import FileSet
from dataloading.decode.decoders import ArrayDecoder, ColumnDecoder, Decoder, Failure, ImageDecoder, ObjectDecoder
from dataloading.decode.single import decode_png
from dataloading.errors import DecodeError, UsageError
from dataloading.format import (
    MODE_PNG,
    MODE_RAW,
    BytesField,
    FloatField,
    ImageField,
    IntField,
    MaskField,
    NDArrayField,
    RasterField,
    VarArrayField,
)

__all__ = ["ListDecoder", "MaskDecoder", "PlaneDecoder", "VarArrayDecoder", "WordDecoder", "make_decoder"]

# A mode of requests only: the mask does not have its image's size.
_MISFIT = -1
_WHOLE = (("box_w", "src_width"), ("scaled_w", "src_width"), ("out_w", "src_width"),
          ("box_h", "src_height"), ("scaled_h", "src_height"), ("out_h", "src_height"))  # fmt: skip


def make_decoder(
    files: FileSet, name: str, *, as_list: bool = False, partner: str | None = None
) -> Decoder | ImageDecoder:
    """Make the decoder for one field of a dataset.

    Parameters
    ----------
    files : FileSet
    name : str
    as_list : bool
        Whether images are wanted as a list, each of its own size.
    partner : str, optional
        The image field whose sizes a mask must have.

    Raises
    ------
    UsageError
        The field is of a kind this library does not decode.
    """
    field = files.fields[name]
    if isinstance(field, ImageField):
        decoder: ImageDecoder
        if isinstance(field, MaskField):
            decoder = MaskDecoder(files, name, partner)
        elif field.dtype.itemsize > 1:
            decoder = WordDecoder(files, name)
        else:
            decoder = PlaneDecoder(files, name) if isinstance(field, RasterField) else ImageDecoder(files, name)
        return ListDecoder(decoder, field) if as_list else decoder
    if isinstance(field, (IntField, FloatField)):
        return ColumnDecoder(files, name, np.int64 if isinstance(field, IntField) else np.float64)
    if isinstance(field, NDArrayField):
        return ArrayDecoder(files, name, field.shape, field.dtype)
    if isinstance(field, VarArrayField):
        return VarArrayDecoder(files, name)
    if isinstance(field, BytesField):
        return ObjectDecoder(files, name)
    raise UsageError(
        f"field '{name}' of {files.path} has type {type(field).__name__}, which has no decoder; "
        f"leave it out with fields=[...]"
    )


class PlaneDecoder(ImageDecoder):
    """8-bit images of any number of channels."""

    _shares_decodes = False

    def decode(self, requests: npt.NDArray[np.void], out_NCHW: npt.NDArray[np.uint8]) -> list[Failure]:
        """See `ImageDecoder.decode`."""
        requests, unpacked, failures = _unpacked(requests, self._channels, np.dtype(np.uint8))
        if self._channels in (1, 3):
            failures += super().decode(requests, out_NCHW)
        else:
            failures += self._decode_planes(requests, out_NCHW)
        del unpacked  # until here the requests pointed into it
        known = dict(reversed(failures))
        return sorted(known.items())

    def _decode_planes(self, requests: npt.NDArray[np.void], out_NCHW: npt.NDArray[np.uint8]) -> list[Failure]:
        """Decode each plane of raw images as a gray image of its own."""
        failures: list[Failure] = []
        for row, request in enumerate(requests):
            if request["mode"] == _MISFIT:
                continue
            try:
                pixels_HWC = _raw_pixels(request, self._channels, np.dtype(np.uint8))
            except DecodeError as error:
                failures.append((row, error.reason))
                continue
            planes = np.ascontiguousarray(pixels_HWC.transpose(2, 0, 1))
            parts = np.repeat(requests[row : row + 1], self._channels)
            parts["channels"] = 1
            parts["src"] = planes.ctypes.data + np.arange(self._channels) * planes.strides[0]
            parts["src_bytes"] = planes.strides[0]
            failures += [(row, reason) for _, reason in super().decode(parts, out_NCHW[row][:, None])[:1]]
        return failures


class WordDecoder(ImageDecoder):
    """16-bit images, which are moved and never mixed: a resize must be a nearest one."""

    _shares_decodes = False
    _out_dtype: np.dtype[np.generic] | None = None  # by default the field's

    def decode(self, requests: npt.NDArray[np.void], out_NCHW: npt.NDArray[Any]) -> list[Failure]:
        """See `ImageDecoder.decode`; the output may be of any dtype that holds the field's."""
        requests, unpacked, failures = _unpacked(requests, self._channels, self._dtype)
        for row, request in enumerate(requests):
            if request["mode"] == _MISFIT:
                continue
            try:
                gather(_raw_pixels(request, self._channels, self._dtype), request, out_NCHW[row])
            except DecodeError as error:
                failures.append((row, error.reason))
        del unpacked
        return sorted(failures)


class MaskDecoder(WordDecoder):
    """Label maps, as int64 whatever they are stored as.

    Parameters
    ----------
    files : FileSet
    name : str
        A mask field.
    partner : str or None
        The image field that the masks belong to: a mask of another size than its image fails.
    """

    _out_dtype = np.dtype(np.int64)

    def __init__(self, files: FileSet, name: str, partner: str | None) -> None:
        super().__init__(files, name)
        self._partner = partner

    def requests(self, indices: Indices) -> tuple[npt.NDArray[np.void], int]:
        """See `ImageDecoder.requests`."""
        requests, num_bytes = super().requests(indices)
        if self._partner is not None:
            image = self._files.records(self._partner, indices)
            misfit = (image["width"] != requests["src_width"]) | (image["height"] != requests["src_height"])
            requests["mode"][misfit] = _MISFIT
            # `decode` makes the reason of the image's size.
            requests["plane_stride"][misfit] = image["width"][misfit]
            requests["row_stride"][misfit] = image["height"][misfit]
        return requests, num_bytes

    def decode(self, requests: npt.NDArray[np.void], out_NCHW: npt.NDArray[Any]) -> list[Failure]:
        """See `ImageDecoder.decode`, of int64."""
        failures = [
            (
                row,
                f"the mask is {requests['src_height'][row]}x{requests['src_width'][row]}, its image "
                f"'{self._partner}' {requests['row_stride'][row]}x{requests['plane_stride'][row]}: the same part of "
                f"both cannot be cut out; convert both again, with one --max-resolution and --orientation",
            )
            for row in np.flatnonzero(requests["mode"] == _MISFIT).tolist()
        ]
        return sorted(failures + super().decode(requests, out_NCHW))


class ListDecoder:
    """Images as they are: a list of arrays (channels, height, width), of masks (height, width)."""

    def __init__(self, decoder: ImageDecoder, field: ImageField) -> None:
        self.name = decoder.name
        self._decoder = decoder
        self._is_mask = isinstance(field, MaskField)
        self._channels = field.channels
        self._dtype = np.dtype(np.int64) if self._is_mask else field.dtype

    def allocate(self, rows: int) -> list[Any]:
        """Make a list of `rows` times None."""
        return [None] * rows

    def decode(self, indices: Indices, out: list[Any], first_row: int) -> list[Failure]:
        """Decode each image, whole."""
        failures: list[Failure] = []
        for row, index in enumerate(indices.tolist()):
            try:
                request, _ = self._decoder.requests(np.array([index]))
            except ValueError as error:  # FormatError: a pointer outside the file
                failures.append((row, str(error)))
                continue
            for column, source in _WHOLE:
                request[column] = request[source]
            shape = (self._channels, int(request["src_height"][0]), int(request["src_width"][0]))
            pixels = np.empty(shape, self._dtype)
            failed = self._decoder.decode(request, pixels[None])
            if failed:
                failures.append((row, failed[0][1]))
            out[first_row + row] = pixels[0] if self._is_mask else pixels
        return failures


class VarArrayDecoder(ObjectDecoder):
    """Arrays of any number of rows: a list with one array a sample."""

    def decode(self, indices: Indices, out: list[Any], first_row: int) -> list[Failure]:
        """Copy each array out of the file."""
        failures = super().decode(indices, out, first_row)
        for row in range(first_row, first_row + len(indices)):
            if out[row] is not None:
                out[row] = np.array(out[row], dtype=out[row].dtype.newbyteorder("="))
        return failures


def _memory(request: np.void) -> npt.NDArray[np.uint8]:
    """Return a view of the stored bytes of a request."""
    kind = ctypes.c_uint8 * int(request["src_bytes"])
    return np.frombuffer(memoryview(kind.from_address(int(request["src"]))).cast("B"), np.uint8)


def _raw_pixels(request: np.void, channels: int, dtype: np.dtype[np.generic]) -> npt.NDArray[Any]:
    """Return a view of the pixels of a raw request, shape (height, width, channels)."""
    height, width = int(request["src_height"]), int(request["src_width"])
    expected = height * width * channels * dtype.itemsize
    if request["mode"] != MODE_RAW or int(request["src_bytes"]) != expected:
        raise DecodeError(f"raw image of {int(request['src_bytes'])} bytes, expected {expected}")
    return _memory(request).view(dtype).reshape(height, width, channels)


def _unpacked(
    requests: npt.NDArray[np.void], channels: int, dtype: np.dtype[np.generic]
) -> tuple[npt.NDArray[np.void], list[npt.NDArray[Any]], list[Failure]]:
    """Decode the PNGs among requests; return raw requests instead, the memory they point to, and what failed."""
    packed = np.flatnonzero(requests["mode"] == MODE_PNG).tolist()
    if not packed:
        return requests, [], []
    requests = requests.copy()
    memory: list[npt.NDArray[Any]] = []
    failures: list[Failure] = []
    for row in packed:
        request = requests[row]
        height, width = int(request["src_height"]), int(request["src_width"])
        try:
            pixels = np.ascontiguousarray(decode_png(_memory(request), height, width, channels, dtype))
        except DecodeError as error:
            failures.append((row, error.reason))
            requests["mode"][row] = _MISFIT
            continue
        memory.append(pixels)
        requests["src"][row] = pixels.ctypes.data
        requests["src_bytes"][row] = pixels.nbytes
        requests["mode"][row] = MODE_RAW
    return requests, memory, failures
