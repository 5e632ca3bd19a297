"""Draws docs/images/transforms.png: what each transform makes of one synthetic image. The same picture on every run.

python docs/make_gallery.py [OUT.png]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dataloading import transforms as T  # noqa: E402

SIDE, GAP, CAPTION, COLUMNS = 96, 6, 14, 8
GRAY = T.Normalize(0.0, 1.0)  # floats from 0 to 1

# A trigger of a poisoned data set: a pattern in the corner.
CHECKS = (np.indices((SIDE, SIDE)) // 8).sum(0) % 2 * 255
PATCH = np.zeros((SIDE, SIDE))
PATCH[8:32, 64:88] = 0.8

# What is drawn: a list and the seed of the draw that shows best what it does.
SHOWN: dict[str, tuple[list[Any], int]] = {
    "RandomResizedCrop": ([T.RandomResizedCrop(SIDE)], 3),
    "Resize": ([T.Resize((48, 96))], 0),
    "CenterCrop": ([T.CenterCrop(64)], 0),
    "FiveCrop": ([T.FiveCrop(31)], 0),
    "TenCrop": ([T.TenCrop(23)], 0),
    "RandomCrop": ([T.RandomCrop(SIDE, padding=16)], 3),
    "RandomHorizontalFlip": ([T.RandomHorizontalFlip(1.0)], 0),
    "RandomVerticalFlip": ([T.RandomVerticalFlip(1.0)], 0),
    "RandomTranslate": ([T.RandomTranslate(24)], 1),
    "Pad": ([T.CenterCrop(64), T.Pad(16, padding_mode="reflect")], 0),
    "ScaleJitter": ([T.ScaleJitter((SIDE, SIDE), scale_range=(0.4, 0.9)), T.CenterCrop(SIDE)], 1),
    "RandomShortestSize": ([T.RandomShortestSize([60]), T.CenterCrop(SIDE)], 0),
    "RandomZoomOut": ([T.RandomZoomOut(fill=(124, 116, 104), side_range=(1.5, 2.5), p=1.0), T.Resize((SIDE, SIDE))], 1),
    "RandomRotation": ([T.RandomRotation((25, 25), interpolation="bilinear")], 0),
    "RandomAffine": ([T.RandomAffine(20, (0.1, 0.1), (0.7, 1.1), 15, interpolation="bilinear")], 2),
    "RandomPerspective": ([T.RandomPerspective(0.5, p=1.0)], 2),
    "ElasticTransform": ([T.ElasticTransform(60.0, 4.0)], 1),
    "ColorJitter": ([T.ColorJitter(0.6, 0.6, 0.8, 0.3)], 2),
    "Grayscale": ([T.Grayscale(3)], 0),
    "RandomGrayscale": ([T.RandomGrayscale(1.0)], 0),
    "RandomInvert": ([T.RandomInvert(1.0)], 0),
    "RandomSolarize": ([T.RandomSolarize(128, p=1.0)], 0),
    "RandomPosterize": ([T.RandomPosterize(2, p=1.0)], 0),
    "RandomAutocontrast": ([T.ColorJitter(contrast=(0.4, 0.4)), T.RandomAutocontrast(1.0)], 0),
    "RandomEqualize": ([T.RandomEqualize(1.0)], 0),
    "RandomPhotometricDistort": ([T.RandomPhotometricDistort(p=1.0)], 3),
    "RandomChannelPermutation": ([T.RandomChannelPermutation()], 1),
    "RandomAdjustSharpness": ([T.RandomAdjustSharpness(6.0, p=1.0)], 0),
    "GaussianBlur": ([T.GaussianBlur(13, sigma=2.5)], 0),
    "GaussianNoise": ([T.GaussianNoise(sigma=0.15)], 0),
    "JPEG": ([T.JPEG((5, 5))], 0),
    "RandomErasing": ([T.RandomErasing(1.0)], 3),
    "Poison": ([T.Poison(CHECKS, PATCH, [0])], 0),
    "Cutout": ([T.Cutout(32, fill=128)], 1),
    "RandAugment": ([T.RandAugment(2, 15)], 1),
    "TimmRandAugment": ([T.TimmRandAugment("rand-m9-mstd0.5-inc1")], 4),
    "TrivialAugmentWide": ([T.TrivialAugmentWide()], 5),
    "AutoAugment": ([T.AutoAugment()], 1),
    "AugMix": ([T.AugMix(8)], 1),
    "ThreeAugment": ([T.ThreeAugment()], 1),
    "Compose": ([T.Compose([T.RandomHorizontalFlip(1.0), T.Grayscale(3)])], 0),
    "RandomApply": ([T.RandomApply([T.RandomSolarize(128, p=1.0), T.RandomRotation((20, 20))], p=1.0)], 0),
    "RandomChoice": ([T.RandomChoice([T.RandomInvert(1.0), T.RandomPosterize(2, p=1.0)])], 1),
    "RandomOrder": ([T.RandomOrder([T.GaussianBlur(9, sigma=2.0), T.RandomAdjustSharpness(8.0, p=1.0)])], 0),
    "Normalize": ([T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))], 0),
    "ToDtype": ([T.ToDtype("float32", scale=True)], 0),
}
MIXED = {"MixUp": T.MixUp(num_classes=2), "CutMix": T.CutMix(num_classes=2)}
# They need boxes, labels, a batch of a file or a function, or are other names of what is shown.
NOT_SHOWN = {
    "AsList", "ClampBoundingBoxes", "CropAroundBox", "Custom", "MapLabels", "Mixup", "OneHot", "PadBatch", "PerSample",
    "RandomIoUCrop", "ReplaceLabel", "SanitizeBoundingBoxes", "View",
}  # fmt: skip


def synthetic_image() -> np.ndarray:
    """Return a sun over hills behind a fence, uint8 (3, SIDE, SIDE): soft and hard edges, left and right unlike."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    image = np.stack([90 + 120 * y, 140 + 60 * y, 230 - 60 * y])
    sun = np.clip(1.5 - np.hypot(x - 0.3, y - 0.3) / 0.11, 0, 1)
    image += sun * (np.array([255, 220, 60])[:, None, None] - image)
    for height, colour in ((0.62, (70, 130, 70)), (0.75, (40, 90, 50))):
        hill = y > height + 0.08 * np.sin(7 * x + 9 * height)
        image = np.where(hill, np.array(colour)[:, None, None] * (1.2 - 0.3 * y), image)
    fence = (y > 0.8) & ((x * 16 % 1 < 0.4) | (np.abs(y - 0.88) < 0.02)) & (x > 0.4)
    image = np.where(fence, np.array([200, 60, 50])[:, None, None], image)
    return np.clip(image, 0, 255).astype(np.uint8)


