"""The state that lets a writer resume after its process has ended, as bytes.

Defines the layout of a checkpoint: a small JSON text with the counts, then what was added since the previous checkpoint
(checksums of complete blocks, entries of the allocation table), so frequent checkpoints are cheap. Does not know where
checkpoints are kept or how a file is written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from dataloading.errors import FormatError

from .extension import BLOCK_BYTES, REGIONS, BlockHasher, digest

__all__ = ["Checkpoint", "resume_hash"]

BLOCKS_COMPARED = 64
"""Number of blocks at the end of each region whose checksums are verified before writing resumes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a writer after some samples, as the difference from the previous checkpoint.

    Parameters
    ----------
    writer : str
        Version of the writer; only the same version may resume, since another could write different bytes.
    num_samples, capacity, record_bytes : int
        Samples in the file, samples that fit its table, bytes of a record.
    page_size, position : int
        The current page size, and the file position after the last value, in bytes.
    data_start : int or None
        Position of the first page; None before the first value.
    facts : mapping
        By field name, the result of `FieldStatistics.summary`.
    digests : mapping of str to bytes
        By region, checksums of the newly completed blocks.
    allocations : bytes
        New entries of the allocation table.
    """

    writer: str
    num_samples: int
    capacity: int
    record_bytes: int
    page_size: int
    position: int
    data_start: int | None
    facts: Mapping[str, Mapping[str, Any]]
    digests: Mapping[str, bytes]
    allocations: bytes

    def to_bytes(self) -> bytes:
        """Return the checkpoint as bytes."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        blobs = [self.digests[region] for region in REGIONS] + [self.allocations]
        values |= {"digests": [len(blob) for blob in blobs[:-1]], "allocations": len(self.allocations)}
        return json.dumps(values, allow_nan=False).encode("ascii") + b"\n" + b"".join(blobs)

    @classmethod
    def parse(cls, data: bytes) -> Checkpoint:
        """Return the checkpoint that `to_bytes` stored.

        Raises
        ------
        FormatError
            If the bytes are not a checkpoint; the caller verifies their checksum.
        """
        text, _, rest = data.partition(b"\n")
        try:
            values = json.loads(text)
            sizes = [*values["digests"], values["allocations"]]
            if sum(sizes) != len(rest):
                raise ValueError(f"{len(rest)} bytes follow the text, expected {sum(sizes)}")
            blobs = []
            for size in sizes:
                blobs.append(rest[:size])
                rest = rest[size:]
            values |= {"digests": dict(zip(REGIONS, blobs[:-1], strict=True)), "allocations": blobs[-1]}
            return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"these bytes are not a checkpoint of this writer: {error}") from error


def resume_hash(hasher: BlockHasher, read: Callable[[int, int], bytes], start: int, end: int, part: str) -> None:
    """Compare the last complete blocks of a region with the file, and hash its incomplete block again.

    Parameters
    ----------
    hasher : BlockHasher
        Holds the checksums of the complete blocks.
    read : callable
        ``read(position, size)`` returns bytes of the file.
    start, end : int
        Byte range of the region.
    part : str
        The file, for the message.

    Raises
    ------
    FormatError
        If the file does not match the checksums.
    """
    complete, partial_bytes = divmod(end - start, BLOCK_BYTES)
    if complete != hasher.num_blocks:
        raise FormatError(f"{part}: its checkpoints hold {hasher.num_blocks} checksums of {complete} blocks")
    first = max(0, complete - BLOCKS_COMPARED)
    expected = hasher.complete_from(first)
    for number in range(complete - first):
        found = digest(read(start + (first + number) * BLOCK_BYTES, BLOCK_BYTES))
        if found.to_bytes(8, "little") != expected[8 * number : 8 * number + 8]:
            raise FormatError(
                f"{part} does not hold what its checkpoints say (bytes {start + (first + number) * BLOCK_BYTES} and "
                "after); it was changed or damaged, so it cannot be resumed: start over"
            )
    hasher.update(read(end - partial_bytes, partial_bytes))
