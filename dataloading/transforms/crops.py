"""The transforms that make several images of one: FiveCrop and TenCrop.

A list with one of them is as many lists, each with one of its crops in its place, and gives as many images. The crops
of one image have the same random numbers: what stands before and behind draws the same for each.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence

from dataloading.errors import UsageError
from dataloading.transforms.base import Geometry, ImageState, check_size
from dataloading.transforms.geometry import CORNER_CROP, after_crop, crop_operation, in_the_middle, row_of
from dataloading.transforms.names import name_of
from dataloading.transforms.operation import Law, Node, Operation, constant

__all__ = ["FiveCrop", "ManyCrops", "TenCrop", "one_list_per_crop"]

# On each axis: at the beginning, at the end, in the middle.
_FIRST, _LAST, _MIDDLE = range(3)
_PLACES = ((_FIRST, _FIRST), (_FIRST, _LAST), (_LAST, _FIRST), (_LAST, _LAST), (_MIDDLE, _MIDDLE))
_BEGINS: tuple[Callable[[int], Law], ...] = (lambda left_over: constant(0), constant, in_the_middle)
_MIRROR, _UPSIDE_DOWN = 1, 2  # bits of a flip, as in the decoder's requests


class ManyCrops(Geometry):
    """Base of what makes several images of one. It does nothing itself: its crops do."""

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", check_size(self.name, self.size))

    @abc.abstractmethod
    def flips(self) -> tuple[int, ...]:
        """Return how the image is flipped before each five crops."""

    def crops(self) -> tuple[Geometry, ...]:
        """Return the crops, in torchvision's order."""
        size = check_size(self.name, self.size)
        return tuple(
            _Crop(owner=self.name, size=size, bottom=bottom, right=right, flip=flip)
            for flip in self.flips()
            for bottom, right in _PLACES
        )

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        raise self._misplaced()

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        raise self._misplaced()

    def _misplaced(self) -> UsageError:
        return UsageError(
            f"{self.name} makes {len(self.crops())} images of one, so it cannot be part of another transform. Put it "
            f"into the list itself"
        )


@dataclasses.dataclass(frozen=True)
class FiveCrop(ManyCrops):
    """Cut out the four corners and the middle: five images of one, for evaluation.

    The batch holds a list of five tensors (N, C, H, W): top left, top right, bottom left, bottom right, middle. By
    itself, it returns a tuple of five. Transforms behind it do the same to all crops of an image.

    Parameters
    ----------
    size : int or (int, int)
        Output (height, width) in pixels; one number means a square. Images must be that large.

    Examples
    --------
    >>> import numpy as np
    >>> [crop.tolist() for crop in FiveCrop(1)(np.arange(9, dtype=np.uint8).reshape(1, 3, 3))]
    [[[[0]]], [[[2]]], [[[6]]], [[[8]]], [[[4]]]]
    """

    size: int | Sequence[int]

    def flips(self) -> tuple[int, ...]:
        """See ``ManyCrops.flips``."""
        return (0,)


@dataclasses.dataclass(frozen=True)
class TenCrop(ManyCrops):
    """Do what `FiveCrop` does to the image and to the flipped image: ten images of one.

    Parameters
    ----------
    size : int or (int, int)
        Output (height, width) in pixels; one number means a square. Images must be that large.
    vertical_flip : bool
        Flip top and bottom instead of left and right.

    Examples
    --------
    >>> TenCrop(224)
    TenCrop(size=(224, 224), vertical_flip=False)
    """

    size: int | Sequence[int]
    vertical_flip: bool = False

    def flips(self) -> tuple[int, ...]:
        """See ``ManyCrops.flips``."""
        return 0, _UPSIDE_DOWN if self.vertical_flip else _MIRROR


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Crop(Geometry):
    """One of the crops; `bottom` and `right` are its places on the two axes, of the flipped image."""

    owner: str
    size: tuple[int, int]
    bottom: int
    right: int
    flip: int

    @property
    def name(self) -> str:
        """What error messages call it: what the user wrote."""
        return self.owner

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        self._check(state)
        row = row_of(*self.size, self.bottom, self.right, self.flip)
        return CORNER_CROP, row, after_crop(state, *self.size, pads=False)

    def operation(self, state: ImageState) -> Operation:
        """See ``Geometry.operation``."""
        self._check(state)
        return crop_operation(self, state, self.size, top=_BEGINS[self.bottom], left=_BEGINS[self.right])

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``: a flip, where there is one, and the crop."""
        cut = super().node(state, None)
        nodes = [cut]
        if self.flip:
            kernel = "move.flip_horizontal" if self.flip == _MIRROR else "move.flip_vertical"
            nodes.insert(0, Node("leaf", self.name, state, state, operation=Operation(kernel, kind="in_place")))
        return Node("sequence", self.name, state, cut.after, children=tuple(nodes), place=place)

    def _check(self, state: ImageState) -> None:
        if state.height is not None and state.width is not None:
            height, width = self.size
            if height > state.height or width > state.width:
                raise UsageError(
                    f"{self.name}: size {height}x{width} is larger than the image, {state.size_text}. Choose a smaller "
                    f"one, or put Resize before it"
                )


def one_list_per_crop(transforms: Sequence[object]) -> list[tuple[object, ...]]:
    """Return the lists that a list stands for: itself, or one for each crop of the FiveCrop or TenCrop in it.

    Raises
    ------
    UsageError
        If there is more than one of them.
    """
    many = [(position, each) for position, each in enumerate(transforms) if isinstance(each, ManyCrops)]
    if not many:
        return [tuple(transforms)]
    if len(many) > 1:
        raise UsageError(
            f"transform {many[1][0]} ({name_of(many[1][1])}): transform {many[0][0]} ({name_of(many[0][1])}) makes "
            f"several images of one already. Keep one of them"
        )
    [(position, owner)] = many
    return [(*transforms[:position], crop, *transforms[position + 1 :]) for crop in owner.crops()]
