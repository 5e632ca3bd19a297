"""What is known of the values between two operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["INITIAL_STATE", "State"]


@dataclass
class State:
    """Kind, place, shape and dtype of the values of one sample.

    Parameters
    ----------
    jit_mode : bool
        Whether they are NumPy arrays that compiled code may take; otherwise tensors.
    device : torch.device
    shape : tuple of int
        Of one sample, without the batch axis.
    dtype : numpy.dtype or torch.dtype
    """

    jit_mode: bool
    device: torch.device
    shape: tuple[int, ...] | None
    dtype: Any

    def __post_init__(self) -> None:
        if self.jit_mode and self.device != torch.device("cpu"):
            raise AssertionError("compiled operations take arrays in host memory, not on " + str(self.device))
        if self.jit_mode and isinstance(self.dtype, torch.dtype):
            raise AssertionError(f"compiled operations take NumPy's dtypes, not {self.dtype}")


INITIAL_STATE = State(jit_mode=True, device=torch.device("cpu"), shape=None, dtype=np.dtype(np.uint8))
"""What a decoder begins with."""
