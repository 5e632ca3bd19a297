"""Masks in step with their images, images of other channels and depths, arrays of any length, and lists of images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from dataloading import Loader, _native
from dataloading import transforms as T
from dataloading.errors import DecodeError, FormatError, UsageError
from dataloading.format import (
    MODE_JPEG,
    MODE_PNG,
    EncodedImage,
    ImageField,
    IntField,
    MaskField,
    NDArrayField,
    RasterField,
    TextField,
    VarArrayField,
    Writer,
    verify_file,
)
from tests.support.files import photo_like, raw

NUM = 12


def png(pixels: np.ndarray) -> EncodedImage:
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return EncodedImage(MODE_PNG, pixels.shape[1], pixels.shape[0], buffer.getvalue(), channels, pixels.dtype.name)


def gray_jpeg(pixels: np.ndarray) -> EncodedImage:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return EncodedImage(MODE_JPEG, pixels.shape[1], pixels.shape[0], buffer.getvalue(), 1)


def coordinates(height: int, width: int) -> np.ndarray:
    """An image whose red and green tell where a pixel comes from; a mask of ``200 * y + x`` tells the same."""
    y, x = np.mgrid[:height, :width]
    return np.dstack([y, x, np.full_like(y, 7)]).astype(np.uint8)


def place_of(image: np.ndarray) -> np.ndarray:
    return image[:, :, 0].astype(np.uint16) * 200 + image[:, :, 1]


def write_masks(
    path: Path, sizes: list[tuple[int, int]], *, dtype: str = "uint16", mask_first: bool = False
) -> list[np.ndarray]:
    """Raw images of coordinates with masks that say the same, PNG and raw by turns."""
    fields = {"image": ImageField(), "mask": MaskField(dtype), "label": IntField()}
    if mask_first:
        fields = dict(reversed(fields.items()))
    masks = []
    with Writer(path, fields, num_samples=len(sizes)) as writer:
        for n, size in enumerate(sizes):
            image = coordinates(*size)
            mask = place_of(image).astype(dtype)
            masks.append(mask)
            writer.append({"image": raw(image), "mask": png(mask) if n % 2 else mask, "label": n})
    return masks


@pytest.fixture(scope="module")
def masks_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masks") / "masks.beton"
    rng = np.random.default_rng(3)
    write_masks(path, [tuple(size) for size in rng.integers(50, 120, (NUM, 2)).tolist()])
    return path


# ---- the kernel, and its judges


def slow(source_HWC: np.ndarray, request: np.void) -> np.ndarray:
    """crop, torch's nearest resize, window with padding, flips: one step after the other, CHW."""
    x, y, w, h = (int(request[name]) for name in ("box_x", "box_y", "box_w", "box_h"))
    part = torch.from_numpy(source_HWC[y : y + h, x : x + w].astype(np.int64)).permute(2, 0, 1)
    scaled = int(request["scaled_h"]), int(request["scaled_w"])
    if scaled != (h, w):
        resized = TF.resize(part.to(torch.float32), list(scaled), interpolation=v2.InterpolationMode.NEAREST)
        part = resized.to(torch.int64)
    top, left = int(request["window_y"]), int(request["window_x"])
    out_h, out_w = int(request["out_h"]), int(request["out_w"])
    around = (max(-top, 0), max(top + out_h - scaled[0], 0)), (max(-left, 0), max(left + out_w - scaled[1], 0))
    modes = {1: "edge", 2: "reflect", 3: "symmetric"}
    pixels = part.numpy()
    if request["pad_mode"] == 0:
        pixels = np.pad(pixels, ((0, 0), *around), constant_values=int(request["fill"][0]))
    else:
        pixels = np.pad(pixels, ((0, 0), *around), mode=modes[int(request["pad_mode"])])
    pixels = pixels[:, max(top, 0) :, max(left, 0) :][:, :out_h, :out_w]
    pixels = pixels[:, :, ::-1] if request["flip"] & 1 else pixels
    return pixels[:, ::-1] if request["flip"] & 2 else pixels


