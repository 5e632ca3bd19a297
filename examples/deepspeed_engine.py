"""DeepSpeed's engine fed by the Loader, whose position is saved with the engine's checkpoint.

deepspeed examples/deepspeed_engine.py train.beton examples/deepspeed_configs/zero2.json
DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/deepspeed_engine.py train.beton ...      # without a GPU

`deepspeed_configs/` has one file for each stage: optimiser state (1), gradients (2), parameters (3) divided over ranks,
and `zero3_offload.json`, which keeps all of them in the memory of the host. They use torch's AdamW, so that none of
DeepSpeed's own operators has to be compiled; with those, drop "torch_adam" and "zero_force_ds_cpu_optimizer".
DeepSpeed starts one process per GPU and initialises torch.distributed; the Loader takes its rank from there. Data is
split over all ranks for every ZeRO stage. With tensor or pipeline parallelism pass the data-parallel rank instead:
``rank=engine.mpu.get_data_parallel_rank(), world_size=engine.mpu.get_data_parallel_world_size()``. The Loader's
position can be loaded on any number of ranks, DeepSpeed's ZeRO state only on as many as saved it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from dataloading import Loader
from dataloading import transforms as T

try:
    import deepspeed
except ImportError:
    deepspeed = None

SAVE_STEPS = 500


def main(path: str, config: str, *, side: int = 64, num_classes: int = 1000, batch_size: int | None = None) -> None:
    """Train two epochs, from the newest checkpoint if there is one."""
    settings = json.loads(Path(config).read_text())
    if batch_size is not None:
        settings["train_micro_batch_size_per_gpu"] = batch_size
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * side * side, num_classes))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    loader = Loader(  # made after init_distributed, so it knows its rank; not passed as training_data=
        path,
        batch_size=engine.train_micro_batch_size_per_gpu(),
        shuffle="global",
        seed=0,
        tail="even",  # every sample once, as many steps on every rank
        transforms={
            "image": [T.RandomResizedCrop(side), T.RandomHorizontalFlip(), T.Normalize((0.5,) * 3, (0.25,) * 3)]
        },
        device=engine.device,
    )
    _, client_state = engine.load_checkpoint("checkpoints")  # None the first time
    if client_state:
        loader.load_state_dict(client_state["loader"])
    for epoch in range(loader.state_dict()["epoch"], 2):
        loader.set_epoch(epoch)
        for batch in loader:
            images, labels = batch["image"], batch["label"]
            loss = torch.nn.functional.cross_entropy(engine(images), labels)
            engine.backward(loss)
            engine.step()
            if engine.global_steps % SAVE_STEPS == 0:
                engine.save_checkpoint("checkpoints", client_state={"loader": loader.state_dict()})
        where = f"rank {loader.rank} of {loader.world_size}, epoch {epoch}"
        print(f"{where}: step {engine.global_steps}, loss {loss.item():.4f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if deepspeed is None:
        sys.exit("this example needs deepspeed: pip install deepspeed")
    words = [argument for argument in sys.argv[1:] if not argument.startswith("--")]  # --local_rank is DeepSpeed's
    if len(words) != 2:
        sys.exit("usage: deepspeed examples/deepspeed_engine.py train.beton CONFIG.json")
    main(*words)
