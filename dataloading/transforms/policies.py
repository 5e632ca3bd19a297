"""Policies: random choices of simple operations, as published, built of nodes that everything else is built of too."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.transforms.base import ImageState, PixelOp, Transform, check_choice
from dataloading.transforms.color import adjustment, nothing, value_operation
from dataloading.transforms.filters import sharpness_work_bytes
from dataloading.transforms.operation import Node, Operation, constant, pick
from dataloading.transforms.warp import IDENTITY, Fill, affine, check_warp

__all__ = [
    "MIXED",
    "STANDARD",
    "WIDE",
    "AutoAugment",
    "RandAugment",
    "Space",
    "TrivialAugmentWide",
    "simple_operation",
    "sub_policies",
]


# -- simple operations and their magnitudes -------------------------------------------------------------------------


def simple_operation(
    owner: str,
    what: str,
    values: Sequence[float],
    state: ImageState,
    *,
    interpolation: str,
    fill: Any,
    p: float | None = None,
    place: int | None = None,
) -> Node:
    """Return one operation of a policy as a node; all ``values`` of its one number are equally likely.

    The numbers are: tangents of shears, pixels of translations, degrees of rotations, factors of Brightness, Color,
    Contrast and Sharpness, bits that Posterize keeps, the threshold of Solarize, what SolarizeAdd adds below 128; none
    for Identity, AutoContrast, Equalize and Invert.
    """
    if what == "Identity":
        return nothing(state, what, place)
    law = constant(values[0]) if len(values) == 1 else pick(values) if values else constant(1)
    applied = {"applied": constant(1)}  # so that drawn params tell of what has no number, too
    enhancements = {"Brightness": "brightness", "Contrast": "contrast", "Color": "saturation"}
    if what in enhancements:
        return dataclasses.replace(adjustment(enhancements[what], law, state, p=p, place=place), name=what)
    if what[:5] in ("Shear", "Trans", "Rotat"):
        params = dict(IDENTITY)
        if what.startswith("Shear"):
            angles = [math.degrees(math.atan(value)) for value in values]
            params[f"shear_{what[-1].lower()}"] = pick(angles)
        else:
            params["angle" if what == "Rotate" else f"translate_{what[-1].lower()}"] = law
        operation = affine(
            owner,
            state,
            params,
            interpolation=interpolation,
            fill=fill,
            center=(0.0, 0.0) if what.startswith("Shear") else None,
            clockwise=what != "Rotate",
            p=p,
        )
    elif what == "Sharpness":
        operation = Operation(
            "filters.adjust_sharpness", {"sharpness": law}, p=p, work_bytes=sharpness_work_bytes(state)
        )
    elif what == "Equalize":
        operation = Operation("histograms.equalize", applied, kind="table", p=p)
    elif what == "SolarizeAdd":
        operation = Operation("histograms.solarize_add", {"added": law}, kind="table", constants=[128.0], p=p)
    elif what == "AutoContrast":
        operation = value_operation("autocontrast", state, applied, p=p, kind="statistics")
    elif what == "Invert":
        operation = value_operation("invert", state, applied, p=p)
    else:
        name = {"Posterize": "bits", "Solarize": "threshold"}[what]
        operation = value_operation(what.lower(), state, {name: law}, p=p)
    return Node("leaf", what, state, state, operation=operation, p=p, place=place)


def _steps(first: float, last: float, count: int) -> list[float]:
    """Return equal steps as ``torch.linspace`` has them in float32, from both ends to the middle."""
    first, last = float(np.float32(first)), float(np.float32(last))
    step = float(np.float32((last - first) / max(count - 1, 1)))
    values = [first + step * i if i < count // 2 else last - step * (count - 1 - i) for i in range(count)]
    return [float(np.float32(value)) for value in values]


@dataclasses.dataclass(frozen=True)
class Space:
    """How strong each operation can be. Translations are functions of the side in pixels."""

    shear: float
    translate: Callable[[int], float]
    rotate: float
    enhance: float
    bits: tuple[int, int]  # that Posterize keeps at magnitude 0, and how many fewer at the greatest

    def values(self, what: str, bins: int, state: ImageState) -> list[list[float]]:
        """Return the numbers of ``simple_operation`` at each magnitude: both signs, where it has one."""
        assert state.height is not None and state.width is not None
        if what in ("Identity", "AutoContrast", "Equalize", "Invert"):
            return [[] for _ in range(bins)]
        if what == "Posterize":
            most, fewer = self.bits
            return [[float(round(most - i / ((bins - 1) / fewer)))] for i in range(bins)]
        if what == "Solarize":
            return [[255.0 * value] for value in _steps(1.0, 0.0, bins)]
        side = state.width if what == "TranslateX" else state.height
        greatest = {
            "ShearX": self.shear,
            "ShearY": self.shear,
            "TranslateX": self.translate(side),
            "TranslateY": self.translate(side),
            "Rotate": self.rotate,
        }.get(what, self.enhance)
        steps = _steps(0.0, greatest, bins)
        if what.startswith("Translate"):
            steps = [float(int(step)) for step in steps]
        middle = 1.0 if what in ("Brightness", "Color", "Contrast", "Sharpness") else 0.0
        return [[middle + step, middle - step] for step in steps]


STANDARD = Space(0.3, lambda side: 150.0 / 331.0 * side, 30.0, 0.9, (8, 4))
WIDE = Space(0.99, lambda side: 32.0, 135.0, 0.99, (8, 6))
MIXED = Space(0.3, lambda side: side / 3.0, 30.0, 0.9, (4, 4))
_NAMES = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip


class _Policy(PixelOp):
    """Chooses among simple operations."""

    interpolation: Any
    fill: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        interpolation, fill = check_warp(self.name, self.interpolation, self.fill)
        object.__setattr__(self, "interpolation", interpolation)
        object.__setattr__(self, "fill", fill)

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``."""
        raise UsageError(
            f"{self.name} moves pixels, and a mask cannot follow it, as in torchvision. Give the mask a list of its "
            f"own, or take RandomRotation, RandomAffine and colour transforms"
        )

    def _simple(
        self, what: str, values: Sequence[float], state: ImageState, place: int | None, p: float | None = None
    ) -> Node:
        return simple_operation(
            self.name, what, values, state, interpolation=self.interpolation, fill=self.fill, p=p, place=place
        )

    def _integer(self, what: str, low: int, high: int | None = None) -> None:
        value = as_integer(getattr(self, what))
        if value is None or value < low or (high is not None and value > high):
            wanted = f"of at least {low}" if high is None else f"between {low} and {high}"
            raise UsageError(f"{self.name}: {what} must be an integer {wanted}, got {getattr(self, what)!r}")
        object.__setattr__(self, what, value)


@dataclasses.dataclass(frozen=True)
class RandAugment(_Policy):
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

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        values = {what: STANDARD.values(what, self.num_magnitude_bins, state)[self.magnitude] for what in _NAMES}
        slots = []
        for slot in range(self.num_ops):
            leaves = tuple(self._simple(what, values[what], state, number) for number, what in enumerate(_NAMES))
            slots.append(Node("choice", f"operation {slot}", state, state, children=leaves, place=slot))
        return Node("sequence", self.name, state, state, children=tuple(slots), place=place)


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(_Policy):
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
        for number, what in enumerate(_NAMES):
            bins = WIDE.values(what, self.num_magnitude_bins, state)
            leaves.append(self._simple(what, [value for values in bins for value in values], state, number))
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
class AutoAugment(_Policy):
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
                self._simple(what, STANDARD.values(what, 10, state)[magnitude or 0], state, step, p)
                for step, (what, p, magnitude) in enumerate(steps)
            )
            pairs.append(Node("sequence", f"policy {number}", state, state, children=children, place=number))
        return Node("choice", self.name, state, state, children=tuple(pairs), place=place)
