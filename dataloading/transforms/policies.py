"""Policies: random choices of simple operations, as published."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, ClassVar

from dataloading.errors import UsageError
from dataloading.transforms.base import IMAGE_DTYPES, ImageState, PixelOp, check_choice
from dataloading.transforms.color import ColorJitter, RandomGrayscale, RandomSolarize
from dataloading.transforms.filters import GaussianBlur
from dataloading.transforms.operation import Node, Operation
from dataloading.transforms.simple import MIXED, NAMES, STANDARD, WIDE, Policy
from dataloading.transforms.timm import TimmRandAugment
from dataloading.transforms.warp import Fill

__all__ = ["AugMix", "AutoAugment", "RandAugment", "ThreeAugment", "TrivialAugmentWide", "sub_policies"]


@dataclasses.dataclass(frozen=True)
class RandAugment(Policy):
    """Apply ``num_ops`` operations chosen at random, all of one magnitude (https://arxiv.org/abs/1909.13719).

    Parameters
    ----------
    num_ops : int
    magnitude : int
        0 to ``num_magnitude_bins - 1``.
    num_magnitude_bins : int
    interpolation : {"nearest", "bilinear"}
        Of shears, translations and rotations.
    fill : float or sequence of float, optional
        What comes in with them.

    Examples
    --------
    >>> RandAugment(magnitude=7).num_ops
    2
    """

    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._integer("num_ops", 0, 64)
        self._integer("num_magnitude_bins", 2, 10_000)
        self._integer("magnitude", 0, self.num_magnitude_bins - 1)

    @staticmethod
    def from_timm(config: str, *, interpolation: Any = "bilinear", fill: Fill = (124, 116, 104)) -> TimmRandAugment:
        """Return the policy that one of timm's strings describes, such as "rand-m9-mstd0.5-inc1".

        See ``TimmRandAugment``.
        """
        return TimmRandAugment(config, interpolation=interpolation, fill=fill)

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        values = {what: STANDARD.values(what, self.num_magnitude_bins, state)[self.magnitude] for what in NAMES}
        slots = []
        for slot in range(self.num_ops):
            leaves = tuple(self.simple(what, values[what], state, number) for number, what in enumerate(NAMES))
            slots.append(Node("choice", f"operation {slot}", state, state, children=leaves, place=slot))
        return Node("sequence", self.name, state, state, children=tuple(slots), place=place)


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(Policy):
    """Apply one operation at random, of a random magnitude from a wide range (https://arxiv.org/abs/2103.10158).

    Parameters
    ----------
    num_magnitude_bins : int
    interpolation : {"nearest", "bilinear"}
        Of shears, translations and rotations.
    fill : float or sequence of float, optional
        What comes in with them.

    Examples
    --------
    >>> TrivialAugmentWide()
    TrivialAugmentWide(num_magnitude_bins=31, interpolation='nearest', fill=None)
    """

    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._integer("num_magnitude_bins", 2, 10_000)

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        leaves = []
        for number, what in enumerate(NAMES):
            bins = WIDE.values(what, self.num_magnitude_bins, state)
            leaves.append(self.simple(what, [value for values in bins for value in values], state, number))
        return Node("choice", self.name, state, state, children=tuple(leaves), place=place)


# Each line is a sub-policy: two operations, each with its probability and, where it has one, its magnitude of 0 to 9.
_POLICIES = {
    "imagenet": """
        Posterize .4 8, Rotate .6 9;      Solarize .6 5, AutoContrast .6;   Equalize .8, Equalize .6
        Posterize .6 7, Posterize .6 6;   Equalize .4, Solarize .2 4;       Equalize .4, Rotate .8 8
        Solarize .6 3, Equalize .6;       Posterize .8 5, Equalize 1;       Rotate .2 3, Solarize .6 8
        Equalize .6, Posterize .4 6;      Rotate .8 8, Color .4 0;          Rotate .4 9, Equalize .6
        Equalize 0, Equalize .8;          Invert .6, Equalize 1;            Color .6 4, Contrast 1 8
        Rotate .8 8, Color 1 2;           Color .8 8, Solarize .8 7;        Sharpness .4 7, Invert .6
        ShearX .6 5, Equalize 1;          Color .4 0, Equalize .6;          Equalize .4, Solarize .2 4
        Solarize .6 5, AutoContrast .6;   Invert .6, Equalize 1;            Color .6 4, Contrast 1 8
        Equalize .8, Equalize .6""",
    "cifar10": """
        Invert .1, Contrast .2 6;         Rotate .7 2, TranslateX .3 9;     Sharpness .8 1, Sharpness .9 3
        ShearY .5 8, TranslateY .7 9;     AutoContrast .5, Equalize .9;     ShearY .2 7, Posterize .3 7
        Color .4 3, Brightness .6 7;      Sharpness .3 9, Brightness .7 9;  Equalize .6, Equalize .5
        Contrast .6 7, Sharpness .6 5;    Color .7 7, TranslateX .5 8;      Equalize .3, AutoContrast .4
        TranslateY .4 3, Sharpness .2 6;  Brightness .9 6, Color .2 8;      Solarize .5 2, Invert 0
        Equalize .2, AutoContrast .6;     Equalize .2, Equalize .6;         Color .9 9, Equalize .6
        AutoContrast .8, Solarize .2 8;   Brightness .1 3, Color .7 0;      Solarize .4 5, AutoContrast .9
        TranslateY .9 9, TranslateY .7 9; AutoContrast .9, Solarize .8 3;   Equalize .8, Invert .1
        TranslateY .7 9, AutoContrast .9""",
    "svhn": """
        ShearX .9 4, Invert .2;           ShearY .9 8, Invert .7;           Equalize .6, Solarize .6 6
        Invert .9, Equalize .6;           Equalize .6, Rotate .9 3;         ShearX .9 4, AutoContrast .8
        ShearY .9 8, Invert .4;           ShearY .9 5, Solarize .2 6;       Invert .9, AutoContrast .8
        Equalize .6, Rotate .9 3;         ShearX .9 4, Solarize .3 3;       ShearY .8 8, Invert .7
        Equalize .9, TranslateY .6 6;     Invert .9, Equalize .6;           Contrast .3 3, Rotate .8 4
        Invert .8, TranslateY 0 2;        ShearY .7 6, Solarize .4 8;       Invert .6, Rotate .8 4
        ShearY .3 7, TranslateX .9 3;     ShearX .1 6, Invert .6;           Solarize .7 2, TranslateY .6 7
        ShearY .8 4, Invert .8;           ShearX .7 9, TranslateY .8 3;     ShearY .8 5, AutoContrast .7
        ShearX .7 2, Invert .1""",
}


def sub_policies(policy: str) -> list[list[tuple[str, float, int | None]]]:
    """Return the sub-policies of AutoAugment: operation, probability, magnitude."""
    lines = _POLICIES[policy].replace("\n", ";").split(";")
    words = [[step.split() for step in line.split(",")] for line in lines if line.strip()]
    return [[(step[0], float(step[1]), int(step[2]) if len(step) > 2 else None) for step in line] for line in words]


@dataclasses.dataclass(frozen=True)
class AutoAugment(Policy):
    """Apply one of 25 learned sub-policies, of two operations each (https://arxiv.org/abs/1805.09501).

    Parameters
    ----------
    policy : {"imagenet", "cifar10", "svhn"}
        What it was learned on.
    interpolation : {"nearest", "bilinear"}
        Of shears, translations and rotations.
    fill : float or sequence of float, optional
        What comes in with them.

    Examples
    --------
    >>> AutoAugment("cifar10")
    AutoAugment(policy='cifar10', interpolation='nearest', fill=None)
    """

    dtypes: ClassVar[tuple[str, ...]] = IMAGE_DTYPES

    policy: Any = "imagenet"
    interpolation: Any = "nearest"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        policy = self.policy.value if isinstance(self.policy, enum.Enum) else self.policy
        object.__setattr__(self, "policy", check_choice(self.name, "policy", policy, list(_POLICIES)))

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        pairs = []
        for number, steps in enumerate(sub_policies(self.policy)):
            children = tuple(
                self.simple(what, STANDARD.values(what, 10, state)[magnitude or 0], state, step, p)
                for step, (what, p, magnitude) in enumerate(steps)
            )
            pairs.append(Node("sequence", f"policy {number}", state, state, children=children, place=number))
        return Node("choice", self.name, state, state, children=tuple(pairs), place=place)


@dataclasses.dataclass(frozen=True)
class AugMix(Policy):
    """Mix an image with versions of it, each made by a chain of random operations (https://arxiv.org/abs/1912.02781).

    Parameters
    ----------
    severity : int
        How strong operations can be, 1 to 10.
    mixture_width : int
        Number of versions.
    chain_depth : int
        Operations for each; not positive: 1 to 3, at random.
    alpha : float
        Of the distributions that weights are drawn from.
    all_ops : bool
        Use Brightness, Color, Contrast and Sharpness, too.
    interpolation : {"nearest", "bilinear"}
        Of shears, translations and rotations.
    fill : float or sequence of float, optional
        What comes in with them.

    Examples
    --------
    >>> AugMix(severity=5).mixture_width
    3
    """

    needs_bytes: ClassVar[str] = "it mixes versions of 8-bit images"

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Any = "bilinear"
    fill: Fill = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._integer("severity", 1, 10)
        self._integer("mixture_width", 1, 64)
        self._integer("chain_depth", -(10**6), 64)
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)) or not 1e-3 <= self.alpha <= 1e6:
            raise UsageError(f"{self.name}: alpha must be a positive number, got {self.alpha!r}")

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        weights = ("weight", *(f"weight_{k}" for k in range(self.mixture_width)))
        begin = Operation("", weights, kind="mix_begin", draw="mixing.mixing_weights", constants=[self.alpha])
        steps = [Node("leaf", "mix", state, state, operation=begin, place=0)]
        for k in range(self.mixture_width):
            add = Operation("", kind="mix_add", constants=[1.0 + k])
            steps.append(self._chain(f"version {k}", state, 1 + k))
            steps.append(Node("leaf", "added", state, state, operation=add))
        steps.append(Node("leaf", "mixed", state, state, operation=Operation("", kind="mix_end")))
        return Node("sequence", self.name, state, state, children=tuple(steps), place=place)

    def _chain(self, name: str, state: ImageState, place: int) -> Node:
        """Return a chain of operations. Of random depth: a first one, then with 2/3 a second, with 1/2 a third."""
        depth = self.chain_depth if self.chain_depth > 0 else 3
        slots = []
        for slot in range(depth):
            leaves = []
            for number, what in enumerate(NAMES[1:]):
                if self.all_ops or what not in ("Brightness", "Color", "Contrast", "Sharpness"):
                    bins = MIXED.values(what, 10, state)[: self.severity]
                    leaves.append(self.simple(what, [value for values in bins for value in values], state, number))
            slots.append(Node("choice", f"operation {slot}", state, state, children=tuple(leaves), place=slot))
        if self.chain_depth <= 0:
            third = Node("sequence", "third", state, state, children=(slots[2],), p=0.5, place=4)
            slots = [slots[0], Node("sequence", "second", state, state, children=(slots[1], third), p=2 / 3, place=3)]
        return Node("sequence", name, state, state, children=tuple(slots), place=place)


@dataclasses.dataclass(frozen=True)
class ThreeAugment(PixelOp):
    """Gray, solarise or blur, equally likely, then jitter colours: the 3-Augment of DeiT III.

    (Touvron et al., https://arxiv.org/abs/2204.07118.) Crops and flips stand before it.

    Parameters
    ----------
    color_jitter : float
        Greatest change of brightness, contrast and saturation; 0: none.

    Examples
    --------
    >>> ThreeAugment()
    ThreeAugment(color_jitter=0.3)
    """

    needs_bytes: ClassVar[str] = "its threshold is one of 0 to 255"
    mirrors: ClassVar[bool] = True

    color_jitter: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parts()

    def _parts(self) -> tuple[list[PixelOp], ColorJitter]:
        # The blur's kernel reaches as far as the widest Gaussian has weight.
        one = [RandomGrayscale(1.0), RandomSolarize(128, p=1.0), GaussianBlur(17, (0.1, 2.0))]
        return one, ColorJitter(*[self.color_jitter] * 3)

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        parts, jitter = self._parts()
        children = tuple(part.node(state, number) for number, part in enumerate(parts))
        one = Node("choice", "one of three", state, state, children=children, place=0)
        return Node("sequence", self.name, state, state, children=(one, jitter.node(state, 1)), place=place)
