"""FSDP2 in the style of torchtitan: build on meta, shard by block, prefetch, checkpoint model, optimiser and Loader.

torchrun --nproc-per-node 2 examples/fsdp2_loop.py train.beton checkpoints
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchvision.models import VisionTransformer

from dataloading import Loader
from dataloading import transforms as T


class TrainState:
    """Model and optimiser, as torch.distributed.checkpoint saves them: on any number of ranks again."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the sharded states."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load them."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main(
    path: str, folder: str, *, side: int = 64, batch_size: int = 8, epochs: int = 2, save_steps: int = 100
) -> None:
    """Train a small vision transformer; go on from the checkpoint in `folder`, if there is one."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda" if cuda else "cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    loader = Loader(
        path,
        batch_size=batch_size,
        shuffle="global",
        mesh=mesh,
        tail="drop",
        drop_last=True,
        transforms={"image": [T.RandomResizedCrop(side), T.RandomHorizontalFlip(), T.Normalize(0.5, 0.25)]},
        device=mesh.device_type,
    )
    torch.manual_seed(0)  # equal weights on all ranks
    model = VisionTransformer(side, 16, num_layers=4, num_heads=4, hidden_dim=128, mlp_dim=256, num_classes=1000)
    model.to(mesh.device_type)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if cuda else None
    options: dict[str, Any] = {"mesh": mesh, **({"mp_policy": precision} if precision else {})}
    layers = list(model.encoder.layers)
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    for layer, following in pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])  # gather the next layer while this one computes
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)

    state = {"train": TrainState(model, optimizer), "loader": loader}
    if Path(folder, ".metadata").exists():
        dcp.load(state, checkpoint_id=folder)
    step = 0
    for epoch in range(loader.state_dict()["epoch"], epochs):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % save_steps == 0:
                dcp.save(state, checkpoint_id=folder)
                print(f"rank {dist.get_rank()}: epoch {epoch}, step {step}, loss {loss.item():.3f}, saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
