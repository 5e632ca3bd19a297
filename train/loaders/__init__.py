"""Loaders for training and benchmarks: one file per loader, behind one protocol (`base`).

A loader's module is imported only when the loader is used: several change global state on import, and most are
optional. This module imports no torch, so that command lines can list the names quickly.

Every loader crops images in the same way: RandomResizedCrop and flip for training, Resize of the shorter side and
CenterCrop for evaluation. All read the same stored bytes (`stored_images`), copied into their own format if necessary
(`copies`). The docstring of each module describes the loader's tuning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from dataloading import UsageError

if TYPE_CHECKING:
    from train.loaders.base import LoaderSpec, MeasuredLoader, TrainingLoader

__all__ = ["LOADERS", "TRAINING_LOADERS", "Entry", "cannot_train", "make_loader", "make_measured_loader"]


class Entry(NamedTuple):
    """The location and requirements of a loader.

    Parameters
    ----------
    target : str
        ``"module:class"`` below this package.
    needs : str
        Module to import before the loader is built; "" if nothing else is needed.
    package : str
        Package to install, whose version is reported.
    summary : str
        One line for lists.
    cannot_train : str
        Why only ``beton bench`` can use it; empty if it can train.
    stream : bool
        Whether it reads ``.beton`` files or its own copy of one, drops incomplete batches, and resumes only at the end
        of an epoch (`whole_epochs.StreamLoader`).
    ceiling : bool
        Whether it is no loader of the data but a bound on what loaders can reach.
    """

    target: str
    needs: str
    package: str
    summary: str
    cannot_train: str = ""
    stream: bool = False
    ceiling: bool = False


_NO_RANKS = "its adapter neither divides an epoch among ranks nor resumes"

LOADERS = {
    "beton": Entry("ours:BetonLoader", "dataloading.loader", "", "our Loader"),
    "torch": Entry("stock:PillowLoader", "torchvision", "torch", "DataLoader, Pillow, torchvision v2"),
    "torch-fast": Entry("stock:TensorLoader", "torchvision", "torch", "DataLoader, decode_image, v2 on tensors"),
    "ffcv": Entry("ffcv_peer:FfcvLoader", "ffcv", "ffcv", "the real FFCV 1.0.2"),
    "dali": Entry("dali_peer:DaliLoader", "nvidia.dali", "nvidia-dali-cuda130", "NVIDIA DALI on the CPU", stream=True),
    "webdataset": Entry(
        "webdataset_peer:WebDatasetLoader", "webdataset", "webdataset", "WebDataset, tar shards", stream=True
    ),
    "litdata": Entry("litdata_peer:LitDataLoader", "litdata", "litdata", "LitData, optimised chunks", stream=True),
    "mosaicml-streaming": Entry(
        "mosaicml_peer:StreamingLoader",
        "streaming",
        "mosaicml-streaming",
        "MosaicML Streaming, MDS shards",
        stream=True,
    ),
    "grain": Entry("grain_peer:GrainLoader", "grain", "grain", "Grain, worker processes", _NO_RANKS),
    "spdl": Entry("spdl_peer:SpdlLoader", "spdl.io", "spdl", "SPDL, threads and FFmpeg", _NO_RANKS),
    "timm": Entry("timm_peer:TimmLoader", "timm", "timm", "timm's create_loader", _NO_RANKS),
    "kernels": Entry(
        "kernels:Kernels",
        "",
        "",
        "our kernels on the same threads, without the Loader (ceiling)",
        "it is a ceiling, not a loader: it has no labels",
        ceiling=True,
    ),
    "synthetic": Entry(
        "synthetic:SyntheticBatches",
        "",
        "",
        "one batch that is already in memory (ceiling)",
        stream=True,
        ceiling=True,
    ),
}
TRAINING_LOADERS = tuple(name for name, entry in LOADERS.items() if not entry.cannot_train)


def cannot_train(name: str) -> str:
    """Return why a loader that can only be benchmarked cannot train; "" for others and unknown names."""
    reason = LOADERS[name].cannot_train if name in LOADERS else ""
    return f"`beton bench` can measure {name}, but it cannot train: {reason}" if reason else ""


def make_loader(name: str, spec: LoaderSpec) -> TrainingLoader:
    """Build the loader called `name` for training or validation.

    Parameters
    ----------
    name : str
        One of `TRAINING_LOADERS`.
    spec : LoaderSpec
        Data, batch, rank and world size.

    Raises
    ------
    UsageError
        The name is unknown, or this loader cannot train or does not support the spec.
    """
    if name not in TRAINING_LOADERS:
        problem = cannot_train(name) or f"no loader is called {name!r}"
        raise UsageError(f"{problem}; choose {', '.join(TRAINING_LOADERS)}")
    if LOADERS[name].stream and (spec.tail != "drop" or spec.indices is not None):
        raise UsageError(f"--loader {name} takes whole batches of a whole file: use --tail drop, and no --val-fraction")
    loader: TrainingLoader = _class_of(name)(spec)
    return loader


def make_measured_loader(name: str, spec: LoaderSpec) -> MeasuredLoader:
    """Build the loader called `name` for a benchmark.

    Raises
    ------
    UsageError
        The name is unknown, or this loader does not support the spec.
    ImportError
        It is not installed.
    """
    if name not in LOADERS:
        raise UsageError(f"no loader is called {name!r}; there are {', '.join(LOADERS)}")
    loader: MeasuredLoader = _class_of(name)(spec)
    return loader


def _class_of(name: str) -> type:
    module_name, _, class_name = LOADERS[name].target.partition(":")
    found: type = getattr(importlib.import_module(f"{__name__}.{module_name}"), class_name)
    return found
