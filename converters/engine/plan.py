"""The plan of a conversion: its samples, their order, the fields and the files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import dataloading
from converters.engine.fingerprint import describe_fields, differences, file_stamps, names_digest
from converters.engine.pool import DeadWorkerError
from converters.engine.sample import SampleConverter
from converters.images.channels import stored_fields
from converters.images.geometry import check_declared
from converters.images.policy import ImagePolicy
from converters.options import Options
from converters.sample_random import sample_uniforms
from converters.source import Source
from converters.sources.reading import without_scheme
from dataloading import ConvertError, Field, UsageError
from dataloading.messages import counted
from dataloading.tools import FileInfo, shard_path

__all__ = ["Conversion", "FilePlan", "sample_order"]


def sample_order(num_samples: int, options: Options) -> npt.NDArray[np.int64]:
    """Return the source indices of the samples in stored order.

    The random order sorts one random number per sample, so it depends only on the seed, not on library versions.
    """
    if not options.shuffle:
        return np.arange(num_samples, dtype=np.int64)[: options.limit]
    keys = sample_uniforms(options.seed, np.arange(num_samples))
    return np.argsort(keys, kind="stable")[: options.limit].astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """The common part of all files of a conversion; small enough to send to each machine of a cluster.

    Parameters
    ----------
    source, policy, options
        See `converters.convert`.
    path : str
        The file, or the base name of the shards.
    order : int64[n]
        Source indices of all samples, in stored order.
    fields : mapping of str to Field
        The stored fields; those of images may differ from the source's.
    file_stamps : mapping of str to str
        Size and age of the source's files that its tasks do not name.
    num_shards : int
        0 for one file, or while the number is not known.
    """

    source: Source
    path: str
    policy: ImagePolicy
    options: Options
    order: npt.NDArray[np.int64]
    fields: Mapping[str, Field]
    file_stamps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_shards: int = 0

    @classmethod
    def of(cls, source: Source, path: str | os.PathLike[str], policy: ImagePolicy, options: Options) -> Conversion:
        """Plan all but the number of shards; raises as `converters.convert`."""
        path = without_scheme(os.fspath(path))
        order = sample_order(len(source), options)
        if len(order) == 0:
            limit = "" if options.limit is None else f", of which limit={options.limit} takes none"
            raise UsageError(f"there is nothing to write: the source has {counted(len(source), 'sample')}{limit}")
        check_declared(source.fields, policy)
        return cls(
            source=source, path=path, policy=policy, options=options, order=order,
            fields=stored_fields(source, policy, order), file_stamps=file_stamps(source),
        )  # fmt: skip

    def converter(self) -> SampleConverter:
        """Return the function that the workers run."""
        options = self.options
        return SampleConverter(
            self.source.load, self.fields, self.policy, on_error=options.on_error,
            checkpoint_seconds=options.checkpoint_seconds,
        )  # fmt: skip

    def bounds(self, shard: int) -> tuple[int, int]:
        """Return a shard's start and stop in the order; sizes differ by at most one.

        Examples
        --------
        >>> plan = Conversion(source=None, path="a.beton", order=np.arange(10), policy=None, options=None, fields={},
        ...                   num_shards=3)
        >>> [plan.bounds(number) for number in range(3)]
        [(0, 3), (3, 6), (6, 10)]
        """
        count = len(self.order)
        return count * shard // self.num_shards, count * (shard + 1) // self.num_shards

    def shards(self) -> Sequence[int]:
        """Return the shards that this process writes: all, or the one of the options."""
        return range(self.num_shards) if self.options.shard_index is None else [self.options.shard_index]

    def file_path(self, shard: int = 0) -> str:
        """Return the path or URL of a shard, or of the only file."""
        return shard_path(self.path, shard, self.num_shards) if self.num_shards else self.path

    def file(self, shard: int = 0, *, progress: Callable[[int], object] = lambda count: None) -> FilePlan:
        """Return the plan of a shard, or of the only file; ``progress`` is called with counts."""
        # Equal input and options give equal provenance.
        provenance = {
            **self.source.provenance,
            "converter": f"beton {dataloading.__version__}",
            "images": self.policy.provenance(),
            "limit": self.options.limit,
            "shuffle": self.options.shuffle,
            "seed": self.options.seed,
        }
        if not self.num_shards:
            names = names_digest(self.source, self.order, progress)
            return FilePlan(whole=self, path=self.path, order=self.order, names=names, provenance=provenance)
        low, high = self.bounds(shard)
        names = names_digest(self.source, self.order[low:high], progress)
        # The names reveal a finished shard whose source has changed since.
        provenance |= {"shard": shard, "num_shards": self.num_shards, "names_of_samples": names}
        return FilePlan(
            whole=self, path=self.file_path(shard), order=self.order[low:high], names=names, provenance=provenance
        )

    def dead_worker(self, error: DeadWorkerError, order: npt.NDArray[np.int64], path: str) -> ConvertError:
        """Return the error for a worker that ended while it converted samples of ``order`` for the file ``path``."""
        place = "while it was starting"
        if error.position is not None:
            index = int(order[error.position])
            place = f"on sample {index} ({self.source.name(index)})"
        elif "exit code" in error.how:
            place += (
                '. A script that converts needs `if __name__ == "__main__":` around the call; num_workers=0 does '
                "without workers"
            )
        return ConvertError(f"a worker process {error.how} {place}. {path} was not written")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilePlan:
    """The plan of one file.

    Parameters
    ----------
    whole : Conversion
        The conversion it belongs to.
    path : str
        The file.
    order : int64[n]
        Source indices of its samples.
    names : str
        Checksum of the samples' names.
    provenance : mapping
        The file's record of its origin; files of equal provenance are considered equal.
    """

    whole: Conversion
    path: str
    order: npt.NDArray[np.int64]
    names: str
    provenance: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for one run to resume another."""
        return {
            **self._content(),
            "page_size": self.whole.options.page_size,
            "num_samples": len(self.order),
            "names_of_samples": self.names,
        }

    def _content(self) -> dict[str, Any]:
        classes = list(self.whole.source.class_names or ())
        return {**self.provenance, "fields": describe_fields(self.whole.fields), "classes": classes}

    def differs_from(self, file: FileInfo) -> str:
        """Describe how a finished file differs from this plan; "" if it does not."""
        found: dict[str, Any] = dict(file.extension.provenance) if file.extension is not None else {}
        found |= {"fields": describe_fields(file.fields), "classes": list(file.class_names or ())}
        return differences(found, self._content())
