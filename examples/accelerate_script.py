"""Accelerate trains from the Loader: `prepare` returns it as it is, and follows its epochs.

accelerate launch --num-processes 2 examples/accelerate_script.py train.beton
accelerate launch --num-processes 3 examples/accelerate_script.py train.beton accelerate-state     # resumes from there

The Loader divides the data among ranks itself. ``accumulate`` steps at the end of an epoch, ``gather_for_metrics``
drops padding, and after ``load_state`` the next iteration gives exactly the samples not yet seen, on any world size
(``accelerator.skip_first_batches(loader, n)`` is for scripts that count batches themselves).
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import cross_entropy

from dataloading import Loader
from dataloading import transforms as T

try:
    import accelerate
except ImportError:
    sys.exit("this example needs accelerate: pip install accelerate")

SIZE, BATCH_SIZE, EPOCHS, SAVE_STEPS = 32, 8, 2, 3


def main(path: str, saved: str | None = None) -> None:
    """Train, from a saved state if there is one."""
    accelerator = accelerate.Accelerator()
    steps = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.Normalize((0.5,) * 3, (0.25,) * 3)]
    loader = Loader(  # made after the Accelerator, which opens the process group, so that it knows its rank
        path,
        batch_size=BATCH_SIZE,
        shuffle="global",
        tail="even",
        transforms={"image": steps},
        device=accelerator.device,
        num_workers=1,
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 1000))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    accelerator.register_for_checkpointing(loader)
    if saved is not None:
        accelerator.load_state(saved)
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        loader.set_epoch(epoch)  # keeps the place of a loaded state
        correct = []
        for step, batch in enumerate(loader, 1):
            images, labels, valid = batch["image"], batch["label"], batch.num_valid
            logits = model(images)
            # The last batch may end with padding on some ranks: weighted like this, the mean over ranks is exact.
            loss = cross_entropy(logits[:valid], labels[:valid], reduction="sum")
            loss = loss * loader.world_size / batch.global_size
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step == SAVE_STEPS:
                accelerator.save_state("accelerate-state")
            correct.append(accelerator.gather_for_metrics(logits.argmax(1) == labels))  # every image once
            accelerator.print(f"epoch {epoch}, step {step}, loss {loss.item():.3f}")
        accelerator.print(f"epoch {epoch}: {torch.cat(correct).float().mean():.2%} right")
    accelerator.end_training()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: accelerate launch examples/accelerate_script.py train.beton [SAVED STATE]")
    main(*sys.argv[1:3])
