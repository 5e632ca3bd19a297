"""Mixup and CutMix on the device, for whatever loader feeds the trainer.

The draw is a pure function of (seed, step, micro-batch, rank): a resumed run mixes as the interrupted one would have.
Sources: Zhang et al., arXiv:1710.09412 (mixup); Yun et al., arXiv:1905.04899 (CutMix).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional


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
        Class numbers, shape (N,).
    num_classes : int
        Length of the target vectors.
    mixup, cutmix : float
        Alphas of the two Beta distributions; 0 turns one off, and with both on one of them is drawn per batch.
    key : tuple of int
        Seed, optimiser step, micro-batch and rank.

    Returns
    -------
    tuple of torch.Tensor
        Mixed images (N, C, H, W) and target probabilities (N, num_classes).
    """
    targets = functional.one_hot(labels, num_classes).to(images_NCHW.dtype)
    if mixup == 0 and cutmix == 0:
        return images_NCHW, targets
    generator = np.random.default_rng(key)
    paste = cutmix > 0 and (mixup == 0 or generator.random() < 0.5)
    alpha = cutmix if paste else mixup
    share = float(generator.beta(alpha, alpha))
    partners = images_NCHW.roll(1, 0)
    if paste:
        height, width = images_NCHW.shape[2:]
        side = math.sqrt(1.0 - share)
        half_height, half_width = int(height * side) // 2, int(width * side) // 2
        row, column = int(generator.integers(height)), int(generator.integers(width))
        rows = slice(max(0, row - half_height), min(height, row + half_height))
        columns = slice(max(0, column - half_width), min(width, column + half_width))
        images = images_NCHW.clone()
        images[:, :, rows, columns] = partners[:, :, rows, columns]
        # The box may have been cut at the border: the share is what is really left.
        share = 1.0 - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
    else:
        images = torch.lerp(partners, images_NCHW, share)
    return images, torch.lerp(targets.roll(1, 0), targets, share)
