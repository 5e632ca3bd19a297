"""MixUp and CutMix: transforms of a whole batch, on the tensors that come out of the pipeline.

They follow ``torchvision.transforms.v2``: one lambda for the whole batch from a Beta distribution; sample i is
mixed with sample i - 1 (``roll(1, 0)``), the first with the last; labels become soft. What a sample is mixed
with depends on the batch it is in, so with these two the batch size and the number of ranks matter, unlike
everywhere else in this package; the amount depends on nothing but (seed, epoch, step).

No torch is imported: everything is done by methods of the tensors that are passed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.errors import UsageError
from dataloading.sampling.random import child
from dataloading.transforms.base import FLOAT_DTYPES, BatchOp, ImageState
from dataloading.transforms.labels import check_smoothing

__all__ = ["CutMix", "MixUp", "Mixing", "MixingApply", "MixingChoice", "Mixup"]


def _generator(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key & ((1 << 64) - 1)))


class Mixing(BatchOp):
    """Base of what mixes images and labels.

    Attributes
    ----------
    smoothing : float
        Share of a label that is spread over all classes: a loss must not do it again.
    """

    smoothing: float

    @property
    def takes_class_numbers(self) -> bool:
        """Whether labels may be class numbers: the number of classes is known."""
        raise NotImplementedError

    def soft_labels(self, labels: Any) -> Any:
        """Return labels as rows of floats, (B, num_classes), which is what mixing starts from."""
        raise NotImplementedError

    def drawn(self, shape: Sequence[int], key: int | None) -> dict[str, npt.NDArray[Any]]:
        """Return what a batch of images of this shape draws; for the key None what there is where nothing happens.

        Returns
        -------
        dict of str to ndarray, one row an image
            "lambda", float64: the share of its own (NaN); "partner", int64: the row it is mixed with (-1); of CutMix
            "box", int64 of shape (B, 4): top, left, height and width of what is pasted (0).
        """
        raise NotImplementedError


class _Mix(Mixing):
    """What both have in common: checks, lambda, labels."""

    alpha: float
    num_classes: int | None

    @property
    def takes_class_numbers(self) -> bool:
        """See ``Mixing.takes_class_numbers``."""
        return self.num_classes is not None

    def _check_parameters(self, labels_getter: object) -> None:
        if labels_getter != "default":
            raise UsageError(
                f"{self.name}: labels_getter= is for torchvision's nested samples; here the labels are the field "
                f"'label', or the only integers. Leave it out"
            )
        if not (isinstance(self.alpha, (int, float)) and math.isfinite(self.alpha) and self.alpha > 0):
            raise UsageError(f"{self.name}: alpha must be a positive number, got {self.alpha!r}")
        if self.num_classes is not None and (not isinstance(self.num_classes, int) or self.num_classes < 1):
            raise UsageError(f"{self.name}: num_classes must be a positive integer, got {self.num_classes!r}")
        check_smoothing(self.name, self.smoothing)

    def _check_batch(self, images: Any, labels: Any) -> None:
        if images.ndim != 4 or labels.ndim not in (1, 2) or images.shape[0] != labels.shape[0]:
            raise UsageError(
                f"{self.name}: expected images (B, C, H, W) and labels (B,) or (B, num_classes), "
                f"got {tuple(images.shape)} and {tuple(labels.shape)}"
            )
        if labels.ndim == 1 and self.num_classes is None:
            raise UsageError(f"{self.name}: labels are class numbers, so pass num_classes=")
        if labels.ndim == 2 and self.num_classes not in (None, labels.shape[1]):
            raise UsageError(
                f"{self.name}: labels have {labels.shape[1]} columns, but num_classes is {self.num_classes}"
            )
        if labels.ndim == 1 and labels.device.type == "cpu" and labels.numel():
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= (self.num_classes or 0):
                raise UsageError(
                    f"{self.name}: labels run from {low} to {high}, but num_classes={self.num_classes} allows 0 to "
                    f"{(self.num_classes or 0) - 1}"
                )

    def soft_labels(self, labels: Any) -> Any:
        """See ``Mixing.soft_labels``; class numbers are smoothed."""
        if labels.ndim == 1:
            one_hot = labels.new_zeros((labels.shape[0], self.num_classes)).float()
            one_hot = one_hot.scatter_(1, labels.long().unsqueeze(1), 1.0)
            if self.smoothing and self.num_classes:
                one_hot = one_hot.mul_(1.0 - self.smoothing).add_(self.smoothing / self.num_classes)
            return one_hot
        return labels if labels.is_floating_point() else labels.float()

    def _drawn(self, num_rows: int, lam: float | None) -> dict[str, npt.NDArray[Any]]:
        partners = np.arange(num_rows, dtype=np.int64)
        return {
            "lambda": np.full(num_rows, np.nan if lam is None else lam),
            "partner": np.full_like(partners, -1) if lam is None else np.roll(partners, 1),
        }

    def _mix_labels(self, labels: Any, lam: float) -> Any:
        labels = self.soft_labels(labels)
        return labels.roll(1, 0).mul_(1.0 - lam).add_(labels.mul(lam))


@dataclasses.dataclass(frozen=True)
class MixUp(_Mix):
    r"""Blend each image with the one before it (Zhang et al., https://arxiv.org/abs/1710.09412).

    .. math:: x_i \leftarrow \lambda x_i + (1 - \lambda) x_{i-1}, \quad \lambda \sim Beta(\alpha, \alpha)

    Parameters
    ----------
    alpha : float
        Of the Beta distribution.
    num_classes : int, optional
        Needed where labels are class numbers, shape (B,); they become soft labels, shape (B, num_classes).
    smoothing : float
        Of class numbers, as `OneHot` has it.
    labels_getter : "default"
        torchvision's; no other value has a meaning here.

    Examples
    --------
    >>> MixUp(alpha=0.2, num_classes=1000)
    MixUp(alpha=0.2, num_classes=1000, smoothing=0.0)
    """

    _: dataclasses.KW_ONLY
    alpha: float = 1.0
    num_classes: int | None = None
    smoothing: float = 0.0
    labels_getter: dataclasses.InitVar[str] = "default"

    def __post_init__(self, labels_getter: str) -> None:
        super().__post_init__()
        self._check_parameters(labels_getter)

    def check(self, state: ImageState) -> None:
        """See ``BatchOp.check``."""
        if state.dtype == "uint8":
            raise UsageError(f"{self.name} blends images, which needs floats, got uint8. Put Normalize before it")
        if state.dtype not in FLOAT_DTYPES:
            raise UsageError(
                f"{self.name} blends images, which needs floats, got {state.dtype}. Put a callable before it that "
                "gives floats, such as lambda images: images.float() / 65535"
            )

    def __call__(self, images: Any, labels: Any, key: int) -> tuple[Any, Any]:
        """Return the blended images and labels; ``key`` is the batch's, see ``batch_key``."""
        self._check_batch(images, labels)
        if not images.is_floating_point():
            raise UsageError(f"{self.name} blends images, which needs floats, got {images.dtype}. Use Normalize")
        lam = self._lambda(key)
        mixed = images.roll(1, 0).mul_(1.0 - lam).add_(images.mul(lam))
        return mixed, self._mix_labels(labels, lam)

    def drawn(self, shape: Sequence[int], key: int | None) -> dict[str, npt.NDArray[Any]]:
        """See ``Mixing.drawn``."""
        return self._drawn(shape[0], None if key is None else self._lambda(key))

    def _lambda(self, key: int) -> float:
        return float(_generator(key).beta(self.alpha, self.alpha))


Mixup = MixUp


@dataclasses.dataclass(frozen=True)
class CutMix(_Mix):
    """Paste a rectangle of the image before it into each image (Yun et al., https://arxiv.org/abs/1905.04899).

    The rectangle covers ``1 - lambda`` of the image before it is cut off at the border; labels are weighted by the
    area that is left.

    Parameters
    ----------
    alpha : float
        Of the Beta distribution that lambda is drawn from.
    num_classes : int, optional
        Needed where labels are class numbers, shape (B,); they become soft labels, shape (B, num_classes).
    smoothing : float
        Of class numbers, as `OneHot` has it.
    labels_getter : "default"
        torchvision's; no other value has a meaning here.

    Examples
    --------
    >>> CutMix(num_classes=10)
    CutMix(alpha=1.0, num_classes=10, smoothing=0.0)
    """

    _: dataclasses.KW_ONLY
    alpha: float = 1.0
    num_classes: int | None = None
    smoothing: float = 0.0
    labels_getter: dataclasses.InitVar[str] = "default"

    def __post_init__(self, labels_getter: str) -> None:
        super().__post_init__()
        self._check_parameters(labels_getter)

    def box(self, height: int, width: int, key: int) -> tuple[tuple[int, int, int, int], float]:
        """Return (x1, y1, x2, y2) and the share of the image outside it: ``CutMix.make_params`` of torchvision."""
        generator = _generator(key)
        lam = float(generator.beta(self.alpha, self.alpha))
        center_x, center_y = int(generator.integers(width)), int(generator.integers(height))
        half = 0.5 * math.sqrt(1.0 - lam)
        half_w, half_h = int(half * width), int(half * height)
        x1, y1 = max(center_x - half_w, 0), max(center_y - half_h, 0)
        x2, y2 = min(center_x + half_w, width), min(center_y + half_h, height)
        return (x1, y1, x2, y2), 1.0 - (x2 - x1) * (y2 - y1) / (width * height)

    def __call__(self, images: Any, labels: Any, key: int) -> tuple[Any, Any]:
        """Return the mixed images and labels; ``key`` is the batch's, see ``batch_key``."""
        self._check_batch(images, labels)
        (x1, y1, x2, y2), lam = self.box(images.shape[2], images.shape[3], key)
        mixed = images.clone()
        mixed[..., y1:y2, x1:x2] = images.roll(1, 0)[..., y1:y2, x1:x2]
        return mixed, self._mix_labels(labels, lam)

    def drawn(self, shape: Sequence[int], key: int | None) -> dict[str, npt.NDArray[Any]]:
        """See ``Mixing.drawn``."""
        if key is None:
            box, lam = (0, 0, 0, 0), None
        else:
            (x1, y1, x2, y2), lam = self.box(shape[2], shape[3], key)
            box = (y1, x1, y2 - y1, x2 - x1)
        return {**self._drawn(shape[0], lam), "box": np.tile(np.array(box, np.int64), (shape[0], 1))}


class _MixingOf(Mixing):
    """What is made of transforms that mix, and is called what the user wrote."""

    transforms: Sequence[Mixing]

    @property
    def smoothing(self) -> float:  # type: ignore[override]
        """See ``Mixing``: the most that one of them does."""
        return max(each.smoothing for each in self.transforms)

    def check(self, state: ImageState) -> None:
        """See ``BatchOp.check``."""
        for place, each in enumerate(self.transforms):
            try:
                each.check(state)
            except UsageError as error:
                raise UsageError(f"{self.name}: transform {place}: {error}") from None

    @property
    def takes_class_numbers(self) -> bool:
        """See ``Mixing.takes_class_numbers``."""
        return all(each.takes_class_numbers for each in self.transforms)

    def soft_labels(self, labels: Any) -> Any:
        """See ``Mixing.soft_labels``."""
        return self.transforms[0].soft_labels(labels)

    def keys(self, key: int) -> list[int | None]:
        """Return the key of each transform inside for a batch's key; None for those that do not happen."""
        raise NotImplementedError

    def drawn(self, shape: Sequence[int], key: int | None) -> dict[str, npt.NDArray[Any]]:
        """See ``Mixing.drawn``; names begin with those of the transforms inside."""
        keys = [None] * len(self.transforms) if key is None else self.keys(key)
        return {
            f"{place}.{each.name}.{name}": values
            for place, (each, own) in enumerate(zip(self.transforms, keys, strict=True))
            for name, values in each.drawn(shape, own).items()
        }

    def __call__(self, images: Any, labels: Any, key: int) -> tuple[Any, Any]:
        """Return the mixed images and labels of one batch; labels are soft in any case."""
        keys = self.keys(key)
        if keys.count(None) == len(keys):
            return images, self.soft_labels(labels)
        for each, own in zip(self.transforms, keys, strict=True):
            if own is not None:
                images, labels = each(images, labels, own)
        return images, labels

    def __repr__(self) -> str:
        return f"{self.name}(transforms={self.transforms!r}, p={self.p!r})"  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True, repr=False)
class MixingChoice(_MixingOf):
    """What ``RandomChoice`` of MixUp and CutMix is: one of them for each batch."""

    transforms: Sequence[Mixing]
    p: Sequence[float] | None = None

    @property
    def name(self) -> str:
        """What error messages call it."""
        return "RandomChoice"

    def keys(self, key: int) -> list[int | None]:
        """See ``_MixingOf.keys``."""
        weights = np.cumsum(self.p or [1.0] * len(self.transforms))
        below = weights / weights[-1]
        place = min(int(np.searchsorted(below, _generator(key).random(), side="right")), len(self.transforms) - 1)
        return [child(key, place) if each == place else None for each in range(len(self.transforms))]


@dataclasses.dataclass(frozen=True, repr=False)
class MixingApply(_MixingOf):
    """What ``RandomApply`` of MixUp and CutMix is: all of them in a row, or none; labels are soft in any case."""

    transforms: Sequence[Mixing]
    p: float = 0.5

    @property
    def name(self) -> str:
        """What error messages call it."""
        return "RandomApply"

    def keys(self, key: int) -> list[int | None]:
        """See ``_MixingOf.keys``."""
        happens = _generator(key).random() < self.p
        return [child(key, place) if happens else None for place in range(len(self.transforms))]
