"""Checkpoints: complete or absent; they resume a run bit for bit, and exactly on another number of ranks.

Defines the layout on disk and the order of writes. A checkpoint is a directory ``step-00000123``:

=====================  ======================================================================================
``.metadata, *.distcp``  weights, optimiser and moving average, by torch.distributed.checkpoint: names are those of
                       the plain network, so DDP and FSDP read each other's
``rank-K.pt``          the state of each rank: random generators, loader position, batch-norm statistics,
                       running sums of the epoch
``meta.json``          step, epoch, world size, options; written last
=====================  ======================================================================================

It is written under a temporary name, synced to disk, and renamed when every rank has finished.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from dataloading import BetonError, UsageError
from train.rank_states import merge_rank_states

from .distributed import World, barrier, broadcast_object, gather_objects
from .model import MovingAverage

VERSION = 2
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The position of a run, between two optimiser steps.

    Parameters
    ----------
    step : int
        Optimiser steps taken.
    epoch : int
        Current epoch, or the next one.
    images : int
        Images of that epoch used so far, over all ranks.
    """

    step: int = 0
    epoch: int = 0
    images: int = 0


def find_checkpoints(directory: Path) -> dict[int, Path]:
    """Return the complete checkpoints by step, ascending."""
    found = [path for path in directory.glob("step-*") if _NAME.fullmatch(path.name) and (path / "meta.json").exists()]
    return dict(sorted((int(path.name.removeprefix("step-")), path) for path in found))


def newest_checkpoint(directory: Path) -> Path | None:
    """Return the complete checkpoint with the highest step, or None."""
    return next(reversed(find_checkpoints(directory).values()), None)


def saved_by_launch(directory: Path, launch: str) -> bool:
    """Return whether the launch with this name (see `World`) saved one of the checkpoints."""

    def name_of(path: Path) -> str:
        with suppress(OSError, ValueError):  # damaged
            return str(json.loads((path / "meta.json").read_text(encoding="utf-8")).get("launch", ""))
        return ""

    return bool(launch) and launch in map(name_of, find_checkpoints(directory).values())


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every random generator of this process that training may use."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002  (third-party models may draw from it)
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the random generators."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


