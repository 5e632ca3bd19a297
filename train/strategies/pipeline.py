"""``pp``: each process of a group has a stage of the network, a run of its layers (`torch.distributed.pipelining`).

A batch is cut into micro-batches that follow each other through the stages; 1F1B (PipeDream-flush, arXiv:2104.04473)
alternates a forward and a backward pass, so that a stage keeps the activations of few micro-batches. The first stage
needs the images, the last one the labels. Groups divide the data among them and average gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torchvision.models import ResNet, VisionTransformer

from dataloading import UsageError
from train.networks import TinyNet
from train.strategies.base import Criterion, Replica, Scaling, clip_by_parts

Part = tuple[tuple[str, ...], Callable[[torch.Tensor], torch.Tensor]]


class Pipeline(Replica):
    """1F1B over the mesh's ``pp``; gradients are averaged over its ``dp``."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Keep this stage's layers, under their names, and remove the others."""
        self.stage, self.num_stages = self.mesh.get_local_rank("pp"), self.mesh["pp"].size()
        self.data_group = self.mesh["dp"].get_group()
        self.counts = self.stage == self.num_stages - 1
        self.num_micro = self.options.pp_micro_batches or 2 * self.num_stages
        parts = parts_of(model)
        if len(parts) < self.num_stages:
            raise UsageError(f"--strategy pp: {len(parts)} layers cannot be cut into {self.num_stages} stages")
        shares = [[parts[index] for index in share] for share in np.array_split(np.arange(len(parts)), self.num_stages)]
        for number, share in enumerate(shares):
            for name in (name for names, _ in share for name in names) if number != self.stage else ():
                parent, _, leaf = name.rpartition(".")
                delattr(model.get_submodule(parent), leaf)
        self._layers = [run for _, run in shares[self.stage]]
        return model

    def wrap(self, module: nn.Module) -> nn.Module:
        """Set up the schedule that runs this stage."""
        self._schedule = Schedule1F1B(self._make_stage(), self.num_micro, self._loss, scale_grads=False)
        return module

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = self._criterion(logits, targets)
        self._outputs.append((logits.detach(), losses.detach()))
        return self._scaled(losses.sum())

    def forward_backward(
        self, images: torch.Tensor, targets: torch.Tensor, criterion: Criterion, scaled: Scaling, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Run all parts of a micro-batch through all stages, forward and backward."""
        if len(targets) % self.num_micro:
            raise UsageError(
                f"--strategy pp: {len(targets)} images cannot be cut into {self.num_micro} equal parts; choose another "
                f"--batch-size or --pp-micro-batches"
            )
        self._criterion, self._scaled, self._outputs = criterion, scaled, list[tuple[torch.Tensor, torch.Tensor]]()
        self._schedule.step(*([images] if self.stage == 0 else []), target=targets if self.counts else None)
        if last and dist.get_world_size(self.data_group) > 1:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.data_group)
                    parameter.grad.div_(dist.get_world_size(self.data_group))
        # In the first step the schedule also calls the loss to find out its shape, before anything else.
        if not self.counts:
            return None
        logits, losses = zip(*self._outputs[-self.num_micro :], strict=True)
        return torch.cat(logits), torch.cat(losses)

    def clip_gradients(self, parameters: list[nn.Parameter], max_norm: float) -> None:
        """Add up the norms of all stages."""
        clip_by_parts(parameters, max_norm, self.mesh["pp"].get_group())

    def logits(self, images: torch.Tensor) -> torch.Tensor | None:
        """Run a validation batch through the stages; the last one has the outputs."""
        schedule = ScheduleGPipe(self._make_stage(), 1)
        output: torch.Tensor | None = schedule.eval(*([images] if self.stage == 0 else []))
        return output

    def _make_stage(self) -> PipelineStage:
        layers = Layers(self._layers, self.precision)
        return PipelineStage(layers, self.stage, self.num_stages, self.device, group=self.mesh["pp"].get_group())


class Layers(nn.Module):
    """Functions one after the other; the network that they belong to owns their parameters."""

    def __init__(self, layers: list[Callable[[torch.Tensor], torch.Tensor]], precision: Callable[[], Any]) -> None:
        super().__init__()
        self._run, self._precision = layers, precision

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Apply all."""
        with self._precision():
            for layer in self._run:
                values = layer(values)
        return values.contiguous()  # what is sent must be, also where kernels prefer channels last


def parts_of(model: nn.Module) -> list[Part]:
    """Cut a network into a chain: the names of each link's parameters or modules, and its function.

    Each link has parameters, since a stage without any would have nothing to optimise.

    Raises
    ------
    UsageError
        No chain is known for this kind of network.
    """
    if isinstance(model, TinyNet):
        return [
            (("features.0", "features.1"), model.features[:3]),
            (("features.3",), model.features[3]),
            (("classifier",), lambda values: model.classifier(model.pool(values).flatten(1))),
        ]
    if isinstance(model, VisionTransformer):
        layers = model.encoder.layers.named_children()
        links: list[Part] = [((f"encoder.layers.{name}",), layer) for name, layer in layers]
        first: Part = (("conv_proj", "class_token", "encoder.pos_embedding"), lambda images: _embed(model, images))
        return [first, *links, (("encoder.ln", "heads"), lambda tokens: model.heads(model.encoder.ln(tokens)[:, 0]))]
    if isinstance(model, ResNet):
        stages = [(name, layer) for name, layer in model.named_children() if name.startswith("layer")]
        links = [((f"{name}.{number}",), block) for name, blocks in stages for number, block in blocks.named_children()]
        stem: Part = (("conv1", "bn1"), lambda images: model.maxpool(model.relu(model.bn1(model.conv1(images)))))
        return [stem, *links, (("fc",), lambda values: model.fc(model.avgpool(values).flatten(1)))]
    raise UsageError(
        "--strategy pp cuts torchvision's ResNets and vision transformers: --model resnet50, vit_b_16, ..."
    )


def _embed(model: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
    patches = model._process_input(images)
    tokens = torch.cat([model.class_token.expand(len(patches), -1, -1), patches], 1)
    embedded: torch.Tensor = model.encoder.dropout(tokens + model.encoder.pos_embedding)
    return embedded
