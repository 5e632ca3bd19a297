"""What is in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloading import format as stored

__all__ = ["Reader"]


class Reader:
    """The fields and records of a ``.beton`` file.

    Attributes
    ----------
    file_name : str
    num_samples, page_size, num_fields : int
    field_names : list of str
    handlers : dict of str to field
        The fields of ours.
    metadata : ndarray
        The sample table, with columns ``f0``, ``f1`` ...; straight from the file, read-only.
    """

    def __init__(self, fname: str, custom_handlers: Mapping[str, Any] | None = None) -> None:
        self._reader = stored.Reader(fname)
        self.file_name = fname
        self.num_samples = self._reader.num_samples
        self.page_size = self._reader.page_size
        self.handlers = dict(self._reader.fields)
        self.field_names = list(self.handlers)
        self.num_fields = len(self.handlers)
        self.metadata = self._reader.table
        self.alloc_table = self._reader.allocations

    def column(self, name: str) -> Any:
        """Return a field's column of the sample table."""
        return self._reader.column(name)
