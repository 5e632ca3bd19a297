"""Gradient accumulation: ranks communicate once per optimiser step, and the loss is the mean of the whole batch.

torchrun --nproc-per-node 2 examples/gradient_accumulation.py train.beton
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchvision import models

from dataloading import Batch, Loader
from dataloading import transforms as T


def groups_of(loader: Loader, count: int) -> Iterator[list[Batch]]:
    """Yield lists of `count` batches; the last one of an epoch may be shorter."""
    batches = iter(loader)
    while group := list(islice(batches, count)):
        yield group


def main(path: str, *, side: int = 224, batch_size: int = 32, accumulate: int = 4, epochs: int = 2) -> None:
    """Train with batches of `accumulate` times `batch_size` on each rank."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    loader = Loader(
        path,
        batch_size=batch_size,
        shuffle="global",
        tail="even",  # every image once; batches of the ranks differ by one image at most
        transforms={"image": [T.RandomResizedCrop(side), T.RandomHorizontalFlip(), T.Normalize(0.5, 0.25)]},
        device=device,
    )
    model = models.resnet18(num_classes=len(loader.dataset.classes)).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for group in groups_of(loader, accumulate):
            images = sum(batch.global_size for batch in group)  # of all ranks
            for number, batch in enumerate(group, 1):
                # Only the last backward pass of a group starts the all-reduce.
                with nullcontext() if number == len(group) else ddp.no_sync():
                    loss = cross_entropy(ddp(batch["image"]), batch["label"], reduction="sum")
                    # DDP averages over ranks: times the world size, divided by the images of all ranks.
                    (loss * dist.get_world_size() / images).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"rank {dist.get_rank()}: epoch {epoch}, loss {loss.item() / len(batch['label']):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
