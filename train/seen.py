"""What a run's loader delivered: how often each label, and the mean pixel. For the comparison of loaders."""

from __future__ import annotations

from typing import Any

import torch

from train.distributed import sum_over_ranks
from train.loaders.base import LoaderSpec, TrainBatch

_GRID = 16  # rows and columns looked at of each image: a thousandth of the work of a step


class SeenData:
    """Sums over the images of this rank that count, kept on the device.

    Parameters
    ----------
    num_classes : int
        Labels are below it.
    spec : LoaderSpec
        Device, image size, mean and standard deviation.
    normalised : bool
        Whether images arrive normalised.
    """

    def __init__(self, num_classes: int, spec: LoaderSpec, *, normalised: bool) -> None:
        self._stride = max(1, spec.image_size // _GRID)
        self._scale: tuple[torch.Tensor, torch.Tensor] | None = None
        if normalised:
            std, mean = (torch.tensor(each, device=spec.device).view(1, 3) for each in (spec.std, spec.mean))
            self._scale = 255.0 * std, 255.0 * mean
        self._labels = torch.zeros(num_classes, dtype=torch.float64, device=spec.device)
        self._pixels = torch.zeros((2, 3), dtype=torch.float64, device=spec.device)

    def add(self, batch: TrainBatch) -> None:
        """Count a batch, without making the device wait."""
        labels = batch.labels[: batch.num_valid]
        self._labels.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float64))
        means = batch.images[: batch.num_valid, :, :: self._stride, :: self._stride].float().mean(dim=(2, 3))
        if self._scale is not None:
            means = means * self._scale[0] + self._scale[1]
        means = means.double()
        self._pixels += torch.stack([means.sum(0), means.square().sum(0)])

    def result(self) -> dict[str, Any]:
        """Return counts by label, and mean and standard deviation of the images' mean colours; of all ranks."""
        labels = sum_over_ranks(self._labels).tolist()
        sums, squares = sum_over_ranks(self._pixels).tolist()
        count = max(1.0, sum(labels))
        means = [value / count for value in sums]
        spreads = [max(0.0, square / count - mean**2) ** 0.5 for square, mean in zip(squares, means, strict=True)]
        return {"num_images": int(sum(labels)), "labels": [int(n) for n in labels], "mean": means, "std": spreads}
