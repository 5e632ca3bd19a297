"""Transforms called by themselves, on one image or a batch in memory, with the very results they have in a Loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import REQUEST, decode_regions, status_text
from dataloading.errors import UsageError
from dataloading.format import MODE_RAW
from dataloading.transforms.base import IMAGE_DTYPES, Geometry
from dataloading.transforms.compose import written_out
from dataloading.transforms.crops import one_list_per_crop
from dataloading.transforms.pipeline import MAX_CHANNELS, Pipeline, PipelineFault
from dataloading.transforms.rng import sample_keys

__all__ = ["apply", "apply_to_batch"]


def apply(transforms: Sequence[object], image: Any, seed: int, owner: str) -> Any:
    """Apply transforms to an image, or a batch of images, that lies in memory.

    Parameters
    ----------
    transforms : sequence
        As for a Loader; those of single images only.
    image : ndarray or tensor, shape (C, H, W) or (N, C, H, W)
        uint8, uint16, or float32 with values from 0 to 1. It is not changed.
    seed : int
        Image n of a batch gets what sample n gets in epoch 0 of a Loader with this seed.
    owner : str
        What error messages call this.

    Returns
    -------
    ndarray or tensor
        Of the kind that was given, in host memory; a tuple of them if the transforms make several images of one.
    """
    lists = one_list_per_crop(written_out(transforms))
    results = tuple(_apply(each, image, seed, owner) for each in lists)
    return results if len(lists) > 1 else results[0]


def _apply(transforms: Sequence[object], image: Any, seed: int, owner: str) -> Any:
    is_tensor = hasattr(image, "numpy") and not isinstance(image, np.ndarray)
    pixels = np.ascontiguousarray(image.detach().cpu().numpy() if is_tensor else image)
    batch = pixels if pixels.ndim == 4 else pixels[None]
    _check(batch, pixels, owner, is_tensor=is_tensor)
    out, dtype = apply_to_batch(transforms, batch, sample_keys(seed, 0, np.arange(len(batch))), owner)
    result = out if pixels.ndim == 4 else out[0]
    return _delivered(result, dtype, is_tensor, owner)


def apply_to_batch(
    transforms: Sequence[object],
    batch: npt.NDArray[Any],
    keys: npt.NDArray[np.uint64],
    owner: str,
    indices: npt.NDArray[np.int64] | None = None,
) -> tuple[npt.NDArray[Any], str]:
    """Apply transforms of single images to an array (N, C, H, W) with a random stream for each image.

    Returns the array as it is stored, and its dtype.
    """
    n, channels, height, width = batch.shape
    indices = np.arange(n) if indices is None else indices
    is_bytes = batch.dtype == np.uint8
    for each in transforms:
        if not is_bytes and isinstance(each, Geometry) and type(each).operation is Geometry.operation:
            raise UsageError(f"{owner}: {each.name} of images in memory works on uint8, got {batch.dtype}")
    pipeline = Pipeline(
        transforms, channels=channels, source_size=(height, width), dtype=str(batch.dtype), decodes=is_bytes
    )
    if pipeline.batch_transforms:
        raise UsageError(f"{owner}: {type(pipeline.batch_transforms[0]).__name__} works on batches only")
    if pipeline.reads_boxes:
        raise UsageError(f"{owner} reads the boxes of stored samples: put it into a Loader's list")
    out = np.empty((n, *pipeline.out_shape), pipeline.storage_dtype)
    try:
        decoded = _decoded(pipeline, batch, keys) if is_bytes else batch.copy()
        pipeline.run(decoded, keys, out, indices=indices)
    except PipelineFault as fault:
        raise fault.cause from None
    return out, pipeline.out_dtype


def _check(batch: npt.NDArray[Any], pixels: npt.NDArray[Any], owner: str, *, is_tensor: bool) -> None:
    if batch.ndim != 4 or 0 in batch.shape[1:] or batch.shape[1] > MAX_CHANNELS:
        fix = ""
        if pixels.ndim in (3, 4) and pixels.shape[-1] in (1, 3, 4):
            last, order = (
                ("height, width, channels", "2, 0, 1")
                if pixels.ndim == 3
                else ("N, height, width, channels", "0, 3, 1, 2")
            )
            how = "permute" if is_tensor else "transpose"
            fix = f". This looks like ({last}): pass image.{how}({order})"
        elif pixels.ndim == 2:
            fix = ". Pass image[None] for a gray image"
        raise UsageError(
            f"{owner}: expected an image of shape (channels, height, width) or a batch of shape (N, channels, height, "
            f"width), with 1 to {MAX_CHANNELS} channels, got {pixels.shape}{fix}"
        )
    if str(batch.dtype) not in IMAGE_DTYPES:
        fix = ". Pass floats from 0 to 1 as float32" if batch.dtype.kind == "f" else ""
        raise UsageError(f"{owner}: expected {', '.join(IMAGE_DTYPES)}, got {batch.dtype}{fix}")


def _decoded(pipeline: Pipeline, batch: npt.NDArray[np.uint8], keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Do the geometry at the front as the decoder does it, each plane as a gray image of its own."""
    n, channels, height, width = batch.shape
    decoded: npt.NDArray[np.uint8] = np.empty((n, *pipeline.decode_shape), np.uint8)
    planned = np.zeros(n, REQUEST)
    planned["src_width"], planned["src_height"] = width, height
    pipeline.plan(keys, planned)
    planes = np.repeat(planned, channels)
    _, out_height, out_width = pipeline.decode_shape
    planes["src"] = batch.ctypes.data + np.arange(n * channels, dtype=np.uint64) * np.uint64(height * width)
    planes["dst"] = decoded.ctypes.data + np.arange(n * channels, dtype=np.uint64) * np.uint64(out_height * out_width)
    planes["src_bytes"], planes["mode"], planes["channels"] = height * width, MODE_RAW, 1
    planes["plane_stride"], planes["row_stride"] = out_height * out_width, out_width
    if channels == 3:
        planes["fill"][:, 0] = planned["fill"][:, :3].reshape(-1)
    if decode_regions(planes):
        status = next(int(each) for each in planes["status"] if each)
        raise UsageError(f"the geometry cannot be done on this image: {status_text(status)}")
    return decoded


def _delivered(result: npt.NDArray[Any], dtype: str, is_tensor: bool, owner: str) -> Any:
    if is_tensor:
        import torch

        tensor = torch.from_numpy(result)
        return tensor.view(getattr(torch, dtype)) if dtype in ("float16", "bfloat16") else tensor
    if dtype == "bfloat16":
        raise UsageError(f"{owner}: NumPy has no bfloat16. Pass a tensor")
    return result.view(np.float16) if dtype == "float16" else result
