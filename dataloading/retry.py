"""Trying again what may succeed later: how often, and with which waits. Knows nothing of what is tried."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dataloading.errors import BetonError

__all__ = ["Retry"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and how long something is tried.

    Parameters
    ----------
    num_tries : int
    first_wait_seconds : float
        Before the second try; doubled for each later one, and varied so that ranks do not ask in step.
    max_wait_seconds : float
    timeout_seconds : float
        For one answer of a store, and a second more for each megabyte of it.

    Examples
    --------
    >>> Retry().call(lambda: 3, is_final=lambda error: False, failed=lambda error, is_final: error)
    3
    """

    num_tries: int = 5
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 10.0
    timeout_seconds: float = 30.0

    def call(
        self,
        work: Callable[[], T],
        *,
        is_final: Callable[[Exception], bool],
        failed: Callable[[Exception, bool], Exception],
        wait: Callable[[float], object] = time.sleep,
    ) -> T:
        """Return what `work` returns, calling it again after errors that may pass.

        Parameters
        ----------
        work : callable
            Errors of ours that it raises are raised at once: they say what to do.
        is_final : callable
            Whether another try cannot change the outcome.
        failed : callable
            Makes the error to raise from the last error, and whether that was final.
        wait : callable
            Waits for so many seconds.
        """
        for attempt in range(1, self.num_tries + 1):
            try:
                return work()
            except BetonError:
                raise
            except Exception as error:  # each store's package has exceptions of its own
                final = is_final(error)
                if final or attempt == self.num_tries:
                    raise failed(error, final) from error
            longest = min(self.first_wait_seconds * 2 ** (attempt - 1), self.max_wait_seconds)
            wait(longest * random.uniform(0.5, 1.0))
        raise AssertionError("the last try returns or raises")
