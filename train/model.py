"""Creates the network by name; its blocks, parameter groups and moving average."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dataloading import UsageError


class TinyNet(nn.Module):
    """A network for tests, with batch norm (keeps statistics) or group norm (treats rows separately)."""

    def __init__(self, num_classes: int, *, batch_norm: bool = False) -> None:
        super().__init__()

        def norm(channels: int) -> nn.Module:
            return nn.BatchNorm2d(channels) if batch_norm else nn.GroupNorm(2, channels)

        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
            norm(8),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), norm(16), nn.ReLU()),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (N, num_classes)."""
        logits: torch.Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def build_model(name: str, num_classes: int) -> nn.Module:
    """Create an untrained network.

    Parameters
    ----------
    name : str
        ``tiny``, ``tiny-bn`` or the name of a torchvision classification model.
    num_classes : int
        Outputs.

    Raises
    ------
    UsageError
        torchvision has no such classification model.
    """
    if name in ("tiny", "tiny-bn"):
        return TinyNet(num_classes, batch_norm=name == "tiny-bn")
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        import difflib

        near = ", ".join(difflib.get_close_matches(name, known, n=3)) or "beton train --help"
        raise UsageError(f"--model {name!r} is not a torchvision classification model; did you mean: {near}?")
    options: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model: Any = models.get_model(name, weights=None, num_classes=num_classes, **options)
    if hasattr(model, "aux_logits"):
        model.aux_logits = False
    assert isinstance(model, nn.Module)
    return model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """List the parts that are gathered, or computed anew, one at a time: residual blocks, transformer layers."""
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
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if decay_norms or weight_decay == 0:
        return [{"params": parameters, "weight_decay": weight_decay}]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


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
