"""Lightning trains from the Loader: pass it as the dataloader, nothing else.

python examples/lightning_module.py train.beton [CHECKPOINT]

Lightning saves the Loader's position with every checkpoint and calls ``set_epoch``: a run that is resumed within an
epoch continues at the very next sample. Under DDP make the Loader in ``train_dataloader``, where the process group is
open and the Loader finds its rank.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import cross_entropy

from dataloading import Batch, Loader
from dataloading import transforms as T

try:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
except ImportError:
    sys.exit("this example needs lightning: pip install lightning")

SIZE, BATCH_SIZE, EPOCHS, SAVE_STEPS = 32, 8, 2, 2


class Classifier(lightning.LightningModule):
    """One linear layer over the pixels."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.layer = torch.nn.Linear(3 * SIZE * SIZE, 1000)

    def train_dataloader(self) -> Loader:
        """Make the Loader; rank and world size come from torch.distributed."""
        steps = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize((0.5,) * 3, (0.25,) * 3)]
        return Loader(
            self.path, batch_size=BATCH_SIZE, shuffle="global", tail="even", transforms={"image": steps}, num_workers=1
        )

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the loss. Ranks' batches may differ by one sample: weighted like this, DDP's mean is exact."""
        images, labels = batch["image"], batch["label"]
        loss = cross_entropy(self.layer(images.flatten(1)), labels, reduction="sum")
        loss = loss * self.trainer.world_size / batch.global_size
        self.log("loss", loss, batch_size=batch.num_valid)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(path: str, checkpoint: str | None = None) -> None:
    """Train, from a checkpoint if there is one; a new one is written every few steps."""
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="auto",
        logger=False,
        callbacks=[ModelCheckpoint("lightning", filename="{step}", every_n_train_steps=SAVE_STEPS, save_top_k=-1)],
        use_distributed_sampler=False,
    )
    trainer.fit(Classifier(path), ckpt_path=checkpoint)
    print(f"step {trainer.global_step}, loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/lightning_module.py train.beton [CHECKPOINT]")
    main(*sys.argv[1:3])
