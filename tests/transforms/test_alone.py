"""Transforms called by themselves on arrays and tensors, and images of 16 bits and floats."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import sample_keys
from tests.transforms.support import images


def test_an_image_a_batch_and_a_loader_get_the_same():
    batch = images(5, (3, 20, 30))
    jitter = T.ColorJitter(0.4, 0.4, 0.4, 0.1)
    got = jitter(batch, seed=3)
    want = batch.copy()
    Pipeline([jitter], source_size=(20, 30)).run(want, sample_keys(3, 0, np.arange(5)), want)
    assert np.array_equal(got, want) and not np.array_equal(got, batch)
    assert np.array_equal(jitter(batch[0], seed=3), want[0])
    assert np.array_equal(jitter(torch.from_numpy(batch), seed=3).numpy(), want)


def test_geometry_is_done_as_in_decoding():
    image = images(1, (3, 21, 30))[0]
    tensor = torch.from_numpy(image)
    assert np.array_equal(T.RandomHorizontalFlip(1.0)(image), image[:, :, ::-1])
    assert np.array_equal(T.CenterCrop((10, 12))(image), functional.center_crop(tensor, [10, 12]).numpy())
    filled = T.RandomCrop((25, 34), padding=2, fill=(1, 2, 3))(image)
    assert np.array_equal(filled, functional.pad(tensor, [2, 2], fill=[1, 2, 3]).numpy())
    small = T.Resize((9, 11))(tensor)
    assert (small.float() - functional.resize(tensor, [9, 11]).float()).abs().mean() < 0.5
    five = images(2, (5, 14, 15))
    assert np.array_equal(T.CenterCrop(8)(five), five[:, :, 3:11, 4:12])
    chain = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.Normalize(0.5, 0.25, dtype="bfloat16")])
    assert chain(tensor, seed=1).dtype == torch.bfloat16 and chain(tensor, seed=1).shape == (3, 16, 16)


POINTS = {
    "invert": (lambda p: T.RandomInvert(p), lambda x, white: functional.invert(x)),
    "solarize": (lambda p: T.RandomSolarize(0.3, p), lambda x, white: functional.solarize(x, 0.3)),
    "posterize": (lambda p: T.RandomPosterize(3, p), lambda x, white: functional.posterize(x, 3)),
    "autocontrast": (lambda p: T.RandomAutocontrast(p), lambda x, white: functional.autocontrast(x)),
    "gray": (lambda p: T.Grayscale(), lambda x, white: functional.rgb_to_grayscale(x)),
}
JITTERS = {
    "brightness": functional.adjust_brightness,
    "contrast": functional.adjust_contrast,
    "saturation": functional.adjust_saturation,
    "hue": functional.adjust_hue,
}


@pytest.mark.parametrize("name", [*POINTS, *JITTERS])
def test_floats_from_0_to_1_equal_torchvision(name):
    batch = np.random.default_rng(0).random((2, 3, 13, 17), dtype=np.float32)
    batch[0, :, :3] = 0.5
    tensor = torch.from_numpy(batch)
    if name in POINTS:
        make, theirs = POINTS[name]
        got, want = make(1.0)(batch), theirs(tensor, 1.0)
    else:
        factor = 0.3 if name == "hue" else 1.4
        got, want = T.ColorJitter(**{name: (factor, factor)})(batch), JITTERS[name](tensor, factor)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want.numpy(), atol=2e-6)


def test_images_of_16_bits_are_as_fine_as_their_definition():
    batch = np.random.default_rng(0).integers(0, 65536, (2, 3, 13, 17), dtype=np.uint16)
    exact = batch.astype(np.float64)
    assert np.array_equal(T.RandomInvert(1.0)(batch), 65535 - batch)
    assert np.array_equal(T.RandomPosterize(3, 1.0)(batch), batch & 0xE000)
    bright = T.ColorJitter((1.5, 1.5))(batch)
    assert np.abs(bright - np.floor(np.minimum(exact * 1.5, 65535))).max() <= 1
    gray = T.Grayscale()(batch)[:, 0]
    assert np.abs(gray - np.tensordot(exact, [0.2989, 0.587, 0.114], axes=([1], [0]))).max() <= 1
    assert np.array_equal(T.RandomHorizontalFlip(1.0)(batch), batch[..., ::-1])
    assert (T.Cutout(13, fill=40000)(batch) == 40000).any()
    turned = T.ColorJitter(hue=(0.5, 0.5))(batch)
    assert np.abs(turned.max(axis=1).astype(int) - batch.max(axis=1)).max() <= 2  # hue keeps the brightest value


def deep(dtype, shape=(2, 3, 19, 23)):
    """Images with dark, bright and flat parts, and the same as a tensor."""
    values = np.random.default_rng(0).random(shape) ** 3
    values[0, :, :3], values[1, 0] = 1.0, 0.25
    white = {"uint16": 65535, "float32": 1.0}[dtype]
    batch = (values * white).astype(dtype)
    return batch, torch.from_numpy(batch)


DEEP = {
    "blur": (lambda: T.GaussianBlur((5, 3), (1.3, 1.3)), lambda x: functional.gaussian_blur(x, [5, 3], [1.3, 1.3])),
    "sharper": (lambda: T.RandomAdjustSharpness(2.5, p=1), lambda x: functional.adjust_sharpness(x, 2.5)),
    "smoother": (lambda: T.RandomAdjustSharpness(0.2, p=1), lambda x: functional.adjust_sharpness(x, 0.2)),
    "equalize": (lambda: T.RandomEqualize(1.0), functional.equalize),
    "to floats": (lambda: T.ToDtype("float32"), lambda x: functional.to_dtype(x, torch.float32)),
    "to shares": (lambda: T.ToDtype(scale=True), lambda x: functional.to_dtype(x, torch.float32, scale=True)),
    "normalize": (
        lambda: T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)),
        lambda x: functional.normalize(
            functional.to_dtype(x, torch.float32, scale=True), [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_deep_images_equal_torchvision(dtype, name):
    batch, tensor = deep(dtype)
    make, theirs = DEEP[name]
    got, want = make()(batch), theirs(tensor).numpy()
    assert got.dtype == want.dtype
    error = np.abs(got.astype(np.float64) - want)
    if got.dtype == np.uint16:
        assert error.max() <= 1 and (error > 0).mean() < 0.05  # torch rounds once less in some places
    elif name == "to floats":
        assert error.max() == 0
    else:
        assert error.max() < 2e-6
    if name in ("blur", "equalize"):  # of any number of channels
        many = np.concatenate([batch, batch[:, ::-1]], axis=1)[:, :4]
        assert np.array_equal(make()(many)[:, :3], got)
        assert np.array_equal(make()(batch[:, :1]), got[:, :1])


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_noise_of_deep_images_is_that_of_uint8_in_shares_of_white(dtype):
    gray = np.full((3, 40, 50), 128, np.uint8)
    want = (T.GaussianNoise(0.1, 0.05)(gray, seed=4) - 128.0) / 255
    white = {"uint16": 65535, "float32": 1.0}[dtype]
    got = T.GaussianNoise(0.1, 0.05)(np.full((3, 40, 50), white * 0.5).astype(dtype), seed=4) / white - 0.5
    assert np.abs(got - want).max() < 1.1 / 255 and got.std() > 0.04
    bright = T.GaussianNoise(0.9)(np.full((1, 9, 9), white).astype(dtype))
    assert bright.max() == white
    if dtype == "float32":
        assert T.GaussianNoise(0.9, clip=False)(np.full((1, 9, 9), 1.0, np.float32)).min() > 1.0


def test_half_precision_of_16_bits_is_rounded_correctly():
    values = np.arange(65536, dtype=np.uint16).reshape(1, 256, 256)
    got = T.Normalize(0.45, 0.22, dtype="float16")(values)
    assert np.array_equal(got, ((values / 65535 - 0.45) / 0.22).astype(np.float16))
    assert T.ToDtype("bfloat16", scale=True)(torch.from_numpy(values)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
@pytest.mark.parametrize(
    "policy", [T.RandAugment(), T.TrivialAugmentWide(), T.AutoAugment(), T.RandomPhotometricDistort(p=1)], ids=str
)
def test_policies_do_to_deep_images_what_they_do_to_uint8(policy, dtype):
    """But for rounding, which equalising and posterising can turn into a step: most values agree."""
    batch = images(6, (3, 24, 28))
    white = {"uint16": 65535, "float32": 1.0}[dtype]
    deeper = (batch * (white / 255)).astype(dtype)
    got, want = policy(deeper, seed=2) / white, policy(batch, seed=2) / 255.0
    assert (np.abs(got - want) < 0.02).mean() > 0.95


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: T.RandomInvert()(np.zeros((20, 30, 3), np.uint8)), r"looks like \(height, width, channels\)"),
        (lambda: T.RandomInvert()(np.zeros((20, 30), np.uint8)), "expected an image of shape"),
        (lambda: T.RandomInvert()(np.zeros((3, 4, 4), np.int32)), "expected uint8, uint16, float32, got int32"),
        (
            lambda: T.Resize(4)(np.zeros((3, 8, 8), np.float32)),
            "Resize of images in memory works on uint8, got float32",
        ),
        (lambda: T.Normalize(0, 1, dtype="bfloat16")(np.zeros((3, 8, 8), np.uint8)), "NumPy has no bfloat16"),
        (
            lambda: T.Normalize(0, 1, dtype="float16")(np.zeros((3, 8, 8), np.float32)),
            "Normalize of float32 images gives float32, got dtype='float16'. Leave it out",
        ),
        (lambda: T.JPEG(50)(np.zeros((3, 8, 8), np.uint16)), "JPEG needs uint8 images, got uint16. Leave it out"),
        (lambda: T.RandomCrop(9)(np.zeros((3, 8, 8), np.uint8)), "larger than the image"),
    ],
)
def test_wrong_images_are_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (T.JPEG(50), "JPEG files hold 8 bits a value"),
        (T.AugMix(), "it mixes versions of 8-bit images"),
        (T.ThreeAugment(), "its threshold is one of 0 to 255"),
        (T.RandAugment.from_timm("rand-m9-n2"), "timm's magnitudes are of values from 0 to 255"),
    ],
)
def test_what_works_on_bytes_only_says_why_and_what_to_do(transform, reason):
    with pytest.raises(UsageError, match=f"got uint16. Leave it out, or store the images as uint8: {reason}"):
        transform(np.zeros((3, 8, 8), np.uint16))
    with pytest.raises(UsageError, match=f"got float32. Put it before Normalize and ToDtype: {reason}"):
        transform(np.zeros((3, 8, 8), np.float32))
    with pytest.raises(UsageError, match="works on gray or RGB images, got 4 channels"):
        transform(np.zeros((4, 8, 8), np.uint8))
