"""Transforms made of transforms: in a row, with a probability, one of several, in random order.

Inside, transforms work on pixels; the one at place ``i`` draws from child ``i`` of the composite's own random stream.
Only a `Compose` in a list is the same as its transforms written out there, so that geometry in it can still become part
of decoding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from dataloading.errors import UsageError
from dataloading.transforms.base import (
    FLOAT_DTYPES,
    ImageState,
    ImageTransform,
    PixelOp,
    Placeholder,
    Transform,
    check_probability,
)
from dataloading.transforms.mix import Mixing, MixingApply, MixingChoice
from dataloading.transforms.operation import Node

__all__ = ["Compose", "Composite", "RandomApply", "RandomChoice", "RandomOrder", "written_out"]


def written_out(transforms: Iterable[object]) -> list[object]:
    """Return a list of transforms with each `Compose` in it replaced by its transforms."""
    result: list[object] = []
    for each in transforms:
        result += written_out(each.transforms) if isinstance(each, Compose) else [each]
    return result


class Composite(PixelOp):
    """Base of transforms made of transforms."""

    transforms: Sequence[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.transforms, ImageTransform) or not isinstance(self.transforms, Sequence):
            raise UsageError(f"{self.name}: transforms must be a list, got {type(self.transforms).__name__}")
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if not self.transforms:
            raise UsageError(f"{self.name}: transforms is empty. Leave {self.name} out, or give it transforms")

    def __getnewargs__(self) -> tuple[Any, ...]:
        # For copies and pickles: a class may be chosen by what is inside.
        return (self.transforms,)

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``: what the transforms inside become, with the same draws."""
        inside = [each.for_mask() if isinstance(each, Transform) else each for each in self.transforms]
        return dataclasses.replace(self, transforms=inside)  # type: ignore[type-var]

    @property
    def mirrors(self) -> bool:  # type: ignore[override]
        """Whether all transforms inside mirror."""
        return all(getattr(each, "mirrors", False) for each in self.transforms)

    def check_images(self, state: ImageState) -> None:
        """See ``ImageTransform.check_images``: the transforms inside check for themselves."""

    def _children(self, state: ImageState, *, in_a_row: bool) -> tuple[tuple[Node, ...], ImageState]:
        """Return the nodes of the transforms inside, and what is known of the images behind them."""
        nodes = []
        for place, transform in enumerate(self.transforms):
            if type(transform) is Placeholder:
                nodes.append(Node("sequence", transform.name, state, state, place=place))
                continue
            if isinstance(transform, type):
                raise UsageError(
                    f"{self.name}: transform {place} is the class {transform.__name__}, not an instance. "
                    f"Write {transform.__name__}(...)"
                )
            if not isinstance(transform, ImageTransform):
                raise UsageError(
                    f"{self.name}: transform {place} must be a transform of dataloading.transforms that works on "
                    f"single images, got {type(transform).__name__}. Put it into the list itself"
                )
            try:
                node = transform.node(state, place)
            except UsageError as error:
                raise UsageError(f"{self.name}: transform {place}: {error}") from None
            nodes.append(node)
            state = node.after if in_a_row else state
        return tuple(nodes), state

    def _keeps(self, before: ImageState, after: ImageState, what: str) -> None:
        """Refuse images that would be of two kinds in one batch."""
        for quality in ("channels", "height", "width", "dtype"):
            old, new = getattr(before, quality), getattr(after, quality)
            if old != new:
                raise UsageError(
                    f"{self.name}: images of a batch must be alike, but {what} changes their {quality} from {old} to "
                    f"{new}. Put it outside of {self.name}"
                )


def _all_mix(transforms: Any) -> bool:
    """Whether these are transforms of batches, such as MixUp: then what is made of them is one, too."""
    return isinstance(transforms, Sequence) and bool(transforms) and all(isinstance(op, Mixing) for op in transforms)


def _known(state: ImageState, nodes: Iterable[Node]) -> ImageState:
    """Return what is known of images that some of these nodes have changed."""
    afters = [state, *(node.after for node in nodes)]
    bounds = {each.bound for each in afters}
    return state.replace(written=any(each.written for each in afters), bound=state.bound if len(bounds) == 1 else None)


