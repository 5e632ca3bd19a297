"""RandAugment as timm has it, from the strings that its recipes name it by."""

from __future__ import annotations

import dataclasses
import re
import statistics
from typing import Any, ClassVar

from dataloading.errors import UsageError
from dataloading.transforms.base import ImageState
from dataloading.transforms.operation import Node
from dataloading.transforms.simple import Policy
from dataloading.transforms.warp import Fill

__all__ = ["TimmRandAugment"]

_NAMES = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY",
)  # fmt: skip
_LEVELS = 256  # equally likely magnitudes that stand for a distribution of them
_MOST_OPERATIONS = 64


@dataclasses.dataclass(frozen=True)
class TimmRandAugment(Policy):
    """Apply random operations of a magnitude that is itself random, as timm's ``rand_augment_transform`` does.

    Each operation happens with probability 0.5 only. What timm does by Pillow, this does by torchvision's definitions.

    Parameters
    ----------
    config : str
        "rand", then parts joined by "-": ``m9`` the magnitude, 0 to 10 (10); ``n2`` the number of operations (2);
        ``mstd0.5`` the standard deviation of the magnitude (0; above 100: uniform from 0 to it); ``mmax10`` the
        greatest magnitude (10); ``inc1`` operations that all grow stronger with it; ``p0.5`` the probability of each.
    interpolation : {"nearest", "bilinear"}
        Of rotations, shears and translations. timm takes bilinear or bicubic at random.
    fill : float or sequence of float, optional
        What comes in with them; by default ImageNet's mean colour, as in timm's recipes.

    Examples
    --------
    >>> TimmRandAugment("rand-m9-mstd0.5-inc1").config
    'rand-m9-mstd0.5-inc1'
    """

    needs_bytes: ClassVar[str] = "timm's magnitudes are of values from 0 to 255"

    config: str
    interpolation: Any = "bilinear"
    fill: Fill = (124, 116, 104)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parsed()

    def _parsed(self) -> dict[str, float]:
        options = {"m": 10.0, "n": 2.0, "mstd": 0.0, "mmax": 10.0, "inc": 0.0, "p": 0.5}
        first, *parts = self.config.split("-") if isinstance(self.config, str) else [""]
        for part in parts:
            found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", part)
            if found is None or found[1] not in options:
                raise UsageError(
                    f"{self.name}: config has {part!r}; parts are mNUMBER, nNUMBER, mstdNUMBER, mmaxNUMBER, incNUMBER "
                    f"and pNUMBER, joined by '-', got {self.config!r}"
                )
            options[found[1]] = float(found[2])
        whole = all(float(options[name]).is_integer() for name in ("n", "m", "mmax"))
        if first != "rand" or not whole or not 0 <= options["n"] <= _MOST_OPERATIONS or not 0 <= options["p"] <= 1:
            raise UsageError(
                f"{self.name}: config must be such as 'rand-m9-mstd0.5-inc1', with whole numbers for m, n and mmax, "
                f"n of at most {_MOST_OPERATIONS} and p of at most 1, got {self.config!r}"
            )
        return options

    def _magnitudes(self) -> list[float]:
        """Return equally likely magnitudes between 0 and the greatest."""
        options = self._parsed()
        magnitude, spread = options["m"], options["mstd"]
        places = [(i + 0.5) / _LEVELS for i in range(_LEVELS)]
        if spread == 0:
            drawn = [magnitude]
        elif spread > 100:
            drawn = [magnitude * place for place in places]
        else:
            drawn = [statistics.NormalDist(magnitude, spread).inv_cdf(place) for place in places]
        return [max(0.0, min(value, options["mmax"])) for value in drawn]

    def operations(self, height: int, width: int) -> tuple[int, float, dict[str, list[float]]]:
        """Return how many operations there are, the probability of each, and its numbers in `simple_operation`.

        The numbers, by name, are equally likely; there are none where an operation has no strength.
        """
        options = self._parsed()
        values = {what: self._values(what, bool(options["inc"]), height, width) for what in _NAMES}
        return int(options["n"]), options["p"], values

    def node(self, state: ImageState, place: int | None) -> Node:
        """See ``ImageTransform.node``."""
        self.check_images(state)
        assert state.height is not None and state.width is not None
        count, probability, values = self.operations(state.height, state.width)
        slots = []
        for slot in range(count):
            leaves = tuple(
                self.simple(what, values[what], state, number, probability) for number, what in enumerate(_NAMES)
            )
            slots.append(Node("choice", f"operation {slot}", state, state, children=leaves, place=slot))
        return Node("sequence", self.name, state, state, children=tuple(slots), place=place)

    def _values(self, what: str, increasing: bool, height: int, width: int) -> list[float]:
        """Return the numbers of ``simple_operation``, equally likely: both signs, where it has one."""
        if what in ("AutoContrast", "Equalize", "Invert"):
            return []
        shares = [magnitude / 10 for magnitude in self._magnitudes()]
        if what == "Posterize":
            return [float(4 - int(share * 4) if increasing else int(share * 4)) for share in shares]
        if what == "Solarize":
            return [float(256 - int(share * 256) if increasing else min(256, int(share * 256))) for share in shares]
        if what == "SolarizeAdd":
            return [float(min(128, int(share * 110))) for share in shares]
        if what in ("Color", "Contrast", "Brightness", "Sharpness"):
            if not increasing:
                return [share * 1.8 + 0.1 for share in shares]
            return [max(0.1, 1 + sign * share * 0.9) for share in shares for sign in (1, -1)]
        side = width if what == "TranslateX" else height
        greatest = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3}.get(what, 0.45 * side)
        return [sign * share * greatest for share in shares for sign in (1, -1)]
