"""Creates the training and validation loaders of one process from the options.

Opens the datasets, splits one for ``--val-fraction``, and defines the loaders' specs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dataloading import UsageError
from dataloading.tools import num_cores

from .classes import check_labels, describe_match, match_classes
from .devices import REAL
from .distributed import World
from .loaders import LOADERS, make_loader
from .loaders.base import LoaderSpec, TrainBatch, TrainingLoader
from .loaders.recipes import training_recipe
from .loaders.stored_images import open_images
from .options import TrainOptions
from .strategies import needs_images


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The loaders and classes that a run trains and validates with.

    Parameters
    ----------
    loader : TrainingLoader
        The training loader.
    spec : LoaderSpec
        The options of the loader.
    classes : list of str
        Class names, by label.
    num_images : int
        Images of a training epoch, before any are dropped.
    val_loader : TrainingLoader or None
        The validation loader, with the same number of batches on every rank.
    num_val : int
        Number of images that a validation must count.
    val_numbers : torch.Tensor or None
        Training label of each class of the validation data, if they differ.
    mixes : tuple
        The recipe's transforms of a batch.
    notes : tuple of str
        Messages about the data for the user.
    """

    loader: TrainingLoader
    spec: LoaderSpec
    classes: list[str]
    num_images: int
    val_loader: TrainingLoader | None
    num_val: int
    val_numbers: torch.Tensor | None
    mixes: tuple[Any, ...]
    notes: tuple[str, ...]

    def val_batches(self) -> Iterator[TrainBatch]:
        """Iterate over the validation data, with the labels of the training data."""
        assert self.val_loader is not None
        for batch in self.val_loader:
            yield batch if self.val_numbers is None else batch._replace(labels=self.val_numbers[batch.labels])

    def close(self) -> None:
        """End the loaders' workers."""
        self.loader.close()
        if self.val_loader is not None:
            self.val_loader.close()


def make_data(options: TrainOptions, world: World, device: torch.device, mesh: Any = None) -> TrainingData:
    """Open the datasets of ``--data``, ``--val`` and ``--val-fraction`` with the loader of ``--loader``.

    `world` is this process among those that get different data, as `mesh` says if there is one.

    Raises
    ------
    UsageError
        Labels are out of range, or those of the validation data cannot be matched with the training data's
        (`match_classes`), or the loader cannot serve the options.
    """
    data, run = options.data, options.run
    source = open_images(data.data)
    num_classes = max(options.model.num_classes, len(source.classes))
    check_labels(source, num_classes)
    train_indices, val_indices = split_indices(len(source), data.val_fraction, run.seed)
    workers = data.num_workers
    if workers < 0:
        workers = max(1, num_cores() // world.local_world_size)
    common: dict[str, Any] = {
        "num_workers": workers,
        "prefetch": data.prefetch,
        "seed": run.seed,
        "rank": world.rank,
        "world_size": world.world_size,
        "mesh": mesh,
        "images": needs_images(mesh),
        "device": device,
        "image_size": data.image_size,
        "resize_size": data.resize_size,
        "work_dir": data.copies or (str(Path(run.output) / "copies") if run.output else ""),
    }
    mixed = options.optim.mixup or options.optim.cutmix
    recipe = None
    if data.recipe:
        field = getattr(source, "image_field", "image")
        recipe = training_recipe(data.recipe, field=field, size=data.image_size, num_classes=num_classes)
        if recipe.mixes and mixed:
            raise UsageError(f"--recipe {data.recipe} mixes images itself; leave out --mixup and --cutmix")
        common |= {"mean": recipe.mean, "std": recipe.std}
    if mixed or (recipe is not None and recipe.mixes):
        common["images"] = True  # their size decides how targets are mixed
    spec = LoaderSpec(
        path=data.data,
        training=True,
        steps=None if recipe is None else recipe.steps,
        indices=train_indices,
        batch_size=data.batch_size,
        tail=options.tail,
        **common,
    )
    val_loader, num_val, numbers = None, 0, None
    notes: list[str] = []
    # A simulated device trains nothing, so there is nothing to validate.
    if (data.val or val_indices is not None) and run.accelerator == REAL:
        path = data.val or data.data
        val_source = open_images(path)
        numbers = match_classes(source, val_source, num_classes=options.model.num_classes)
        check_labels(val_source, len(val_source.classes) if val_source.named else num_classes)
        if numbers is not None:
            notes.append(describe_match(source, val_source, numbers))
        num_val = len(val_source) if val_indices is None else len(val_indices)
        batch_size = data.val_batch_size or data.batch_size
        val_spec = LoaderSpec(
            path=path,
            training=False,
            indices=val_indices,
            batch_size=batch_size,
            tail="even" if data.loader == "beton" else "pad",
            **{**common, "image_size": data.val_size or data.image_size},
        )
        # What only streams whole batches cannot count each image once.
        val_loader = make_loader("torch-fast" if LOADERS[data.loader].stream else data.loader, val_spec)
    return TrainingData(
        loader=make_loader(data.loader, spec),
        spec=spec,
        classes=source.classes,
        num_images=len(source) if train_indices is None else len(train_indices),
        val_loader=val_loader,
        num_val=num_val,
        val_numbers=None if numbers is None else torch.tensor(numbers, device=device),
        mixes=() if recipe is None else recipe.mixes,
        notes=tuple(notes),
    )


def split_indices(num_samples: int, val_fraction: float, seed: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Split sample indices into training and validation: random, but the same for each loader and rank.

    Returns
    -------
    tuple of numpy.ndarray or None
        Sorted int64 indices for training and for validation; None, None without a split.

    Raises
    ------
    UsageError
        One of the two parts would be empty.
    """
    if val_fraction == 0:
        return None, None
    num_val = round(num_samples * val_fraction)
    if not 0 < num_val < num_samples:
        raise UsageError(f"--val-fraction {val_fraction} of {num_samples} samples leaves one of the parts empty")
    order = np.random.default_rng(seed).permutation(num_samples)
    return np.sort(order[num_val:]), np.sort(order[:num_val])
