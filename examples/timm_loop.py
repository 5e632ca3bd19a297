"""timm: its model, optimiser, schedule and moving average; RandAugment and MixUp in our Loader.

torchrun --nproc-per-node 2 examples/timm_loop.py train.beton
"""

from __future__ import annotations

import os
import sys

import timm
import torch
import torch.distributed as dist
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch.nn.parallel import DistributedDataParallel

from dataloading import Loader
from dataloading import transforms as T


def main(path: str, *, model: str = "resnet26t", epochs: int = 2, batch_size: int = 64) -> None:
    """Train a network of timm at the size and with the mean and std that it was made for."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")

    network = timm.create_model(model, num_classes=1000).to(device)
    data = timm.data.resolve_data_config({}, model=network)
    side = data["input_size"][1]
    loader = Loader(
        path,
        batch_size=batch_size,
        shuffle="global",
        tail="drop",
        drop_last=True,
        transforms={
            # What timm's create_loader does with auto_augment="rand-m9-mstd0.5-inc1", reprob=0.25, mixup=0.8, cutmix=1.
            "image": [
                T.RandomResizedCrop(side, interpolation="bicubic"),
                T.RandomHorizontalFlip(),
                T.RandAugment.from_timm("rand-m9-mstd0.5-inc1"),
                T.Normalize(data["mean"], data["std"]),
                T.RandomErasing(0.25),
                T.RandomChoice([T.MixUp(alpha=0.8, num_classes=1000), T.CutMix(alpha=1.0, num_classes=1000)]),
            ]
        },
        device=device,
    )
    ddp = DistributedDataParallel(network, device_ids=[device.index] if cuda else None)
    optimizer = create_optimizer_v2(network, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule = CosineLRScheduler(optimizer, t_initial=epochs * len(loader), warmup_t=len(loader), t_in_epochs=False)
    average = ModelEmaV3(network, decay=0.9998, use_warmup=True)
    criterion = SoftTargetCrossEntropy()
    update = 0
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for images, targets in loader:  # targets are rows of probabilities: MixUp and CutMix have mixed them
            loss = criterion(ddp(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update += 1
            schedule.step_update(update)
            average.update(network, step=update)
        print(f"rank {dist.get_rank()}: epoch {epoch}, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
