"""Object detection with a model of torchvision: images of any size, their boxes and the boxes' classes.

beton convert parquet boxes.parquet train.beton --field image=image boxes=boxes category=vararray:int64:?
python examples/detection_boxes.py train.beton
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torchvision.models.detection import fcos_resnet50_fpn

from dataloading import Loader
from dataloading import transforms as T

NUM_CLASSES = 91


def main(path: str, *, network: nn.Module | None = None, side: int = 480, batch_size: int = 4, epochs: int = 2) -> None:
    """Train `network`, which takes and returns what torchvision's detection models do; FCOS by default."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = Loader(
        path,
        batch_size=batch_size,
        shuffle="global",
        # Boxes follow the geometry of their image. SanitizeBoundingBoxes drops those that a crop has cut off, and the
        # rows of `category` that belong to them.
        transforms={
            "image": [
                T.RandomIoUCrop(),
                T.RandomHorizontalFlip(),
                T.RandomShortestSize(side, max_size=2 * side),
                T.SanitizeBoundingBoxes(labels_getter="category"),
                T.ToDtype("float32", scale=True),  # these models normalise by themselves
                T.AsList(),  # images differ in size
            ]
        },
    )
    network = (network or fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=NUM_CLASSES)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.005, momentum=0.9)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            images = [image.to(device) for image in batch["image"]]
            targets = [
                {"boxes": boxes.to(device), "labels": category.to(device)}
                for boxes, category in zip(batch["boxes"], batch["category"], strict=True)
            ]
            loss = torch.stack(list(network(images, targets).values())).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
