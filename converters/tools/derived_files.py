"""New files made of stored samples, which inherit page size, provenance and recorded statistics."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from converters.report import Progress
from converters.tools.input_files import InputFile, Sample, Stored, file_name, stored_bytes
from dataloading import Field, Writer

__all__ = ["copy_samples", "derived_writer"]

# Statistics of a converter that hold for any selection of samples. Others are dropped, as they may be stale.
_CARRIED_FACTS = ("restart_markers",)


def derived_writer(
    path: str | os.PathLike[str],
    input_files: Sequence[InputFile],
    *,
    num_samples: int,
    step: Mapping[str, Any],
    class_names: Sequence[str] | None,
    overwrite: bool = False,
    is_recoded: bool = False,
) -> Writer:
    """Open a writer for stored samples of other files.

    Parameters
    ----------
    path : str or path-like
        The file to write.
    input_files : sequence of InputFile
        The inputs; fields, provenance and page size come from them.
    num_samples : int
        Maximum number of samples.
    step : mapping
        The command and its options, appended to the ``history`` in the provenance.
    class_names : sequence of str or None
        Names of the classes.
    overwrite : bool
        Whether an existing file may be replaced.
    is_recoded : bool
        Whether images are encoded again: they may outgrow the old page size, and recorded statistics become invalid.
    """
    readers = [input_file.reader for input_file in input_files]
    page_size = None
    if not is_recoded and all(reader.extension is not None for reader in readers):
        # FFCV packs a page fuller than our writer, which aligns arrays: there pages must be free to grow.
        page_size = max(reader.page_size for reader in readers)
    return Writer(
        path,
        {name: _as_stored(field) for name, field in input_files[0].fields.items()},
        num_samples=num_samples,
        page_size=page_size,
        class_names=class_names,
        provenance=_provenance(input_files, step),
        field_facts=None if is_recoded else _shared_facts(input_files),
        overwrite=overwrite,
    )


def copy_samples(samples: Iterable[Sample], writer: Writer, progress: Progress) -> None:
    """Append stored samples to a file made by `derived_writer`."""
    for sample in samples:
        writer.append(sample)
        progress.advance(stored_bytes(sample))


@functools.cache
def _stored_kind(kind: type[Field]) -> type[Field]:
    def encode(self: Field, value: Any) -> Stored:
        return value  # type: ignore[no-any-return]

    return type(f"Stored{kind.__name__}", (kind,), {"encode": encode, "__doc__": kind.__doc__})


def _as_stored(field: Field) -> Field:
    """Return a field that accepts stored values and is described in the file as ``field``."""
    clone = copy.copy(field)
    clone.__class__ = _stored_kind(type(field))
    return clone


def _provenance(input_files: Sequence[InputFile], step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance that all input files share, with a history that ends with ``step``."""
    said = [
        {} if input_file.reader.extension is None else dict(input_file.reader.extension.provenance)
        for input_file in input_files
    ]
    histories = [list(each.pop("history", [])) for each in said]
    shared = {
        key: value for key, value in said[0].items() if all(key in each and each[key] == value for each in said[1:])
    }
    sources = []
    for input_file, own, history in zip(input_files, said, histories, strict=True):
        entry: dict[str, Any] = {"file": file_name(input_file.path), "num_samples": len(input_file)}
        if input_file.reader.extension is None:
            entry["writer"] = "FFCV"
        if len(input_files) > 1:
            entry |= {key: value for key, value in own.items() if key not in shared and key not in entry}
            entry |= {"history": history} if history else {}
        sources.append(entry)
    before = histories[0] if len(input_files) == 1 else []
    return {**shared, "history": [*before, {**step, "from": sources}]}


def _shared_facts(input_files: Sequence[InputFile]) -> dict[str, dict[str, Any]]:
    """Return by field the statistics to carry over that all files agree on; the writer computes the others."""
    extensions = [input_file.reader.extension for input_file in input_files]
    result: dict[str, dict[str, Any]] = {}
    for name in input_files[0].fields:
        facts = [{} if extension is None else extension.facts.get(name, {}) for extension in extensions]
        result[name] = {
            key: value
            for key, value in facts[0].items()
            if key in _CARRIED_FACTS and all(each.get(key) == value for each in facts[1:])
        }
    return result
