"""Normalize: the formula's exact value, rounded once, in three dtypes."""

import numpy as np
import pytest
import torch

from dataloading import transforms as T
from dataloading._native import use_kernels
from dataloading.errors import UsageError
from dataloading.transforms.normalize import to_storage
from dataloading.transforms.pipeline import Pipeline

from .support import apply, images, keys_for

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def as_tensor(stored, dtype):
    return torch.from_numpy(stored).view(TORCH[dtype])


def exact(decoded, mean, std, max_value=255.0):
    mean, std = (np.reshape(v, (-1, 1, 1)).astype(np.longdouble) for v in (mean, std))
    return (decoded.astype(np.longdouble) / max_value - mean) / std


@pytest.mark.parametrize(
    ("mean", "std", "max_value"),
    [
        (MEAN, STD, 255.0),
        (0.5, 0.25, 255.0),
        ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375), 1.0),
        (0.0, 1.0, 255.0),
    ],
)
def test_float32_is_within_one_unit_in_the_last_place(mean, std, max_value):
    """Also where a pixel nearly equals the mean and the terms cancel."""
    decoded = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, 1)
    got = apply([T.Normalize(mean, std, max_value=max_value)], decoded, keys_for(1))[0]
    want = exact(decoded[0], mean, std, max_value)
    unit = np.spacing(np.abs(want).astype(np.float32))
    assert got.dtype == np.float32
    assert (np.abs(got - want) <= unit).all()


@pytest.mark.parametrize("kernels", ["portable", "auto"])
def test_float32_is_the_line_in_float64_rounded_once(kernels):
    """Bit for bit on every instruction set, though the arithmetic is float32; for values in whole and broken rows."""
    pairs = [*zip(MEAN, STD, strict=True), (0.4, 0.2), (0.44, 0.2), (0.0, 1.0), (1.0, 0.001)]
    pairs += [(0.6574280714254463, 0.46806123620998036)]  # no line in float32 fits this one
    pairs += [tuple(pair) for pair in np.random.default_rng(5).uniform(0.05, 0.95, (20, 2))]
    decoded = np.resize(np.arange(256, dtype=np.uint8), (1, 1, 3, 99))
    use_kernels(kernels)
    try:
        for mean, std in pairs:
            got = apply([T.Normalize(mean, std)], decoded, keys_for(1))[0]
            want = (decoded[0] * (1.0 / (255.0 * std)) + -mean / std).astype(np.float32)
            assert np.array_equal(got, want), (mean, std)
    finally:
        use_kernels("auto")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mean_std", [(MEAN, STD), (0.5, 0.25), (0.4999, 0.0001)])
def test_half_precision_is_rounded_correctly(dtype, mean_std):
    """To the nearest number, the even one in a tie: as torch rounds the exact float64 value."""
    decoded = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, 1)
    got = as_tensor(apply([T.Normalize(*mean_std, dtype=dtype)], decoded, keys_for(1))[0], dtype).double().numpy()
    want = exact(decoded[0], *mean_std).astype(np.float64)
    digits = {"float16": 10, "bfloat16": 7}[dtype]
    unit = 2.0 ** np.maximum(np.floor(np.log2(np.abs(want) + 1e-300)) - digits, -24 if dtype == "float16" else -133)
    assert (np.abs(got - want) <= unit / 2).all()


def test_storage_rounds_once_to_nearest_even():
    """Ties, and values whose float32 rounding is a tie for bfloat16, which rounding twice would get wrong."""
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40, -1 - 2.0**-8])
    want = np.array([1.0, 1 + 2.0**-6, 1 + 2.0**-7, 1 + 2.0**-7, -1.0])
    assert np.array_equal(as_tensor(to_storage(ties, "bfloat16"), "bfloat16").double().numpy(), want)
    # Against the two neighbours that the format has: the stored number is nearer to the exact one than both.
    values = np.random.default_rng(0).normal(size=20_000) * 10.0 ** np.random.default_rng(1).integers(-4, 4, 20_000)
    for dtype in ("float16", "bfloat16"):
        stored = to_storage(values, dtype)
        error = np.abs(as_tensor(stored, dtype).double().numpy() - values)
        for neighbour in (stored - 1, stored + 1):
            other = np.abs(as_tensor(neighbour.astype(np.uint16), dtype).double().numpy() - values)
            assert (error <= other).all()
    special = as_tensor(to_storage(np.array([np.inf, -np.inf, np.nan, 1e300, 0.0]), "bfloat16"), "bfloat16")
    assert special[[0, 1, 3, 4]].tolist() == [np.inf, -np.inf, np.inf, 0.0] and special[2].isnan()


def test_to_dtype_is_normalize_with_neutral_numbers():
    decoded = images(3, (3, 5, 7))
    np.testing.assert_allclose(apply([T.ToDtype(scale=True)], decoded, keys_for(3)), decoded / 255.0, rtol=1e-7)
    assert np.array_equal(apply([T.ToDtype("float32")], decoded, keys_for(3)), decoded.astype(np.float32))
    half = apply([T.ToDtype("float16")], decoded, keys_for(3))
    assert np.array_equal(half.view(np.float16), decoded.astype(np.float16))


def test_one_number_serves_all_channels_and_one_channel():
    gray = images(3, (1, 5, 7))
    got = apply([T.Normalize(0.5, (0.25,))], gray, keys_for(3))
    np.testing.assert_allclose(got, (gray / 255.0 - 0.5) / 0.25, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Normalize((123.7, 116.3, 103.5), 58.4), "0 to 255.*Divide both by 255, or pass max_value=1.0"),
        (lambda: T.Normalize(0.5, 0.0), "std must be positive"),
        (lambda: T.Normalize("grey", 1.0), "mean must be numbers"),
        (lambda: T.Normalize(float("nan"), 1.0), "mean must be finite"),
        (lambda: T.Normalize(0.5, 0.5, dtype="float64"), "dtype must be one of float32, float16, bfloat16"),
        (lambda: T.Normalize(0.5, 0.5, max_value=0), "max_value must be positive"),
        (lambda: Pipeline([T.Normalize((0.5, 0.5), 0.5)], source_size=(4, 4)), "mean has 2 values, expected 1 or 3"),
        (lambda: Pipeline([T.ToDtype(), T.Normalize(0, 1)], source_size=(4, 4)), "transform 1: Normalize"),
    ],
)  # fmt: skip
def test_parameters_are_checked_when_written(make, message):
    with pytest.raises(UsageError, match=message):
        make()
