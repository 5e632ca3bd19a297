"""Several new files that appear together or not at all.

Owns a hidden folder beside the destinations, in which each file is written and may be checked, and the step that gives
them their names. It knows nothing of what is in the files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from dataloading import UsageError, sync_folder

__all__ = ["OutputSet", "check_target"]


class OutputSet:
    """New files under way; leaving the ``with`` block by an error removes them.

    Parameters
    ----------
    targets : sequence of str
        The files to make; their folders must exist.
    overwrite : bool
        Whether existing files may be replaced.
    inputs : sequence of str
        Files that are being read, which must not be among the targets.

    Raises
    ------
    UsageError
        If a target exists and must not be replaced, is named twice, or is an input.

    Examples
    --------
    >>> with OutputSet(["a.txt"], overwrite=True, inputs=[]) as files:
    ...     _ = Path(files.part("a.txt")).write_text("done")
    ...     files.publish()
    >>> Path("a.txt").read_text()
    'done'
    """

    def __init__(self, targets: Sequence[str], *, overwrite: bool, inputs: Sequence[str]) -> None:
        self._overwrite = overwrite
        self._inputs = list(inputs)
        self._targets = list(targets)
        self._parts: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        for target in self._targets:
            if target in self._parts:
                raise UsageError(f"two results would be called {target}; put {{name}} or {{index}} into the pattern")
            self._parts[target] = ""
            check_target(target, overwrite=overwrite, inputs=inputs)
        try:
            for number, target in enumerate(self._targets):
                folder = os.path.dirname(target) or os.curdir  # noqa: PTH120
                if folder not in self._folders:
                    # In the same folder, so that the last step is a rename on one disk.
                    self._folders[folder] = tempfile.mkdtemp(prefix=".beton-part-", dir=folder)
                self._parts[target] = str(Path(self._folders[folder]) / f"{number:06}.beton")
        except BaseException:
            self._remove()
            raise

    def part(self, target: str) -> str:
        """Return where ``target`` is to be written until all are complete."""
        return self._parts[target]

    def publish(self) -> None:
        """Give every file its name.

        Raises
        ------
        UsageError
            If a target has appeared meanwhile and must not be replaced.
        """
        for target in self._targets:
            check_target(target, overwrite=self._overwrite, inputs=self._inputs)
        for target in self._targets:
            Path(self._parts[target]).replace(target)
        for folder in self._folders:
            sync_folder(folder)

    def _remove(self) -> None:
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> OutputSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()


def check_target(target: str, *, overwrite: bool, inputs: Sequence[str] = ()) -> None:
    """Refuse a place where no file can or may be written.

    Parameters
    ----------
    target : str
        The file to make.
    overwrite : bool
        Whether an existing file may be replaced.
    inputs : sequence of str
        Files that are being read; replacing one of them would pull the data away.

    Raises
    ------
    UsageError
        If it exists and must not be replaced, is a folder or an input, or its folder does not exist.
    """
    place = Path(target)
    if place.is_dir():
        raise UsageError(f"{target} is a folder; name the file to write in it")
    if not place.parent.is_dir():
        raise UsageError(f"the folder {place.parent} does not exist; make it first")
    if os.path.lexists(target):
        if any(Path(each).exists() and place.exists() and place.samefile(each) for each in inputs):
            raise UsageError(f"{target} is being read; write the result to another file")
        if not overwrite:
            raise UsageError(f"{target} exists; --overwrite (overwrite=True) replaces it when the new one is complete")
