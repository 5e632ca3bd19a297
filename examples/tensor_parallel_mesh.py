"""2-D parallel training: tensor parallel within a group of ranks, FSDP2 between the groups.

torchrun --nproc-per-node 4 examples/tensor_parallel_mesh.py train.beton      # 2 replicas of 2 parts
torchrun --nproc-per-node 2 examples/tensor_parallel_mesh.py                  # 1 replica of 2 parts, a made-up file

Ranks that hold parts of the same layers get the same batches: the loader needs only the option ``mesh=mesh``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dataloading import EncodedImage, ImageField, IntField, Loader, Writer
from dataloading import transforms as T
from dataloading.tools import encode_jpeg

SIZE = 32


def main(path: str, folder: str) -> None:
    """Train two epochs; a file is made up in `folder` if `path` is empty."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = "cuda"
    mesh = init_device_mesh(device, (world_size // 2, 2), mesh_dim_names=("dp", "tp"))

    loader = Loader(
        path or made_up_file(rank, folder),
        batch_size=8,
        shuffle="global",
        seed=0,
        mesh=mesh,  # data is split over "dp"; both ranks of a "tp" pair get the same batches
        tail="drop",
        transforms={
            "image": [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize((0.5,) * 3, (0.25,) * 3)]
        },
        device=device,
        num_workers=1,
    )

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    ).to(device)
    model = parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])  # averages gradients over the groups, too
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels % 10)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"rank {rank}: replica {loader.rank} of {loader.world_size}, epoch {epoch}, loss {loss.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


def made_up_file(rank: int, folder: str) -> str:
    """Make a small file for all ranks to read."""
    names: list[str | None] = [None]
    if rank == 0:
        path = Path(folder) / "made_up.beton"
        rng = np.random.default_rng(0)
        with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=64) as writer:
            for label in range(64):
                pixels = np.ascontiguousarray(rng.integers(0, 256, (8, 8, 3), np.uint8).repeat(6, 0).repeat(6, 1))
                writer.append({"image": EncodedImage(0, 48, 48, encode_jpeg(pixels)), "label": label})
        names = [str(path)]
    dist.broadcast_object_list(names)
    assert names[0] is not None
    return names[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else "", temporary)
