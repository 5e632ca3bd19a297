"""Our Loader behind the trainer's protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import LoaderSpec, TrainBatch
from .stored_images import FileImages


class BetonLoader:
    """`dataloading.Loader` with the pipeline that all loaders of this package share.

    Parameters
    ----------
    spec : LoaderSpec
        What to deliver.
    """

    name = "beton"

    def __init__(self, spec: LoaderSpec) -> None:
        from dataloading import Loader
        from dataloading import transforms as T

        source = FileImages(spec.path)
        self._fields = source.image_field, source.label_field
        num_samples = len(source) if spec.indices is None else len(spec.indices)
        self._num_samples, self._spec = num_samples, spec
        # A GPU normalises for nothing and bytes are a quarter of the copy; on the CPU it is fused into the loader.
        self.normalised = spec.device.type != "cuda"
        steps: list[Any] = (
            [T.RandomResizedCrop(spec.image_size), T.RandomHorizontalFlip()]
            if spec.training
            else [T.Resize(spec.resize_size), T.CenterCrop(spec.image_size)]
        )
        if self.normalised:
            steps.append(T.Normalize(spec.mean, spec.std, dtype="float32"))
        self._loader: Any = Loader(
            spec.path,
            batch_size=spec.batch_size,
            shuffle="global" if spec.training else "none",
            seed=spec.seed,
            transforms={source.image_field: steps},
            fields=list(self._fields),
            num_workers=max(1, spec.num_workers),
            tail=spec.tail,
            drop_last=spec.tail == "drop",
            rank=spec.rank,
            world_size=spec.world_size,
            device=spec.device,
            indices=spec.indices,
            # As many batches ahead as DataLoader's prefetch_factor, which counts per worker.
            prefetch_batches=spec.prefetch * max(1, spec.num_workers),
        )

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def batches_left(self) -> int:
        """How many batches the next iteration gives."""
        left = self._num_samples - self._loader.state_dict()["consumed"]
        per_step = self._spec.batch_size * self._spec.world_size
        return int(left // per_step if self._spec.tail == "drop" else -(-left // per_step))

    def __iter__(self) -> Iterator[TrainBatch]:
        image, label = self._fields
        for batch in self._loader:
            yield TrainBatch(batch[image], batch[label], int(batch.num_valid), int(batch.global_size), batch.indices)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the Loader's own state."""
        return dict(self._loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in mid-epoch, on any world size and batch size."""
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """End the worker threads."""
        self._loader.close()
