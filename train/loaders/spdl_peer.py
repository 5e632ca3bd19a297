"""SPDL: threads, and FFmpeg for decoding.

Tuning, after its documentation ("Multi-threading", "Image dataloading"): demultiplex and decode in one stage with as
many threads as workers, crop and resize in FFmpeg's filter graph so that only the pixels of the crop are converted, and
``convert_frames`` to copy FFmpeg's frames into a batch once. swscale's bilinear filter grows with the reduction, so it
is antialiased. Images are HWC, viewed as NCHW without a copy.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from .base import LoaderSpec, MeasuredLoader, Normaliser, wants_normalised
from .copies import encoded_bytes
from .stored_images import FileImages


def draw_box(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Return ``(x, y, width, height)`` of torchvision's RandomResizedCrop, for an image of `width` x `height`."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h


class SpdlLoader(MeasuredLoader):
    """`spdl.pipeline` over `spdl.io`."""

    def __init__(self, spec: LoaderSpec) -> None:
        try:
            spdl.io.decode_config()  # the first call loads FFmpeg
        except RuntimeError as error:
            raise ImportError("SPDL finds no FFmpeg libraries; install the system's ffmpeg package") from error
        self._source = FileImages(spec.path)
        self._spec = spec
        self._order = np.random.default_rng(spec.seed)
        self._local = threading.local()
        self._normaliser = Normaliser(spec, normalised=not wants_normalised(spec), channels_last=True)
        self.num_ahead = 6

    def _indices(self) -> Iterator[int]:
        size = len(self._source)
        for _ in range(self._spec.repeats(size)):
            yield from (self._order.permutation(size) if self._spec.training else np.arange(size)).tolist()

    def _decode(self, index: int) -> Any:
        packets = spdl.io.demux_image(encoded_bytes(self._source, index))
        return spdl.io.decode_packets(packets, filter_desc=self._filters(packets.width, packets.height))

    def _filters(self, width: int, height: int) -> str:
        size = self._spec.image_size
        if not self._spec.training:
            factor = self._spec.resize_size / min(width, height)
            w, h = round(width * factor), round(height * factor)
            return f"scale={w}:{h}:flags=bilinear,crop={size}:{size},format=rgb24"
        if not hasattr(self._local, "rng"):
            self._local.rng = np.random.default_rng([self._spec.seed, threading.get_ident()])
        x, y, w, h = draw_box(self._local.rng, width, height)
        flip = ",hflip" if self._local.rng.random() < 0.5 else ""
        return f"crop={w}:{h}:{x}:{y},scale={size}:{size}:flags=bilinear{flip},format=rgb24"

    def _batch(self, frames: list[Any]) -> torch.Tensor:
        images: torch.Tensor = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
        return self._normaliser(images)

    def image_batches(self) -> Iterator[Any]:
        """Yield one epoch."""
        spec = self._spec
        pipeline = (
            PipelineBuilder()
            .add_source(self._indices())
            .pipe(self._decode, concurrency=spec.num_workers)
            .aggregate(spec.batch_size, drop_last=True)
            .pipe(self._batch)
            .add_sink(3)
            .build(num_threads=spec.num_workers, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline
