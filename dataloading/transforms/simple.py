"""The simple operations that policies choose among, and how strong they can be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataloading.checks import as_integer
from dataloading.errors import UsageError
from dataloading.transforms.base import ImageState, Transform
from dataloading.transforms.color import adjustment, equalization, nothing, value_operation
from dataloading.transforms.filters import sharpness
from dataloading.transforms.operation import Node, Operation, constant, pick
from dataloading.transforms.warp import IDENTITY, Resampling, affine

__all__ = ["MIXED", "NAMES", "STANDARD", "WIDE", "Policy", "Space", "simple_operation"]


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
    if what.startswith(("Shear", "Translate", "Rotate")):
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
            only_shifts=what.startswith("Translate") and all(value == int(value) for value in values),
        )
    elif what == "Sharpness":
        operation = sharpness(law, state, p=p, name="sharpness")
    elif what == "Equalize":
        operation = equalization(state, applied, p=p)
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
            assert state.bound is not None
            return [[state.bound * value] for value in _steps(1.0, 0.0, bins)]
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
NAMES = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip


class Policy(Resampling):
    """Chooses among simple operations."""

    def for_mask(self) -> Transform:
        """See ``Transform.for_mask``."""
        raise UsageError(
            f"{self.name} moves pixels, and a mask cannot follow it, as in torchvision. Give the mask a list of its "
            f"own, or take RandomRotation, RandomAffine and colour transforms"
        )

    def simple(
        self, what: str, values: Sequence[float], state: ImageState, place: int | None, p: float | None = None
    ) -> Node:
        """Return ``simple_operation`` of this policy."""
        return simple_operation(
            self.name, what, values, state, interpolation=self.interpolation, fill=self.fill, p=p, place=place
        )

    def _integer(self, what: str, low: int, high: int) -> None:
        value = as_integer(getattr(self, what))
        if value is None or not low <= value <= high:
            raise UsageError(
                f"{self.name}: {what} must be an integer between {low} and {high}, got {getattr(self, what)!r}"
            )
        object.__setattr__(self, what, value)
