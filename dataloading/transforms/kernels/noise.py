"""The kernel that adds normal noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataloading.transforms.kernels.jit import kernel
from dataloading.transforms.kernels.memory import numbers_at
from dataloading.transforms.kernels.rng import child
from dataloading.transforms.kernels.values import cut, white_of

__all__ = ["gaussian_noise"]

_F = np.float32
_ZERO, _TOP = _F(0), _F(255)
_BYTE, _8 = np.uint64(0xFF), np.uint64(8)


@kernel
def gaussian_noise(source: Any, target: Any, params: Any, constants: Any, work: Any) -> None:
    """Add ``mean + sigma * z`` levels to each value, cut off to an integer where values are integers.

    ``params[0]`` holds the bits of a random stream. ``constants``: mean, sigma, 1 to clip to black and white (0: to
    overflow), then 256 quantiles of a normal distribution of variance 1/2. z is the sum of two of them: normal up to
    four standard deviations, in a fraction of the time that Box and Muller's formula takes. A number of the stream
    serves four neighbours. Scratch: 4 bytes a column, and 16.
    """
    key = numbers_at(params, 1, np.uint64)[0]
    mean = _F(constants[0])
    sigma = _F(constants[1])
    quantiles = constants[3:259]
    width = source.shape[2]
    quarter = (width + 3) // 4
    noise = numbers_at(work, 4 * quarter, np.float32)
    white = white_of(source)
    # As torchvision, which adds up in 16 bits.
    low = _ZERO if constants[2] > 0 else (_F(-32768) if white == _TOP else _F(-(2.0**30)))
    high = white if constants[2] > 0 else (_F(32767) if white == _TOP else _F(2.0**30))
    for c in range(source.shape[0]):
        for y in range(source.shape[1]):
            first = (c * source.shape[1] + y) * quarter
            for i in range(quarter):
                bits = child(key, first + i)
                for k in range(4):
                    pair = bits >> np.uint64(16 * k)
                    total = quantiles[pair & _BYTE] + quantiles[(pair >> _8) & _BYTE]
                    noise[4 * i + k] = _F(total)
            out = target[c, y]
            pixels = source[c, y]
            for x in range(width):
                value = _F(pixels[x]) + _F(cut(mean + sigma * noise[x], source))
                value = value if value > low else low
                value = value if value < high else high
                out[x] = cut(value, target)
