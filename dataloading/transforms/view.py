"""View: one of several images made of one stored image, each with random numbers of its own. Knows no files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dataloading.checks import at_least
from dataloading.errors import UsageError
from dataloading.transforms.compose import Compose

__all__ = ["View"]


@dataclasses.dataclass(frozen=True)
class View:
    """Make images of a field under a name of your own, as often as you like, each with random numbers of its own.

    It stands in the place of a list: ``transforms={"global": T.View("image", [...], repeat=2)}`` gives
    ``batch["global"]``, a list of two tensors (N, C, H, W).

    Parameters
    ----------
    field : str
        The image, raster or mask field that the images are made of.
    transforms : sequence, optional
        As in a list of that field. Without it a view with `like` takes that view's list, or, if it is of a mask, the
        geometry of that list.
    repeat : int
        1: a tensor. 2 or more: a list of as many tensors.
    like : str, optional
        Name of another view whose random numbers, and number of repeats, this one shares: equal transforms at equal
        places of the list draw the same.
    seed : int, optional
        Of its random numbers, instead of the loader's: views of equal seeds draw the same, in any loader.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> T.View("image", [T.RandomResizedCrop(96)], repeat=8).repeat
    8
    """

    field: str
    transforms: Sequence[Any] | Compose | None = None
    _: dataclasses.KW_ONLY
    repeat: int = 1
    like: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.field, str):
            raise UsageError(
                f"View: the field's name comes first, got {type(self.field).__name__}: write View('image', [...])"
            )
        if self.like is not None and not isinstance(self.like, str):
            raise UsageError(f"View: like must be the name of another view, got {type(self.like).__name__}")
        if self.seed is not None:
            at_least("View: seed", self.seed, 0)
            if self.like is not None:
                raise UsageError(f"View: like={self.like!r} takes over that view's random numbers: leave out seed")
        given = self.transforms
        if given is not None and (isinstance(given, str) or not isinstance(given, (Sequence, Compose))):
            raise UsageError(
                f"View: transforms must be a list, got {type(given).__name__}: write View({self.field!r}, [...])"
            )
        object.__setattr__(self, "repeat", at_least("View: repeat", self.repeat, 1))
