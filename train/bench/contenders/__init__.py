"""The loaders that are compared, one a file, each tuned as its own documentation advises (see its docstring).

Owns the table of names and the contract (`base.Contender`). A module is imported only in the child process that
measures it: several of them change global state on import, and most may be absent.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

from dataloading import UsageError
from train.bench.contenders.base import Contender
from train.bench.spec import BenchSpec

__all__ = ["CONTENDERS", "Contender", "Entry", "make_contender"]


class Entry(NamedTuple):
    """Where a contender lives.

    Parameters
    ----------
    target : str
        ``"module:class"`` below this package.
    needs : str
        Module that must be importable, "" where everything comes with us.
    package : str
        What to install for it, and whose version is reported.
    summary : str
        One line for lists.
    """

    target: str
    needs: str
    package: str
    summary: str


CONTENDERS = {
    "beton": Entry("ours:BetonContender", "", "", "our Loader"),
    "kernels": Entry("ours:KernelsContender", "", "", "our kernels on the same threads, without the Loader (ceiling)"),
    "synthetic": Entry("synthetic:SyntheticContender", "", "", "a batch that is in memory already (ceiling)"),
    "torch": Entry("stock:PillowContender", "torchvision", "torch", "DataLoader, Pillow, torchvision v2"),
    "torch-fast": Entry("stock:TensorContender", "torchvision", "torch", "DataLoader, decode_image, v2 on tensors"),
    "ffcv": Entry("ffcv_peer:FfcvContender", "ffcv", "ffcv", "the real FFCV 1.0.2"),
    "dali": Entry("dali_peer:DaliContender", "nvidia.dali", "nvidia-dali-cuda130", "NVIDIA DALI on the CPU"),
    "webdataset": Entry("webdataset_peer:WebDatasetContender", "webdataset", "webdataset", "WebDataset, tar shards"),
    "litdata": Entry("litdata_peer:LitDataContender", "litdata", "litdata", "LitData, optimised chunks"),
    "mosaicml-streaming": Entry(
        "mosaicml_peer:StreamingContender", "streaming", "mosaicml-streaming", "MosaicML Streaming, MDS shards"
    ),
    "grain": Entry("grain_peer:GrainContender", "grain", "grain", "Grain, worker processes"),
    "spdl": Entry("spdl_peer:SpdlContender", "spdl.io", "spdl", "SPDL, threads and FFmpeg"),
    "timm": Entry("timm_peer:TimmContender", "timm", "timm", "timm's create_loader"),
}


def make_contender(spec: BenchSpec) -> Contender:
    """Build the contender that `spec` names.

    Raises
    ------
    UsageError
        There is none of this name, or it cannot do what is asked.
    ImportError
        It is not installed.
    """
    if spec.loader not in CONTENDERS:
        raise UsageError(f"no loader is called {spec.loader!r}; there are {', '.join(CONTENDERS)}")
    module_name, _, class_name = CONTENDERS[spec.loader].target.partition(":")
    module = importlib.import_module(f"{__name__}.{module_name}")
    contender: Contender = getattr(module, class_name)(spec)
    return contender
