"""Our Loader, without tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .base import LoaderSpec, TrainBatch, TrainingLoader, wants_normalised
from .stored_images import FileImages


def our_transforms(spec: LoaderSpec) -> list[Any]:
    """Return the common pipeline as our transforms."""
    from dataloading import transforms as T

    if spec.steps is not None:
        return list(spec.steps)
    steps: list[Any] = (
        [T.RandomResizedCrop(spec.image_size), T.RandomHorizontalFlip()]
        if spec.training
        else [T.Resize(spec.resize_size), T.CenterCrop(spec.image_size)]
    )
    return [*steps, T.Normalize(spec.mean, spec.std, dtype="float32")] if wants_normalised(spec) else steps


class BetonLoader(TrainingLoader):
    """`dataloading.Loader`."""

    def __init__(self, spec: LoaderSpec) -> None:
        from dataloading import Loader

        source = FileImages(spec.path)
        self._fields = source.image_field, source.label_field
        self._spec = spec
        self.normalised = wants_normalised(spec) or not spec.images
        every = spec.indices is None and spec.repeats(len(source)) == 1
        indices = None if every else spec.epoch_indices(len(source))
        self._num_samples = len(source) if indices is None else len(indices)
        self._loader: Any = Loader(
            spec.path,
            batch_size=spec.batch_size,
            shuffle="global" if spec.training else "none",
            seed=spec.seed,
            transforms={source.image_field: our_transforms(spec)} if spec.images else None,
            fields=list(self._fields if spec.images else self._fields[1:]),
            num_workers=max(1, spec.num_workers),
            tail=spec.tail,
            drop_last=spec.tail == "drop",
            rank=spec.rank if spec.mesh is None else None,
            world_size=spec.world_size if spec.mesh is None else None,
            mesh=spec.mesh,
            device=spec.device,
            indices=indices,
            # As many batches ahead as DataLoader's prefetch_factor, which counts per worker.
            prefetch_batches=None if spec.prefetch is None else spec.prefetch * max(1, spec.num_workers),
        )
        self.num_ahead = self._loader.prefetch_batches
        self._timed: Any = None

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def batches_left(self) -> int:
        """Number of batches of the next iteration."""
        left = self._num_samples - self._loader.state_dict()["consumed"]
        per_step = self._spec.batch_size * self._spec.world_size
        return int(left // per_step if self._spec.tail == "drop" else -(-left // per_step))

    def __iter__(self) -> Iterator[TrainBatch]:
        image, label = self._fields
        for batch in self._loader:
            images = batch[image] if self._spec.images else batch[label].new_empty((len(batch[label]), 3, 0, 0))
            yield TrainBatch(images, batch[label], int(batch.num_valid), int(batch.global_size), batch.indices)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._loader.set_epoch(epoch)

    def set_image_size(self, size: int) -> None:
        """Cut training crops of `size` pixels from the next epoch on."""
        if size != self._spec.image_size:
            self._spec = dataclasses.replace(self._spec, image_size=size)
            self._loader = self._loader.with_transforms({self._fields[0]: our_transforms(self._spec)})

    def state_dict(self) -> dict[str, Any]:
        """Return the Loader's own state."""
        return dict(self._loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume within an epoch, on any world size and batch size."""
        self._loader.load_state_dict(state)

    def trace(self, observer: Callable[[str, float, float], None]) -> None:
        """Report the work of the Loader's threads."""
        self._loader.trace(observer)

    def work_done(self) -> tuple[dict[str, float], int] | None:
        """Return the seconds per hop, of all workers, and the stored bytes read so far."""
        stats = self._loader.stats()
        return dict(stats.hop_seconds), stats.num_bytes_read

    def clock_starts(self) -> None:
        """Discard the statistics of the warm-up and of pauses."""
        self._loader.stats(reset=True)

    def clock_stops(self) -> None:
        """Keep the statistics of the timed round."""
        stats = self._loader.stats(reset=True)
        self._timed = stats if self._timed is None else _plus(self._timed, stats)

    def report(self) -> dict[str, Any]:
        """Return seconds per hop and the verdict."""
        names = ("num_samples", "num_batches", "hop_seconds", "data_wait_fraction", "verdict")
        return {} if self._timed is None else {name: getattr(self._timed, name) for name in names}

    def close(self) -> None:
        """Stop the worker threads."""
        self._loader.close()


def _plus(total: Any, more: Any) -> Any:
    """Add the sums of two rounds' statistics; other values are the same in both."""
    sums = {
        field.name: getattr(total, field.name) + getattr(more, field.name)
        for field in dataclasses.fields(total)
        if field.name.startswith("num_") or field.name.endswith("_seconds")
        if field.name not in ("num_workers", "num_cores", "compile_seconds", "hop_seconds", "callable_seconds")
    }
    hops = {hop: seconds + more.hop_seconds[hop] for hop, seconds in total.hop_seconds.items()}
    return dataclasses.replace(total, hop_seconds=hops, epochs=(), **sums)
