"""Where batches come from: one small protocol, four loaders behind it.

Owns the protocol the trainer consumes (`TrainingLoader`), what it asks of a loader (`LoaderSpec`) and the choice by
name. All four cut images with the same pipeline: training is RandomResizedCrop, horizontal flip, normalise;
validation is Resize of the shorter side, CenterCrop, normalise. All can read the same JPEG bytes.

============  ==========================================================================================
``beton``     our Loader on a ``.beton`` file
``torch``     ``DataLoader`` over Pillow and torchvision's v2 transforms: what most scripts have today
``torch-fast``  ``DataLoader`` over ``torchvision.io.decode_image`` and v2 transforms on tensors
``ffcv``      the real FFCV 1.0.2 on the same ``.beton`` file (extra ``[ffcv]``)
============  ==========================================================================================
"""

from __future__ import annotations

from .base import IMAGENET_MEAN, IMAGENET_STD, LoaderSpec, TrainBatch, TrainingLoader
from .stored_images import FileImages, FolderImages, StoredImages, open_images

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "FileImages",
    "FolderImages",
    "LoaderSpec",
    "StoredImages",
    "TrainBatch",
    "TrainingLoader",
    "make_loader",
    "open_images",
]


def make_loader(name: str, spec: LoaderSpec) -> TrainingLoader:
    """Build the loader called `name` for what `spec` asks.

    Parameters
    ----------
    name : str
        ``beton``, ``torch``, ``torch-fast`` or ``ffcv``.
    spec : LoaderSpec
        Data, batch, place in the world.

    Raises
    ------
    UsageError
        The name is unknown, or this loader cannot serve the spec.
    """
    # Each peer is imported only when chosen: ffcv changes global state on import, and may be absent.
    if name == "beton":
        from .ours import BetonLoader

        return BetonLoader(spec)
    if name in ("torch", "torch-fast"):
        from .stock import StockLoader

        return StockLoader(spec, fast=name == "torch-fast")
    if name == "ffcv":
        from .ffcv_peer import FfcvLoader

        return FfcvLoader(spec)
    from dataloading import UsageError

    raise UsageError(f"no loader is called {name!r}; choose beton, torch, torch-fast or ffcv")
