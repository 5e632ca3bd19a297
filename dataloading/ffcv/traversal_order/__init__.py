"""Orders of samples."""

from .base import TraversalOrder
from .random import Random
from .sequential import Sequential

__all__ = ["Random", "Sequential", "TraversalOrder"]
