"""Orders of samples."""

from .base import TraversalOrder
from .quasi_random import QuasiRandom
from .random import Random
from .sequential import Sequential, SequentialContiguous

__all__ = ["QuasiRandom", "Random", "Sequential", "SequentialContiguous", "TraversalOrder"]
