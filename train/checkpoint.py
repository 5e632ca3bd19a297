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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from dataloading import UsageError
from train.rank_states import merge_rank_states

from .distributed import World, barrier, broadcast_object
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


def save_checkpoint(
    directory: Path,
    *,
    world: World,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: MovingAverage | None,
    rank_state: dict[str, Any],
    meta: dict[str, Any],
    keep: int,
) -> Path:
    """Write one checkpoint and return its folder; every rank calls it.

    `directory` is shared by all nodes. `rank_state` is this rank's own state; `meta` must match in a run that resumes
    from here. Only the `keep` newest of the older checkpoints are kept.
    """
    final = directory / f"step-{progress.step:08d}"
    partial = directory / f".partial-{final.name}"
    if world.is_main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    barrier()
    weights, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state}
    if ema is not None:
        state["ema"] = ema.weights
    with _quiet():
        state_dict_saver.save(state, checkpoint_id=partial, no_dist=not dist.is_initialized())
    _write(partial / f"rank-{world.rank}.pt", lambda file: torch.save(rank_state, file))
    barrier()
    if world.is_main:
        record = {"version": VERSION, **meta, **progress.__dict__, "world_size": world.world_size}
        _write(partial / "meta.json", lambda file: file.write(json.dumps(record, indent=1).encode()))
        for path in partial.iterdir():
            _sync(path)
        _sync(partial)
        if final.exists():  # the same step was written before the resume
            shutil.rmtree(final)
        partial.rename(final)
        _sync(directory)
        prune_checkpoints(directory, keep, final)
    barrier()
    return final


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
) -> tuple[Progress, dict[str, Any], dict[str, Any]]:
    """Load a checkpoint into the given objects; every rank calls it.

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
    weights, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state}
    if ema is not None:
        state["ema"] = ema.weights
    with _quiet():
        state_dict_loader.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if meta["world_size"] == world.world_size:
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


def choose_checkpoint(resume: str, directory: Path | None) -> Path | None:
    """Return the checkpoint that ``--resume`` selects; rank 0 looks, so that all ranks agree."""
    if resume == "no":
        return None
    choice = Path(resume) if resume != "auto" else newest_checkpoint(directory) if directory is not None else None
    return broadcast_object(choice)  # type: ignore[return-value]


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


def prune_checkpoints(directory: Path, keep: int, written: Path) -> None:
    """Remove all but the `keep` most recently written checkpoints; `written` is never removed."""
    others = [path for path in find_checkpoints(directory).values() if path != written]
    others.sort(key=lambda path: (path / "meta.json").stat().st_mtime_ns)
    for path in others[: max(0, len(others) - (keep - 1))]:
        shutil.rmtree(path)


@contextmanager
def _quiet() -> Iterator[None]:
    # DCP warns on every call without a process group, but a single process without one is a normal run.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.distributed.*")
        yield
