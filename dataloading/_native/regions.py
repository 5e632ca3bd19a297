"""The hot path: decodes a table of requests into planes in the caller's memory.

Defines the layout of a request. Does not know where bytes come from or how boxes are drawn.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .library import LIBRARY

__all__ = [
    "BICUBIC",
    "BILINEAR",
    "FLIP_LEFT_RIGHT",
    "FLIP_TOP_BOTTOM",
    "NEAREST",
    "PAD_CONSTANT",
    "PAD_EDGE",
    "PAD_REFLECT",
    "PAD_SYMMETRIC",
    "REQUEST",
    "aim",
    "decode_regions",
    "status_text",
]

NEAREST, BILINEAR, BICUBIC = 0, 1, 2
PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_SYMMETRIC = 0, 1, 2, 3
FLIP_LEFT_RIGHT, FLIP_TOP_BOTTOM = 1, 2

REQUEST: np.dtype[np.void] = np.dtype(
    [
        ("src", "u8"),  # address of the stored bytes
        ("src_bytes", "u8"),
        ("dst", "u8"),  # address of row 0 of plane 0
        ("plane_stride", "i8"),  # bytes from a plane to the next
        ("row_stride", "i8"),  # bytes from a row to the next
        ("mode", "i4"),  # as in the file: 0 for JPEG, 1 for raw pixels (row-major HWC)
        ("src_width", "i4"),
        ("src_height", "i4"),
        ("box_x", "i4"),  # the crop, inside the image
        ("box_y", "i4"),
        ("box_w", "i4"),
        ("box_h", "i4"),
        ("scaled_w", "i4"),  # the crop is resized to this
        ("scaled_h", "i4"),
        ("window_x", "i4"),  # this window of the resized crop is written; what lies outside is padded
        ("window_y", "i4"),
        ("out_w", "i4"),
        ("out_h", "i4"),
        ("pad_mode", "i4"),
        ("fill", "u1", (4,)),
        ("flip", "i4"),  # FLIP_LEFT_RIGHT | FLIP_TOP_BOTTOM, applied last
        ("interpolation", "i4"),
        ("antialias", "i4"),
        ("channels", "i4"),
        ("status", "i4"),  # out: 0, or a reason for status_text
    ],
    align=True,
)

if LIBRARY.beton_request_size() != REQUEST.itemsize:
    raise ImportError(
        f"the native library's request has {LIBRARY.beton_request_size()} bytes, the gateway's {REQUEST.itemsize}: "
        "they are of different versions; build the library again"
    )


def aim(requests: npt.NDArray[np.void], images: npt.NDArray[np.uint8]) -> None:
    """Write to requests where their images go.

    Parameters
    ----------
    requests : ndarray of REQUEST, shape (n,)
        Contiguous and writable.
    images : ndarray, shape (n, channels, height, width)
        Rows are contiguous; the memory must live until the requests are decoded.

    Raises
    ------
    TypeError
        If an array is not as stated.
    """
    _check(requests)
    _aim(requests.ctypes.data, len(requests), images)


def _aim(address: int, num: int, images: npt.NDArray[np.uint8]) -> None:
    if images.ndim != 4 or len(images) != num or (num and images.strides[3] != images.itemsize):
        raise TypeError(f"images must be {num} planar ones with contiguous rows, got shape {images.shape}")
    LIBRARY.beton_aim(address, num, images.ctypes.data, *images.strides[:3])


def decode_regions(requests: npt.NDArray[np.void], images: npt.NDArray[np.uint8] | None = None) -> int:
    """Decode every request: equal to torchvision's crop, resize, crop or pad, flip.

    Parameters
    ----------
    requests : ndarray of REQUEST, shape (n,)
        One record per sample; contiguous and writable. The addresses must be valid for the sizes stated: the caller
        keeps that memory alive during the call. Output is uint8, planar (CHW), 0 to 255.
    images : ndarray of uint8, optional
        Where images go, as `aim` takes it; by default where the requests say.

    Returns
    -------
    int
        How many failed. Each record's ``status`` is 0, or a number for `status_text`; the output of a failed request is
        unspecified; others are not affected.

    Raises
    ------
    TypeError
        If ``requests`` is not a contiguous, writable array of REQUEST. Bad image data never raises.

    Notes
    -----
    Without a resize the pixels are exactly libjpeg-turbo's (accurate integer DCT, fancy upsampling), as Pillow gives
    them. With one, luma and chroma are resized apart and meet in RGB at output size, with the filters of Pillow and
    torchvision's ``antialias=True`` in fixed point; where colours are so strong that clipping them to 0..255 matters,
    RGB is resized instead. ``docs/native.md`` states how near that is to a full decode and resize.
    Records for one JPEG that follow each other are decoded together where that is less work: the pixels are the same.
    The GIL is released. Any number of threads may call at once; scratch memory is per thread.

    Examples
    --------
    >>> pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    >>> out = np.zeros((3, 2, 2), np.uint8)
    >>> request = np.zeros(1, REQUEST)
    >>> request["src"], request["src_bytes"] = pixels.ctypes.data, pixels.nbytes
    >>> request["dst"], request["plane_stride"], request["row_stride"] = out.ctypes.data, 4, 2
    >>> request["mode"], request["channels"] = 1, 3
    >>> for name in ("src_width", "src_height", "box_w", "box_h", "scaled_w", "scaled_h", "out_w", "out_h"):
    ...     request[name] = 2
    >>> decode_regions(request)
    0
    >>> out[:, 0, 1].tolist()
    [3, 4, 5]
    """
    _check(requests)
    address = requests.ctypes.data
    if images is not None:
        _aim(address, len(requests), images)
    failed: int = LIBRARY.beton_decode_regions(address, len(requests))
    return failed


def _check(requests: npt.NDArray[np.void]) -> None:
    if requests.dtype != REQUEST or requests.ndim != 1 or not requests.flags.carray:
        raise TypeError(
            f"requests must be a contiguous, writable 1-D array of REQUEST, got dtype {requests.dtype} of shape "
            f"{requests.shape}"
        )


@lru_cache(maxsize=64)
def status_text(status: int) -> str:
    """Return the meaning of a request's status, as a clause without a full stop.

    Parameters
    ----------
    status : int
        ``REQUEST.status`` after `decode_regions`.

    Returns
    -------
    str
        For example ``"JPEG data ends early"``.

    Examples
    --------
    >>> status_text(3)
    'JPEG data ends early'
    """
    text: bytes = LIBRARY.beton_status_text(int(status))
    return text.decode()
