"""The result of converting one sample, which a worker sends to the parent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["MOST_BYTES", "MOST_SAMPLES", "MOST_SECONDS", "ConvertedSample", "Encoded"]

# Of samples that are sent and written together. Less than any page, so that each of them fits one.
MOST_SAMPLES, MOST_BYTES = 1024, 1 << 20
# Longest time that a sample waits for others.
MOST_SECONDS = 0.1

Encoded = tuple[tuple[int | float, ...], Any]
"""The result of `Field.encode`; the bytes, if any, are a buffer, which is sent beside the pickle without a copy."""


class ConvertedSample(NamedTuple):
    """A worker's result for one sample; a tuple, since the parent unpickles one per sample.

    Parameters
    ----------
    encoded : list or None
        One encoded value per field, in order; None if the sample failed.
    images : tuple of str
        How its images were stored, see `converters.images.store`.
    source_bytes, stored_bytes : int
        Bytes of image files read, and bytes of its values in the file's pages.
    fault, listed : str
        The reason for missing values or replaced images, and the report's list for it.
    notes : str
        Remarks about images whose pixels are intact.
    stamp : str or None
        `converters.engine.fingerprint.stamp_of` its task, before it was read.
    """

    encoded: Sequence[Encoded] | None = None
    images: tuple[str, ...] = ()
    source_bytes: int = 0
    stored_bytes: int = 0
    fault: str = ""
    listed: str = "replaced"
    notes: str = ""
    stamp: str | None = None

    @property
    def num_samples(self) -> int:
        """Always 1; `AlikeSamples` and `PackedSamples` hold several."""
        return 1

    @property
    def kinds(self) -> Counter[str]:
        """Number of images by how they were stored."""
        return Counter(self.images)
