"""What to say when a file cannot be written: which, why, and how much room there is.

Knows the system's refusals and the free space, and nothing of what is being written.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from converters.report import human_bytes
from dataloading import ConvertError

__all__ = ["cannot_write", "full_disk_names"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def cannot_write(path: str, error: OSError) -> str:
    """Return the words for a file that the system refused to write.

    Parameters
    ----------
    path : str
        The file, or a folder.
    error : OSError
        The refusal.
    """
    free = ""
    with contextlib.suppress(OSError):
        status = os.statvfs(os.path.dirname(path) or os.curdir)
        free = f" ({human_bytes(status.f_bavail * status.f_frsize)} free there now)"
    return f"cannot write {path}: {error.strerror or error}{free}"


@contextlib.contextmanager
def full_disk_names(path: str) -> Iterator[None]:
    """Turn a full disk, a quota or a limit of file sizes into an error that names ``path``.

    For work that writes there alone and removes what it began; other refusals name their own file.

    Parameters
    ----------
    path : str
        What is being made.

    Raises
    ------
    ConvertError
        In their place, with the free space.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ConvertError(
            f"{cannot_write(path, error)}. No unfinished file was left behind; make room or choose another place"
        ) from error
