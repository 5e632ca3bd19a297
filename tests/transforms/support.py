"""What the tests of transforms share: running one pipeline, and torchvision fed with our random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2

from dataloading._native import REQUEST, decode_regions
from dataloading.format import MODE_RAW
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import child, randint, uniform


def images(n: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Random pixels with flat areas, so that equal channels, 0 and 255 occur as well."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    pixels[:, :, : shape[1] // 3] = rng.choice(np.array([0, 255, 128], np.uint8), (n, shape[0], 1, 1))
    pixels[:, :, -2:] = rng.integers(0, 256, (n, 1, 1, shape[2]), dtype=np.uint8)
    return pixels


def keys_for(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


def run(pipeline: Pipeline, decoded: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Run the pixel part on a copy of ``decoded``."""
    out = np.full((len(decoded), *pipeline.out_shape), 77, pipeline.storage_dtype)
    pipeline.run(decoded.copy(), keys, out)
    return out


def apply(transforms: Sequence[Any], decoded: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Run transforms of pixels on images of one size."""
    _, channels, height, width = decoded.shape
    return run(Pipeline(list(transforms), channels=channels, source_size=(height, width)), decoded, keys)


def plan(pipeline: Pipeline, sizes: Sequence[tuple[int, int]], keys: np.ndarray) -> np.ndarray:
    """Return the requests for images of these (height, width)."""
    heights, widths = (np.array(v, dtype=np.int64) for v in zip(*sizes, strict=True))
    requests = np.zeros(len(sizes), REQUEST)
    requests["src_width"], requests["src_height"] = widths, heights
    pipeline.plan(keys, requests)
    return requests


def decode_raw(pipeline: Pipeline, sources_hwc: Sequence[np.ndarray], keys: np.ndarray) -> np.ndarray:
    """Plan and cut regions out of raw images, as the Loader does with stored ones."""
    requests = plan(pipeline, [s.shape[:2] for s in sources_hwc], keys)
    out = np.full((len(sources_hwc), *pipeline.decode_shape), 99, np.uint8)
    _, height, width = pipeline.decode_shape
    for request, source, slot in zip(requests, sources_hwc, out, strict=True):
        assert source.flags.c_contiguous
        request["src"], request["src_bytes"], request["mode"] = source.ctypes.data, source.nbytes, MODE_RAW
        request["src_height"], request["src_width"] = source.shape[:2]
        request["dst"], request["plane_stride"], request["row_stride"] = slot.ctypes.data, height * width, width
        request["channels"] = 3
        assert (request["out_h"], request["out_w"]) == (height, width)
    assert decode_regions(requests) == 0
    return out


class Draws:
    """Our numbers for one transform of one sample, handed to torchvision in the order it asks for them.

    ``uniforms``: counters of the uniform numbers, in order. None: attempts of four numbers starting at ``first``,
    two uniform ones and then, for the attempt that succeeds, two integers.
    """

    def __init__(self, key: int, position: int, *, uniforms: Sequence[int] | None = None, first: int = 0) -> None:
        self.stream = child(int(key), position)
        self.uniforms = uniforms
        self.first = first
        self.num_uniforms = 0
        self.num_integers = 0

    def uniform(self, low: float, high: float) -> torch.Tensor:
        n = self.num_uniforms
        self.num_uniforms += 1
        counter = self.first + 4 * (n // 2) + n % 2 if self.uniforms is None else self.uniforms[n]
        # float64, as in our code: torchvision's own float32 numbers are not the point here.
        value = float(low) + uniform(self.stream, counter) * (float(high) - float(low))
        return torch.tensor([value], dtype=torch.float64)

    def randint(self, low: int, high: int) -> int:
        counter = self.first + 4 * (self.num_uniforms // 2 - 1) + 2 + self.num_integers
        self.num_integers += 1
        return low + randint(self.stream, counter, high - low)


@contextlib.contextmanager
def torch_draws(draws: Draws, *, chance: float = 0.0, permutation: Sequence[int] = ()) -> Iterator[None]:
    """Make torch's generators return our numbers: ``empty().uniform_``, ``randint``, ``rand`` and ``randperm``."""

    class Empty:
        def uniform_(self, low: float, high: float) -> torch.Tensor:
            return draws.uniform(low, high)

    def fake_randint(low: int, high: int | None = None, *, size: Any) -> torch.Tensor:
        low, high = (0, low) if high is None else (low, high)
        return torch.tensor([draws.randint(low, high)]).reshape(size)

    saved = torch.empty, torch.randint, torch.rand, torch.randperm
    try:
        torch.empty = lambda *shape, **kw: Empty()
        torch.randint = fake_randint
        torch.rand = lambda *shape, **kw: torch.tensor([chance])
        torch.randperm = lambda n: torch.tensor(list(permutation))
        yield
    finally:
        torch.empty, torch.randint, torch.rand, torch.randperm = saved


def image_by_image(pipeline: Pipeline, keys: np.ndarray) -> list[dict[str, float]]:
    """Return what each sample has drawn, by name; what did not happen to it is left out."""
    drawn = pipeline.params_of(pipeline.draw(keys))
    return [
        {name: float(values[i]) for name, values in drawn.items() if not np.isnan(values[i])} for i in range(len(keys))
    ]


def assert_uniform(values: Sequence[float] | np.ndarray, low: float, high: float) -> None:
    """Kolmogorov and Smirnov's test at 1 %: the numbers are uniform in [low, high]."""
    shares = np.sort((np.asarray(values) - low) / (high - low))
    n = len(shares)
    assert n >= 200 and shares[0] >= 0 and shares[-1] <= 1
    steps = np.arange(n + 1) / n
    assert max(np.abs(shares - steps[1:]).max(), np.abs(shares - steps[:-1]).max()) < 1.63 / np.sqrt(n)


def assert_equally_likely(counts: Sequence[int] | np.ndarray, weights: Sequence[float] | None = None) -> None:
    """Pearson's chi-square test at 1 %: the counts come from these weights, equal ones by default."""
    observed = np.asarray(counts, np.float64)
    expected = np.ones(len(observed)) if weights is None else np.asarray(weights, np.float64)
    expected *= observed.sum() / expected.sum()
    assert expected.min() >= 5
    assert chi2.sf(((observed - expected) ** 2 / expected).sum(), len(observed) - 1) > 0.01
