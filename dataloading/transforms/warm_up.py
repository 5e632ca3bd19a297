"""Compile operations ahead of their use, so that processes to come find them in the cache folder.

Knows one example of every transform, and which images it can work on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.base import ImageTransform, Transform
from dataloading.transforms.kernels import store
from dataloading.transforms.operation import Node
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.program import Program
from dataloading.transforms.state import FLOAT_DTYPES, ImageState

__all__ = ["EXAMPLES", "WarmUp", "programs", "warm_up"]

_SIDE = 64
# Transforms of which each operation is part of one.
EXAMPLES: tuple[ImageTransform, ...] = (
    T.CenterCrop(8),
    T.RandomCrop(8),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(),
    T.RandomTranslate(2),
    T.Pad(2),
    *(T.RandomRotation(30, interpolation=each) for each in ("nearest", "bilinear")),
    *(T.RandomAffine(30, (0.1, 0.1), (0.9, 1.1), 5, interpolation=each) for each in ("nearest", "bilinear")),
    *(T.RandomPerspective(interpolation=each) for each in ("nearest", "bilinear")),
    *(T.ElasticTransform(interpolation=each) for each in ("nearest", "bilinear")),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.Grayscale(),
    T.Grayscale(3),
    T.RandomGrayscale(),
    T.RandomInvert(),
    T.RandomSolarize(128),
    T.RandomPosterize(4),
    T.RandomAutocontrast(),
    T.RandomEqualize(),
    T.RandomPhotometricDistort(),
    T.RandomChannelPermutation(),
    T.RandomAdjustSharpness(2),
    T.GaussianBlur(5),
    T.GaussianNoise(),
    T.Normalize(0.5, 0.25),
    T.RandomErasing(),
    T.RandomErasing(value="random"),
    T.Cutout(4),
    T.Poison(np.zeros((_SIDE, _SIDE)), 0.5, [0]),
    T.RandAugment(),
    *(T.AutoAugment(policy) for policy in ("imagenet", "cifar10", "svhn")),
    T.TrivialAugmentWide(),
    T.AugMix(),
    T.ThreeAugment(),
    T.RandAugment.from_timm("rand-m9-mstd0.5-inc1"),
)


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """What was done.

    Parameters
    ----------
    num_compiled, num_found : int
        Operations that were compiled and stored, and those that were in the folder already.
    num_not_stored : int
        Compiled operations that the folder did not take.
    seconds : float
    folder : Path
    """

    num_compiled: int
    num_found: int
    num_not_stored: int
    seconds: float
    folder: Path


def programs() -> Iterator[Program]:
    """Return the operations of all transforms, for all images that each of them works on."""
    states = [
        ImageState(3, _SIDE, _SIDE, _SIDE),
        ImageState(3, _SIDE, _SIDE, _SIDE, dtype="uint16", bound=65535.0),
        ImageState(3, _SIDE, _SIDE, _SIDE, dtype="float32", bound=1.0),
        *(ImageState(3, _SIDE, _SIDE, _SIDE, dtype=each, written=True, bound=None) for each in FLOAT_DTYPES),
        ImageState(1, _SIDE, _SIDE, _SIDE, dtype="int64", bound=None),
    ]
    for state in states:
        for example in EXAMPLES:
            try:
                transform: Transform = example.for_mask() if state.dtype == "int64" else example
                if not isinstance(transform, ImageTransform):
                    continue
                node = transform.node(state, 0)
            except UsageError:  # not on such images
                continue
            yield Program(Node("sequence", "", state, node.after, children=(node,)))


def warm_up(transforms: Mapping[str, Any] | None = None) -> WarmUp:
    """Compile operations and store them in the cache folder.

    Parameters
    ----------
    transforms : mapping of field name to list or View, optional
        As for a Loader of RGB images: their operations, by default those of all transforms.

    Raises
    ------
    UsageError
        Nothing is stored in this environment, or the transforms cannot work.
    OSError
        The folder cannot be written.
    """
    folder = store.writable_folder()
    if folder is None:
        raise UsageError(
            "compiled operations are not stored here: BETON_CACHE_DIR is empty, or there is no home "
            "directory. Set the environment variable to a folder"
        )
    before, unstored = store.origins(), set(store.unstored())
    started = time.perf_counter()
    if transforms is None:
        for program in programs():
            program.compiled()
    else:
        for given in transforms.values():
            _compile_list(list(getattr(given, "transforms", given) or ()))
    new = [origin for label, origin in store.origins().items() if label not in before]
    return WarmUp(
        num_compiled=new.count("compiled"),
        num_found=new.count("stored"),
        num_not_stored=len(set(store.unstored()) - unstored),
        seconds=time.perf_counter() - started,
        folder=folder,
    )


def _compile_list(transforms: list[Any]) -> None:
    if not any(isinstance(each, ImageTransform) for each in transforms):
        return  # callables on the batch
    Pipeline(transforms).warm_up()