@st.composite
def requests(draw: st.DrawFn) -> tuple[np.ndarray, np.void]:
    height, width, channels = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.integers(1, 3))
    request = np.zeros(1, _native.REQUEST)
    for side, length, scaled, window, out, box in (
        (height, "box_h", "scaled_h", "window_y", "out_h", "box_y"),
        (width, "box_w", "scaled_w", "window_x", "out_w", "box_x"),
    ):
        size = draw(st.integers(1, side))
        request[box], request[length] = draw(st.integers(0, side - size)), size
        request[scaled] = draw(st.one_of(st.just(size), st.integers(1, 80)))
        request[out] = draw(st.integers(1, 60))
        # np.pad's reflection is only agreed upon where it folds once
        reach = max(int(request[scaled][0]) - 1, 0)
        first = draw(st.integers(-reach, reach))
        request[window] = first
        request[out] = max(1, min(int(request[out][0]), int(request[scaled][0]) + reach - first))
    request["pad_mode"] = draw(st.integers(0, 3))
    request["flip"] = draw(st.integers(0, 3))
    request["fill"] = draw(st.integers(0, 255))
    dtype = draw(st.sampled_from([np.uint8, np.uint16]))
    source = np.arange(height * width * channels, dtype=np.uint32).reshape(height, width, channels).astype(dtype)
    return source, request[0]


@settings(deadline=None, max_examples=300)
@given(case=requests())
def test_gathering_equals_torchvisions_nearest_then_padding_then_flips(case: tuple[np.ndarray, np.void]) -> None:
    source, request = case
    out = np.full((source.shape[2], int(request["out_h"]), int(request["out_w"])), -1, np.int64)
    _native.gather(source, request, out)
    np.testing.assert_array_equal(out, slow(source, request))


# ---- masks


