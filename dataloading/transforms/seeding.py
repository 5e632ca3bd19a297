"""The global generators of Python, NumPy and torch, seeded for one call and then as they were.

They belong to the process, and callables written elsewhere draw from them. So calls take turns: one lock for all. What
draws from these generators on another thread in the meantime, without this lock, would get numbers of the call and
disturb it; torch's functions are protected from that by a generator of the call's own.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.random import mtrand

__all__ = ["seeded"]

_lock = threading.RLock()


@contextlib.contextmanager
def seeded(key: int, owner: Any = None) -> Iterator[float]:
    """Seed the global generators with ``key``, and put them back afterwards. One thread at a time.

    Parameters
    ----------
    key : int
        64 bits.
    owner : object
        A callable with a generator of its own, as albumentations has: its ``set_random_seed`` is called.

    Yields
    ------
    float
        ``time.perf_counter()`` when the turn began.
    """
    import torch

    generator = torch.default_generator  # torch.manual_seed would also seed those of all devices
    with _lock:
        since = time.perf_counter()
        python, bits, state = random.getstate(), mtrand.get_bit_generator(), generator.get_state()
        try:
            random.seed(key)
            own = _numpy_state()
            own.seed([key & 0xFFFFFFFF, key >> 32])
            mtrand.set_bit_generator(own._bit_generator)
            generator.manual_seed(key)
            if hasattr(owner, "set_random_seed"):
                owner.set_random_seed(key & 0xFFFFFFFF)
            with _own_generator()(key):
                yield since
        finally:
            random.setstate(python)
            mtrand.set_bit_generator(bits)
            generator.set_state(state)


@functools.cache
def _numpy_state() -> np.random.RandomState:
    """Return the one that stands in for NumPy's global one: seeding it is faster than making one."""
    return np.random.RandomState()


@functools.cache
def _own_generator() -> type:
    """Return the class of contexts in which torch's functions draw from a generator of one's own, on one thread only.

    A class that is made late, since importing this module must not import torch.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class OwnGenerator(TorchFunctionMode):
        def __init__(self, key: int) -> None:
            super().__init__()
            self._generator = torch.Generator().manual_seed(key)

        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if (name in _DRAW or name in _LIKE) and kwargs.get("generator") is None:
                device = kwargs.get("device") or next((each.device for each in args if hasattr(each, "device")), "cpu")
                if torch.device(device).type == "cpu":
                    if name in _DRAW:
                        return func(*args, **kwargs, generator=self._generator)
                    return getattr(torch.empty_like(*args, **kwargs), _LIKE[name])(generator=self._generator)
            return func(*args, **kwargs)

    return OwnGenerator


# Functions and methods of torch that take a generator, and those that are the same as filling an empty tensor.
_DRAW = frozenset(
    ("_sample_dirichlet", "bernoulli", "bernoulli_", "binomial", "cauchy_", "exponential_", "geometric_", "log_normal_",
     "multinomial", "normal", "normal_", "poisson", "rand", "randint", "randn", "random_", "randperm", "uniform_")
)  # fmt: skip
_LIKE = {"rand_like": "uniform_", "randn_like": "normal_"}
