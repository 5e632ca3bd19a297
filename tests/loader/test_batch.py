"""A batch is a tuple of values and a mapping by name; which of the two decides where they differ."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.collate import default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from dataloading import Batch, BytesField, IntField, Loader, Writer


@pytest.fixture
def batch() -> Batch:
    values = [torch.arange(6).reshape(2, 3), torch.tensor([4, 5])]
    return Batch(
        values, names=("image", "label"), indices=np.array([7, 8]), num_valid=1, global_size=3, epoch=2, step=4
    )


def place(batch: Batch) -> tuple[list[int], int, int, int, int]:
    return batch.indices.tolist(), batch.num_valid, batch.global_size, batch.epoch, batch.step


def test_a_batch_unpacks_and_counts_as_a_tuple(batch: Batch) -> None:
    image, label = batch
    assert image is batch[0] is batch["image"] and label is batch[1] is batch[-1] is batch["label"]
    assert isinstance(batch, tuple) and len(batch) == 2 and [*batch] == [image, label] and batch[:1] == (image,)
    assert Batch([5, 0])[0] == 5  # a number is a place, also where it equals a value


def test_a_batch_is_a_mapping_by_field_name(batch: Batch) -> None:
    def model(image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return label, image

    assert isinstance(batch, Mapping) and set(dict(batch)) == {"image", "label"}
    assert model(**batch) == (batch["label"], batch["image"])
    assert list(batch.keys()) == ["image", "label"] and list(batch.items())[1] == ("label", batch[1])
    assert all(one is other for one, other in zip(batch.values(), batch, strict=True))
    assert "label" in batch and "weight" not in batch
    assert batch.get("label") is batch[1] and batch.get("weight") is None and batch.get("weight", 3) == 3
    with pytest.raises(KeyError, match="'weight' is not a field of this batch; it has 'image', 'label'"):
        batch["weight"]


def test_libraries_can_rebuild_a_batch_from_a_dictionary_or_from_values(batch: Batch) -> None:
    for made in (Batch(dict(batch)), Batch(OrderedDict(batch.items()))):
        assert made.names == ("image", "label") and made["label"] is batch["label"]
    unnamed = Batch(iter(batch))
    assert unnamed.names == () and dict(unnamed) == {0: batch[0], 1: batch[1]}
    assert Batch(dict(unnamed))[1] is batch[1]  # nothing is lost on the way
    for copied in (copy.copy(batch), pickle.loads(pickle.dumps(batch))):
        assert place(copied) == place(batch) and torch.equal(copied["label"], batch["label"])


def test_the_helpers_of_torch_keep_the_values_of_a_batch(batch: Batch) -> None:
    converted = default_convert(batch)
    assert converted[0] is batch[0] and converted[1] is batch[1]
    if torch.cuda.is_available():
        assert pin_memory(batch)["label"].is_pinned() and place(pin_memory(batch)) == place(batch)


class Streamed(IterableDataset):
    """A Loader as torch's DataLoader takes it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def test_a_dataloader_around_a_loader_gives_its_batches(tmp_path: Path, labels_file: Path) -> None:
    around = DataLoader(Streamed(Loader(labels_file, batch_size=40, fields=["label"])), batch_size=None)
    assert [len(label) for (label,) in around] == [40, 40, 20]
    with Writer(tmp_path / "t.beton", {"text": BytesField(), "label": IntField()}, num_samples=2) as writer:
        for k in range(2):
            writer.append({"text": b"x", "label": k})
    loader = Streamed(Loader(tmp_path / "t.beton", batch_size=2))
    with pytest.raises(TypeError, match="collate_fn=lambda batch: batch"):
        list(DataLoader(loader, batch_size=None))
    (whole,) = DataLoader(loader, batch_size=None, collate_fn=lambda batch: batch)
    assert whole["text"] == [b"x", b"x"] and whole.indices.tolist() == [0, 1]


def test_a_batch_keeps_its_attributes_when_it_moves(batch: Batch) -> None:
    moved = batch.to("cpu")
    assert place(moved) == place(batch) and moved.names == batch.names and moved["label"] is batch["label"]
