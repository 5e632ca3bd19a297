"""How much of DDP's communication hides behind the backward pass, for several bucket sizes, with and without bfloat16.

torchrun --nproc-per-node 2 examples/communication_overlap.py train.beton

The exposed part is what a step with all-reduce takes longer than one under `no_sync`. Small buckets start earlier and
overlap more; large ones use the network better. The hook halves the bytes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchvision import models

from dataloading import Loader
from dataloading import transforms as T


def step_seconds(
    ddp: DistributedDataParallel, images: torch.Tensor, labels: torch.Tensor, *, communicate: bool
) -> float:
    """Return the time of one forward and backward pass on this rank."""
    if images.is_cuda:
        torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    with nullcontext() if communicate else ddp.no_sync():
        cross_entropy(ddp(images), labels).backward()
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main(path: str, *, side: int = 224, batch_size: int = 32, repeats: int = 5) -> None:
    """Measure on one batch."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    transforms = {"image": [T.RandomResizedCrop(side), T.RandomHorizontalFlip(), T.Normalize(0.5, 0.25)]}
    loader = Loader(path, batch_size=batch_size, shuffle="global", tail="drop", transforms=transforms, device=device)
    images, labels = next(iter(loader))
    for megabytes in (1, 25, 100):
        for hook in (None, bf16_compress_hook):
            torch.manual_seed(0)
            model = models.resnet18(num_classes=len(loader.dataset.classes)).to(device)
            ddp = DistributedDataParallel(
                model,
                bucket_cap_mb=megabytes,
                gradient_as_bucket_view=True,
                device_ids=[device.index] if cuda else None,
            )
            if hook is not None:
                ddp.register_comm_hook(None, hook)
            for communicate in (True, False):
                step_seconds(ddp, images, labels, communicate=communicate)  # buckets are arranged in the first step
            both = {True: [], False: []}  # type: dict[bool, list[float]]
            for _ in range(repeats):
                for communicate, seconds in both.items():
                    seconds.append(step_seconds(ddp, images, labels, communicate=communicate))
            whole, alone = (statistics.median(both[communicate]) for communicate in (True, False))
            if dist.get_rank() == 0:
                kind = "bfloat16" if hook else "float32"
                print(f"buckets of {megabytes} MB, {kind}: step {whole:.4f} s, exposed {max(0.0, whole - alone):.4f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