@dataclasses.dataclass(frozen=True)
class Compose(Composite):
    """Several transforms in a row, as one.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> T.Compose([T.RandomInvert(), T.Grayscale()]).transforms
    (RandomInvert(p=0.5), Grayscale(num_output_channels=1))
    """

    transforms: Sequence[Any]

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        children, after = self._children(state, in_a_row=True)
        return Node("sequence", self.name, state, after, children=children, place=place)


@dataclasses.dataclass(frozen=True)
class RandomApply(Composite):
    """Apply all of the transforms, in a row, with probability ``p``; else none of them.

    Of MixUp and CutMix it is a transform of whole batches.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> T.RandomApply([T.ColorJitter(0.4, 0.4)], p=0.8).p
    0.8
    """

    transforms: Sequence[Any]
    p: float = 0.5

    def __new__(cls, transforms: Sequence[Any], p: float = 0.5) -> Any:
        """Make a transform of batches where those inside are."""
        if _all_mix(transforms):
            return MixingApply(tuple(transforms), check_probability("RandomApply", p))
        return super().__new__(cls)

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        children, after = self._children(state, in_a_row=True)
        self._keeps(state, after, "the list")
        after = _known(state, children)
        return Node("sequence", self.name, state, after, children=children, p=self.p, place=place)


@dataclasses.dataclass(frozen=True)
class RandomChoice(Composite):
    """Apply one of the transforms. Of MixUp and CutMix it is a transform of whole batches: one for each batch.

    Parameters
    ----------
    transforms : sequence
    p : sequence of float, optional
        Weights, one a transform; equal by default. They need not sum to 1.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> T.RandomChoice([T.RandomInvert(1.0), T.RandomSolarize(128, 1.0)], p=[3, 1]).p
    (3.0, 1.0)
    """

    transforms: Sequence[Any]
    p: Sequence[float] | None = None

    def __new__(cls, transforms: Sequence[Any], p: Sequence[float] | None = None) -> Any:
        """Make a transform of batches where those inside are."""
        if _all_mix(transforms):
            return MixingChoice(tuple(transforms), None if p is None else _weights(transforms, p))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p is not None:
            object.__setattr__(self, "p", _weights(self.transforms, self.p))

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        children, _ = self._children(state, in_a_row=False)
        for child in children:
            self._keeps(children[0].after, child.after, f"only {child.name}")
        after = _known(children[0].after, children)
        weights = tuple(self.p or ())
        return Node("choice", self.name, state, after, children=children, weights=weights, place=place)


def _weights(transforms: Sequence[Any], p: Sequence[float]) -> tuple[float, ...]:
    try:
        weights = tuple(float(each) for each in p)
    except (TypeError, ValueError):
        raise UsageError(f"RandomChoice: p must be one number a transform, got {p!r}") from None
    if len(weights) != len(transforms) or not all(0 <= each < float("inf") for each in weights):
        raise UsageError(
            f"RandomChoice: p must be one weight a transform, none negative: {len(transforms)} transforms, got {p!r}"
        )
    if sum(weights) <= 0:
        raise UsageError(f"RandomChoice: p must have a weight above 0, got {p!r}")
    return weights


@dataclasses.dataclass(frozen=True)
class RandomOrder(Composite):
    """Apply all of the transforms, in random order.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> len(T.RandomOrder([T.RandomInvert(), T.RandomPosterize(4)]).transforms)
    2
    """

    transforms: Sequence[Any]

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        children, _ = self._children(state, in_a_row=False)
        for child in children:
            self._keeps(state, child.after, child.name)
        if state.dtype not in FLOAT_DTYPES and any(child.after.written for child in children):
            raise UsageError(f"{self.name}: a transform in it writes the output. Put that one behind {self.name}")
        if len(children) > 256:
            raise UsageError(f"{self.name}: at most 256 transforms, got {len(children)}")
        return Node("permutation", self.name, state, _known(state, children), children=children, place=place)
