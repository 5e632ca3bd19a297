"""The Loader: wires the five hops from file to device. Start reading here.

::

    1 sampler     order.step(k)             sample indices of this rank's next batch       no I/O
    2 view        decoder.requests(...)     where the stored bytes lie in the memory map   zero copy, one page cache
    3 decode      decoder.decode(...)       crop + region decode + resize into the slot    write 1
    4 transform   pipeline.run(...)         one fused Numba kernel for each sample         write 2, in place if possible
    5 transfer    transfer.send(...)        asynchronous copy on a side stream, event      write 3

Hops 1 and 2 happen when a worker makes the next `BatchJob` (assembly.py), 3 and 4 for groups of its samples on
all workers (workers.py), 5 when the last group is done. `Loader` owns the options, the place in the run
(`state_dict`) and the lifetime of threads and memory. It knows no pixels and no bytes.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from dataloading.assembly import BatchJob, ImageField, OnError, Recipe
from dataloading.batch import Batch
from dataloading.dataset import DatasetInfo
from dataloading.decode import Decoder, ImageDecoder, make_decoder
from dataloading.errors import SampleError, StateError, UsageError
from dataloading.format import IntField, Reader
from dataloading.iteration import Engines, EpochIterator
from dataloading.pipeline import Pipeline
from dataloading.ranks import find_ranks
from dataloading.sampler import ForeignSampler, ShardSampler, Shuffle, Tail
from dataloading.stats import Clock, LoaderStats
from dataloading.transfer import MemoryFormat, Transfer
from dataloading.transforms.base import BatchOp
from dataloading.workers import Ring

__all__ = ["DatasetInfo", "Loader"]

STATE_VERSION = 1


class Loader:
    """Iterate over a ``.beton`` file in batches of tensors.

    Parameters
    ----------
    path : str or path-like
        The file; also one that FFCV wrote.
    batch_size : int
        Rows a batch and rank, at least 1.
    shuffle : {"none", "global"}
        File order, or a new permutation of all samples each epoch: the one
        `torch.utils.data.DistributedSampler` gives for the same seed and epoch.
    seed : int
        Of the order and of every transform. Batches are a function of (seed, epoch, sample) only: not of the
        number of workers, the batch size or the world size.
    transforms : mapping of field name to sequence, optional
        For an image field: transforms of `dataloading.transforms`, then, if wanted, torch modules or callables,
        which get the batched tensor on `device`. For another field: callables on the batched tensor.
    num_workers : int, optional
        Threads; by default this rank's share of the cores the process may use.
    tail : {"pad", "drop", "even"}
        What becomes of the incomplete end of an epoch: see `dataloading.sampler`.
    drop_last : bool
        Leave out a last batch with fewer than `batch_size` rows. False, as in torch.
    rank, world_size : int, optional
        By default those of `torch.distributed`, else of the launcher's environment, else 0 and 1.
    device : str or torch.device
        "cpu", or a CUDA device: batches are then copied from pinned memory on a side stream.
    memory_format : {"contiguous", "channels_last"}
        Of image tensors; their shape is (N, C, H, W) either way.
    indices : sequence of int, optional
        The subset to use. An index may occur more than once.
    sampler : torch Sampler, optional
        Decides this rank's indices instead of `shuffle`, `seed`'s order, `tail`, rank and world size.
    fields : sequence of str, optional
        The fields to deliver, by default all, in the file's order.
    on_error : {"raise", "skip", "replace"}
        A sample that does not decode, or on which a transform raises: end the iteration with an error that names
        it; leave its row out; or put the next good sample of the batch in its row. Skipped and replaced ones
        are listed in ``loader.errors``. The order of the rest never changes.
    prefetch_batches : int, optional
        Batches that may be ready or in the making ahead of the caller.
    persistent_workers : bool
        Go on with the next epoch's first batches while the caller is between epochs.

    Raises
    ------
    UsageError
        An option cannot be honoured; the message names the fix.
    FormatError
        The file is not a complete ``.beton`` file.

    Examples
    --------
    >>> from dataloading import IntField, Loader, Writer
    >>> with Writer("ten.beton", {"label": IntField()}, num_samples=10, overwrite=True) as writer:
    ...     for label in range(10):
    ...         writer.append({"label": label})
    >>> loader = Loader("ten.beton", batch_size=4, num_workers=2)
    >>> [batch["label"].tolist() for batch in loader]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        batch_size: int,
        shuffle: Shuffle = "none",
        seed: int = 0,
        transforms: Mapping[str, Sequence[Any]] | None = None,
        num_workers: int | None = None,
        tail: Tail = "pad",
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device = "cpu",
        memory_format: MemoryFormat = "contiguous",
        indices: Sequence[int] | npt.NDArray[np.int64] | None = None,
        sampler: Iterable[int] | None = None,
        fields: Sequence[str] | None = None,
        on_error: OnError = "raise",
        prefetch_batches: int | None = None,
        persistent_workers: bool = True,
    ) -> None:
        if on_error not in get_args(OnError):
            raise UsageError(f"on_error={on_error!r} is not one of {', '.join(map(repr, get_args(OnError)))}")
        self._ranks = find_ranks(rank, world_size)
        self.num_workers = _count("num_workers", num_workers, default=self._ranks.num_local_cores)
        self._reader = Reader(path)
        self.dataset = DatasetInfo(self._reader)
        self._cursor: ShardSampler | ForeignSampler
        if sampler is not None:
            if indices is not None or shuffle != "none":
                raise UsageError("sampler= decides the order by itself: leave out shuffle= and indices=")
            self._cursor = ForeignSampler(sampler, self._reader.num_samples, batch_size=batch_size, drop_last=drop_last)
        else:
            self._cursor = ShardSampler(
                self._reader.num_samples,
                permutation=_torch_permutation,
                shuffle=shuffle,
                seed=seed,
                rank=self._ranks.rank,
                world_size=self._ranks.world_size,
                batch_size=batch_size,
                tail=tail,
                drop_last=drop_last,
                indices=indices,
            )
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.errors: list[SampleError] = []
        self._clock = Clock()
        self._transfer = Transfer(device, memory_format)
        # Small enough that several workers share a small batch, large enough to spread the cost of a call.
        group_size = max(1, min(16, batch_size // (4 * self.num_workers)))
        groups = -(-batch_size // group_size)
        self.prefetch_batches = _count("prefetch_batches", prefetch_batches, default=2 + -(-self.num_workers // groups))
        names = self._choose_fields(fields)
        given = self._check_transforms(transforms or {}, names)
        images: dict[str, ImageField] = {}
        others: dict[str, Decoder] = {}
        self._batch_transforms: list[tuple[str, Any]] = []
        for name in names:
            decoder = make_decoder(self._reader, name)
            if not isinstance(decoder, ImageDecoder):
                others[name] = decoder
                self._batch_transforms += [(name, op) for op in given.get(name, ())]
                continue
            image = self._make_image(decoder, given.get(name, ()), memory_format)
            images[name] = image
            self._batch_transforms += [(name, op) for op in image.pipeline.batch_transforms]
        self._label_field = self._find_label_field(names)
        self._recipe = Recipe(
            path=self._reader.path,
            names=names,
            images=images,
            others=others,
            seed=seed,
            group_size=group_size,
            num_workers=self.num_workers,
            on_error=on_error,
            transfer=self._transfer,
            clock=self._clock,
        )
        for image in images.values():
            image.pipeline.warm_up()
        self._engines = Engines(
            self._cursor,
            self._recipe,
            num_workers=self.num_workers,
            max_in_flight=self.prefetch_batches,
            go_on=persistent_workers,
        )
        # Runs when the loader is dropped and when the interpreter exits, before its threads are torn down.
        weakref.finalize(self, self._engines.stop_all)
        if len(self) == 0:
            warnings.warn(self._empty_reason(), stacklevel=2)

    # ---- what a DataLoader has

    def __len__(self) -> int:
        """Count the batches of a whole epoch on this rank."""
        return self._cursor.slicing().num_steps

    @property
    def sampler(self) -> ShardSampler | Iterable[int]:
        """The sampler, with ``set_epoch``: ours, or the one that was passed."""
        return self._cursor.sampler if isinstance(self._cursor, ForeignSampler) else self._cursor

    @property
    def rank(self) -> int:
        """Number of the rank whose samples this loader gives."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Number of ranks that share the order."""
        return self._ranks.world_size

    @property
    def device(self) -> torch.device:
        """Where batches are delivered."""
        return self._transfer.device

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; without it, epochs count up by themselves."""
        self._cursor.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch. Iterators are independent of one another; leaving one early costs nothing."""
        self._ranks.check_unchanged()
        epoch, consumed = self._cursor.begin()
        return EpochIterator(self._engines, epoch, consumed, deliver=self._deliver, clock=self._clock)

    # ---- place in the run

    def state_dict(self) -> dict[str, Any]:
        """Save the place in the run: after the batches you have received, whatever has been prefetched.

        Returns
        -------
        dict
            A few numbers and strings, JSON-able.
        """
        return {
            "version": STATE_VERSION,
            "epoch": self._cursor.epoch,
            "consumed": self._cursor.consumed,
            "seed": self.seed,
            "dataset": self.dataset.fingerprint,
            "order": self._order_name(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place: the next iteration gives exactly the samples not yet consumed.

        World size, batch size, number of workers, prefetching and device may differ from the saving run's.

        Raises
        ------
        StateError
            The state belongs to other data, another seed or another order; both values are shown.
        """
        missing = {"version", "epoch", "consumed", "seed", "dataset", "order"} - set(state)
        if missing:
            raise StateError(f"not a state of this loader: {', '.join(sorted(missing))} missing, got {sorted(state)}")
        mine = self.state_dict()
        for key, what in (
            ("version", "was saved in another version of the state"),
            ("dataset", "was saved on another dataset"),
            ("seed", "was saved with another seed"),
            ("order", "was saved with other order options"),
        ):
            if state[key] != mine[key]:
                raise StateError(f"the state {what}: saved {state[key]!r}, here {mine[key]!r} ({self.dataset.path})")
        self._cursor.resume(int(state["epoch"]), int(state["consumed"]))

    def stats(self) -> LoaderStats:
        """Sum up what happened so far: print it for seconds per hop and a verdict."""
        return self._clock.snapshot(self.num_workers)

    def close(self) -> None:
        """Stop the workers and let go of prefetched batches; the loader can still be iterated again."""
        self._engines.stop_all()

    # ---- construction and identity

    def _choose_fields(self, fields: Sequence[str] | None) -> tuple[str, ...]:
        known = tuple(self._reader.fields)
        if fields is None:
            return known
        for name in fields:
            if name not in known:
                raise UsageError(_unknown_field(name, known, self._reader.path))
        return tuple(name for name in known if name in fields)

    def _check_transforms(
        self, transforms: Mapping[str, Sequence[Any]], names: tuple[str, ...]
    ) -> Mapping[str, Sequence[Any]]:
        for name, given in transforms.items():
            if name not in names:
                raise UsageError(_unknown_field(name, names, self._reader.path))
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise UsageError(f"transforms[{name!r}] must be a list, got {type(given).__name__}")
        return transforms

    def _make_image(self, decoder: ImageDecoder, transforms: Sequence[Any], memory_format: MemoryFormat) -> ImageField:
        pipeline = Pipeline(transforms, channels=3, source_size=decoder.common_size())
        num_bytes = self.batch_size * int(np.prod(pipeline.out_shape)) * np.dtype(pipeline.storage_dtype).itemsize
        ring = Ring(
            num_bytes,
            capacity=self.prefetch_batches + 2,
            allocate=self._transfer.allocate if self._transfer.is_cuda else None,
        )
        interleaved = memory_format == "channels_last" and not self._transfer.is_cuda
        return ImageField(decoder=decoder, pipeline=pipeline, ring=ring, interleaved=interleaved)

    def _find_label_field(self, names: tuple[str, ...]) -> str | None:
        integers = [name for name in names if isinstance(self._reader.fields[name], IntField)]
        label = "label" if "label" in integers else integers[0] if len(integers) == 1 else None
        mixes = [op for _, op in self._batch_transforms if isinstance(op, BatchOp)]
        if mixes and label is None:
            raise UsageError(
                f"{type(mixes[0]).__name__} mixes labels too, and needs an integer field named 'label' "
                f"(or a single integer field); the fields are {', '.join(names)}"
            )
        return label

    def _empty_reason(self) -> str:
        slicing = self._cursor.slicing()
        return (
            f"the loader gives no batch: {slicing.num_samples} samples over {slicing.world_size} ranks with "
            f"batch_size={self.batch_size}, tail={slicing.tail!r}, drop_last={self.drop_last}"
        )

    def _order_name(self) -> str:
        cursor = self._cursor
        if isinstance(cursor, ForeignSampler):
            return f"sampler:{type(cursor.sampler).__name__}"
        subset = "" if cursor.subset is None else ":" + hashlib.sha256(cursor.subset.tobytes()).hexdigest()[:16]
        return f"{cursor.shuffle}:{cursor.size}{subset}"

    # ---- running

    def _deliver(self, job: BatchJob, step: int) -> Batch:
        assert job.sent is not None
        self.errors += job.errors
        batch = Batch(
            self._transfer.receive(job.sent),
            names=self._recipe.names,
            indices=job.indices,
            num_valid=job.num_valid,
            global_size=job.step.global_size,
            epoch=job.epoch,
            step=step,
        )
        failed = "replaced" if self._recipe.on_error == "replace" else "skipped"
        self._clock.count(samples=len(job.indices), batches=1, **{failed: len(job.errors)})
        return self._after_batching(batch, job) if self._batch_transforms else batch

    def _after_batching(self, batch: Batch, job: BatchJob) -> Batch:
        values = dict(zip(batch.names, batch, strict=True))
        key = (self.seed << 40) ^ (job.epoch << 24) ^ job.step.consumed
        for name, op in self._batch_transforms:
            if isinstance(op, BatchOp):
                assert self._label_field is not None
                label = self._label_field
                values[name], values[label] = op(values[name], values[label], key)
            else:
                values[name] = op(values[name])
        return batch.replace(values.values())


def _torch_permutation(num: int, seed: int) -> npt.NDArray[np.int64]:
    """Permute as `DistributedSampler` and `RandomSampler` do."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    order: npt.NDArray[np.int64] = torch.randperm(num, generator=generator).numpy()
    return order


def _count(name: str, value: int | None, *, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        hint = " (workers are threads: 1 is the smallest)" if name == "num_workers" else ""
        raise UsageError(f"{name}={value!r} must be an integer of at least 1{hint}")
    return value


def _unknown_field(name: str, known: tuple[str, ...], path: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no field {name!r} in {path}: it has {', '.join(map(repr, known))}{hint}"
