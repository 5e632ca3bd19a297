"""DeepSpeed's engine fed by the Loader, whose position is saved with the engine's checkpoint.

deepspeed examples/deepspeed_engine.py train.beton
DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/deepspeed_engine.py train.beton       # without a GPU

DeepSpeed starts one process per GPU and initialises torch.distributed; the Loader takes its rank from there. Data is
split over all ranks for every ZeRO stage. With tensor or pipeline parallelism pass the data-parallel rank instead:
``rank=engine.mpu.get_data_parallel_rank(), world_size=engine.mpu.get_data_parallel_world_size()``. The Loader's
position can be loaded on any number of ranks, DeepSpeed's ZeRO state only on as many as saved it.
"""

from __future__ import annotations

import sys

import torch

from dataloading import Loader
from dataloading import transforms as T

try:
    import deepspeed
except ImportError:
    deepspeed = None

CONFIG = {
    "train_micro_batch_size_per_gpu": 64,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,  # DeepSpeed knows Adam; ZeRO works for SGD as well
}
SAVE_STEPS = 500


def main(path: str) -> None:
    """Train two epochs, from the newest checkpoint if there is one."""
    deepspeed.init_distributed()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 1000))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    loader = Loader(  # made after init_distributed, so it knows its rank; not passed as training_data=
        path,
        batch_size=engine.train_micro_batch_size_per_gpu(),
        shuffle="global",
        seed=0,
        tail="even",  # every sample once, as many steps on every rank
        transforms={"image": [T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.Normalize((0.5,) * 3, (0.25,) * 3)]},
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
        print(f"rank {loader.rank} of {loader.world_size}, epoch {epoch}: step {engine.global_steps}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if deepspeed is None:
        sys.exit("this example needs deepspeed: pip install deepspeed")
    if len(sys.argv) < 2:
        sys.exit("usage: deepspeed examples/deepspeed_engine.py train.beton")
    main(next(argument for argument in sys.argv[1:] if not argument.startswith("--")))  # --local_rank is DeepSpeed's
