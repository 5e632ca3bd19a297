"""Random numbers and permutations as functions of a key: there is no generator whose state must be saved.

All of them come from SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014). Its n-th output is a closed formula, so keys nest::

    child(key, n) = mix(key + (n + 1) * 0x9E3779B97F4A7C15)

Only operations are used whose results IEEE 754 and modular arithmetic fix to the last bit: ranks on different
processors must agree on an order, and NumPy's own `log` and generators promise no such thing across machines and
versions. The compiled counterparts are ``transforms/kernels/rng.py`` (Numba) and ``_native/src/plan.cpp``.

Knows no samples, ranks or epochs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.arrays import Floats, Indices, UInt64s

__all__ = ["MASK", "Cipher", "child", "children", "exponential", "shuffled", "uniform"]

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def child(key: int, *path: int) -> int:
    """Return the key that `path` leads to below `key`; keys of different paths are unrelated.

    One step is output ``path[0]``, counted from 0, of the SplitMix64 generator seeded with `key`. All numbers are taken
    modulo 2**64.

    Examples
    --------
    >>> hex(child(0, 0))  # the first published output of SplitMix64(0)
    '0xe220a8397b1dcdaf'
    >>> child(child(7, 1), 2) == child(7, 1, 2) != child(7, 2, 1)
    True
    """
    for number in path:
        z = (key + (number + 1) * _GOLDEN) & MASK
        z = ((z ^ (z >> 30)) * _MIX_1) & MASK
        z = ((z ^ (z >> 27)) * _MIX_2) & MASK
        key = z ^ (z >> 31)
    return key


def _mix(z: UInt64s) -> UInt64s:
    """Scramble 64-bit numbers one to one; NumPy's uint64 arithmetic wraps, as is wanted here."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def children(keys: UInt64s | int, numbers: npt.NDArray[Any] | int) -> UInt64s:
    """Return ``child(key, number)`` for whole arrays.

    Parameters
    ----------
    keys : ndarray of uint64, shape (n,), or int
    numbers : ndarray of int, shape (n,), or int
        Either is broadcast to the other; integers must lie in 0 to 2**64 - 1.

    Returns
    -------
    ndarray of uint64, shape (n,)
    """
    keys_n = np.atleast_1d(np.asarray(keys, dtype=np.uint64))
    numbers_n = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
    return _mix(keys_n + (numbers_n + np.uint64(1)) * np.uint64(_GOLDEN))


def uniform(key: int, numbers: npt.NDArray[np.integer]) -> Floats:
    """Return a uniform number for each of `numbers`: one of the 2**53 midpoints of (0, 1), never 0 or 1."""
    return np.asarray(((children(key, numbers) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def exponential(key: int, numbers: npt.NDArray[np.integer]) -> Floats:
    """Return -log(uniform) for each of `numbers`, the same to the last bit on every processor.

    With u = m 2**e, sqrt(1/2) <= m < sqrt(2), and s = (m - 1) / (m + 1), |s| < 0.172::

        log u = e log 2 + 2 (s + s**3/3 + s**5/5 + ... + s**23/23)
    """
    mantissa, exponent = np.frexp(uniform(key, numbers))
    small = mantissa < np.sqrt(0.5)
    mantissa = np.where(small, 2 * mantissa, mantissa)
    exponent = exponent - small
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = np.full_like(s, 1 / 23)
    for k in range(21, 0, -2):
        series = series * square + 1 / k
    return np.asarray(-(exponent * np.log(2.0) + 2 * s * series))


def shuffled(num: int, key: int) -> Indices:
    """Return 0..num-1 in the order of their random bits.

    Examples
    --------
    >>> sorted(shuffled(5, key=1).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.asarray(np.argsort(children(key, np.arange(num)), kind="stable"), np.int64)


class Cipher:
    """A permutation of 0..num-1 that is computed position by position and never stored.

    A Feistel network enciphers numbers of just enough bits; a result outside the range is enciphered again until it
    falls inside ("cycle walking"), which keeps the map one to one: Black and Rogaway, "Ciphers with arbitrary finite
    domains", CT-RSA 2002. With at least 4 rounds and random round functions the network cannot be distinguished from a
    random permutation (Luby and Rackoff, 1988); Mitchell, Stokes, Frank and Holmes, "Bandwidth-optimal random shuffling
    for GPUs", ACM TOPC 2022, use it for shuffling. The round function is SplitMix64's finaliser, which is not secure
    and need not be.

    Parameters
    ----------
    num : int
        Size of the range, at least 1.
    key : int
        Which permutation.

    Notes
    -----
    The domain is less than twice the range (from 33 on), so an element is enciphered less than twice on average: about
    a microsecond per element in calls with thousands, and O(1) memory. If the range is a power of two, only even
    permutations occur, which makes no difference for training.

    Examples
    --------
    >>> sorted(Cipher(7, key=3)(np.arange(7)).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """

    def __init__(self, num: int, key: int) -> None:
        self.num = num
        width = max((num - 1).bit_length(), 6)
        self._low = width // 2
        self._masks = [np.uint64((1 << bits) - 1) for bits in (width - self._low, self._low)]
        # Four would do for large ranges; small ones need more to reach all permutations equally often.
        self._keys = children(key, np.arange(8 if width > 16 else 12))

    def __call__(self, positions: Indices) -> Indices:
        """Return the element at each position, int64 of the same shape; 0 <= position < num."""
        out = self._encipher(positions.astype(np.uint64))
        outside = np.flatnonzero(out >= self.num)
        while len(outside):
            again = self._encipher(out[outside])
            out[outside] = again
            outside = outside[again >= self.num]
        return out.astype(np.int64)

    def _encipher(self, numbers: UInt64s) -> UInt64s:
        low = np.uint64(self._low)
        halves = [numbers >> low, numbers & self._masks[1]]
        for k, round_key in enumerate(self._keys):
            changed, other = k % 2, 1 - k % 2
            halves[changed] = halves[changed] ^ (_mix(halves[other] + round_key) & self._masks[changed])
        return np.asarray(halves[0] << low | halves[1])
