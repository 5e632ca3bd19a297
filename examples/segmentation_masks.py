"""Semantic segmentation: image and mask through the same random geometry.

beton convert manifest list.csv train.beton --field image=image mask=mask      # columns: image, mask
python examples/segmentation_masks.py train.beton
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from dataloading import Loader
from dataloading import transforms as T

NUM_CLASSES, IGNORED = 21, 255


def main(path: str, *, image_size: int = 224, batch_size: int = 16, epochs: int = 2) -> None:
    """Train a small segmentation network."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = Loader(
        path,
        batch_size=batch_size,
        shuffle="global",
        # The mask needs no list: it follows the crop and the flip of the image, with nearest pixels, and stays as it is
        # where colours change. It arrives as int64 (N, H, W).
        transforms={
            "image": [
                T.RandomResizedCrop(image_size, scale=(0.5, 1.0)),
                T.RandomHorizontalFlip(),
                T.ColorJitter(0.4, 0.4, 0.4),
                T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        },
        device=device,
    )
    network: nn.Module = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=NUM_CLASSES)
    network.to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            logits = network(batch["image"])["out"]
            loss = nn.functional.cross_entropy(logits, batch["mask"], ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
