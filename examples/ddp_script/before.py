"""An ordinary DDP training script with the stock DataLoader: what you have today.

torchrun --nproc_per_node=2 examples/ddp_script/before.py photos/
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPOCHS, BATCH_SIZE, IMAGE_SIZE = 2, 8, 64


def main(path: str) -> None:
    """Train on this process's share."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(IMAGE_SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = datasets.ImageFolder(path, transform)
    sampler = DistributedSampler(dataset, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        sampler=sampler,
        num_workers=1,
        drop_last=True,
        pin_memory=cuda,
        persistent_workers=True,
    )

    model = models.resnet18(num_classes=len(loader.dataset.classes)).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)

    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        start, num_images = time.perf_counter(), 0
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = cross_entropy(ddp(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            num_images += len(images) * dist.get_world_size()
        if dist.get_rank() == 0:
            rate = num_images / (time.perf_counter() - start)
            print(f"epoch {epoch}: {len(loader)} steps, loss {loss.item():.3f}, {rate:.0f} images/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
