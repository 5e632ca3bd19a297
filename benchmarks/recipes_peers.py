"""The recipes of `recipes.py` in other libraries, from stored JPEG bytes to normalised tensors, in one thread.

Each function returns what makes one sample; it raises ImportError where the library is not installed, and KeyError
where it has no such recipe. What differs from ours is said in `UNLIKE`.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Callable
from typing import Any

Sample = Callable[[bytes, Any], None]
"""Takes the stored JPEG and the boxes of one sample."""

UNLIKE = """How equal the recipes are. All start from the same JPEG bytes, decoded as the library's users do it
(torchvision and Kornia by torchvision, albumentations by OpenCV, timm by Pillow, FFCV by its own decoder from a file
that its own writer made), and end in float32 tensors (channels, height, width), normalised. Sizes, probabilities,
ranges and filters are those of ours, but for:

- torchvision: `deit` has timm's policy by torchvision's operations.
- albumentations: `deit` takes two of 15 operations by `SomeOf`, with a second `Solarize` in the place of SolarizeAdd
  and fixed magnitudes; `trivial` takes one of 14 by `OneOf`, magnitudes drawn from a range instead of 31 bins;
  `detection` has `RandomSizedBBoxSafeCrop` in the place of zooming out and of the IoU crop. Its resizes do not
  low-pass, which is less work.
- timm: `imagenet_train` and `deit` by `create_transform`, which it has no others of; `deit` without the noise of the
  magnitude (`mstd0.5`), which makes its posterising fail with Pillow 13.
- Kornia: crops one image at a time, the rest on batches of 32 floats; `deit` and `trivial` are its own policies, drawn
  once a batch.
- FFCV has crop, flip and normalisation only.
- MixUp and CutMix are left out everywhere.
"""


def albumentations(name: str) -> Sample:
    """Return albumentations' or AlbumentationsX' nearest; decoded by OpenCV."""
    import numpy as np

    cv2: Any = importlib.import_module("cv2")
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask the network for its newest version
    library: Any = importlib.import_module("albumentations")
    cv2.setNumThreads(1)
    views = [library.Compose(steps, telemetry=False, **more) for steps, more in _albumentations_views(library, name)]

    def sample(data: bytes, boxes: Any) -> None:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        given = {} if boxes is None else {"bboxes": boxes, "category": np.zeros(len(boxes))}
        for view in views:
            view(image=image, **given)

    return sample


def _albumentations_views(a: Any, name: str) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return the transforms and the options of each view."""
    end = [a.Normalize(), a.ToTensorV2()]
    flip = a.HorizontalFlip(p=0.5)

    def crop(size: int, *, cubic: bool = False, scale: tuple[float, float] = (0.08, 1.0)) -> Any:
        return a.RandomResizedCrop((size, size), scale=scale, interpolation=2 if cubic else 1)

    def jitter(value: float, saturation: float, hue: float) -> Any:
        around = (1 - value, 1 + value)
        return a.ColorJitter(around, around, (1 - saturation, 1 + saturation), (-hue, hue), p=0.8)

    if name == "imagenet_train":
        return [([crop(224), flip, *end], {})]
    if name in ("simclr_view", "simclr"):
        blur = a.GaussianBlur((23, 23), (0.1, 2.0), p=0.5)
        return [([crop(224), flip, jitter(0.8, 0.8, 0.2), a.ToGray(p=0.2), blur, *end], {})] * (
            1 if name == "simclr_view" else 2
        )
    if name == "dino":

        def view(size: int, scale: tuple[float, float], blur: float, solarize: float = 0.0) -> Any:
            steps = [crop(size, cubic=True, scale=scale), flip, jitter(0.4, 0.2, 0.1), a.ToGray(p=0.2)]
            return [*steps, a.GaussianBlur((13, 13), (0.1, 2.0), p=blur), a.Solarize(p=solarize), *end], {}

        return [view(224, (0.4, 1.0), 1.0), view(224, (0.4, 1.0), 0.1, 0.2), *[view(96, (0.05, 0.4), 0.5)] * 8]
    if name == "deit":
        policy = a.SomeOf(_rand_operations(a), n=2, replace=True, p=1)
        erase = a.Erasing((0.02, 1 / 3), (0.3, 1 / 0.3), fill="random", p=0.25)
        return [([crop(224, cubic=True), flip, policy, erase, *end], {})]
    if name == "trivial":
        return [([crop(176), flip, a.OneOf(_trivial_operations(a), p=1), a.Erasing(p=0.1), *end], {})]
    boxes = a.BboxParams("pascal_voc", label_fields=["category"])
    steps = [a.RandomSizedBBoxSafeCrop(300, 300), flip, a.PhotoMetricDistort(p=1.0), *end]
    return [(steps, {"bbox_params": boxes})]