class CheckpointWriter:
    """Writes checkpoints one after the other, in the background if asked, and removes old ones.

    In the background: parameters, optimiser and averages are first copied to host memory, then written by threads
    (`torch.distributed.checkpoint.async_save`) while the training goes on.

    Parameters
    ----------
    directory : Path
        The folder of all checkpoints, shared by all nodes.
    world : World
        This process.
    background : bool
        Write while the training goes on.
    keep : int
        How many of the newest to keep.
    keep_best : bool
        Also keep the one with the highest ``top1`` in its meta data, and point the link ``best`` to it.
    """

    def __init__(self, directory: Path, *, world: World, background: bool, keep: int, keep_best: bool) -> None:
        self._directory = directory
        self._world = world
        self._keep, self._keep_best = keep, keep_best
        self._threads = ThreadPoolExecutor(1, "beton-checkpoint") if background else None
        # The background's collectives must not mix with those of the training.
        self._group: Any = dist.new_group(backend="gloo") if background and dist.is_initialized() else None
        self._pending: tuple[Path, Future[None]] | None = None
        self._silence = ExitStack()  # until the background is done

    def save(
        self,
        progress: Progress,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        ema: MovingAverage | None,
        rank_state: dict[str, Any],
        meta: dict[str, Any],
    ) -> None:
        """Begin a checkpoint, which `wait` completes; every rank calls both.

        `rank_state` is this rank's own state; `meta` must match in a run that resumes from here.
        """
        assert self._pending is None, "wait() comes before the next save()"
        final = self._directory / f"step-{progress.step:08d}"
        partial = self._directory / f".partial-{final.name}"
        if self._world.is_main:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        barrier()
        state = _shared_state(model, optimizer, ema)
        del state["param_groups"]
        _write(partial / f"rank-{self._world.rank}.pt", lambda file: torch.save(rank_state, file))
        record = {"version": VERSION, **meta, **progress.__dict__, "world_size": self._world.world_size}
        alone = not dist.is_initialized()
        self._silence.enter_context(_quiet())
        if self._threads is None:
            done = Future[None]()
            try:
                state_dict_saver.save(state, checkpoint_id=partial, no_dist=alone)
                barrier()
                self._complete(partial, final, record)
                done.set_result(None)
            except (Exception, CheckpointException) as error:  # raised by wait(), on every rank
                done.set_exception(error)
        else:
            saved = state_dict_saver.async_save(state, checkpoint_id=partial, process_group=self._group, no_dist=alone)
            assert isinstance(saved, Future)
            done = self._threads.submit(self._after, saved, partial, final, record)
        self._pending = final, done

    def wait(self) -> Path | None:
        """Wait until the checkpoint that was begun is complete, and return it; None if there is none.

        Raises
        ------
        BetonError
            It could not be written; every rank raises.
        """
        if self._pending is None:
            return None
        final, done = self._pending
        self._pending = None
        own = _problem_of(done)
        self._silence.close()
        problems = [problem for problem in gather_objects(own) if problem]
        if problems:
            raise BetonError(f"the checkpoint {final} could not be written: {problems[0]}")
        return final

    def close(self) -> None:
        """Let the background end; its errors have been raised by `wait`, or another error has ended the run."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._silence.close()

    def _after(self, saved: Future[Any], partial: Path, final: Path, record: dict[str, Any]) -> None:
        # DCP is done on this rank when it is on all: then every rank's own file, written before, is there too.
        saved.result()
        self._complete(partial, final, record)

    def _complete(self, partial: Path, final: Path, record: dict[str, Any]) -> None:
        """Seal a checkpoint whose files are all written: checksums, meta data, sync, rename; rank 0 does it."""
        if not self._world.is_main:
            return
        record["files"] = {path.name: _checksum(path) for path in sorted(partial.iterdir())}
        _write(partial / "meta.json", lambda file: file.write(json.dumps(record, indent=1).encode()))
        for path in partial.iterdir():
            _sync(path)
        _sync(partial)
        if final.exists():  # the same step was written before the resume
            shutil.rmtree(final)
        partial.rename(final)
        _sync(self._directory)
        best = _best_checkpoint(self._directory) if self._keep_best else None
        prune_checkpoints(self._directory, self._keep, final, best=best)
        if best is not None:
            link = self._directory / ".best"
            link.unlink(missing_ok=True)
            link.symlink_to(best.name)
            link.rename(self._directory / "best")


def _problem_of(done: Future[None]) -> str:
    try:
        done.result()
    except CheckpointException as error:  # no Exception; its text holds whole tracebacks
        return "; ".join(f"rank {rank}: {why[0]!r}" for rank, why in error.failures.items())
    except Exception as error:  # whatever it is, the other ranks must hear of it
        return repr(error)
    return ""


def _shared_state(model: nn.Module, optimizer: torch.optim.Optimizer, ema: MovingAverage | None) -> dict[str, Any]:
    """Return what all ranks save together, and ``param_groups``, which the options of a run determine.

    An optimiser may also keep state in a group: timm's Lamb counts its steps there. It is saved as ``group_state``.
    """
    weights, optimizer_state = get_state_dict(model, optimizer)
    groups: Any = optimizer_state.pop("param_groups")
    state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state, "param_groups": groups}
    options = {"params", *optimizer.defaults}
    kept = {str(number): {name: group[name] for name in group.keys() - options} for number, group in enumerate(groups)}
    if any(kept.values()):
        state["group_state"] = kept
    if ema is not None:
        state["ema"] = ema.weights
    return state


def _checksum(path: Path) -> list[int]:
    """Return a file's length and CRC-32."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return [path.stat().st_size, crc]


def _best_checkpoint(directory: Path) -> Path | None:
    """Return the checkpoint with the highest ``top1``, of equal ones the first."""
    scores = {}
    for path in find_checkpoints(directory).values():
        score = json.loads((path / "meta.json").read_text(encoding="utf-8")).get("top1")
        if score is not None:
            scores[path] = score
    return max(scores, key=lambda path: scores[path], default=None)


def damage(path: Path) -> str:
    """Say what is wrong with a checkpoint's files; nothing for a sound one."""
    try:
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        files = dict(meta.get("files", {}))
    except (OSError, ValueError, AttributeError) as error:
        return f"meta.json cannot be read ({error})"
    with ThreadPoolExecutor(8) as threads:
        for name, right, found in zip(
            files, files.values(), threads.map(_try_checksum, map(path.joinpath, files)), strict=True
        ):
            if found is None:
                return f"{name} is missing or cannot be read"
            if found[0] != right[0]:
                return f"{name} has {found[0]} bytes, {right[0]} were written"
            if found != right:
                return f"the bytes of {name} have changed since it was written"
    return ""


def _try_checksum(path: Path) -> list[int] | None:
    try:
        return _checksum(path)
    except OSError:
        return None


