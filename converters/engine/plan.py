"""A conversion decided: which samples, in what order, as which fields, into which files."""

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
    """Return the source indices of the samples in the order they are stored.

    The random order sorts one random number per sample, so it depends on the seed alone and not on a library's version.
    """
    if not options.shuffle:
        return np.arange(num_samples, dtype=np.int64)[: options.limit]
    keys = sample_uniforms(options.seed, np.arange(num_samples))
    return np.argsort(keys, kind="stable")[: options.limit].astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """What all files of a conversion have in common; small enough to be sent to each machine of a cluster.

    Parameters
    ----------
    source, policy, options
        See `converters.convert`.
    path : str
        The file, or what names the shards.
    order : int64[n]
        Source indices of all samples, in the order they are stored.
    fields : mapping of str to Field
        What is stored; images may get other fields than the source declares.
    file_stamps : mapping of str to str
        Size and age of the source's files that its tasks do not name.
    num_shards : int
        0 for one file, or as long as the number is not known.
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
        """Return what the workers run."""
        return SampleConverter(self.source.load, self.fields, self.policy, on_error=self.options.on_error)

    def bounds(self, shard: int) -> tuple[int, int]:
        """Return where in the order a shard begins and ends; sizes differ by one at most.

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
        """Return the shards that this process is to make: all of them, or the one that the options ask for."""
        return range(self.num_shards) if self.options.shard_index is None else [self.options.shard_index]

    def file_path(self, shard: int = 0) -> str:
        """Return the path or URL of a shard, or of the only file."""
        return shard_path(self.path, shard, self.num_shards) if self.num_shards else self.path

    def file(self, shard: int = 0, *, progress: Callable[[int], object] = lambda count: None) -> FilePlan:
        """Return the plan of a shard, or of the only file; ``progress`` gets the numbers of its samples."""
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
        # The names tell a finished shard of an earlier run from one of a source that has changed.
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
    """One file to be made.

    Parameters
    ----------
    whole : Conversion
        What it is a part of.
    path : str
        The file.
    order : int64[n]
        Source indices of its samples.
    names : str
        Checksum of the samples' names.
    provenance : mapping
        What the file remembers of its origin; files of equal provenance are taken for equal.
    """

    whole: Conversion
    path: str
    order: npt.NDArray[np.int64]
    names: str
    provenance: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for one run to continue another's work."""
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
        """Return in words what a finished file has that this plan would make otherwise, or nothing."""
        found: dict[str, Any] = dict(file.extension.provenance) if file.extension is not None else {}
        found |= {"fields": describe_fields(file.fields), "classes": list(file.class_names or ())}
        return differences(found, self._content())