def _factors(a: Any, low: float, high: float, p: float) -> list[Any]:
    """Return brightness, contrast and saturation, each alone."""
    one, span = (1.0, 1.0), (low, high)
    ranges = ((span, one, one), (one, span, one), (one, one, span))
    return [a.ColorJitter(*each, (0.0, 0.0), p=p) for each in ranges]


def _moves(a: Any, turn: float, shear: float, shift: float, p: float) -> list[Any]:
    """Return rotation, shears and translations."""
    moves = [{"shear": {axis: (-shear, shear)}} for axis in "xy"]
    moves += [{"translate_percent": {axis: (-shift, shift)}} for axis in "xy"]
    return [a.Rotate((-turn, turn), p=p), *(a.Affine(**each, p=p) for each in moves)]


def _rand_operations(a: Any) -> list[Any]:
    """Return timm's 15 of "rand-m9-mstd0.5-inc1", each with probability 0.5."""
    p = 0.5
    return [
        a.AutoContrast(method="pil", p=p), a.Equalize(p=p), a.InvertImg(p=p), a.Posterize((1, 1), p=p),
        a.Solarize((0.1, 0.1), p=p), a.Solarize((0.5, 0.5), p=p), a.Sharpen(p=p),
        *_factors(a, 0.19, 1.81, p), *_moves(a, 27.0, 15.0, 0.4, p),
    ]  # fmt: skip


def _trivial_operations(a: Any) -> list[Any]:
    """Return TrivialAugmentWide's 14."""
    return [
        a.NoOp(p=1), a.AutoContrast(method="pil", p=1), a.Equalize(p=1), a.Posterize((2, 7), p=1),
        a.Solarize((0.0, 1.0), p=1), a.Sharpen(p=1), *_factors(a, 0.01, 1.99, 1), *_moves(a, 135.0, 44.0, 0.18, 1),
    ]  # fmt: skip


def timm(name: str) -> Sample:
    """Return timm's transforms for training, on Pillow images."""
    Image: Any = importlib.import_module("PIL.Image")
    create: Any = importlib.import_module("timm.data").create_transform
    usual = {"input_size": 224, "is_training": True, "color_jitter": None}
    options: dict[str, Any] = {
        "imagenet_train": {"interpolation": "bilinear"},
        "deit": {"interpolation": "bicubic", "auto_augment": "rand-m9-inc1", "re_prob": 0.25, "re_mode": "pixel"},
    }[name]
    transform = create(**usual, **options)

    def sample(data: bytes, boxes: Any) -> None:
        transform(Image.open(io.BytesIO(data)).convert("RGB"))

    return sample


def kornia(name: str) -> Sample:
    """Return Kornia's: crops of single images, the rest on batches of 32 floats; decoded by torchvision."""
    import torch
    from torchvision.io import decode_jpeg

    k: Any = importlib.import_module("kornia.augmentation")
    auto: Any = importlib.import_module("kornia.augmentation.auto")
    mean, std = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))
    size, cubic, views = 224, False, 1
    steps: list[Any] = [k.RandomHorizontalFlip(p=0.5)]
    if name in ("simclr_view", "simclr"):
        views = 1 if name == "simclr_view" else 2
        jitter = k.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8)
        steps += [jitter, k.RandomGrayscale(p=0.2), k.RandomGaussianBlur((23, 23), (0.1, 2.0), p=0.5)]
    elif name == "deit":
        steps += [auto.RandAugment(n=2, m=9), k.RandomErasing((0.02, 1 / 3), (0.3, 1 / 0.3), p=0.25)]
        cubic = True
    elif name == "trivial":
        steps += [auto.TrivialAugment(), k.RandomErasing(p=0.1)]
        size = 176
    elif name != "imagenet_train":
        raise KeyError(name)
    crop = k.RandomResizedCrop((size, size), resample="bicubic" if cubic else "bilinear")
    chain = torch.nn.Sequential(*steps, k.Normalize(mean, std))
    waiting: list[Any] = []

    def sample(data: bytes, boxes: Any) -> None:
        image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8)).float().div_(255)
        waiting.extend(crop(image[None]) for _ in range(views))
        if len(waiting) >= 32:
            chain(torch.cat(waiting))
            waiting.clear()

    return sample
