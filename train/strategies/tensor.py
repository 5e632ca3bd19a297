"""``tp``: each layer of a vision transformer is divided over a group of processes (Megatron-LM, arXiv:1909.08053).

Queries, keys, values and the first layer of the MLP are divided by their outputs (heads, hidden units), the layers that
follow by their inputs, so that a block communicates twice in the forward pass: one all-reduce behind the attention, one
behind the MLP. Everything else is computed by all. Groups divide the data among them, and parameters by FSDP2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torchvision.models.vision_transformer import EncoderBlock

from dataloading import UsageError
from train.strategies.base import clip_by_parts
from train.strategies.sharded import Sharded, shard

_PLAN = {
    # Gradients of the three are added up before they are reduced. The other two inputs are the same.
    "self_attention": PrepareModuleInput(
        input_layouts=(Replicate(), None, None), desired_input_layouts=(Replicate(), None, None)
    ),
    "self_attention.query": ColwiseParallel(),
    "self_attention.key": ColwiseParallel(),
    "self_attention.value": ColwiseParallel(),
    "self_attention.out": RowwiseParallel(),
    "mlp.0": ColwiseParallel(),
    "mlp.3": RowwiseParallel(),
}


class TensorParallel(Sharded):
    """DTensors over the mesh's ``tp``, `fully_shard` over its ``dp``."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Divide each transformer block, then over the data-parallel processes."""
        blocks = [block for block in model.modules() if isinstance(block, EncoderBlock)]
        group = self.mesh["tp"].size()
        if not blocks:
            raise UsageError("--strategy tp divides torchvision's vision transformers: --model vit_b_16, vit_l_16, ...")
        if blocks[0].num_heads % group:
            raise UsageError(
                f"--strategy tp in groups of {group} processes: {blocks[0].num_heads} attention heads are not a "
                "multiple of that; choose another --group-size"
            )
        for block in blocks:
            block.self_attention = HeadsAttention(block.self_attention)
            parallelize_module(block, self.mesh["tp"], _PLAN)
        self.counts = self.mesh.get_local_rank("tp") == 0
        self.data_group = self.mesh["dp"].get_group()
        return shard(model, self.options, self.mesh["dp"])

    def clip_gradients(self, parameters: list[nn.Parameter], max_norm: float) -> None:
        """Add up the norms of tensors that are divided in different ways."""
        clip_by_parts(parameters, max_norm)


class HeadsAttention(nn.Module):
    """Self-attention with one matrix each for queries, keys and values, whose heads can be divided.

    Parameters
    ----------
    fused : torch.nn.MultiheadAttention
        Has the three in one matrix; its values are taken over.
    """

    def __init__(self, fused: nn.MultiheadAttention) -> None:
        super().__init__()
        self.head_dim, self.dropout = fused.head_dim, fused.dropout
        weights, biases = fused.in_proj_weight.chunk(3), fused.in_proj_bias.chunk(3)
        self.query, self.key, self.value = map(_linear, weights, biases)
        self.out = _linear(fused.out_proj.weight, fused.out_proj.bias)

    def forward(self, tokens: torch.Tensor, *_same: Any, **_flags: Any) -> tuple[torch.Tensor, None]:
        """Return what `MultiheadAttention` does for three times the same input, shape (N, S, E)."""
        query, key, value = (
            layer(tokens).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return self.out(mixed.transpose(1, 2).flatten(-2)), None


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
