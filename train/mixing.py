"""Mixup and CutMix on the device, for any loader: our transforms, drawn per micro-batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from dataloading import tools
from dataloading import transforms as T


def mix_batch(
    images_NCHW: torch.Tensor,
    labels: torch.Tensor,
    num_classes: int,
    *,
    mixup: float,
    cutmix: float,
    key: tuple[int, int, int, int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix each image with its neighbour in the batch, by blending or by pasting a box.

    Parameters
    ----------
    images_NCHW : torch.Tensor
        Float images; not changed.
    labels : torch.Tensor
        Labels, shape (N,).
    num_classes : int
        Length of the target vectors.
    mixup, cutmix : float
        Alphas of the two Beta distributions, at least one of them above 0; with both, one is drawn per batch.
    key : tuple of int
        Seed, optimiser step, micro-batch and rank. The draw depends on nothing else, so a resumed run mixes exactly as
        an uninterrupted one.

    Returns
    -------
    tuple of torch.Tensor
        Mixed images (N, C, H, W) and target probabilities (N, num_classes).
    """
    random = tools.random
    batch_key = functools.reduce(random.child, key, 0)
    paste = cutmix > 0 and (mixup == 0 or random.child(batch_key, 0) % 2 == 0)
    transform: T.CutMix | T.MixUp = (T.CutMix if paste else T.MixUp)(
        alpha=cutmix if paste else mixup, num_classes=num_classes
    )
    mixed: tuple[torch.Tensor, torch.Tensor] = transform(images_NCHW, labels, batch_key)
    return mixed


def mix_by_recipe(
    images_NCHW: torch.Tensor, labels: torch.Tensor, mixes: Sequence[Any], *, key: tuple[int, int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix a batch with the mixing transforms of a recipe: each of `mixes` in turn, or one of a `RandomChoice`.

    Parameters and results are those of `mix_batch`.
    """
    targets = labels
    for place, transform in enumerate(mixes):
        batch_key = tools.random.child(functools.reduce(tools.random.child, key, 0), place)
        images_NCHW, targets = transform(images_NCHW, targets, batch_key)
    return images_NCHW, targets
