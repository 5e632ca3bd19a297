"""The Loader: wires the five hops from file to device. Start reading here.

::

    1 sampler     order.step(k)             sample indices of this rank's next batch       no I/O
    2 view        decoder.requests(...)     where the stored bytes lie in the memory map   zero copy, one page cache
    3 decode      decoder.decode(...)       crop + region decode + resize into the slot    write 1
    4 transform   pipeline.run(...)         compiled operations, one sample after another  write 2, in place if possible
    5 transfer    transfer.send(...)        asynchronous copy on a side stream, event      write 3

All five are in `BatchJob` (engine/batch_job.py): hops 1 and 2 when a worker makes the next job, 3 and 4 for groups of
its samples on all workers, 5 when the last group is done. `iter(loader)` is an `EpochIterator` (engine/epoch.py), which
takes finished jobs from threads (engine/workers.py). `Loader` owns the options, the position in the run
(`state_dict`) and the lifetime of threads and memory. It knows no pixels and no bytes.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from dataloading.batch import Batch
from dataloading.cache import StorageOptions, open_storage
from dataloading.checks import at_least, one_of, true_or_false
from dataloading.dataset import selection
from dataloading.dataset.files import FileSet
from dataloading.dataset.info import DatasetInfo
from dataloading.dataset.open_files import Paths, check_paths
from dataloading.dataset.page_layout import page_layout
from dataloading.engine import resume
from dataloading.engine.epoch import Engines, EpochIterator, Jobs
from dataloading.engine.frameworks import SkippedBatches, followed, has_accelerator, patch_skip_first_batches
from dataloading.engine.plan import OnError, Plan
from dataloading.engine.transfer import MemoryFormat, Transfer
from dataloading.errors import SampleError, UsageError
from dataloading.limits import memory_bytes, num_cores
from dataloading.messages import counted, did_you_mean, human_bytes
from dataloading.sampling.foreign import ForeignSampler
from dataloading.sampling.mixture import Mixture
from dataloading.sampling.ranks import find_ranks
from dataloading.sampling.sampler import DEFAULT_WINDOW_PAGES, Sampler, ShardSampler, Shuffle, Tail
from dataloading.sampling.shuffle_quality import ShuffleQuality
from dataloading.stats import LoaderStats
from dataloading.transforms.view import View

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["DatasetInfo", "Loader"]


class Loader:
    """Iterate over ``.beton`` files in batches of tensors.

    Parameters
    ----------
    path : str, path-like or sequence of such
        The file, also one that FFCV wrote; or several as one dataset: a list, a pattern (``"train-*.beton"``), or the
        manifest of a set of shards (``train.beton.json``). Samples are numbered across all of them; fields and class
        names must be equal. Or a `Mixture` of such, in fixed proportions.
    batch_size : int
        Rows per batch and rank, at least 1.
    shuffle : {"none", "global", "pages"}
        File order; or a new permutation of all samples each epoch, the one `torch.utils.data.DistributedSampler`
        gives for the same seed and epoch; or, for files larger than memory, pages in random order and samples
        shuffled within a window of them, with each node reading its own pages.
    seed : int
        Of the order and of every transform. Augmentation depends on (seed, epoch, sample) only: not on the number of
        workers, the batch size or the world size.
    transforms : mapping of field name to sequence, optional
        For an image field: transforms of `dataloading.transforms`, then, if wanted, torch modules or callables, which
        get the batched tensor on `device`. For another field: callables on the batched tensor or list. A callable
        returns something with one entry per row, and must not be random (docs/transforms.md says what counts as such).
    num_workers : int, optional
        Threads; by default this rank's share of the cores the process may use. A number above all of these is reduced
        to them, with a warning.
    tail : {"pad", "drop", "even"}
        What happens to the incomplete end of an epoch: see `dataloading.sampling.slicing`.
    drop_last : bool
        Leave out a last batch with fewer than `batch_size` rows. False, as in torch.
    rank, world_size : int, optional
        By default those of `torch.distributed`, else of the launcher's environment, else 0 and 1.
    device : str or torch.device
        "cpu", or a CUDA device: batches are then copied from pinned memory on a side stream.
    memory_format : {"contiguous", "channels_last"}
        Of image tensors; their shape is (N, C, H, W) either way.
    place : {"workers", "device"}
        Where image transforms are done behind decoding. "device": the end of each list, as far as it can be done on
        batches there (Normalize, RandomErasing, flips, colours), runs as torch operations on `device`, with the
        same random numbers; uint8 is copied, not floats. docs/transforms.md lists what can.
    indices : sequence of int, optional
        The subset to use. An index may occur more than once.
    sampler : torch Sampler, optional
        Gives this rank's indices; replaces `shuffle`, `tail`, rank and world size.
    permutation : {"torch", "cipher"}
        For ``shuffle="global"``: torch's, or one that is computed position by position, needs no memory and starts
        at once however many samples there are.
    window_pages : int
        For ``shuffle="pages"``: pages open at a time. `shuffle_quality` measures the effect; with memory for twice as
        many pages the next ones are read ahead.
    weights : sequence of float or "balanced", optional
        One for each sample of the dataset: probabilities of drawing it are in proportion. "balanced" draws all classes
        equally often.
    replacement : bool
        Whether a sample can be drawn more than once per epoch; each time it is augmented differently.
    num_draws : int, optional
        Samples per epoch over all ranks, by default as many as are in use (times `num_repeats`).
    num_repeats : int
        Repeated augmentation: each sample this many times in a row, on different ranks, each augmented differently.
    mesh : DeviceMesh, optional
        Instead of `rank` and `world_size`: ranks that differ only in tensor, pipeline or context dimensions get the
        same batches.
    dp_dim : str or sequence of str, optional
        The dimensions of `mesh` over which data is split; by default "dp", or "dp_replicate" and "dp_shard".
    num_nodes, node_rank, local_world_size : int, optional
        Machines, this one's number, ranks on it, for ``shuffle="pages"``; by default the launcher's (torchrun, SLURM).
    fields : sequence of str, optional
        The fields to deliver, in this order; by default all, in the file's order.
    return_params : bool
        Deliver in ``batch.params`` what was drawn for each image: crops, flips, angles, factors (docs/transforms.md).
    custom_records : mapping of str to dtype, optional
        Record dtype of each field of a custom class of FFCV, by name: files with such fields cannot be read without
        it. Their values cannot be delivered: leave these fields out of `fields`.
    on_error : {"raise", "skip", "replace"}
        For a sample that does not decode, or on which a transform raises: end the iteration with an error that names
        it; leave its row out; or put the next good sample of the batch in its row (a batch without any is an error).
        Skipped and replaced samples are listed in ``loader.errors``. The order of the others never changes.
    os_cache : bool
        False: keep pages of the files in bounded memory that the machine's ranks share, not in the system's cache.
    cache_dir : path, optional
        Folder on a local disk that keeps pages of remote files between runs; without it they are kept in memory.
    cache_bytes : int, optional
        Size of that cache, for all ranks of the machine together. docs/storage.md has the defaults.
    prefetch_batches : int, optional
        Batches that may be ready or in the making ahead of the caller.
    persistent_workers : bool
        Prepare the next epoch's first batches while the caller is between epochs.

    Raises
    ------
    UsageError
        An option cannot be honoured; the message says what to do.
    FormatError
        A file is not a complete ``.beton`` file, or not the one that the manifest lists.
    DecodeError, TransformError
        While iterating: a sample does not decode, a transform raised on it, or a callable raised on a batch.

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
        path: Paths | Mixture,
        *,
        batch_size: int,
        shuffle: Shuffle = "none",
        seed: int = 0,
        transforms: Mapping[str, Sequence[Any] | View] | None = None,
        num_workers: int | None = None,
        tail: Tail = "pad",
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        device: str | torch.device = "cpu",
        memory_format: MemoryFormat = "contiguous",
        place: Literal["workers", "device"] = "workers",
        indices: Sequence[int] | npt.NDArray[np.int64] | None = None,
        sampler: Iterable[int] | None = None,
        permutation: Literal["torch", "cipher"] = "torch",
        window_pages: int = DEFAULT_WINDOW_PAGES,
        weights: Sequence[float] | npt.NDArray[np.floating[Any]] | Literal["balanced"] | None = None,
        replacement: bool = True,
        num_draws: int | None = None,
        num_repeats: int = 1,
        mesh: DeviceMesh | None = None,
        dp_dim: str | Sequence[str] | None = None,
        num_nodes: int | None = None,
        node_rank: int | None = None,
        local_world_size: int | None = None,
        fields: Sequence[str] | None = None,
        return_params: bool = False,
        custom_records: Mapping[str, npt.DTypeLike] | None = None,
        on_error: OnError = "raise",
        os_cache: bool = True,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        prefetch_batches: int | None = None,
        persistent_workers: bool = True,
    ) -> None:
        one_of("on_error", on_error, get_args(OnError))
        one_of("place", place, ("workers", "device"))
        one_of("shuffle", shuffle, get_args(Shuffle), _SHUFFLES.get(str(shuffle), ""))
        batch_size, seed = at_least("batch_size", batch_size, 1), at_least("seed", seed, 0)
        window_pages = at_least("window_pages", window_pages, 1)
        self._persistent_workers = true_or_false("persistent_workers", persistent_workers)
        self._ranks = find_ranks(
            rank,
            world_size,
            mesh=mesh,
            dp_dim=dp_dim,
            num_nodes=num_nodes,
            node_rank=node_rank,
            local_world_size=local_world_size,
            by_node=shuffle == "pages",
        )
        self._num_workers = _workers(num_workers, default=self._ranks.num_local_cores)
        mixture = path if isinstance(path, Mixture) else None
        picked = any(each is not None for each in (indices, sampler, weights, mixture))
        by_page, node = shuffle == "pages" or (shuffle == "none" and not picked), self._ranks.node
        options = StorageOptions(
            os_cache=os_cache, cache_dir=cache_dir, cache_bytes=cache_bytes, by_page=by_page, node=node,
            custom_records={} if custom_records is None else custom_records,
        )  # fmt: skip
        storage = open_storage(path.sources if isinstance(path, Mixture) else [path], options)
        self._files = storage.files
        if shuffle == "pages" and storage.cache is None and not picked:
            _check_windows(self._files, window_pages, self._ranks.num_nodes)
        self._dataset = DatasetInfo(self._files)
        self._sampler: Sampler
        if sampler is not None:
            others = (indices, weights, num_draws, mixture)
            if (shuffle, num_repeats) != ("none", 1) or any(each is not None for each in others):
                also = "shuffle=, indices=, weights=, num_draws=, num_repeats= and Mixture"
                raise UsageError(f"sampler= decides the order by itself: leave out {also}")
            self._sampler = ForeignSampler(
                sampler, self._files.num_samples, batch_size=batch_size, drop_last=drop_last, seed=seed
            )
        else:
            one_of("permutation", permutation, ("torch", "cipher"))
            self._sampler = ShardSampler(
                self._files.num_samples,
                permutation="cipher" if permutation == "cipher" else _torch_permutation,
                shuffle=shuffle,
                seed=seed,
                rank=self._ranks.rank,
                world_size=self._ranks.world_size,
                batch_size=batch_size,
                tail=tail,
                drop_last=drop_last,
                indices=indices,
                weights=weights,
                replacement=replacement,
                num_draws=num_draws,
                num_repeats=num_repeats,
                labels=selection.field_values(self._files) if isinstance(weights, str) else None,
                mixture=None if mixture is None else mixture.of_sizes(storage.sizes),
                layout=functools.cache(functools.partial(page_layout, self._files)),
                window_pages=window_pages,
                num_nodes=self._ranks.num_nodes,
                node=self._ranks.node,
                local_rank=self._ranks.local_rank,
            )
        ahead = None if prefetch_batches is None else at_least("prefetch_batches", prefetch_batches, 1)
        self._make_plan = functools.partial(
            Plan,
            self._files,
            fields=fields,
            seed=seed,
            on_error=on_error,
            ranks=self._ranks,
            transfer=Transfer(device, memory_format),
            max_rows=min(batch_size, max(self._sampler.size, self._files.num_samples)),
            num_workers=self._num_workers,
            num_ahead=ahead,
            on_device=place == "device",
            return_params=true_or_false("return_params", return_params),
        )
        self._plan = self._make_plan({} if transforms is None else transforms)
        self._prefetch_batches = self._plan.num_ahead
        self._storage = storage.page_source(
            fields=self._plan.fields,
            window_pages=window_pages if shuffle == "pages" else 0,
            rows_in_flight=(self._prefetch_batches + 6) * batch_size,
            num_local_ranks=self._ranks.local_world_size,
        )
        self._start()
        patch_skip_first_batches()

    def _start(self) -> None:
        """Make what belongs to one order of samples; everything else is shared by the loaders of subsets."""
        self._jobs = Jobs(self._sampler, self._plan, storage=self._storage, persistent=self._persistent_workers)
        self._engines = Engines(self._jobs, num_workers=self._num_workers, max_in_flight=self._prefetch_batches)
        if len(self) == 0:
            warnings.warn(self._empty_reason(), stacklevel=3)

    def __new__(cls, *args: Any, **options: Any) -> Loader:
        """Refuse unknown arguments before Python does, with a message that says what to write instead."""
        if cls.__init__ is Loader.__init__:
            _check_arguments(args, options)
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        # Frameworks set attributes of their own on a loader; these are allowed.
        if name in _FIXED:
            raise AttributeError(_fixed(name, "set"))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in _FIXED:
            raise AttributeError(_fixed(name, "deleted"))
        super().__delattr__(name)

    # ---- what a DataLoader has

    @property
    def dataset(self) -> DatasetInfo:
        """Length, classes and files of the whole dataset."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        """Rows per batch and rank."""
        return self._sampler.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch with fewer rows is left out."""
        return self._sampler.drop_last

    @property
    def seed(self) -> int:
        """Of the order and of every transform."""
        return self._plan.seed

    @property
    def num_workers(self) -> int:
        """Threads that make batches."""
        return self._num_workers

    @property
    def prefetch_batches(self) -> int:
        """Batches that may be ready or in the making ahead of the caller."""
        return self._prefetch_batches

    def __len__(self) -> int:
        """Count the batches of a whole epoch on this rank."""
        return self._sampler.slicing().num_steps

    @property
    def sampler(self) -> Sampler | Iterable[int]:
        """The sampler, with ``set_epoch``: ours, or the one that was passed."""
        return self._sampler.sampler if isinstance(self._sampler, ForeignSampler) else self._sampler

    @property
    def batch_sampler(self) -> None:
        """None, as for a DataLoader whose batches come ready-made: frameworks look for it."""
        return None

    @property
    def rank(self) -> int:
        """The rank whose samples this loader gives."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Number of ranks that share the order."""
        return self._ranks.world_size

    @property
    def device(self) -> torch.device:
        """Where batches are delivered."""
        return self._plan.transfer.device

    @property
    def errors(self) -> list[SampleError]:
        """Samples that were skipped or replaced so far; assign an empty list to reset."""
        return self._jobs.errors

    @errors.setter
    def errors(self, errors: list[SampleError]) -> None:
        self._jobs.errors = errors

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; without it, epochs count up."""
        self._sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch. Iterators are independent of one another; leaving one early costs nothing.

        Threads may share one: each batch goes to one of them. An iterator raises UsageError after a fork, `close` or
        `load_state_dict`.
        """
        return self._begin_epoch(0)

    def skip_first_batches(self, num_batches: int) -> SkippedBatches:
        """Let the next epoch begin at a later batch; nothing that is left out is read.

        ``accelerator.skip_first_batches(loader, num_batches)`` is the same.

        Parameters
        ----------
        num_batches : int
            Counted from the beginning of the epoch; a loaded state that is further on stays there.

        Returns
        -------
        SkippedBatches
            Iterate over it once instead of over the loader; later epochs are the loader's own.
        """
        at_least("num_batches", num_batches, 0)
        return SkippedBatches(self, num_batches)

    def _begin_epoch(self, skipped: int) -> Iterator[Batch]:
        self._ranks.check_unchanged()
        patch_skip_first_batches()
        sampler = self._sampler
        if isinstance(sampler, ShardSampler) and not sampler.equal_rows and self.world_size > 1 and has_accelerator():
            sampler.equal_rows = True
            self._engines.drop_begun()
            self._warn_of_gathering(sampler)
        epoch, consumed = sampler.begin()
        if skipped:
            cut = sampler.slicing()
            consumed = max(consumed, cut.bounds(skipped)[0] if skipped < cut.num_steps else cut.num_samples)
        iterator = EpochIterator(self._engines, self._plan, epoch, consumed)
        return followed(iterator, sampler, consumed, world_size=self.world_size)

    def _warn_of_gathering(self, sampler: ShardSampler) -> None:
        padding = sampler.slicing().num_rows - sampler.size
        if sampler.tail == "even" and padding > 0 and self.rank == 0:
            text = (
                f'Accelerate gathers batches of equal size: with tail="even" the last step of an epoch has '
                f"{counted(padding, 'row')} of padding here; gather_for_metrics drops it, and a loss should use the "
                f"first batch.num_valid rows"
            )
            warnings.warn(text, stacklevel=4)
        if self._plan.on_error == "skip" and self.rank == 0:
            text = (
                'on_error="skip" leaves rows out on one rank only, and Accelerate cannot gather batches of unequal '
                'size: use on_error="replace" where you gather'
            )
            warnings.warn(text, stacklevel=4)

    # ---- position in the run

    def state_dict(self) -> dict[str, Any]:
        """Save the position in the run: after the batches you have received, whatever has been prefetched.

        Returns
        -------
        dict
            A few numbers and strings; can be JSON.
        """
        return resume.save(self._sampler, self.dataset)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position: the next iteration gives exactly the samples not yet consumed.

        World size, batch size, tail, number of workers, prefetching and device may differ from the saving run's. So
        may the number of nodes; with ``shuffle="pages"`` the rest of the epoch is then redistributed among them.

        Raises
        ------
        StateError
            The state belongs to other data, another seed or another order; both values are shown.
        """
        resume.restore(state, self._sampler, self.dataset)
        self._engines.outdate()

    def stats(self, *, reset: bool = False) -> LoaderStats:
        """Return this rank's statistics so far; print them for seconds per hop and a verdict.

        Parameters
        ----------
        reset : bool
            Reset: the next call covers only what happens from now on. ``stats().epochs`` has the figures of each epoch.
        """
        cache = None if self._storage is None else self._storage.stats()
        return self._jobs.clock.snapshot(
            self._num_workers, num_cores=self._ranks.num_local_cores, cache=cache, reset=reset
        )

    def trace(self, observer: Callable[[str, float, float], None] | None) -> None:
        """Report the work of the workers as it is done, for a trace; see `stats` for sums.

        Parameters
        ----------
        observer : callable or None
            Called as ``observer(hop, start, end)`` with times of `time.perf_counter`, in the worker's thread: it must
            be quick. Decoding and transforming of a group of samples are reported as one stretch each. None stops it.
        """
        self._jobs.clock.observer = observer

    def close(self) -> None:
        """Stop the workers and drop prefetched batches; the loader can still be iterated again."""
        self._engines.stop_all()

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Loader cannot be pickled or copied, it owns threads and memory: make one in each process")

    def _empty_reason(self) -> str:
        cut = self._sampler.slicing()
        return (
            f"the loader gives no batch: {counted(cut.num_samples, 'sample')}, {counted(cut.world_size, 'rank')}, "
            f"batch_size={self.batch_size}, tail={cut.tail!r}, drop_last={self.drop_last}"
        )

    # ---- other transforms, other samples of the same dataset

    def with_transforms(self, transforms: Mapping[str, Sequence[Any]]) -> Loader:
        """Make a loader that goes on with other transforms from the next epoch on, as progressive resizing needs it.

        Both loaders are one run: they share the position in it (`set_epoch`, `state_dict`), workers, files, caches,
        ``errors`` and `stats`; what is compiled already stays compiled. An iteration under way keeps its transforms.
        Workers often begin the next epoch before it is asked for: called before the end of an epoch, this costs no
        gap; called between epochs, they restart it at once.

        Parameters
        ----------
        transforms : mapping of field name to sequence
            All of them, as in ``Loader(transforms=...)``: nothing is taken over from this loader's.

        Returns
        -------
        Loader
            With the same options otherwise. A state of either fits both, as it does not depend on transforms.

        Raises
        ------
        UsageError
            The transforms cannot work; this loader stays as it was.

        Examples
        --------
        >>> loader = loader.with_transforms({"image": [T.RandomResizedCrop(224)]})  # doctest: +SKIP
        """
        plan = self._make_plan(transforms)
        if self._storage is not None and not {*plan.fields} <= {*self._plan.fields}:
            others = ", ".join(sorted({*plan.fields} - {*self._plan.fields}))
            raise UsageError(f"with_transforms(): the cache brings no bytes of the fields {others}: make a new Loader")
        self._jobs.clock.note_compiling(plan.compile_seconds)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _plan=plan)
        self._engines.change(plan)
        return other

    def with_indices(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> Loader:
        """Make a loader of some of this one's samples; file, decoders, compiled transforms and buffers are shared.

        Parameters
        ----------
        indices : sequence of int
            Sample indices in the dataset, in the order for ``shuffle="none"``. Those that this loader does not use are
            left out, so that a subset of a subset is the intersection. An index may occur more than once.

        Returns
        -------
        Loader
            With the same options otherwise, and at the same epoch; a state of one does not fit the other.

        Raises
        ------
        UsageError
            An index is outside the dataset, or the loader was made with ``sampler=``.
        """
        return self._derive(selection.narrowed(self._sampler, indices))

    def filter(self, predicate: Callable[[Any], Any], *, field: str | None = None) -> Loader:
        """Make a loader of those samples of this one for which a predicate of a field's value is true.

        Parameters
        ----------
        predicate : callable
            Called once with the values of all samples in use (int64 or float64, shape (n,)), and returns a boolean
            array; if it cannot take an array, it is called for each value.
        field : str, optional
            An integer or float field; by default the labels.

        Returns
        -------
        Loader
            As :meth:`with_indices`.

        Raises
        ------
        UsageError
            There is no such field, or the loader was made with ``sampler=``.

        Examples
        --------
        >>> easy = loader.filter(lambda label: label < 100)                        # doctest: +SKIP
        """
        return self._derive(selection.filtered(self._sampler, self._files, predicate, field))

    def shuffle_quality(self, *, epoch: int | None = None, num_batches: int = 1000) -> ShuffleQuality:
        """Measure how well this rank's batches are shuffled, without loading any.

        Parameters
        ----------
        epoch : int, optional
            By default the current one.
        num_batches : int
            Batches to measure, spread over the epoch.

        Returns
        -------
        ShuffleQuality
            Print it for a sentence.
        """
        epoch = self._sampler.epoch if epoch is None else epoch
        return selection.epoch_quality(self._sampler, self._files, epoch, num_batches)

    def _derive(self, sampler: ShardSampler) -> Loader:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _sampler=sampler)
        other._start()
        return other


def _torch_permutation(num: int, seed: int) -> npt.NDArray[np.integer[Any]]:
    """Permute as `DistributedSampler` and `RandomSampler` do."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    # The same numbers in either type; the order of an epoch is the largest thing that a rank keeps.
    dtype = torch.int32 if num < 2**31 else torch.int64
    order: npt.NDArray[np.integer[Any]] = torch.randperm(num, generator=generator, dtype=dtype).numpy()
    return order


