"""SimCLR: two views of each image, made of one read; the contrastive loss over all ranks.

torchrun --nproc-per-node 2 examples/simclr_two_views.py train.beton
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torchvision import models

from dataloading import Loader
from dataloading import transforms as T

TEMPERATURE = 0.5


def contrastive_loss(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return NT-Xent (Chen et al., arXiv:2002.05709, equation 1), with the images of all ranks as negatives."""
    # This all_gather passes gradients back to the rank that an embedding came from.
    firsts, seconds = (torch.cat(all_gather(normalize(each, dim=1))) for each in (first, second))
    embeddings = torch.cat([firsts, seconds])
    similarity = embeddings @ embeddings.T / TEMPERATURE
    similarity.fill_diagonal_(float("-inf"))
    partner = torch.arange(len(embeddings), device=embeddings.device).roll(len(firsts))
    return cross_entropy(similarity, partner)


def main(path: str, *, image_size: int = 224, batch_size: int = 64, epochs: int = 2) -> None:
    """Train an encoder and its projection head."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    loader = Loader(
        path,
        batch_size=batch_size,
        shuffle="global",
        tail="drop",
        drop_last=True,  # every rank must have as many embeddings to gather
        # Jitter, gray, blur and flips: two independent draws for each image, the same for any number of workers.
        transforms=T.recipes.simclr(size=image_size),
        device=device,
    )
    encoder: nn.Module = models.resnet18(num_classes=512)
    network = nn.Sequential(encoder, nn.ReLU(), nn.Linear(512, 128)).to(device)
    ddp = DistributedDataParallel(network, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            first, second = ddp(torch.cat(batch["views"])).chunk(2)
            loss = contrastive_loss(first, second)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()}: epoch {epoch}, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
