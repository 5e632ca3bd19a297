"""The position in a run, saved as a few numbers and strings, and restored.

Every value is a plain number or string, so that the state can be JSON, part of a checkpoint of
`torch.distributed.checkpoint`, or whatever else stores a flat dictionary. Knows no files and no batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloading.checks import as_integer
from dataloading.dataset.info import DatasetInfo
from dataloading.errors import StateError
from dataloading.sampling.sampler import Sampler

__all__ = ["STATE_VERSION", "restore", "save"]

STATE_VERSION = 1


def save(sampler: Sampler, dataset: DatasetInfo) -> dict[str, Any]:
    """Return the position of `sampler`, and what its order depends on.

    Returns
    -------
    dict
        version, epoch, consumed (positions of the epoch's global order that were received, over all ranks), nodes
        (those of the epoch so far, for orders that depend on them), and seed, dataset, order: what must be equal where
        the state is loaded.
    """
    return {
        "version": STATE_VERSION,
        "epoch": sampler.epoch,
        "consumed": sampler.consumed,
        "nodes": sampler.history(),
        "seed": sampler.seed,
        "dataset": dataset.fingerprint,
        "order": sampler.identity,
    }


def restore(state: Mapping[str, Any], sampler: Sampler, dataset: DatasetInfo) -> None:
    """Set `sampler` to a saved position.

    Raises
    ------
    StateError
        The state belongs to other data, another seed or another order; both values are shown.
    """
    mine = save(sampler, dataset)
    if not isinstance(state, Mapping):
        raise StateError(f"not a state of this loader: got {type(state).__name__}, expected what state_dict() gave")
    missing = set(mine) - set(state)
    if missing:
        raise StateError(f"not a state of this loader: {', '.join(sorted(missing))} missing, got {sorted(state)}")
    for key, difference in (
        ("version", "in another version of the state"),
        ("dataset", "on another dataset"),
        ("seed", "with another seed"),
        ("order", "with other order options"),
    ):
        if state[key] != mine[key]:
            saved, here = state[key], mine[key]
            raise StateError(f"the state was saved {difference}: saved {saved!r}, here {here!r} ({dataset.path})")
    epoch, consumed = as_integer(state["epoch"]), as_integer(state["consumed"])
    if epoch is None or consumed is None or epoch < 0 or consumed < 0:
        raise StateError(
            f"the state's epoch={state['epoch']!r} and consumed={state['consumed']!r} must be integers of at least 0"
        )
    sampler.resume(epoch, consumed, str(state["nodes"]))
