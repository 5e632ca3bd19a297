"""The options of a conversion, checked on construction."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dataloading import UsageError
from dataloading.checks import LARGEST, as_integer

__all__ = ["Engine", "OnError", "Options", "check_numbers", "check_words"]

OnError = Literal["raise", "skip", "placeholder", "keep"]
Engine = Literal["local", "ray"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a conversion. Files depend only on ``limit``, ``shuffle``, ``seed``, ``page_size`` and the shards.

    Parameters
    ----------
    num_workers : int
        Worker processes; 0 works in the calling process. With the engine "ray", those of each shard's task.
    limit : int, optional
        Convert only the first N samples (after shuffling).
    shuffle : bool
        Store the samples in a random order.
    seed : int
        Seed of that order.
    page_size : int, optional
        The file's page size in bytes; by default 8 MiB, more if a sample needs it.
    overwrite : bool
        Replace an existing file when the new one is complete, and discard an interrupted conversion.
    resume : bool
        Continue an interrupted conversion, if there is one; files that are finished are kept.
    on_error : {"raise", "skip", "placeholder", "keep"}
        A sample that cannot be converted stops the run, is skipped, or gets a gray image. With "keep" a damaged image
        is stored as Pillow reads it with ``LOAD_TRUNCATED_IMAGES``; the sample is skipped if Pillow reads nothing.
    error_log : str, optional
        File for the lists of skipped, replaced, damaged and tidied samples, as JSON.
    num_shards : int, optional
        Write this many files and a manifest instead of one file.
    shard_bytes : int, optional
        Write files of about this size and a manifest.
    shard_index : int, optional
        Write only this shard, 0 or more; the process that finds all shards complete writes the manifest.
    engine : {"local", "ray"}
        Processes on this machine, or shards as tasks of a Ray cluster.
    temp_dir : str, optional
        Folder for unfinished files if the destination is a URL; by default the system's.
    check_space : bool
        Refuse to start if the disk is clearly too small.
    checkpoint_seconds : float
        Time between checkpoints, above 0: at most this much work is lost by an interruption.
    quiet : bool
        No progress on stderr.

    Raises
    ------
    UsageError
        If a value is out of range, or two contradict each other.
    """

    num_workers: int = 0
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    page_size: int | None = None
    overwrite: bool = False
    resume: bool = False
    on_error: OnError = "raise"
    error_log: str | None = None
    num_shards: int | None = None
    shard_bytes: int | None = None
    shard_index: int | None = None
    engine: Engine = "local"
    temp_dir: str | None = None
    check_space: bool = True
    checkpoint_seconds: float = 5.0
    quiet: bool = True

    def __post_init__(self) -> None:
        check_words(self)
        check_numbers(
            self, num_workers=(0, None), limit=(0, None), num_shards=(1, 100_000), shard_bytes=(1, None),
            shard_index=(0, None), seed=(0, LARGEST),
        )  # fmt: skip
        if not self.checkpoint_seconds > 0:
            raise UsageError(f"checkpoint_seconds must be above 0, got {self.checkpoint_seconds}")
        size = self.page_size
        if size is not None and (as_integer(size) is None or not 2 << 20 <= size < 4 << 30 or size & (size - 1)):
            raise UsageError(f"page_size must be a power of two from 2 MiB to 2 GiB, got {size!r} bytes")
        self._check_shards()

    def _check_shards(self) -> None:
        if self.num_shards is not None and self.shard_bytes is not None:
            raise UsageError("num_shards and shard_bytes (--shard-size) both say where to cut; give one of them")
        if self.is_sharded:
            if self.shard_index is not None and self.num_shards is not None and self.shard_index >= self.num_shards:
                raise UsageError(
                    f"shard_index must be 0 to {self.num_shards - 1}, got {self.shard_index}: shards are counted from 0"
                )
            if self.shard_index is not None and self.engine != "local":
                raise UsageError(
                    "shard_index is for schedulers that start each shard; the engine 'ray' starts them all"
                )
            return
        if self.shard_index is not None:
            raise UsageError("shard_index needs num_shards, the same for each shard")
        if self.engine != "local":
            raise UsageError(f"the engine {self.engine!r} spreads shards: say how many with num_shards or --shard-size")

    @property
    def is_sharded(self) -> bool:
        """Whether several files and a manifest are written."""
        return self.num_shards is not None or self.shard_bytes is not None


def check_words(options: Any) -> None:
    """Refuse values of a dataclass that its `Literal` or bool type does not allow.

    Raises
    ------
    UsageError
        Naming option, value and allowed values.
    """
    for name, kind in _types(options.__class__).items():
        value = getattr(options, name)
        if kind is bool and not isinstance(value, bool):
            raise UsageError(f"{name} must be True or False, got {value!r}")
        if get_origin(kind) is Literal and (not isinstance(value, str) or value not in get_args(kind)):
            raise UsageError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}")


@lru_cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def check_numbers(options: Any, **bounds: tuple[int, int | None]) -> None:
    """Refuse integers of a dataclass that are out of bounds, given as (lowest, highest or None); None is allowed.

    Raises
    ------
    UsageError
        Naming option, value and bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        number = as_integer(value)
        if value is not None and (number is None or number < low or (high is not None and number > high)):
            highest = "2**63 - 1" if high == LARGEST else high
            words = f", {low} or more" if high is None else f" from {low} to {highest}"
            raise UsageError(f"{name} must be a whole number{words}, got {value!r}")
