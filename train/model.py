"""Creates the network by name; its blocks, parameter groups and moving average."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from dataloading import UsageError

from .networks import ResNet9, TinyNet, blur_strides, tiny_vit


def build_model(
    name: str, num_classes: int, *, image_size: int = 224, drop_path: float = 0.0, blurpool: bool = False
) -> nn.Module:
    """Create an untrained network.

    Parameters
    ----------
    name : str
        ``tiny``, ``tiny-bn``, ``tiny-vit``, ``resnet9``, a classification model of torchvision, or one of timm, if
        that is installed, as ``timm:NAME``; a plain name that only timm has will do.
    num_classes : int
        Outputs.
    image_size : int
        Side of the images, for networks that depend on it.
    drop_path : float
        Probability of leaving out the deepest block (stochastic depth); 0 leaves the network's own.
    blurpool : bool
        Blur before strided convolutions.

    Raises
    ------
    UsageError
        There is no such network, or it has no stochastic depth.
    """
    plain: dict[str, Callable[[int], nn.Module]] = {
        "tiny": TinyNet,
        "tiny-bn": partial(TinyNet, batch_norm=True),
        "resnet9": ResNet9,
        "tiny-vit": partial(tiny_vit, image_size=image_size),
    }
    if name in plain:
        if drop_path:
            raise _no_drop_path(name)
        model = plain[name](num_classes)
    elif name in _torchvision_models():
        model = _torchvision_model(name, num_classes, image_size, drop_path)
    else:
        model = _timm_model(name.removeprefix("timm:"), num_classes, image_size, drop_path)
    if blurpool:
        blur_strides(model)
    return model


def _no_drop_path(name: str) -> UsageError:
    return UsageError(f"--drop-path: {name} has no stochastic depth; leave it out")


def _torchvision_models() -> list[str]:
    from torchvision import models

    names: list[str] = models.list_models(module=models)
    return names


def _torchvision_model(name: str, num_classes: int, image_size: int, drop_path: float) -> nn.Module:
    from torchvision import models

    options: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if drop_path:
        options["stochastic_depth_prob"] = drop_path
    try:
        model: Any = models.get_model(name, weights=None, num_classes=num_classes, **options)
    except TypeError as error:
        if "stochastic_depth_prob" not in str(error):
            raise
        raise _no_drop_path(name) from error
    if hasattr(model, "aux_logits"):
        model.aux_logits = False
    assert isinstance(model, nn.Module)
    return model


def _timm_model(name: str, num_classes: int, image_size: int, drop_path: float) -> nn.Module:
    timm: Any = None
    with suppress(ImportError):
        timm = importlib.import_module("timm")
    if timm is None or not timm.is_model(name):
        import difflib

        known = [*_torchvision_models(), *([] if timm is None else timm.list_models())]
        near = ", ".join(difflib.get_close_matches(name, known, n=3)) or "beton train --help"
        missing = " (timm, which has more, is not installed)" if timm is None else ""
        raise UsageError(f"--model {name!r} is not a model of torchvision or timm{missing}; did you mean: {near}?")
    config = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {"img_size": image_size} if config is not None and config.fixed_input_size else {}
    if drop_path:
        options["drop_path_rate"] = drop_path
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=num_classes, **options)
    return model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """List the parts that are gathered, or computed again, one at a time: residual blocks, transformer layers."""
    return [
        block
        for container in model.modules()
        if isinstance(container, (nn.Sequential, nn.ModuleList))
        for block in container
        if _is_block(block)
    ]


def _is_block(module: nn.Module) -> bool:
    parts = list(module.children())
    inner = any(isinstance(part, (nn.Sequential, nn.ModuleList)) and len(part) > 1 for part in parts)
    return (
        bool(parts) and (not isinstance(module, nn.Sequential) or not inner) and any(True for _ in module.parameters())
    )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a sharded tensor, which shares its memory, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def parameter_groups(model: nn.Module, *, weight_decay: float, decay_norms: bool) -> list[dict[str, Any]]:
    """Split parameters into those with weight decay and those without (norms and biases: all with one dimension)."""
    groups: dict[Any, dict[str, Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decay = weight_decay if decay_norms or parameter.ndim > 1 else 0.0
            # Optimisers update a group's tensors together, which must be divided over the same processes.
            key = decay, getattr(parameter, "device_mesh", None)
            groups.setdefault(key, {"params": [], "weight_decay": decay})["params"].append(parameter)
    return list(groups.values())


class MovingAverage:
    """Exponential moving average of weights and floating-point buffers.

    With the usual warm-up of the decay, ``min(decay, (1 + step) / (10 + step))``, the random initial weights do not
    dominate early averages.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._module = module
        self.weights = {name: value.detach().clone() for name, value in module.named_parameters()}
        self.buffers = {name: value.detach().clone() for name, value in module.named_buffers()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after optimiser step `step`, counted from 0."""
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        averages = [local_part(value) for value in self.weights.values()]
        torch._foreach_lerp_(averages, [local_part(value.detach()) for value in self._module.parameters()], weight)
        for average, value in zip(self.buffers.values(), self._module.buffers(), strict=True):
            if average.is_floating_point():
                average.lerp_(value, weight)
            else:
                average.copy_(value)

    def copy_to(self, weights: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
        """Copy the averages into the given tensors, in the module's order."""
        for target, average in zip((*weights, *buffers), (*self.weights.values(), *self.buffers.values()), strict=True):
            target.copy_(local_part(average))


def count_flops(model: nn.Module, image_size: int) -> float:
    """Return the number of floating-point operations of one image's forward pass, counted on fake tensors."""
    import copy

    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(model).eval().to("meta")(torch.empty(1, 3, image_size, image_size, device="meta"))
    return float(counter.get_total_flops())
