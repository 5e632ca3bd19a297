"""A nameless temporary file for what must be copied before it can be read at random.

It lies in the system's folder for temporary files (``TMPDIR``) and is gone with the process that made it, however
that ends. Other processes of the machine read it through ``/proc`` while that process lives.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, BinaryIO, cast

__all__ = ["Spool"]


class Spool:
    """A temporary file that has no name in any folder.

    Examples
    --------
    >>> spool = Spool()
    >>> spool.file.write(b"abc"); spool.file.flush()
    3
    >>> open(spool.path, "rb").read()
    b'abc'
    """

    def __init__(self) -> None:
        self.file: BinaryIO = cast(BinaryIO, tempfile.TemporaryFile(prefix="beton-"))  # noqa: SIM115 - lives as long
        self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}
