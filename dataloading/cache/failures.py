"""Errors of loading units, kept until they are raised to a waiting caller, without references to the failed frames.

A final error during read-ahead is raised to the caller that needs the unit, without another request. After other errors
the unit is requested again, since the cause may be gone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from dataloading.errors import StorageError

__all__ = ["Failures"]


class Failures:
    """The last error of each unit; errors are numbered in order."""

    def __init__(self) -> None:
        self.num = 0
        self._last: dict[int, tuple[int, BaseException]] = {}
        self._untold: set[int] = set()

    def note(self, unit: int, error: BaseException) -> None:
        """Record the error of a unit that failed to load."""
        self.num += 1
        self._last[unit] = self.num, _without_frames(error)
        if isinstance(error, StorageError) and error.is_final:
            self._untold.add(unit)

    def is_untold(self, unit: int) -> bool:
        """Whether a unit has a final error that has not been raised yet."""
        return unit in self._untold

    def forget_untold(self) -> None:
        """Allow new requests for failed units; their callers are gone."""
        self._untold.clear()

    def raise_since(self, units: Iterable[int], since: int) -> None:
        """Raise the first error of some units that was not raised yet, or is newer than error number `since`.

        Raises
        ------
        BaseException
            A copy of the error: its traceback refers to the caller's frames, which must not be kept here.
        """
        for unit in units if self.num > since or self._untold else ():
            number, error = self._last.get(unit, (0, None))
            if error is not None and (number > since or unit in self._untold):
                self._untold.discard(unit)
                raise copy.copy(error) from error.__cause__


def _without_frames(error: BaseException) -> BaseException:
    """Remove the tracebacks of an error and its causes, which refer to the callers' frames."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
