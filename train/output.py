"""The output folder of a run: one run at a time, which never overwrites another run's files.

Implements ``--output``, ``--overwrite-output`` and the lock.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataloading import UsageError
from dataloading.messages import counted

_LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, *, option: str = "--output", wait_seconds: float = 0.0) -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends, even by a crash.

    Raises
    ------
    UsageError
        Another process has locked it.
    """
    from dataloading.tools import open_locked  # imported here, so that --help does not import NumPy

    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / _LOCK
    try:
        descriptor = open_locked(lock, wait_seconds=wait_seconds, mode=0o644)
    except BlockingIOError:
        holder = lock.read_text(errors="replace").strip() or "unknown process"
        raise UsageError(
            f"another run is writing to {folder} ({holder}); wait for it, or choose another {option}"
        ) from None
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def resume_hint(output: str) -> str:
    """Return a message on how to resume an interrupted run."""
    saved = sorted(path.parent.name for path in Path(output).glob("checkpoints/step-*/meta.json")) if output else []
    if not saved:
        return "no checkpoint was saved"
    return f"--resume auto continues from {Path(output) / 'checkpoints' / saved[-1]}"


def prepare_folder(folder: Path, checkpoints: dict[int, Path], *, resume: Path | None, overwrite: bool) -> list[str]:
    """Make sure that this run's files cannot be mixed up with another run's.

    Parameters
    ----------
    folder : Path
        ``--output``.
    checkpoints : dict
        Complete checkpoints in it, by step.
    resume : Path or None
        The checkpoint this run resumes from.
    overwrite : bool
        Remove such files instead of refusing to start.

    Returns
    -------
    list of str
        A message for each removal.

    Raises
    ------
    UsageError
        There are checkpoints that this run does not continue.
    """
    here = [step for step, path in checkpoints.items() if resume is not None and path.resolve() == resume.resolve()]
    in_the_way = [step for step in checkpoints if not here or step > here[0]]
    if in_the_way and not overwrite:
        found = f"{folder} holds {counted(len(in_the_way), 'checkpoint')}, up to step {max(in_the_way)}"
        if here:
            raise UsageError(
                f"{found}, later than step {here[0]}, from which this run resumes: pass --overwrite-output to remove "
                f"the later ones, or choose another --output"
            )
        raise UsageError(
            f"{found}, of another run: continue that run with --resume auto, choose another --output, or pass "
            f"--overwrite-output to remove its checkpoints and its log"
        )
    notes = []
    if in_the_way:
        for step in in_the_way:
            shutil.rmtree(checkpoints[step])
        notes.append(f"removed {counted(len(in_the_way), 'checkpoint')} of an earlier run from {folder}")
    log = folder / "log.jsonl"
    if resume is None and log.exists():
        log.unlink()
        notes.append(f"removed {log} of an earlier run")
    return notes
