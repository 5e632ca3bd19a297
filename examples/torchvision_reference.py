"""A loop in the style of torchvision's classification reference: only `load_data` differs.

torchrun --nproc-per-node 2 examples/torchvision_reference.py --train train.beton --val val.beton --model resnet50
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torchvision import models

from dataloading import Loader
from dataloading import transforms as T

NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def load_data(args: argparse.Namespace, device: torch.device) -> tuple[Loader, Loader]:
    """Return the loaders of the training and of the validation images: what replaces datasets and samplers."""
    common = {"batch_size": args.batch_size, "num_workers": args.workers, "device": device}
    train = [T.RandomResizedCrop(args.crop), T.RandomHorizontalFlip(), T.TrivialAugmentWide(), NORMALIZE]
    if args.mixup:
        train.append(T.MixUp(alpha=args.mixup, num_classes=args.num_classes))  # labels become rows of probabilities
    val = [T.Resize(args.resize), T.CenterCrop(args.crop), NORMALIZE]
    return (
        Loader(args.train, shuffle="global", tail="drop", drop_last=True, transforms={"image": train}, **common),
        # Every image exactly once: no padding in the accuracy.
        Loader(args.val, tail="even", transforms={"image": val}, **common),
    )


def train_one_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader, epoch: int, args: argparse.Namespace
) -> None:
    """Train on every image of this rank's share."""
    model.train()
    loader.set_epoch(epoch)
    start = time.perf_counter()
    for step, (images, targets) in enumerate(loader):  # on the device already
        loss = nn.functional.cross_entropy(model(images), targets, label_smoothing=args.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.print_freq == 0 and dist.get_rank() == 0:
            rate = (step + 1) * args.batch_size * dist.get_world_size() / (time.perf_counter() - start)
            print(f"epoch {epoch} [{step}/{len(loader)}] loss {loss.item():.3f} {rate:.0f} images/s")


@torch.inference_mode()
def evaluate(model: nn.Module, loader: Loader) -> float:
    """Return the accuracy over the images of all ranks."""
    model.eval()
    correct = torch.zeros(2, dtype=torch.float64)
    for images, targets in loader:
        right = (model(images).argmax(1) == targets).sum().item()
        correct += torch.tensor([right, len(targets)], dtype=torch.float64)
    correct = correct.to(next(model.parameters()).device)
    dist.all_reduce(correct)
    return float(correct[0] / correct[1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and validate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--mixup", type=float, default=0.0)
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--resize", type=int, default=256)
    parser.add_argument("--print-freq", type=int, default=10)
    args = parser.parse_args(arguments)

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    train, val = load_data(args, device)
    model = models.get_model(args.model, weights=None, num_classes=args.num_classes).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        train_one_epoch(ddp, optimizer, train, epoch, args)
        schedule.step()
        accuracy = evaluate(model, val)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