def applied(steps: list[Any], seed: int, image: np.ndarray) -> np.ndarray:
    """Return an image behind some transforms, as bytes; several crops side by side."""
    out = T.Compose(steps)(image, seed=seed) if len(steps) > 1 else steps[0](image, seed=seed)
    if isinstance(out, tuple):
        side, columns = out[0].shape[1] + 1, SIDE // (out[0].shape[1] + 1)
        sheet = np.full((3, -(-len(out) // columns) * side, columns * side), 235, np.uint8)
        for number, crop in enumerate(out):
            top, left = number // columns * side, number % columns * side
            sheet[:, top : top + side - 1, left : left + side - 1] = crop
        return sheet
    if out.dtype == np.uint8:
        return out
    last = steps[-1]
    return np.clip(out * 255 if isinstance(last, T.ToDtype) else out * 50 + 128, 0, 255).astype(np.uint8)


def mixed(transform: Any, image: np.ndarray) -> np.ndarray:
    """Return an image mixed with its inverse."""
    pair = torch.from_numpy(np.stack([image, 255 - image[:, ::-1]])).float() / 255
    images, _ = transform(pair, torch.tensor([0, 1]), 5)
    return (images[0].numpy() * 255).astype(np.uint8)


def tiles() -> list[tuple[str, np.ndarray]]:
    """Return the name and the picture of everything that is shown, the image itself first."""
    image = synthetic_image()
    named = [(name, applied(steps, seed, image)) for name, (steps, seed) in SHOWN.items()]
    return [("(the image)", image), *named, *((name, mixed(op, image)) for name, op in MIXED.items())]


def sheet() -> Image.Image:
    """Return the contact sheet."""
    every = tiles()
    across, down = SIDE + GAP, SIDE + CAPTION + GAP
    picture = Image.new("RGB", (COLUMNS * across + GAP, -(-len(every) // COLUMNS) * down + GAP), (255, 255, 255))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(9)
    for number, (name, pixels) in enumerate(every):
        left, top = GAP + number % COLUMNS * across, GAP + number // COLUMNS * down
        draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), fill=(235, 235, 235))
        tile = Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, -1)))
        tile.thumbnail((SIDE, SIDE))
        picture.paste(tile, (left + (SIDE - tile.width) // 2, top + (SIDE - tile.height) // 2))
        text = name.removeprefix("Random") if len(name) > 18 else name
        draw.text((left, top + SIDE + 1), text, fill=(40, 40, 40), font=font)
    return picture


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "transforms.png"
    sheet().save(out, optimize=True)
    print(f"wrote {out}: {out.stat().st_size} bytes")  # noqa: T201
