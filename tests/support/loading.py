"""What tests of the Loader share: usual transforms, and an epoch in one string of bytes."""

from __future__ import annotations

import pytest

from dataloading import Loader
from dataloading import transforms as T

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]


def epoch_bytes(loader: Loader) -> bytes:
    """The values of all batches of the next epoch, one after the other."""
    return b"".join(value.contiguous().numpy().tobytes() for batch in loader for value in batch)


def at_epoch(loader: Loader, epoch: int) -> Loader:
    """The same loader, set to an epoch."""
    loader.set_epoch(epoch)
    return loader


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests have as many workers as they name, on a machine with fewer cores too."""
    monkeypatch.setattr("dataloading.loader.num_cores", lambda: 64)
