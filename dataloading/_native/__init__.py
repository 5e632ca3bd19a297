"""The gateway to the compiled core: JPEG decoding of regions, resizing, encoding, lossless transcoding.

Only this package uses the shared library ``libbeton_native.so``. It knows no ``.beton`` files, pipelines or tensors: it
takes addresses and sizes and fills memory that the caller owns.

The library is plain C called through ctypes, so every call releases the GIL and one build serves all Pythons.

============= ==========================================================================================
module        what it holds
============= ==========================================================================================
``library``   finding and loading the shared library, its function signatures
``regions``   ``REQUEST`` and ``decode_regions``: the hot path, many samples per call
``plan``      geometry of a pipeline's front: which region each request asks for
``jpeg``      one JPEG at a time: probe, decode, encode, transcode
``augment``   random operations on pixels: drawing, and running compiled kernels
``layout``    pixels that are moved and never mixed
``gate``      waiting for other threads where no signal handler can run
``samples``   random keys of samples, requests for their stored images, reading those ahead
``resize``    whole images resized exactly as Pillow does
============= ==========================================================================================
"""

from __future__ import annotations

from .augment import AugmentFailure, AugmentProgram, Draws
from .gate import Gate, close_gates, this_thread_is_own
from .jpeg import JpegInfo, check_jpeg, decode_jpeg, encode_jpeg, probe_jpeg, reencode_jpeg, transcode_jpeg
from .layout import gather, interleave
from .library import kernels_in_use, library_path, use_kernels
from .plan import BoxesOfSamples, PlanFailure, RequestPlanner
from .regions import (
    BICUBIC,
    BILINEAR,
    FLIP_LEFT_RIGHT,
    FLIP_TOP_BOTTOM,
    NEAREST,
    PAD_CONSTANT,
    PAD_EDGE,
    PAD_REFLECT,
    PAD_SYMMETRIC,
    REQUEST,
    aim,
    decode_regions,
    status_text,
)
from .resize import resize_rgb
from .samples import FileTables, ImageLayout, ImageTables, read_ahead, sample_keys

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
    "AugmentFailure",
    "AugmentProgram",
    "BoxesOfSamples",
    "Draws",
    "FileTables",
    "Gate",
    "ImageLayout",
    "ImageTables",
    "JpegInfo",
    "PlanFailure",
    "RequestPlanner",
    "aim",
    "check_jpeg",
    "close_gates",
    "decode_jpeg",
    "decode_regions",
    "encode_jpeg",
    "gather",
    "interleave",
    "kernels_in_use",
    "library_path",
    "probe_jpeg",
    "read_ahead",
    "reencode_jpeg",
    "resize_rgb",
    "sample_keys",
    "status_text",
    "this_thread_is_own",
    "transcode_jpeg",
    "use_kernels",
]
