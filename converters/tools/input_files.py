"""Several ``.beton`` files, one behind the other, as the one dataset that they are.

Owns the arithmetic between a sample of the dataset and a sample of a file. Gives what `InputFile` gives of one file:
fields, columns and stored samples in any order. Bytes and their copying are the business of ``derived_files.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.beton_files import list_files
from converters.tools.derived_files import InputFile, Stored, open_inputs
from converters.tools.merge import agreed_classes
from dataloading import Field, UsageError
from dataloading.tools import label_field

__all__ = ["InputFiles"]

Integers = npt.NDArray[np.int64]

_OPEN_AT_ONCE = 64
_BLOCK = 4096


class InputFiles:
    """The samples of files and shard sets, in the order given; a single file is the simplest case.

    Parameters
    ----------
    paths : sequence of str
        ``.beton`` files and manifests (``.beton.json``), with equal fields and classes.

    Attributes
    ----------
    path : str
        What was named, for messages: the file, the manifest, or the first and how many more.
    input_files : list of InputFile
        The files.
    fields : dict of str to Field
    label : str or None
        The field of labels, see `dataloading.label_field`.
    class_names : tuple of str or None

    Raises
    ------
    UsageError
        If fields or classes differ, or a file is named twice.
    FormatError
        If a manifest or file cannot be read, or a shard is missing.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.path = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self.input_files = open_inputs(list_files(paths))
        try:
            self.fields: dict[str, Field] = self.input_files[0].fields
            self.label = label_field(self.input_files[0].reader)
            self.class_names = self.input_files[0].reader.class_names
            if len(self.input_files) > 1:
                hint = "; `beton merge --classes union` makes one file of them"
                self.class_names, _ = agreed_classes(self.input_files, "equal", hint=hint)
        except BaseException:
            self.close()
            raise
        self._starts = np.cumsum([0, *map(len, self.input_files)])
        self._awake: list[int] = []

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [input_file.path for input_file in self.input_files]

    def identity(self) -> list[list[str | int]]:
        """Return for each file, JSON-able, its place and what changes when it is written anew."""
        return [[os.path.abspath(input_file.path), *input_file.identity] for input_file in self.input_files]

    def column(self, field: str) -> npt.NDArray[np.generic]:
        """Return a field's part of every sample's record: a view of the only file, a copy of several."""
        columns = [input_file.reader.column(field) for input_file in self.input_files]
        return columns[0] if len(columns) == 1 else np.concatenate(columns)

    def place(self, index: int) -> tuple[InputFile, int]:
        """Return the file that holds a sample, and the sample's index there.

        Raises
        ------
        UsageError
            If there is no such sample.
        """
        if not 0 <= index < len(self):
            raise UsageError(f"{self.path} has samples 0 to {len(self) - 1}, not {index}")
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.input_files[number], index - int(self._starts[number])

    def samples(
        self,
        indices: Sequence[int] | Integers | None = None,
        *,
        only: Sequence[str] | None = None,
        without: Sequence[str] = (),
    ) -> Iterator[dict[str, Stored]]:
        """Yield samples by field name, see `InputFile.samples`."""
        if indices is None:
            for number, input_file in enumerate(self.input_files):
                self._wake(number)
                yield from input_file.samples(only=only, without=without)
            return
        chosen = np.asarray(indices, dtype=np.int64)
        files = np.searchsorted(self._starts, chosen, side="right") - 1
        for start in range(0, len(chosen), _BLOCK):
            part, owners = chosen[start : start + _BLOCK], files[start : start + _BLOCK]
            # Each file looks up its own samples of the block at once, and they are taken in the order asked for.
            found = {
                number: self.input_files[number].samples(
                    part[owners == number] - int(self._starts[number]), only=only, without=without
                )
                for number in np.unique(owners).tolist()
            }
            for number in owners.tolist():
                self._wake(number)
                yield next(found[number])

    def _wake(self, number: int) -> None:
        """Keep the files open that were read last, and no more than a process may have."""
        if number in self._awake:
            self._awake.remove(number)
        elif len(self._awake) == _OPEN_AT_ONCE:
            self.input_files[self._awake.pop(0)].rest()
        self._awake.append(number)

    def decoded(self, name: str, stored: Stored) -> Any:
        """Return the value that ``stored`` stands for, see `InputFile.decoded`."""
        return self.input_files[0].decoded(name, stored)

    def close(self) -> None:
        """Let go of the files."""
        for input_file in self.input_files:
            input_file.close()

    def __enter__(self) -> InputFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
