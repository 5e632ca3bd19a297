"""One JPEG at a time: probe, decode, encode, transcode. For conversion and inspection, not for the hot path."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dataloading.checks import one_of, true_or_false
from dataloading.errors import DecodeError, UsageError

from .library import LIBRARY, Info, memory_of
from .regions import status_text

__all__ = ["JpegInfo", "check_jpeg", "decode_jpeg", "encode_jpeg", "probe_jpeg", "reencode_jpeg", "transcode_jpeg"]

BytesLike: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[np.uint8]"
Restart: TypeAlias = Literal["auto", "none"]
Layout: TypeAlias = Literal["HWC", "CHW", "HW"]

_SPACES = ("gray", "ycbcr", "rgb", "cmyk", "ycck")
_SAMPLING_OF_RATIO = {
    (1, 1): "4:4:4",
    (2, 1): "4:2:2",
    (2, 2): "4:2:0",
    (4, 1): "4:1:1",
    (1, 2): "4:4:0",
    (4, 2): "4:1:0",
}
_RATIO_OF_SAMPLING = {name: ratio for ratio, name in _SAMPLING_OF_RATIO.items()}
_LAYOUTS = {"HWC": 0, "CHW": 1, "HW": 2}
_RESTARTS = {"none": 0, "auto": 1}
_Reason = ctypes.c_char * 200
_MAX_PIXELS = 1 << 28
_UNSUPPORTED = 8


@dataclass(frozen=True, kw_only=True)
class JpegInfo:
    """The information in a JPEG's headers, not verified against the data.

    Parameters
    ----------
    width, height : int
        Pixels.
    num_components : int
        1 (gray), 3 or 4.
    subsampling : str
        ``"4:4:4"``, ``"4:2:2"``, ``"4:2:0"``, ``"4:1:1"``, ``"4:4:0"``, ``"4:1:0"``, ``"4:0:0"`` for gray, or
        sampling factors such as ``"2x2,1x2,1x1"`` if there is no name.
    colour_space : str
        ``"ycbcr"``, ``"gray"``, ``"rgb"``, ``"cmyk"`` or ``"ycck"``: as libjpeg decides it from the markers.
    progressive, arithmetic : bool
        Codings that cannot be decoded by region.
    restart_interval : int
        MCUs between two restart markers; 0 without markers.
    mcu_width, mcu_height : int
        Pixels of one MCU, the unit of coding.
    mcus_per_row, mcu_rows : int
        MCUs that cover the image.

    Examples
    --------
    >>> probe_jpeg(encode_jpeg(np.zeros((20, 30, 3), np.uint8))).subsampling
    '4:2:0'
    """

    width: int
    height: int
    num_components: int
    subsampling: str
    colour_space: str
    progressive: bool
    arithmetic: bool
    restart_interval: int
    mcu_width: int
    mcu_height: int
    mcus_per_row: int
    mcu_rows: int

    @property
    def baseline(self) -> bool:
        """Whether it is sequential and Huffman-coded, the only kind that is decoded by region."""
        return not self.progressive and not self.arithmetic


def _source(data: BytesLike) -> tuple[Any, int]:
    """Return where the data lie, as an argument for C, and how many bytes they are."""
    if isinstance(data, bytes):
        return data, len(data)
    if not isinstance(data, np.ndarray):
        data = np.frombuffer(data, np.uint8)
    elif data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise UsageError(
            f"JPEG data must be bytes or a contiguous 1-D uint8 array, got {data.dtype} of shape {data.shape}"
        )
    return memory_of(data), data.size


def _fail(status: int, reason: bytes = b"") -> DecodeError:
    text, detail = status_text(status), reason.decode(errors="replace")
    return DecodeError(f"{text} ({detail})" if detail and detail != text else text)


def _judge(status: int, reason: bytes, notes: list[str] | None) -> None:
    if status != 0:
        raise _fail(status, reason)
    if notes is not None and reason:
        notes.append(reason.decode())


def probe_jpeg(data: BytesLike) -> JpegInfo:
    """Read a JPEG's headers in a few microseconds, without decoding.

    Parameters
    ----------
    data : bytes-like
        The file's bytes, at least up to the first scan.

    Returns
    -------
    JpegInfo

    Raises
    ------
    DecodeError
        If the data are not a JPEG, their headers are malformed, or the kind is not supported (12-bit, lossless,
        hierarchical).

    Examples
    --------
    >>> info = probe_jpeg(encode_jpeg(np.zeros((20, 30, 3), np.uint8)))
    >>> info.width, info.height, info.progressive
    (30, 20, False)
    """
    info = _header(*_source(data))
    return JpegInfo(
        width=info.width,
        height=info.height,
        num_components=info.num_components,
        subsampling=_subsampling(info),
        colour_space=_SPACES[info.color_space],
        progressive=bool(info.progressive),
        arithmetic=bool(info.arithmetic),
        restart_interval=info.restart_interval,
        mcu_width=info.mcu_width,
        mcu_height=info.mcu_height,
        mcus_per_row=info.mcus_per_row,
        mcu_rows=info.mcu_rows,
    )


def _header(source: Any, size: int) -> Info:
    info = Info()
    status: int = LIBRARY.beton_jpeg_probe(source, size, ctypes.byref(info))
    if status != 0:
        raise _fail(status)
    return info


def _subsampling(info: Info) -> str:
    count = info.num_components
    if count == 1:
        return "4:0:0"
    factors = [(info.h_samp[i], info.v_samp[i]) for i in range(count)]
    (h, v), chroma = factors[0], factors[1]
    if chroma == factors[2] and h % chroma[0] == 0 and v % chroma[1] == 0:
        name = _SAMPLING_OF_RATIO.get((h // chroma[0], v // chroma[1]))
        if name is not None:
            return name
    return ",".join(f"{h}x{v}" for h, v in factors)


def decode_jpeg(
    data: BytesLike,
    *,
    layout: Layout = "HWC",
    out: npt.NDArray[np.uint8] | None = None,
    notes: list[str] | None = None,
) -> npt.NDArray[np.uint8]:
    """Decode a whole JPEG, strictly: damage anywhere in it is an error.

    Parameters
    ----------
    data : bytes-like
        Gray, YCbCr of any subsampling or RGB; baseline, progressive or arithmetic.
    layout : {"HWC", "CHW", "HW"}
        ``"HWC"``: RGB, interleaved, as NumPy and Pillow have it. ``"CHW"``: RGB in planes, as torch has it.
        ``"HW"``: luma alone, the JPEG's own brightness; colours are not decoded.
    out : ndarray of uint8, optional
        Memory for the pixels, contiguous, of the shape that is returned. After an error its content is unspecified.
    notes : list of str, optional
        Receives a note about stray bytes that were skipped, as libjpeg skips them; pixels are not affected.

    Returns
    -------
    ndarray of uint8, shape (height, width, 3), (3, height, width) or (height, width)
        `out` if it was given. RGB is exactly what Pillow gives after ``convert("RGB")``, luma what torchvision gives
        for ``ImageReadMode.GRAY``. EXIF orientation is not applied.

    Raises
    ------
    DecodeError
        If the data are damaged or end early (libjpeg's warnings count where they concern pixels), if the image is
        CMYK or YCCK, or if it has more than 2**28 pixels.
    UsageError
        If `out` does not fit.

    Notes
    -----
    The GIL is released. Any number of threads may decode at once.

    Examples
    --------
    >>> data = encode_jpeg(np.full((8, 8, 3), 128, np.uint8))
    >>> decode_jpeg(data)[0, 0].tolist()
    [128, 128, 128]
    >>> decode_jpeg(data, layout="CHW", out=np.empty((3, 8, 8), np.uint8)).shape
    (3, 8, 8)
    """
    one_of("layout", layout, _LAYOUTS)
    source, size = _source(data)
    info = _header(source, size)
    # Checked before allocating memory for a size that may be damaged.
    if info.width * info.height > _MAX_PIXELS:
        raise DecodeError(f"JPEG declares {info.width} x {info.height} pixels, more than the {_MAX_PIXELS} allowed")
    shape = {
        "HWC": (info.height, info.width, 3),
        "CHW": (3, info.height, info.width),
        "HW": (info.height, info.width),
    }[layout]
    if out is None:
        out = np.empty(shape, np.uint8)
    elif not isinstance(out, np.ndarray) or out.dtype != np.uint8 or out.shape != shape or not out.flags.carray:
        got = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise UsageError(f"out must be a contiguous, writable uint8 array of shape {shape} for this JPEG, got {got}")
    reason = _Reason()
    status: int = LIBRARY.beton_jpeg_decode(source, size, _LAYOUTS[layout], memory_of(out), out.nbytes, reason)
    _judge(status, reason.value, notes)
    return out


def check_jpeg(data: BytesLike, *, notes: list[str] | None = None) -> None:
    """Check a whole JPEG strictly, at a third of the cost of decoding.

    Parameters
    ----------
    data : bytes-like
        Any JPEG that `transcode_jpeg` takes.
    notes : list of str, optional
        As in `decode_jpeg`.

    Raises
    ------
    DecodeError
        As `decode_jpeg`; CMYK and YCCK are checked too.

    Examples
    --------
    >>> check_jpeg(encode_jpeg(np.zeros((16, 16, 3), np.uint8)))
    """
    source, size = _source(data)
    reason = _Reason()
    status: int = LIBRARY.beton_jpeg_check(source, size, reason)
    _judge(status, reason.value, notes)


def encode_jpeg(
    pixels_HWC: npt.NDArray[np.uint8],
    *,
    quality: int = 90,
    subsampling: str = "4:2:0",
    restart: Restart = "auto",
) -> bytes:
    """Encode RGB pixels as a baseline JPEG whose regions can be decoded cheaply.

    Parameters
    ----------
    pixels_HWC : ndarray of uint8, shape (height, width, 3)
        RGB; rows may be strided.
    quality : int
        1 to 100, libjpeg's scale.
    subsampling : {"4:2:0", "4:2:2", "4:4:4", "4:1:1", "4:4:0", "4:1:0"}
        Chroma resolution.
    restart : {"auto", "none"}
        ``"auto"`` writes restart markers, a few per row of MCUs, if the image is so large that they take
        fewer bytes than optimised Huffman tables save; ``"none"`` writes none.

    Returns
    -------
    bytes
        The same bytes for the same arguments, whatever the libjpeg version.

    Raises
    ------
    UsageError
        If an argument is out of range or the array is not an RGB image.

    Examples
    --------
    >>> encode_jpeg(np.zeros((16, 16, 3), np.uint8))[:2].hex()
    'ffd8'
    """
    if pixels_HWC.dtype != np.uint8 or pixels_HWC.ndim != 3 or pixels_HWC.shape[2] != 3 or pixels_HWC.size == 0:
        raise UsageError(
            f"encode_jpeg needs uint8 pixels of shape (height, width, 3), got {pixels_HWC.dtype} of shape "
            f"{pixels_HWC.shape}"
        )
    height, width = pixels_HWC.shape[:2]
    if max(height, width) > 65500:
        raise UsageError(f"a JPEG holds at most 65500 x 65500 pixels, got {width} x {height}")
    h, v = _ratio(quality, subsampling)
    if pixels_HWC.strides[2] != 1 or pixels_HWC.strides[1] != 3 or pixels_HWC.strides[0] < 3 * width:
        pixels_HWC = np.ascontiguousarray(pixels_HWC)
    return _produce(
        LIBRARY.beton_jpeg_encode,
        pixels_HWC.ctypes.data,
        width,
        height,
        pixels_HWC.strides[0],
        quality,
        h,
        v,
        _restart(restart),
    )


def _ratio(quality: int, subsampling: str) -> tuple[int, int]:
    """Check the options of encoding; return how many luma samples across and down share a chroma sample."""
    if not 1 <= quality <= 100:
        raise UsageError(f"quality must be from 1 to 100, got {quality}")
    if subsampling not in _RATIO_OF_SAMPLING:
        raise UsageError(f"subsampling must be one of {sorted(_RATIO_OF_SAMPLING)}, got {subsampling!r}")
    return _RATIO_OF_SAMPLING[subsampling]


def reencode_jpeg(
    data: BytesLike,
    *,
    quality: int = 90,
    subsampling: str = "4:2:0",
    restart: Restart = "auto",
    notes: list[str] | None = None,
) -> bytes | None:
    """Decode a JPEG and encode it again without a way through RGB, which loses less and takes less time.

    Parameters
    ----------
    data : bytes-like
        Any JPEG.
    quality, subsampling, restart
        As in `encode_jpeg`.
    notes : list of str, optional
        As in `decode_jpeg`.

    Returns
    -------
    bytes or None
        None if the JPEG is not a baseline YCbCr image of that subsampling, or seems damaged; then `decode_jpeg` and
        `encode_jpeg` decide.

    Raises
    ------
    DecodeError
        If its headers are damaged.
    UsageError
        If an argument is out of range.

    Examples
    --------
    >>> data = encode_jpeg(np.full((16, 16, 3), 128, np.uint8))
    >>> decode_jpeg(reencode_jpeg(data, quality=50))[0, 0].tolist()
    [128, 128, 128]
    >>> reencode_jpeg(data, subsampling="4:4:4") is None
    True
    """
    source, size = _source(data)
    h, v = _ratio(quality, subsampling)
    out, out_size = ctypes.c_void_p(), ctypes.c_int64()
    reason = _Reason()
    status: int = LIBRARY.beton_jpeg_reencode(
        source, size, quality, h, v, _restart(restart), ctypes.byref(out), ctypes.byref(out_size), reason
    )
    if status == _UNSUPPORTED:
        return None
    _judge(status, reason.value, notes)
    return _taken(out, out_size.value)


def transcode_jpeg(
    data: BytesLike, *, restart: Restart = "auto", keep_icc: bool = False, notes: list[str] | None = None
) -> bytes:
    """Re-code a JPEG losslessly: the same pixels, baseline, optimised Huffman tables, restart markers.

    Parameters
    ----------
    data : bytes-like
        Any JPEG that `decode_jpeg` takes, and CMYK or YCCK.
    restart : {"auto", "none"}
        As in `encode_jpeg`.
    keep_icc : bool
        Keep the colour profile. All other APPn and COM markers go, except those that change the pixels (JFIF, Adobe);
        so does EXIF with its orientation.
    notes : list of str, optional
        As in `decode_jpeg`; stray bytes are not copied.

    Returns
    -------
    bytes
        A JPEG whose decoded pixels are identical.

    Raises
    ------
    DecodeError
        As `decode_jpeg`: damaged data is refused.
    UsageError
        If ``restart`` is not a valid value.

    Examples
    --------
    >>> data = encode_jpeg(np.zeros((16, 16, 3), np.uint8), restart="none")
    >>> bool((decode_jpeg(transcode_jpeg(data)) == decode_jpeg(data)).all())
    True
    """
    source, size = _source(data)
    arguments = (source, size, _restart(restart), true_or_false("keep_icc", keep_icc))
    return _produce(LIBRARY.beton_jpeg_transcode, *arguments, notes=notes)


def _restart(value: str) -> int:
    if value not in _RESTARTS:
        raise UsageError(f"restart must be one of {sorted(_RESTARTS)}, got {value!r}")
    return _RESTARTS[value]


def _produce(function: ctypes._FuncPointer, *arguments: Any, notes: list[str] | None = None) -> bytes:
    out, size = ctypes.c_void_p(), ctypes.c_int64()
    reason = _Reason()
    status: int = function(*arguments, ctypes.byref(out), ctypes.byref(size), reason)
    _judge(status, reason.value, notes)
    return _taken(out, size.value)


def _taken(out: ctypes.c_void_p, size: int) -> bytes:
    try:
        return ctypes.string_at(out, size)
    finally:
        LIBRARY.beton_free(out)
