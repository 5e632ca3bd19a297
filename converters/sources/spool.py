"""A nameless temporary file for what must be copied before it can be read at random.

It lies in the system's folder for temporary files (``TMPDIR``) and is gone with the process that made it, however
that ends. Other processes of the machine read it through ``/proc`` while that process lives; on another machine that
path is missing or, worse, somebody else's, so a spool that travels checks where it arrives.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, BinaryIO, cast

from dataloading import UsageError

__all__ = ["Spool"]


class Spool:
    """A temporary file that has no name in any folder.

    Parameters
    ----------
    what : str
        What it holds, in words that follow "the copy of".
    instead : str
        What to do on a machine that cannot see it, an imperative.

    Raises
    ------
    UsageError
        Where it is unpickled and cannot be seen.

    Examples
    --------
    >>> spool = Spool("some bytes", "keep them in a file")
    >>> spool.file.write(b"abc"); spool.file.flush()
    3
    >>> open(spool.path, "rb").read()
    b'abc'
    """

    def __init__(self, what: str, instead: str) -> None:
        self.file: BinaryIO = cast(BinaryIO, tempfile.TemporaryFile(prefix="beton-"))  # noqa: SIM115 - lives as long
        self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        self._what = what
        self._instead = instead

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None, "_stamp": _stamp(self.path)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not state["_stamp"] or _stamp(self.path) != state["_stamp"]:
            raise UsageError(
                f"the copy of {self._what} is a temporary file of the machine that started the conversion, which this "
                f"one cannot see: {self._instead}"
            )


def _stamp(path: str) -> tuple[int, ...]:
    """Return what tells a file from any other; nothing if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
