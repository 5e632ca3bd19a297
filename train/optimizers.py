"""Optimisers by name: SGD and AdamW are torch's, LAMB and Muon are timm's."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from dataloading import UsageError

from .options import OptimOptions


def make_optimizer(groups: list[dict[str, Any]], options: OptimOptions, *, lr: float) -> torch.optim.Optimizer:
    """Create the optimiser of ``--optimizer`` for parameter groups that have their own weight decay.

    Raises
    ------
    UsageError
        It needs timm, which is not installed.
    """
    betas = options.beta1, options.beta2
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=options.momentum, nesterov=options.nesterov)
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas)
    try:
        optim: Any = importlib.import_module("timm.optim")
    except ImportError as error:
        raise UsageError(
            f"--optimizer {options.optimizer} comes with timm, which is missing: pip install timm"
        ) from error
    made: torch.optim.Optimizer
    if options.optimizer == "lamb":
        made = optim.Lamb(groups, lr=lr, betas=betas)
    else:
        made = optim.Muon(groups, lr=lr, momentum=options.momentum, nesterov=options.nesterov, betas=betas)
    return made