def _workers(num_workers: int | None, *, default: int) -> int:
    """Check the number of threads, and limit it to the cores."""
    if num_workers is None:
        return default
    hint = " (workers are threads: 1 is the smallest; leave it out for this rank's share of the cores)"
    wanted, cores = at_least("num_workers", num_workers, 1, hint), num_cores()
    if wanted > cores:
        warnings.warn(
            f"{wanted} workers on {counted(cores, 'core')} wait for each other: using {cores}. Workers are threads "
            f"that compute all the time; leave num_workers= out for this rank's share of the cores",
            stacklevel=3,
        )
    return min(wanted, cores)


def _check_windows(files: FileSet, window_pages: int, num_nodes: int) -> None:
    """Warn if pages are lost from memory before all their samples are used."""
    page_bytes, memory = max(reader.page_size for reader in files.readers), memory_bytes()
    node_bytes = sum(map(len, files.memory)) // num_nodes
    needed, advised = min(2 * window_pages * page_bytes, node_bytes), max(memory // (4 * page_bytes), 1)
    if needed > memory and window_pages > advised:
        warnings.warn(
            f"window_pages={window_pages}: two windows are {human_bytes(needed)}, and this process may use "
            f"{human_bytes(memory)} of memory, so pages are read more than once. Pass window_pages={advised}",
            stacklevel=3,
        )


_SHUFFLES = {
    "True": '; as True in torch: shuffle="global"',
    "False": '; as False in torch: shuffle="none"',
    "random": '; FFCV\'s RANDOM is shuffle="global"',
    "sequential": '; FFCV\'s SEQUENTIAL is shuffle="none"',
    "quasi_random": '; FFCV\'s QUASI_RANDOM is shuffle="pages"',
}
_OPTIONS = frozenset(inspect.signature(Loader.__init__).parameters) - {"self"}

# Arguments of FFCV's and torch's loaders, and what to write here.
_ELSEWHERE = {
    "batch_sampler": "write sampler=, which takes a Sampler of single indices, and batch_size=",
    "batches_ahead": "write prefetch_batches=",
    "collate_fn": "fields come as tensors or lists; write transforms={'label': [function]} to change a batch's",
    "custom_field_mapper": "leave it out: the file says what its fields are",
    "custom_fields": "leave it out: the file says what its fields are",
    "dataset": "the path of a .beton file comes first: Loader('train.beton', ...)",
    "distributed": "leave it out: rank and world size come from torch.distributed, or pass rank= and world_size=",
    "fname": "the path comes first, without a name: Loader('train.beton', ...)",
    "generator": "write seed=: every random number is a function of it, the epoch and the sample",
    "in_order": "leave it out: batches always come in order",
    "local_rank": "write rank= and world_size=, or leave them out under torchrun",
    "multiprocessing_context": "leave it out: workers are threads",
    "num_replicas": "write world_size=",
    "order": "write shuffle='global' (OrderOption.RANDOM), 'none' (SEQUENTIAL) or 'pages' (QUASI_RANDOM)",
    "pin_memory": "write device='cuda': batches are then copied from pinned memory",
    "pin_memory_device": "write device='cuda': batches are then copied from pinned memory",
    "pipelines": "write transforms={'image': [...]}, without decoders, ToTensor and ToDevice",
    "prefetch_factor": "write prefetch_batches=, for all workers together",
    "recompile": "leave it out: compiled code is kept on disk, and recompiled when necessary",
    "timeout": "leave it out: whatever stops a worker is raised from the loop",
    "to_device": "write device=",
    "transform": "write transforms={'image': [...]}",
    "worker_init_fn": "leave it out: workers are threads, and random numbers depend on seed=, epoch and sample only",
}
_FIXED = _OPTIONS | {*_ELSEWHERE} - {"local_rank"} | {"epoch"}


def _fixed(name: str, done: str) -> str:
    """Say why an attribute cannot be changed, and what to do instead."""
    advice = {
        "indices": "loader.with_indices(...) and loader.filter(...) make a Loader of other samples",
        "transforms": "loader.with_transforms(...) makes a Loader that goes on with others",
        "epoch": "call loader.set_epoch(epoch)",
        "batch_sampler": "make a new Loader",
    }.get(name) or (f"make a new Loader with {name}=" if name in _OPTIONS else f"make a new Loader; {_ELSEWHERE[name]}")
    return f"{name} of a Loader cannot be {done}, it is decided when the Loader is made: {advice}"


def _check_arguments(args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse arguments that Loader does not have, and a missing path or batch size."""
    for name in options:
        if name not in _OPTIONS:
            known = _ELSEWHERE.get(name)
            hint = f"{known[0].upper()}{known[1:]}" if known else did_you_mean(name, _OPTIONS)
            raise UsageError(f"Loader has no option {name!r}. {hint or 'It has ' + ', '.join(sorted(_OPTIONS))}")
    if len(args) > 1:
        raise UsageError(
            f"Loader takes only the path without a name, got {len(args)} such arguments: write "
            f"Loader(path, batch_size=..., num_workers=...)"
        )
    if not args and "path" not in options:
        raise UsageError("Loader needs the path of a .beton file: Loader('train.beton', batch_size=64)")
    if "batch_size" not in options:
        path = args[0] if args else options["path"]
        check_paths(path.sources if isinstance(path, Mixture) else [path])  # report a folder of photos first
        raise UsageError("batch_size= is missing: rows per batch and rank, as in Loader(path, batch_size=64)")