CHAINS = {
    "random crop, resized": [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "flip first": [T.RandomHorizontalFlip(), T.RandomResizedCrop((24, 40), scale=(0.3, 1.0))],
    "crop": [T.RandomCrop(40), T.RandomHorizontalFlip()],
    "resize, centre": [T.Resize(45), T.CenterCrop(40)],
    "padded": [T.RandomCrop(60, padding=8, pad_if_needed=True, padding_mode="reflect")],
    "moved": [T.RandomResizedCrop(32), T.RandomTranslate(5)],
    "turned": [T.RandomResizedCrop(32), T.RandomRotation(40), T.RandomAffine(9, (0.1, 0.2), (0.5, 2), 20)],
    "warped": [
        T.RandomResizedCrop(32),
        T.RandomPerspective(p=0.7, interpolation="nearest"),
        T.ElasticTransform(40.0, 1.5, interpolation="nearest"),
        T.RandomHorizontalFlip(),
    ],
    "composed": [
        T.RandomResizedCrop(32),
        T.RandomApply([T.RandomRotation(40), T.RandomHorizontalFlip()], p=0.7),
        T.RandomChoice([T.RandomAffine(0, shear=20), T.RandomVerticalFlip(1.0)]),
    ],
    "framed": [T.RandomResizedCrop(32), T.Pad((3, 5), padding_mode="reflect"), T.RandomVerticalFlip()],
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("follows", [True, False], ids=["follows", "own list"])
def test_masks_show_the_same_positions_as_their_images(masks_file: Path, chain: str, follows: bool) -> None:
    image_chain = [
        type(op)(**{**op.__dict__, "interpolation": "nearest"}) if hasattr(op, "interpolation") else op
        for op in CHAINS[chain]
    ]
    transforms = {"image": image_chain} if follows else {"image": image_chain, "mask": CHAINS[chain]}
    loader = Loader(masks_file, batch_size=5, transforms=transforms, num_workers=2, seed=4)
    drawn = set()
    for epoch in range(3):
        loader.set_epoch(epoch)
        for images, masks, _ in loader:
            assert masks.dtype == torch.int64
            assert masks.shape == (len(images), *images.shape[2:])
            expected = images[:, 0].long() * 200 + images[:, 1].long()
            assert torch.equal(masks, expected)
            drawn |= {mask.numpy().tobytes() for mask in masks}
    assert len(drawn) > NUM or chain == "resize, centre"


def test_masks_follow_moves_behind_transforms_that_change_colours(masks_file: Path) -> None:
    """There an image is moved as pixels and its mask while it is read; the random numbers are the same."""
    shift = T.Custom(lambda image, key: None, name="Custom(nothing)", moves_pixels=False)
    chain = [
        T.RandomResizedCrop(40, interpolation="nearest"), shift, T.RandomTranslate(6), shift, T.RandomCrop(30),
        T.RandomHorizontalFlip(), T.RandomVerticalFlip(),
    ]  # fmt: skip
    loader = Loader(masks_file, batch_size=NUM, transforms={"image": chain[:3] + chain[5:]}, seed=9)
    images, masks, _ = next(iter(loader))
    expected = images[:, 0].long() * 200 + images[:, 1].long()
    inside = images[:, 2] == 7
    assert torch.equal(masks[inside], expected[inside])
    assert (masks[~inside] == 0).all()
    loader = Loader(masks_file, batch_size=NUM, transforms={"image": [chain[0], shift, *chain[4:]]}, seed=9)
    images, masks, _ = next(iter(loader))
    assert torch.equal(masks, images[:, 0].long() * 200 + images[:, 1].long())


def test_a_mask_cannot_follow_a_policy_that_moves_pixels(masks_file: Path) -> None:
    with pytest.raises(UsageError, match="RandAugment moves pixels, and a mask cannot follow it"):
        Loader(masks_file, batch_size=5, transforms={"image": [T.RandomResizedCrop(32), T.RandAugment()]})


def test_masks_follow_what_is_moved_inside_composites(masks_file: Path) -> None:
    still = T.Custom(lambda image, key: None, name="Custom(nothing)", moves_pixels=False)
    chain = [
        T.RandomResizedCrop(40, interpolation="nearest"),
        T.RandomApply([still, T.RandomHorizontalFlip(), T.RandomTranslate(5, fill=9)], p=0.6),
        T.RandomOrder([T.RandomTranslate(3), T.RandomVerticalFlip(), still]),
        T.RandomChoice([T.RandomHorizontalFlip(1.0), T.RandomTranslate(2), still]),
    ]
    images, masks, _ = next(iter(Loader(masks_file, batch_size=NUM, transforms={"image": chain}, seed=9)))
    inside = images[:, 2] == 7
    assert torch.equal(masks[inside], (images[:, 0].long() * 200 + images[:, 1].long())[inside])
    assert (masks[~inside] == 0).all() and 0 < (~inside).float().mean() < 0.5


def test_padding_is_label_0_or_what_the_masks_own_list_says(masks_file: Path) -> None:
    chain = [T.RandomCrop(200, pad_if_needed=True, fill=99)]
    images, masks, _ = next(iter(Loader(masks_file, batch_size=4, transforms={"image": chain})))
    outside = (images == 99).all(dim=1)
    assert outside.any() and (masks[outside] == 0).all()
    own = [T.RandomCrop(200, pad_if_needed=True, fill=255)]
    images, masks, _ = next(iter(Loader(masks_file, batch_size=4, transforms={"image": chain, "mask": own})))
    assert (masks[outside] == 255).all()
    own = [T.RandomCrop(200, pad_if_needed=True, fill=(1, 2, 3))]
    with pytest.raises(UsageError, match=r"fills with .* do not have 3 channels"):
        Loader(masks_file, batch_size=4, transforms={"image": chain, "mask": own})


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("mask_first", [False, True])
def test_masks_of_one_size_need_no_transforms(dtype: str, mask_first: bool, tmp_path: Path) -> None:
    masks = write_masks(tmp_path / "x.beton", [(20, 30)] * 5, dtype=dtype, mask_first=mask_first)
    batch = next(iter(Loader(tmp_path / "x.beton", batch_size=5)))
    assert torch.equal(batch["mask"], torch.from_numpy(np.stack(masks).astype(np.int64)))


def test_masks_can_be_loaded_without_their_images(masks_file: Path) -> None:
    chain = CHAINS["crop"]
    both = Loader(masks_file, batch_size=NUM, transforms={"image": chain}, seed=1)
    alone = Loader(masks_file, batch_size=NUM, fields=["mask"], transforms={"mask": chain}, seed=1)
    assert torch.equal(next(iter(both))["mask"], next(iter(alone))["mask"])


def test_masks_are_the_same_in_either_memory_format(masks_file: Path) -> None:
    chain = {"image": CHAINS["random crop, resized"]}
    contiguous = next(iter(Loader(masks_file, batch_size=6, transforms=chain)))
    interleaved = next(iter(Loader(masks_file, batch_size=6, transforms=chain, memory_format="channels_last")))
    assert torch.equal(contiguous["mask"], interleaved["mask"])
    assert torch.equal(contiguous["image"], interleaved["image"])


def test_a_mask_of_another_size_than_its_image_is_an_error_of_that_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.beton"
    with Writer(path, {"image": ImageField(), "mask": MaskField()}, num_samples=4) as writer:
        for n in range(4):
            mask = np.full((30, 40 + (n == 2)), n, np.uint8)
            writer.append({"image": raw(coordinates(30, 40)), "mask": mask})
    chain = {"image": [T.RandomCrop(20)]}
    with pytest.raises(DecodeError, match=r"sample 2.*'mask'.*the mask is 30x41, its image 'image' 30x40"):
        list(Loader(path, batch_size=4, transforms=chain))
    loader = Loader(path, batch_size=4, transforms=chain, on_error="skip")
    _, masks = next(iter(loader))
    assert masks[:, 0, 0].tolist() == [0, 1, 3] and len(loader.errors) == 1


def test_a_damaged_mask_is_an_error_of_that_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.beton"
    noise = np.random.default_rng(0).integers(0, 256, (30, 40), np.uint8)
    with Writer(path, {"n": IntField(), "mask": MaskField()}, num_samples=3) as writer:
        for n in range(3):
            writer.append({"n": n, "mask": png(np.roll(noise, n, axis=0))})
    data = bytearray(path.read_bytes())
    second = data.index(b"\x89PNG", data.index(b"\x89PNG") + 1)
    data[second + 200 : second + 260] = bytes(60)
    path.write_bytes(data)
    with pytest.raises(DecodeError, match=r"sample 1.*the PNG cannot be decoded"):
        list(Loader(path, batch_size=3))
    numbers, masks = next(iter(Loader(path, batch_size=3, on_error="skip")))
    assert numbers.tolist() == [0, 2] and masks.shape == (2, 30, 40)


def test_mixing_images_that_have_masks_is_refused(masks_file: Path) -> None:
    with pytest.raises(UsageError, match="CutMix mixes images and labels, but not the masks of 'mask'"):
        Loader(masks_file, batch_size=4, transforms={"image": [T.RandomCrop(20), T.CutMix(num_classes=20)]})
    with pytest.raises(UsageError, match=r"ColorJitter.* geometry only"):
        Loader(masks_file, batch_size=4, transforms={"image": [T.RandomCrop(20)], "mask": [T.ColorJitter(0.5)]})


# ---- images of other channels and depths


def gray(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.asarray(Image.fromarray(photo_like(np.random.default_rng(seed), height, width)).convert("L"))


def test_gray_images_take_all_transforms_as_one_channel(tmp_path: Path) -> None:
    """Against the same pixels in three channels; JPEG, PNG and raw by turns."""
    images = [gray(50 + n, 70 - n, n) for n in range(9)]
    stored = [(gray_jpeg, png, lambda pixels: pixels)[n % 3](image) for n, image in enumerate(images)]
    with Writer(tmp_path / "one.beton", {"image": RasterField()}, num_samples=9) as writer:
        for value in stored:
            writer.append({"image": value})
    with Writer(tmp_path / "three.beton", {"image": ImageField()}, num_samples=9) as writer:
        for image, value in zip(images, stored, strict=True):
            is_jpeg = isinstance(value, EncodedImage) and value.mode == MODE_JPEG
            three = (
                EncodedImage(MODE_JPEG, value.width, value.height, value.data) if is_jpeg else np.dstack([image] * 3)
            )
            writer.append({"image": three})
    chain = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.RandomErasing(value=0.5), T.Normalize(0.5, 0.25)]
    chain = [chain[0], chain[1], chain[3], chain[2]]
    one, three = (
        next(iter(Loader(tmp_path / name, batch_size=9, transforms={"image": chain}, seed=2)))[0]
        for name in ("one.beton", "three.beton")
    )
    assert one.shape == (9, 1, 24, 24) and one.dtype == torch.float32
    assert torch.equal(one, three[:, :1])


def test_small_gray_images_of_one_size_arrive_as_they_are(tmp_path: Path) -> None:
    digits = np.random.default_rng(0).integers(0, 256, (20, 28, 28), np.uint8)
    with Writer(tmp_path / "x.beton", {"image": RasterField(), "label": IntField()}, num_samples=20) as writer:
        for n, digit in enumerate(digits):
            writer.append({"image": digit, "label": n % 10})
    images, labels = next(iter(Loader(tmp_path / "x.beton", batch_size=20)))
    assert images.shape == (20, 1, 28, 28) and images.dtype == torch.uint8
    assert torch.equal(images[:, 0], torch.from_numpy(digits)) and labels.tolist() == list(range(10)) * 2


@pytest.mark.parametrize("channels", [2, 4, 7, 16])
def test_many_channels_take_geometry_as_each_channel_alone_would(channels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(channels)
    images = [rng.integers(0, 256, (40 + n, 50, channels), np.uint8) for n in range(4)]
    with Writer(tmp_path / "all.beton", {"image": RasterField(channels)}, num_samples=4) as writer:
        for image in images:
            writer.append({"image": image if channels > 4 else png(image)})
    chain = {"image": [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.Normalize(0.5, 0.5)]}
    got = next(iter(Loader(tmp_path / "all.beton", batch_size=4, transforms=chain, seed=1)))[0]
    assert got.shape == (4, channels, 16, 16)
    for c in range(channels):
        path = tmp_path / f"{c}.beton"
        with Writer(path, {"image": RasterField()}, num_samples=4) as writer:
            for image in images:
                writer.append({"image": np.ascontiguousarray(image[:, :, c])})
        alone = next(iter(Loader(path, batch_size=4, transforms=chain, seed=1)))[0]
        assert torch.equal(got[:, c], alone[:, 0])


def test_colours_of_many_channels_are_refused_by_name(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.beton", {"image": RasterField(4)}, num_samples=1) as writer:
        writer.append({"image": np.zeros((9, 9, 4), np.uint8)})
    with pytest.raises(UsageError, match=r"ColorJitter.* gray or RGB images, got 4 channels"):
        Loader(tmp_path / "x.beton", batch_size=1, transforms={"image": [T.ColorJitter(0.1)]})
    with pytest.raises(UsageError, match=r"fills with .* do not have 3 channels: they have 4"):
        chain = [T.RandomCrop(20, pad_if_needed=True, fill=(1, 2, 3))]
        Loader(tmp_path / "x.beton", batch_size=1, transforms={"image": chain})


@pytest.mark.parametrize("channels", [1, 3])
def test_deep_images_arrive_as_16_bit_tensors(channels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 1 << 16, (4, 20, 30, channels), np.uint16)
    with Writer(tmp_path / "x.beton", {"image": RasterField(channels, "uint16")}, num_samples=4) as writer:
        for n, image in enumerate(images):
            writer.append({"image": png(image[:, :, 0]) if channels == 1 and n % 2 else image})
    for memory_format in ("contiguous", "channels_last"):
        got = next(iter(Loader(tmp_path / "x.beton", batch_size=4, memory_format=memory_format)))[0]
        assert got.dtype == torch.uint16 and got.shape == (4, channels, 20, 30)
        np.testing.assert_array_equal(got.numpy(), images.transpose(0, 3, 1, 2))
    chain = {"image": [T.CenterCrop((10, 12)), T.RandomHorizontalFlip(p=1.0)]}
    got = next(iter(Loader(tmp_path / "x.beton", batch_size=4, transforms=chain)))[0]
    np.testing.assert_array_equal(got.numpy(), images[:, 5:15, 9:21].transpose(0, 3, 1, 2)[..., ::-1])
    with pytest.raises(UsageError, match=r"Resize.* would mix 16-bit pixels.*interpolation='nearest'"):
        Loader(tmp_path / "x.beton", batch_size=4, transforms={"image": [T.Resize((8, 8))]})
    normalised = {"image": [T.Normalize(0.5, 0.25)]}
    got = next(iter(Loader(tmp_path / "x.beton", batch_size=4, transforms=normalised)))[0]
    np.testing.assert_allclose(got.numpy(), (images.transpose(0, 3, 1, 2) / 65535 - 0.5) / 0.25, atol=1e-6)
    chain = {"image": [T.Resize((8, 8), interpolation="nearest"), lambda batch: batch.to(torch.float32) / 65535]}
    assert next(iter(Loader(tmp_path / "x.beton", batch_size=4, transforms=chain)))[0].dtype == torch.float32


def test_a_colour_jpeg_in_a_gray_field_is_an_error_of_that_sample(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(photo_like(np.random.default_rng(0), 30, 40)).save(buffer, "JPEG")
    with Writer(tmp_path / "x.beton", {"image": RasterField()}, num_samples=2) as writer:
        writer.append({"image": gray(30, 40)})
        writer.append({"image": EncodedImage(MODE_JPEG, 40, 30, buffer.getvalue(), 1)})
    with pytest.raises(DecodeError, match=r"sample 1.*colours, where a gray image was declared"):
        list(Loader(tmp_path / "x.beton", batch_size=2))


# ---- lists


def test_images_of_any_size_arrive_as_a_list_when_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [photo_like(rng, 20 + n, 33 - n) for n in range(5)]
    fields = {"image": ImageField(), "gray": RasterField(), "deep": RasterField(2, "uint16"), "mask": MaskField()}
    deeps = [rng.integers(0, 1 << 16, (3 + n, 4, 2), np.uint16) for n in range(5)]
    with Writer(tmp_path / "x.beton", fields, num_samples=5) as writer:
        for n, image in enumerate(images):
            plane = np.ascontiguousarray(image[:, :, 0])
            writer.append({"image": raw(image), "gray": png(plane), "deep": deeps[n], "mask": plane})
    with pytest.raises(UsageError, match=r"sizes that differ.*end it with AsList\(\)"):
        Loader(tmp_path / "x.beton", batch_size=5)
    chains = {name: [T.AsList()] for name in ("image", "gray", "deep")}  # the mask follows "image"
    batch = next(iter(Loader(tmp_path / "x.beton", batch_size=5, transforms=chains, num_workers=3)))
    for n, image in enumerate(images):
        assert torch.equal(batch["image"][n], torch.from_numpy(image).permute(2, 0, 1))
        assert torch.equal(batch["gray"][n], batch["image"][n][:1])
        assert batch["deep"][n].dtype == torch.uint16
        np.testing.assert_array_equal(batch["deep"][n].numpy(), deeps[n].transpose(2, 0, 1))
        assert batch["mask"][n].dtype == torch.int64
        assert torch.equal(batch["mask"][n], batch["image"][n][0].long())


def test_as_list_is_the_last_of_an_image_fields_list(masks_file: Path) -> None:
    with pytest.raises(UsageError, match="must be the last of the list"):
        Loader(masks_file, batch_size=2, transforms={"image": [T.AsList(), T.RandomHorizontalFlip()]})
    with pytest.raises(UsageError, match="is for images"):
        Loader(masks_file, batch_size=2, transforms={"image": [T.AsList()], "label": [T.AsList()]})


def test_a_damaged_image_of_a_list_is_an_error_of_that_sample(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.beton", {"image": ImageField(), "n": IntField()}, num_samples=3) as writer:
        for n in range(3):
            good = raw(coordinates(5 + n, 6))
            writer.append({"image": EncodedImage(MODE_JPEG, 6, 6, b"no jpeg") if n == 1 else good, "n": n})
    chain = {"image": [T.AsList()]}
    with pytest.raises(DecodeError, match=r"sample 1.*not a JPEG"):
        list(Loader(tmp_path / "x.beton", batch_size=3, transforms=chain))
    images, numbers = next(iter(Loader(tmp_path / "x.beton", batch_size=3, transforms=chain, on_error="skip")))
    assert numbers.tolist() == [0, 2] and [len(image[0]) for image in images] == [5, 7]
    images, numbers = next(iter(Loader(tmp_path / "x.beton", batch_size=3, transforms=chain, on_error="replace")))
    assert numbers.tolist() == [0, 2, 2] and [len(image[0]) for image in images] == [5, 7, 7]


def test_arrays_of_any_length_and_texts_arrive_as_lists(tmp_path: Path) -> None:
    fields = {"boxes": VarArrayField("float32", (None, 4)), "tokens": VarArrayField("int64"), "caption": TextField()}
    boxes = [np.arange(4 * n, dtype=np.float32).reshape(n, 4) for n in (2, 0, 5)]
    with Writer(tmp_path / "x.beton", fields, num_samples=3) as writer:
        for n in range(3):
            writer.append({"boxes": boxes[n], "tokens": np.arange(n), "caption": "ü" * n})
    batch = next(iter(Loader(tmp_path / "x.beton", batch_size=3)))
    assert [tuple(each.shape) for each in batch["boxes"]] == [(2, 4), (0, 4), (5, 4)]
    assert all(torch.equal(got, torch.from_numpy(want)) for got, want in zip(batch["boxes"], boxes, strict=True))
    assert [each.tolist() for each in batch["tokens"]] == [[], [0], [0, 1]]
    assert batch["caption"] == ["", "ü", "üü"]
    batch["boxes"][0][:] = -1  # the caller's own memory, not the file's
    assert torch.equal(next(iter(Loader(tmp_path / "x.beton", batch_size=3)))["boxes"][0], torch.from_numpy(boxes[0]))


def test_arrays_that_torch_has_no_dtype_for_are_refused_at_once(tmp_path: Path) -> None:
    fields = {"words": VarArrayField("<U3"), "n": NDArrayField("int64", (1,))}
    with Writer(tmp_path / "x.beton", fields, num_samples=1) as writer:
        writer.append({"words": np.array(["a", "bcd"]), "n": np.zeros(1, np.int64)})
    with pytest.raises(UsageError, match="'words' holds <U3 arrays, of which torch makes no tensors"):
        Loader(tmp_path / "x.beton", batch_size=1)
    assert next(iter(Loader(tmp_path / "x.beton", batch_size=1, fields=["n"])))[0].tolist() == [[0]]


# ---- damage


def test_no_flipped_bit_in_stored_values_does_more_than_fail_its_sample(tmp_path: Path) -> None:
    """PNG headers, JPEG tables, lengths: every bit may be wrong. `beton verify` finds each of them by checksum."""
    rng = np.random.default_rng(0)
    fields = {
        "gray": RasterField(), "deep": RasterField(1, "uint16"), "four": RasterField(4), "mask": MaskField(),
        "boxes": VarArrayField("float32", (None, 4)), "caption": TextField(), "n": IntField(),
    }  # fmt: skip
    path = tmp_path / "x.beton"
    with Writer(path, fields, num_samples=4, page_size=1 << 21) as writer:
        for n in range(4):
            plane = gray(12, 16, n)
            deep = plane.astype(np.uint16) * 257
            four = rng.integers(0, 256, (12, 16, 4), np.uint8)
            writer.append(
                {
                    "gray": gray_jpeg(plane) if n % 2 else png(plane), "deep": png(deep), "four": png(four),
                    "mask": png(plane // 50), "boxes": np.ones((n, 4), np.float32), "caption": "text" * n, "n": n,
                }
            )  # fmt: skip
    whole = path.read_bytes()
    start, stop = whole.index(b"\x89PNG"), whole.rindex(b"IEND")
    records = [24 + 1041 * len(fields), 24 + 1041 * len(fields) + 300]
    failed = 0
    for trial in range(90):
        low, high = (start, stop) if trial % 3 else records
        data = bytearray(whole)
        data[rng.integers(low, high)] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"{trial}.beton"  # a file of its own: the last one may still be mapped
        path.write_bytes(data)
        assert trial >= 10 or not verify_file(path).ok
        chains = {name: [T.AsList()] for name in ("gray", "deep", "four", "mask")}
        loader = Loader(path, batch_size=1, transforms=chains if trial % 2 else None, num_workers=1, on_error="skip")
        got = 0
        try:
            for batch in loader:
                got += len(batch["n"])
        except (DecodeError, FormatError):
            pass  # batches of one: none of its rows was good
        failed += got < 4
        loader.close()
        path.unlink()
    assert failed > 20
