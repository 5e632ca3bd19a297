"""Writing a ``.beton`` file in one sequential pass.

Owns where values go, the temporary file and its becoming the real one. Bytes are appended as samples come; the sample
table is filled in chunks, the allocation table waits in an unnamed file, so memory stays bounded whatever the number
of samples. The result depends on nothing but the samples and the arguments. Until :meth:`Writer.finish` has put
everything on the disk the file has another name, and no header. :meth:`Writer.checkpoint` says what another process
needs to go on from here and come to the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dataloading.checks import at_least, true_or_false
from dataloading.errors import UsageError
from dataloading.messages import describe

from . import extension as ext
from .arguments import check_class_names, check_fields
from .base import Bytes, Head
from .checkpoint import Checkpoint, resume_hash
from .field_statistics import FieldStatistics
from .fields import Field
from .layout import (
    ALLOCATION,
    ARGUMENTS_BYTES,
    DEFAULT_PAGE_SIZE,
    DESCRIPTOR,
    HEADER,
    MAX_PAGE_SIZE,
    Descriptor,
    Header,
    align_up,
    check_page_size,
    record_dtype,
)
from .output import PartFile
from .tables import pointers_of

__all__ = ["Writer"]

Rows: TypeAlias = "npt.NDArray[np.uint8]"
"""Payloads of equal size, one per row."""
Numbers: TypeAlias = "npt.NDArray[np.generic]"
"""Values of a field that the sample table holds whole."""

WRITER_NAME = "beton 1"
"""Changes whenever equal input gives other bytes, and only then."""
RECORDS_PER_CHUNK = 1 << 14
BUFFER_BYTES = 1 << 22
DIRECT_BYTES = 1 << 19
"""From this size on, bytes are written without being gathered in the buffer first."""


class Writer:
    """A new ``.beton`` file; it appears under its name once it is complete.

    Parameters
    ----------
    path : str or path-like
        The file to make.
    fields : mapping of str to Field, or pairs
        The fields of a sample, in order; names are 1 to 16 ASCII characters.
    num_samples : int
        How many samples will be appended at most; room for their records is set aside.
    page_size : int, optional
        A power of two, 2 MiB to 2 GiB. A sample's values share a page. By default 8 MiB, and larger if a sample
        needs it.
    class_names : sequence of str, optional
        Name of each class; the label is the position.
    provenance : mapping, optional
        What to record about the source and the conversion; anything that JSON can express. Equal input must give equal
        bytes, so leave times and host names out.
    field_facts : mapping, optional
        By field name, facts to record that only the caller knows, such as ``{"image": {"restart_markers": True}}``.
    overwrite : bool
        Whether to replace an existing file.
    part : str, optional
        Name of the temporary file, in the folder of ``path``. By default a random one that is removed on every error;
        a file named here is left on errors, so that checkpoints can be gone on from, until `abort` or `finish`.
    checkpoints : iterable of bytes, optional
        All that `checkpoint` returned in an earlier process with equal arguments, in order: go on behind the last.

    Raises
    ------
    UsageError
        If the arguments cannot be honoured, or the checkpoints were made with others.
    FormatError
        If the temporary file is not the one that the checkpoints describe.
    FileExistsError
        If the file exists and ``overwrite`` is false.

    Examples
    --------
    >>> with Writer("train.beton", {"label": IntField()}, num_samples=2) as writer:  # doctest: +SKIP
    ...     writer.append({"label": 0})
    ...     writer.append({"label": 1})
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, Field] | Iterable[tuple[str, Field]],
        *,
        num_samples: int,
        page_size: int | None = None,
        class_names: Iterable[str] | None = None,
        provenance: Mapping[str, Any] | None = None,
        field_facts: Mapping[str, Mapping[str, Any]] | None = None,
        overwrite: bool = False,
        part: str | None = None,
        checkpoints: Iterable[bytes] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.fields = check_fields(fields)
        overwrite = true_or_false("overwrite", overwrite)
        self._capacity = at_least("num_samples", num_samples, 1, "; an empty file cannot be read")
        self._grows = page_size is None
        self.page_size = DEFAULT_PAGE_SIZE if page_size is None else check_page_size(page_size)
        self._class_names = None if class_names is None else check_class_names(class_names)
        self._provenance = dict(provenance or {})
        self._field_facts = {name: dict(facts) for name, facts in (field_facts or {}).items()}
        for name in self._field_facts:
            if name not in self.fields:
                raise UsageError(f"field_facts names the field '{name}'; there are {list(self.fields)}")
        self._kinds = list(self.fields.items())
        self._facts = {name: FieldStatistics(field) for name, field in self._kinds}
        self._record = record_dtype([field.record for field in self.fields.values()])
        self._table_start = HEADER.itemsize + len(self.fields) * DESCRIPTOR.itemsize
        self.num_samples = 0
        """Number of samples appended so far."""
        self._records = np.zeros(RECORDS_PER_CHUNK, dtype=self._record)
        self._num_staged = 0
        self._allocations: list[tuple[int, int, int]] = []
        self._hashers = {region: ext.BlockHasher() for region in ext.REGIONS}
        self._data_start: int | None = None
        self._position = 0
        self._buffer = bytearray()
        # Fail on what can be known before anything is written.
        self._extension({}, b"").to_text()
        self._file = PartFile(self.path, overwrite=overwrite, part=part, keep_part=checkpoints is not None)
        self._spool: IO[bytes] = self._file.scratch(BUFFER_BYTES)
        self._num_saved = dict.fromkeys(ext.REGIONS, 0)
        self._saved_bytes = 0
        if checkpoints is not None:
            try:
                self._restore(checkpoints)
            except BaseException:
                self._file.give_up()
                raise

    @property
    def is_open(self) -> bool:
        """Whether samples can be appended: neither finished, nor given up."""
        return self._file.is_open

    def append(self, values: Mapping[str, object]) -> None:
        """Add a sample.

        Parameters
        ----------
        values : mapping of str to object
            One value for each field.

        Raises
        ------
        UsageError
            If a field is missing or superfluous, a value does not fit its field exactly, or the sample does not fit
            a page. The sample was not added; the writer can go on.
        OSError
            If the disk refuses, for instance because it is full. The unfinished file is removed, unless ``part``
            names it.
        """
        self._check_room()
        sample = self.num_samples
        if not isinstance(values, Mapping):
            example = ", ".join(f"{name!r}: ..." for name in self.fields)
            raise UsageError(
                f"sample {sample}: expected a dictionary of values, append({{{example}}}), got {describe(values)}"
            )
        if values.keys() != self.fields.keys():
            raise UsageError(f"sample {sample}: expected values for the fields {list(self.fields)}, got {list(values)}")
        encoded = []
        for name, field in self._kinds:
            try:
                encoded.append(field.encode(values[name]))
            except UsageError as error:
                raise UsageError(f"sample {sample}, field '{name}': {error}") from error
        self.append_encoded(encoded)

    def append_encoded(self, encoded: Sequence[tuple[Head, Bytes | None]]) -> None:
        """Add a sample whose values are encoded already.

        Parameters
        ----------
        encoded : sequence
            What `Field.encode` has returned for a value of each field, in the order of the fields.

        Raises
        ------
        UsageError
            If the sample does not fit a page. It was not added; the writer can go on.
        OSError
            See `append`.
        """
        self._check_room()
        heads = [head for head, _ in encoded]
        payloads = [payload for _, payload in encoded]
        # Everything that can be wrong with the sample is found before the first byte is written.
        pointers, end = self._place([None if payload is None else payload.size for payload in payloads])
        try:
            self._store(self.num_samples, heads, payloads, pointers)
            self._skip_to(end)
        except BaseException:
            self._file.give_up()
            raise

    def append_alike(self, encoded: Sequence[tuple[Head, Rows] | tuple[Numbers, None]]) -> None:
        """Add many samples of equal heads and sizes at once; the file gets the same bytes as from `append_encoded`.

        Parameters
        ----------
        encoded : sequence
            For each field, in order: the head that all values share, and their payloads as uint8 of shape (number of
            samples, bytes); or, of a field without payloads, the values as an array of its ``record`` dtype, and None.

        Raises
        ------
        UsageError
            If a sample does not fit a page, or they are too many. None was added; the writer can go on.
        OSError
            See `append`.
        """
        heads = [head for head, _ in encoded]
        payloads = [payload for _, payload in encoded]
        head, payload = encoded[0]
        count = len(head if payload is None else payload)
        self._check_room(count)
        sizes = [None if payload is None else payload.shape[1] for payload in payloads]
        done = 0
        while done < count:
            pointers, end = self._place(sizes)
            stop, step = self._run(pointers, end, sizes, count - done)
            try:
                rows = slice(done, done + stop)
                self._store_alike(
                    [head[rows] if isinstance(head, np.ndarray) else head for head in heads],
                    [None if payload is None else payload[rows] for payload in payloads],
                    pointers, end, step, stop,
                )  # fmt: skip
            except BaseException:
                self._file.give_up()
                raise
            done += stop

    def append_packed(
        self, records: Sequence[npt.NDArray[Any]], sizes: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
    ) -> None:
        """Add many encoded samples at once; the file gets the same bytes as from `append_encoded`.

        Parameters
        ----------
        records : sequence of array, shape (num_samples,)
            For each field, in order, what `Field.entry` has returned for each sample with the pointer 0.
        sizes : int64 array, shape (num_samples, number of fields with data)
            Bytes of each value.
        data : uint8 array
            The values' bytes, sample after sample, field after field; an empty value has one byte, zero.

        Raises
        ------
        UsageError
            If a sample is larger than the present page, values of a field are aligned, or there are too many samples.
            None was added; the writer can go on.
        OSError
            See `append`.
        """
        count = len(sizes)
        self._check_room(count)
        stored = [place for place, (_, field) in enumerate(self._kinds) if field.has_data]
        if any(self._kinds[place][1].alignment != 1 for place in stored):
            raise UsageError("values of these fields begin at multiples of more than one byte: append them one by one")
        lengths = np.maximum(sizes, 1)
        ends = np.cumsum(lengths).reshape(count, -1)
        starts, ends = ends - lengths, ends[:, -1]
        if (largest := int(lengths.sum(axis=1).max())) > self.page_size:
            raise UsageError(f"a sample has {largest} bytes, more than a page of {self.page_size}; append it by itself")
        self._begin_pages()
        done = first_byte = 0
        while done < count:
            room = self.page_size - self._position % self.page_size
            stop = int(np.searchsorted(ends, first_byte + room, side="right"))
            stop = min(stop, done + RECORDS_PER_CHUNK - self._num_staged)
            try:
                if stop == done:
                    self._skip_to(align_up(self._position, self.page_size))
                    continue
                last_byte = int(ends[stop - 1])
                pointers = starts[done:stop] + (self._position - first_byte)
                self._write_pages(data[first_byte:last_byte])
                self._store_packed(records, stored, slice(done, stop), pointers, sizes[done:stop])
            except BaseException:
                self._file.give_up()
                raise
            done, first_byte = stop, last_byte

    def _store_packed(
        self,
        records: Sequence[npt.NDArray[Any]],
        stored: list[int],
        rows: slice,
        pointers: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> None:
        """Store the records of samples whose bytes are written."""
        first, count = self.num_samples, len(pointers)
        columns = self._records[self._num_staged :][:count]
        for place, own in enumerate(records):
            columns[f"f{place}"] = own[rows]
        allocations = np.empty((count, len(stored)), dtype=ALLOCATION)
        allocations["sample_id"] = np.arange(first, first + count, dtype=np.uint64)[:, None]
        allocations["ptr"] = pointers
        allocations["size"] = sizes
        for ordinal, place in enumerate(stored):
            pointers_of(columns[f"f{place}"])[:] = pointers[:, ordinal]
            facts = self._facts[self._kinds[place][0]]
            for row, (record, size) in enumerate(
                zip(records[place][rows].tolist(), sizes[:, ordinal].tolist(), strict=True)
            ):
                facts.add(first + row, record, size)
        self._flush_allocations()
        self._write_allocations(allocations)
        self._count_staged(count)

    def _count_staged(self, count: int) -> None:
        self._num_staged += count
        self.num_samples += count
        if self._num_staged == RECORDS_PER_CHUNK:
            self._flush_tables()

    def _begin_pages(self) -> None:
        if self._data_start is None:
            table_end = self._table_start + self._capacity * self._record.itemsize
            self._data_start = self._position = align_up(table_end, self.page_size)

    def _check_room(self, count: int = 1) -> None:
        if not self._file.is_open:
            raise UsageError(f"{self.path}: this writer is finished; make a new one")
        if self.num_samples + count > self._capacity:
            raise UsageError(f"{self.path}: more samples than the declared num_samples={self._capacity}")

    def _place(self, sizes: list[int | None]) -> tuple[list[int], int]:
        """Return a position for each value, all in one page, the current or the next, and the end of the last one."""
        if all(size is None for size in sizes):
            return [0] * len(sizes), self._position
        # From a page's start, so this is the room the sample needs in the worst case.
        needed = self._offsets(0, sizes)[1]
        if needed > self.page_size:
            self._grow_page(needed, sizes)
        self._begin_pages()
        pointers, end = self._offsets(self._position, sizes)
        if (end - 1) // self.page_size != self._position // self.page_size:
            pointers, end = self._offsets(align_up(self._position, self.page_size), sizes)
        return pointers, end

    def _run(self, pointers: list[int], end: int, sizes: list[int | None], count: int) -> tuple[int, int]:
        """Return how many samples of these sizes, at most ``count``, follow one another evenly, and their distance."""
        room = RECORDS_PER_CHUNK - self._num_staged
        if all(size is None for size in sizes):
            return min(count, room), 0
        following, _ = self._offsets(end, sizes)
        steps = {
            after - before for before, after, size in zip(pointers, following, sizes, strict=True) if size is not None
        }
        step = steps.pop()
        # The offset of a value depends on where its sample begins, unless that is a multiple of all alignments.
        if steps or any(step % field.alignment for field in self.fields.values()):
            return 1, step
        page_end = align_up(end, self.page_size)
        return min(count, room, 1 + (page_end - end) // step), step

    def _offsets(self, start: int, sizes: list[int | None]) -> tuple[list[int], int]:
        pointers = []
        position = start
        for (_, field), size in zip(self._kinds, sizes, strict=True):
            if size is None:
                pointers.append(0)
                continue
            position = align_up(position, field.alignment)
            pointers.append(position)
            # An empty value takes a byte, so that no two values have one address: FFCV finds sizes by address.
            position += max(1, size)
        return pointers, position

    def _grow_page(self, needed: int, sizes: list[int | None]) -> None:
        wanted = 1 << (needed - 1).bit_length()
        listed = ", ".join(f"'{name}' {size}" for (name, _), size in zip(self._kinds, sizes, strict=True) if size)
        if wanted > MAX_PAGE_SIZE:
            raise UsageError(
                f"sample {self.num_samples} has {needed} bytes ({listed}); a sample cannot be larger than the largest "
                f"page, {MAX_PAGE_SIZE} bytes (2 GiB)"
            )
        if not self._grows:
            raise UsageError(
                f"sample {self.num_samples} has {needed} bytes ({listed}), more than a page of {self.page_size}; pass "
                f"page_size={wanted}, or leave page_size out"
            )
        # What is written already crosses no border of the smaller pages, so none of the larger ones either.
        self.page_size = wanted

    def _store(
        self,
        sample: int,
        heads: list[Head],
        payloads: list[Bytes | None],
        pointers: list[int],
    ) -> None:
        entries = []
        for (name, field), head, payload, pointer in zip(self._kinds, heads, payloads, pointers, strict=True):
            size = 0
            if payload is not None:
                size = payload.size
                self._skip_to(pointer)
                self._write_pages(payload)
                self._allocations.append((sample, pointer, size))
                self._facts[name].add(sample, head, size)
            entries.append(field.entry(head, pointer, size))
        self._records[self._num_staged] = tuple(entries)
        self._count_staged(1)

    def _store_alike(
        self,
        heads: list[Head | Numbers],
        payloads: list[Rows | None],
        pointers: list[int],
        end: int,
        step: int,
        count: int,
    ) -> None:
        """Store samples that lie ``step`` bytes apart; ``pointers`` and ``end`` are those of the first."""
        first = self.num_samples
        records = self._records[self._num_staged :][:count]
        places = [place for place, payload in enumerate(payloads) if payload is not None]
        allocations = np.empty((count, len(places)), dtype=ALLOCATION)
        allocations["sample_id"] = np.arange(first, first + count, dtype=np.uint64)[:, None]
        start = min((pointers[place] for place in places), default=end)
        # A single value without gaps is written from where it is.
        is_whole = len(places) == 1 and payloads[places[0]].shape[1] == step  # type: ignore[union-attr]
        block = np.zeros((0 if is_whole else count, step), dtype=np.uint8)
        for place, (head, payload, pointer) in enumerate(zip(heads, payloads, pointers, strict=True)):
            name, field = self._kinds[place]
            column = records[f"f{place}"]
            if payload is None or isinstance(head, np.ndarray):
                column[:] = head
                continue
            size = payload.shape[1]
            if is_whole:
                block = np.ascontiguousarray(payload)
            else:
                block[:, pointer - start :][:, :size] = payload
            column[:] = np.array(field.entry(head, 0, size), dtype=field.record)
            own = allocations[:, places.index(place)]
            own["ptr"] = np.arange(pointer, pointer + count * step, step, dtype=np.uint64)
            own["size"] = size
            pointers_of(column)[:] = own["ptr"]
            self._facts[name].add(first, head, size, count)
        self._skip_to(start)
        if places:
            self._write_pages(block.reshape(-1)[: end - start + (count - 1) * step])
        self._flush_allocations()
        self._write_allocations(allocations)
        self._count_staged(count)

    def _write_pages(self, data: Any) -> None:
        view = memoryview(data)
        if len(view) >= DIRECT_BYTES:
            self._flush_pages()
            self._hashers["pages"].update(view)
            self._file.write_at(self._position, view)
        else:
            self._buffer += view
        self._position += len(view)
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush_pages()

    def _flush_pages(self) -> None:
        if self._buffer:
            self._hashers["pages"].update(self._buffer)
            self._file.write_at(self._position - len(self._buffer), memoryview(self._buffer))
            self._buffer = bytearray()

    def _skip_to(self, position: int) -> None:
        """Leave zeros up to ``position``; long runs become a hole of the file and take no room on the disk."""
        gap = position - self._position
        if gap == 0:
            return
        if gap < ext.BLOCK_BYTES:
            self._write_pages(bytes(gap))
            return
        self._flush_pages()
        zeros = bytes(min(gap, BUFFER_BYTES))
        while self._position < position:
            step = min(position - self._position, BUFFER_BYTES)
            self._hashers["pages"].update(memoryview(zeros)[:step])
            self._position += step

    def _flush_tables(self) -> None:
        first = self.num_samples - self._num_staged
        chunk = self._records[: self._num_staged].tobytes()
        self._hashers["table"].update(chunk)
        self._file.write_at(self._table_start + first * self._record.itemsize, memoryview(chunk))
        # Padding bytes inside a record must not keep what an earlier chunk left there.
        self._records = np.zeros(RECORDS_PER_CHUNK, dtype=self._record)
        self._num_staged = 0
        self._flush_allocations()

    def _flush_allocations(self) -> None:
        if self._allocations:
            self._write_allocations(np.array(self._allocations, dtype=ALLOCATION))
            self._allocations = []

    def _write_allocations(self, allocations: npt.NDArray[np.void]) -> None:
        data = allocations.tobytes()
        self._hashers["allocations"].update(data)
        self._spool.write(data)

    def finish(self) -> None:
        """Complete the file, make it durable, and give it its name.

        Raises
        ------
        UsageError
            If no sample was appended; no file is left behind.
        FileExistsError
            If the file has appeared meanwhile and ``overwrite`` is false.
        OSError
            If the disk refuses; the unfinished file is removed, unless ``part`` names it.
        """
        if not self._file.is_open:
            return
        try:
            if self.num_samples == 0:
                raise UsageError(f"{self.path}: no sample was appended, and a file without samples cannot be read")
            self._complete()
            self._file.publish()
        finally:
            self._file.give_up()

    def _complete(self) -> None:
        self._flush_tables()
        self._begin_pages()
        # Behind the last value, where no allocation points: FFCV never looks at these bytes.
        extension_ptr = align_up(self._position, 8)
        self._skip_to(extension_ptr)
        self._flush_pages()
        digests = {region: hasher.finish() for region, hasher in self._hashers.items()}
        arrays = b"".join(digests[region].tobytes() for region in ext.REGIONS)
        text = self._extension({region: len(found) for region, found in digests.items()}, arrays).to_text()
        block = text.ljust(align_up(len(text), 8), b"\0") + arrays
        self._file.write_at(extension_ptr, memoryview(block))
        table_ptr = align_up(extension_ptr + len(block), self.page_size)
        file_bytes = self._append_spool(table_ptr)
        header = Header(
            num_fields=len(self.fields),
            page_size=self.page_size,
            num_samples=self.num_samples,
            alloc_table_ptr=table_ptr,
        )
        locator = ext.Locator(
            ptr=extension_ptr,
            text_bytes=len(text),
            text_xxh3=ext.digest(text),
            header_xxh3=ext.header_digest(self._head(header, b"")),
            file_bytes=file_bytes,
        )
        self._file.truncate(file_bytes)
        self._file.write_at(0, memoryview(self._head(header, locator.to_bytes())))

    def _append_spool(self, position: int) -> int:
        self._spool.seek(0)
        while chunk := self._spool.read(BUFFER_BYTES):
            self._file.write_at(position, memoryview(chunk))
            position += len(chunk)
        return position

    def _head(self, header: Header, locator: bytes) -> bytes:
        parts = [header.to_bytes()]
        for position, (name, field) in enumerate(self._kinds):
            arguments = field.arguments()
            if position == 0 and locator:
                arguments = arguments.ljust(ARGUMENTS_BYTES - len(locator), b"\0") + locator
            parts.append(Descriptor(type_id=field.type_id, name=name, arguments=arguments).to_bytes())
        return b"".join(parts)

    def _extension(self, num_blocks: Mapping[str, int], arrays: bytes) -> ext.Extension:
        return ext.Extension(
            class_names=self._class_names,
            provenance=self._provenance,
            writer=WRITER_NAME,
            facts={
                name: {**facts.summary(), **_coordinates(self.fields[name]), **self._field_facts.get(name, {})}
                for name, facts in self._facts.items()
            },
            allocations_sorted=True,
            data_start=self._data_start or 0,
            block_bytes=ext.BLOCK_BYTES,
            num_blocks=dict(num_blocks),
            digests_xxh3=ext.digest(arrays),
        )

    def abort(self) -> None:
        """Give up: remove the unfinished file. Does nothing once the file is finished."""
        self._file.discard()

    def suspend(self) -> None:
        """Stop, and leave the temporary file that ``part`` names to whoever goes on from the last checkpoint."""
        self._file.give_up()

    def checkpoint(self) -> bytes:
        """Hand what was appended to the system, and return what going on from here takes.

        The checkpoint holds once `sync` has returned; samples may be appended meanwhile.

        Returns
        -------
        bytes
            The difference from the checkpoint before; keep all of them, in order.

        Raises
        ------
        OSError
            If the disk refuses.
        """
        self._flush_pages()
        self._flush_tables()
        self._spool.seek(self._saved_bytes)
        allocations = self._spool.read()
        self._saved_bytes += len(allocations)
        digests = {}
        for region, hasher in self._hashers.items():
            digests[region] = hasher.complete_from(self._num_saved[region])
            self._num_saved[region] = hasher.num_blocks
        return Checkpoint(
            writer=WRITER_NAME,
            num_samples=self.num_samples,
            capacity=self._capacity,
            record_bytes=self._record.itemsize,
            page_size=self.page_size,
            position=self._position,
            data_start=self._data_start,
            facts={name: facts.summary() for name, facts in self._facts.items()},
            digests=digests,
            allocations=allocations,
        ).to_bytes()

    def sync(self) -> None:
        """Put all that earlier calls have written on the disk; another thread may call it while samples are appended.

        Raises
        ------
        OSError
            If the disk refuses.
        """
        self._file.sync()

    def _restore(self, checkpoints: Iterable[bytes]) -> None:
        last = None
        for data in checkpoints:
            last = Checkpoint.parse(data)
            for region, hasher in self._hashers.items():
                hasher.restore(last.digests[region])
            self._spool.write(last.allocations)
        if last is None:
            return
        now = (WRITER_NAME, self._capacity, self._record.itemsize, set(self._facts))
        then = (last.writer, last.capacity, last.record_bytes, set(last.facts))
        if now != then:
            raise UsageError(f"{self.path}: the checkpoints were made with other arguments: {then}, now {now}")
        self.num_samples, self.page_size = last.num_samples, last.page_size
        self._position, self._data_start = last.position, last.data_start
        for name, facts in self._facts.items():
            facts.restore(last.facts[name])
        self._saved_bytes = self._spool.tell()
        self._num_saved = {region: hasher.num_blocks for region, hasher in self._hashers.items()}
        part = self._file.part
        table_end = self._table_start + self.num_samples * self._record.itemsize
        resume_hash(self._hashers["table"], self._file.read_at, self._table_start, table_end, part)
        resume_hash(self._hashers["pages"], self._file.read_at, self._data_start or 0, self._position, part)
        resume_hash(self._hashers["allocations"], self._read_spool, 0, self._saved_bytes, part)
        # Back to the checkpoint: what was written after it must leave no trace, nor a header.
        self._file.truncate(max(self._position, table_end))
        self._file.write_at(0, memoryview(bytes(self._table_start)))
        if self._data_start is not None:
            stop = self._table_start + self._capacity * self._record.itemsize
            for position in range(table_end, stop, BUFFER_BYTES):
                size = min(BUFFER_BYTES, stop - position)
                if self._file.read_at(position, size).count(0) != size:
                    self._file.write_at(position, memoryview(bytes(size)))

    def _read_spool(self, position: int, size: int) -> bytes:
        self._spool.seek(position)
        data = self._spool.read(size)
        self._spool.seek(0, os.SEEK_END)
        return data

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()


def _coordinates(field: Field) -> dict[str, str]:
    words = getattr(field, "coordinates", None)
    return {} if words is None else {"coordinates": words}
