"""Checks for your own transforms, and how fast the kernels alone can go.

Call `check_transform` in a test of your own. `KernelCeiling` is the yardstick of ``beton bench``.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.checks import true_or_false
from dataloading.engine.kernel_ceiling import KernelCeiling, KernelTimes
from dataloading.errors import UsageError
from dataloading.transforms.base import PixelOp
from dataloading.transforms.normalize import ToDtype
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import sample_keys

__all__ = ["KernelCeiling", "KernelTimes", "check_transform"]

_GUARD = 2  # samples of known content before and behind the ones worked on


def check_transform(
    transform: PixelOp,
    *,
    shape: tuple[int, int, int] | None = None,
    on_floats: bool = False,
    num_samples: int = 7,
) -> None:
    """Check that a transform is a pure function of one image and its key, and writes nowhere but to its output.

    Parameters
    ----------
    transform : PixelOp
        Usually a function under ``@T.transform``, or ``T.Custom(fn)``.
    shape : (int, int, int), optional
        Channels, height and width of the test images. By default two odd shapes, an RGB and a gray one: state one for
        a transform that needs others.
    on_floats : bool
        Pass float32 images in [0, 1], as behind ``Normalize``, instead of uint8.
    num_samples : int
        How many images.

    Raises
    ------
    UsageError
        If it does not compile, or cannot be in a pipeline.
    AssertionError
        If it breaks one of these rules (the message says which): equal keys give equal pixels; a sample depends neither
        on the others of its group nor on their order; every output pixel is written; nothing outside the sample is;
        threads running at once do not disturb each other.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> @T.transform
    ... def darken(image, rng):
    ...     image[:] = image // rng.integers(1, 4)
    >>> check_transform(darken)
    """
    if not isinstance(transform, PixelOp):
        raise UsageError(f"check_transform takes a transform of pixels, got {type(transform).__name__}")
    for each in [(3, 37, 41), (1, 29, 23)] if shape is None else [shape]:
        _check_on(transform, each, on_floats=on_floats, num_samples=num_samples)


def _check_on(transform: PixelOp, shape: tuple[int, int, int], *, on_floats: bool, num_samples: int) -> None:
    channels, height, width = shape
    chain = [ToDtype(scale=True), transform] if true_or_false("on_floats", on_floats) else [transform]
    pipeline = Pipeline(chain, channels=channels, source_size=(height, width))
    pipeline.warm_up()
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (num_samples, *shape), dtype=np.uint8)
    keys = sample_keys(0, 0, np.arange(num_samples))
    name = f"{transform.name} on images of shape {shape}"

    want = _run(pipeline, images, keys, name)
    _same(want, _run(pipeline, images, keys, name), f"{name}: a second run with equal keys gave other pixels")
    other = _run(pipeline, images, keys, name, stale=170)
    _same(want, other, f"{name}: the result depends on what was in the output before; write every pixel of out")
    backwards = _run(pipeline, images[::-1], keys[::-1], name)[::-1]
    _same(want, backwards, f"{name}: the result depends on the order of the samples")
    singles = [_run(pipeline, images[i : i + 1], keys[i : i + 1], name) for i in range(num_samples)]
    _same(want, np.concatenate(singles), f"{name}: the result depends on the other samples of its group")

    results: list[npt.NDArray[Any]] = []
    threads = [threading.Thread(target=lambda: results.append(_run(pipeline, images, keys, name))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(threads), f"{name}: failed in a thread"
    for result in results:
        _same(
            want, result, f"{name}: threads that ran at once disturbed each other; keep no state outside the function"
        )


def _run(
    pipeline: Pipeline, images: npt.NDArray[np.uint8], keys: npt.NDArray[np.uint64], name: str, *, stale: int = 85
) -> npt.NDArray[Any]:
    """Run on copies between guard samples, and check that these have not changed."""
    n = len(images)
    decoded = np.full((n + 2 * _GUARD, *pipeline.decode_shape), 85, dtype=np.uint8)
    decoded[_GUARD:-_GUARD] = images
    out = np.zeros((n + 2 * _GUARD, *pipeline.out_shape), dtype=pipeline.storage_dtype)
    out.view(np.uint8)[...] = stale
    before = out[:_GUARD].copy()
    source = decoded[_GUARD:-_GUARD]
    target = out[_GUARD:-_GUARD]
    if pipeline.in_place:
        target[...] = source
        source = target
    pipeline.run(source, np.ascontiguousarray(keys), target, indices=np.zeros(n, np.int64))
    guards = [out[:_GUARD], out[-_GUARD:]]
    intact = all(np.array_equal(g.view(np.uint8), before.view(np.uint8)) for g in guards)
    intact = intact and all((g == 85).all() for g in (decoded[:_GUARD], decoded[-_GUARD:]))
    assert intact, f"{name}: wrote outside its image; an index is negative or too large (Numba does not check them)"
    return np.array(target)


def _same(want: npt.NDArray[Any], got: npt.NDArray[Any], message: str) -> None:
    # As bytes: NaN equals NaN here.
    assert np.array_equal(want.view(np.uint8), np.ascontiguousarray(got).view(np.uint8)), message