def find_resumable(resume: str, directory: Path) -> tuple[Path | None, list[str]]:
    """Return the checkpoint that ``--resume`` selects, whose files are sound, and notes for the user.

    Damaged checkpoints that are newer than the one that ``auto`` selects are renamed to ``damaged-step-...``.

    Raises
    ------
    UsageError
        The one that is named is damaged, or all are.
    """
    if resume == "no":
        return None, []
    if resume != "auto":
        problem = damage(Path(resume)) if (Path(resume) / "meta.json").exists() else ""
        if problem:
            raise UsageError(f"--resume {resume}: {problem}; --resume auto takes the newest checkpoint that is sound")
        return Path(resume), []
    damaged: dict[Path, str] = {}
    for path in reversed(find_checkpoints(directory).values()):
        if problem := damage(path):
            damaged[path] = problem
            continue
        notes = [f"warning: {bad} is damaged: {problem}. Resuming from {path}" for bad, problem in damaged.items()]
        for bad in damaged:
            aside = bad.with_name(f"damaged-{bad.name}")
            shutil.rmtree(aside, ignore_errors=True)
            bad.rename(aside)
        return path, notes
    if damaged:
        found = "; ".join(f"{path.name}: {problem}" for path, problem in damaged.items())
        raise UsageError(f"--resume auto: all checkpoints in {directory} are damaged ({found})")
    return None, []


def read_meta(path: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Return ``meta.json`` after checking that this run may continue it.

    Raises
    ------
    UsageError
        It is not one of our checkpoints, or an option that must match differs.
    """
    try:
        meta: dict[str, Any] = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path} is not a complete checkpoint: it has no meta.json") from error
    if meta.get("version") != VERSION:
        raise UsageError(f"{path} has checkpoint version {meta.get('version')}, this program reads {VERSION}")
    for key, value in expected.items():
        if meta["run"].get(key, value) != value:  # older checkpoints lack newer keys
            raise UsageError(
                f"{path} was saved with {key} = {meta['run'][key]!r}, this run has {value!r}; "
                "resume with the options of the interrupted run, or start a new --output"
            )
    return meta


def load_checkpoint(
    path: Path,
    *,
    world: World,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: MovingAverage | None,
    expected: dict[str, Any],
    data_world_size: int,
) -> tuple[Progress, dict[str, Any], dict[str, Any]]:
    """Load a checkpoint into the given objects; every rank calls it.

    `data_world_size` counts the processes that get different data.

    Returns
    -------
    tuple
        The position of the run; this rank's own state, or the merged states of the saving ranks if their number was
        different; and ``meta.json`` with the checkpoint's path.

    Raises
    ------
    UsageError
        It does not fit this run.
    """
    meta = read_meta(path, expected)
    state = _shared_state(model, optimizer, ema)
    groups = state.pop("param_groups")
    with _quiet():
        state_dict_loader.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
    for number, kept in state.get("group_state", {}).items():
        groups[int(number)].update(kept)
    optimizer_state = {**state["optimizer"], "param_groups": groups}
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=optimizer_state)
    if (meta["world_size"], meta.get("data_world_size", meta["world_size"])) == (world.world_size, data_world_size):
        rank_state = _read_rank_state(path, world.rank)
    else:
        # One rank reads them all: if every rank did, a shared file system would be overloaded.
        states = [_read_rank_state(path, rank) for rank in range(meta["world_size"])] if world.is_main else []
        rank_state = broadcast_object(merge_rank_states(states) if world.is_main else None)  # type: ignore[assignment]
    return (
        Progress(step=meta["step"], epoch=meta["epoch"], images=meta["images"]),
        rank_state,
        {**meta, "path": str(path)},
    )


def _read_rank_state(path: Path, rank: int) -> dict[str, Any]:
    # Our own file, beside the weights; it holds NumPy and Python generator states, not only tensors.
    state: dict[str, Any] = torch.load(path / f"rank-{rank}.pt", map_location="cpu", weights_only=False)
    return state


def _write(path: Path, write: Any) -> None:
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune_checkpoints(directory: Path, keep: int, written: Path, *, best: Path | None = None) -> None:
    """Remove all but the `keep` most recently written checkpoints; `written` and `best` are never removed."""
    others = [path for path in find_checkpoints(directory).values() if path not in (written, best)]
    others.sort(key=lambda path: (path / "meta.json").stat().st_mtime_ns)
    for path in others[: max(0, len(others) - (keep - 1))]:
        shutil.rmtree(path)


@contextmanager
def _quiet() -> Iterator[None]:
    # DCP warns on every call without a process group, but a single process without one is a normal run.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.distributed.*")
        yield
