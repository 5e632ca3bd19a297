"""Why units could not be brought, kept until whoever waits for them has been told; refers to nobody's memory.

What a store refused for good while it was read ahead is raised for whoever needs it then, without asking again. After
other failures it is asked for again: the trouble may be over.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from dataloading.errors import StorageError

__all__ = ["Failures"]


class Failures:
    """The last failure of each unit, numbered in the order in which they came."""

    def __init__(self) -> None:
        self.num = 0
        self._last: dict[int, tuple[int, BaseException]] = {}
        self._untold: set[int] = set()

    def note(self, unit: int, error: BaseException) -> None:
        """Keep why a unit could not be brought."""
        self.num += 1
        self._last[unit] = self.num, _without_frames(error)
        if isinstance(error, StorageError) and error.is_final:
            self._untold.add(unit)

    def is_untold(self, unit: int) -> bool:
        """Whether a unit was refused for good and nobody who needs it knows yet."""
        return unit in self._untold

    def forget_untold(self) -> None:
        """Let units be asked for again: whoever needed them has gone."""
        self._untold.clear()

    def raise_since(self, units: Iterable[int], since: int) -> None:
        """Raise the first failure of some units that nobody was told, or that came after the one numbered `since`.

        Raises
        ------
        BaseException
            A copy: by its traceback it refers to whoever it is raised to, which would otherwise be kept here.
        """
        for unit in units if self.num > since or self._untold else ():
            number, error = self._last.get(unit, (0, None))
            if error is not None and (number > since or unit in self._untold):
                self._untold.discard(unit)
                raise copy.copy(error) from error.__cause__


def _without_frames(error: BaseException) -> BaseException:
    """Take from an error what its tracebacks refer to: everything of whoever was calling."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
