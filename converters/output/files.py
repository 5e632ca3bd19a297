"""Error messages for files that cannot be written: which file, why, and the free space.

Does not know what is being written.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from dataloading import ConvertError
from dataloading.messages import human_bytes

__all__ = ["cannot_write", "full_disk_names"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def cannot_write(path: str, error: OSError) -> str:
    """Return the error message for a file that could not be written.

    Parameters
    ----------
    path : str
        The file, or a folder.
    error : OSError
        The system's error.
    """
    free = ""
    with contextlib.suppress(OSError):
        status = os.statvfs(os.path.dirname(path) or os.curdir)
        free = f" ({human_bytes(status.f_bavail * status.f_frsize)} free there now)"
    return f"cannot write {path}: {error.strerror or error}{free}"


@contextlib.contextmanager
def full_disk_names(path: str) -> Iterator[None]:
    """Turn a full disk, a quota or a limit of file sizes into an error that names ``path``.

    For code that writes only there and cleans up after itself; other errors pass unchanged.

    Parameters
    ----------
    path : str
        The file or folder being written.

    Raises
    ------
    ConvertError
        Instead of these errors, with the free space.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ConvertError(
            f"{cannot_write(path, error)}. No unfinished file was left behind; make room or choose another place"
        ) from error
