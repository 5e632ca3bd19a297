"""What a network needs whatever the strategy: parameters, kept activations, arithmetic.

Networks of torch are measured on fake tensors, which have shapes but no memory. Language models, which are too large
to build here, come from their published shapes and formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

__all__ = ["TRANSFORMERS", "ModelSize", "TransformerShape", "measure_model", "with_lora"]


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Sizes of one network.

    Parameters
    ----------
    name : str
        What tables call it.
    parameters : int
        Elements of all weights.
    trainable : int
        Elements that get a gradient: fewer than `parameters` with LoRA.
    largest_block : int
        Parameters of the largest unit that FSDP gathers at a time.
    activation_bytes : float
        What autograd keeps for the backward pass of one sample.
    checkpointed_bytes : float
        The same with activation checkpointing by block: the inputs of all blocks, and one block recomputed.
    boundary_bytes : float
        Activation of one sample between two blocks: what a pipeline stage sends.
    forward_flops : float
        Floating-point operations of the forward pass of one sample; the backward pass takes twice as many.
    layers : int
        Transformer layers; 0 for a network that tensor parallelism does not divide.
    unsplit_activation_bytes : float
        The part of `activation_bytes` that tensor parallelism does not divide.
    """

    name: str
    parameters: int
    trainable: int
    largest_block: int
    activation_bytes: float
    checkpointed_bytes: float
    boundary_bytes: float
    forward_flops: float
    layers: int = 0
    unsplit_activation_bytes: float = 0.0


def measure_model(name: str, model: nn.Module, image_size: int, *, amp: bool, blocks: Iterable[nn.Module]) -> ModelSize:
    """Measure a network for images, on fake tensors: no memory is taken and nothing is computed.

    Parameters
    ----------
    name : str
        What tables call it.
    model : torch.nn.Module
        The network; it is moved to fake tensors and of no use afterwards.
    image_size : int
        Side of the images, pixels.
    amp : bool
        bfloat16 autocast.
    blocks : iterable of torch.nn.Module
        The units of `model` that FSDP gathers and checkpointing recomputes.

    Returns
    -------
    ModelSize
    """
    from torch._subclasses import FakeTensorMode

    units = list(blocks) or [model]
    model = model.to("meta").train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model.to_empty(device="cpu")
        # The difference of two batches leaves out what does not grow with the batch: autocast's copies of weights.
        small, large = (_kept(model, units, image_size, batch, amp=amp) for batch in (2, 4))
        flops = _forward_flops(model, image_size)
    total, inputs, inside = ((after - before) / 2 for before, after in zip(small, large, strict=True))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    transformer = [unit for unit in units if any(isinstance(part, nn.MultiheadAttention) for part in unit.modules())]
    return ModelSize(
        name=name,
        parameters=parameters,
        trainable=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        largest_block=max(sum(parameter.numel() for parameter in unit.parameters()) for unit in units),
        activation_bytes=total,
        checkpointed_bytes=min(total, inputs + inside),
        boundary_bytes=inputs / len(units),
        forward_flops=flops,
        layers=len(transformer),
        # Norms, dropouts and inputs of the two halves of a layer: 10 of 34 parts (Korthikanti et al., 2022).
        unsplit_activation_bytes=total * 10 / 34 if transformer else 0.0,
    )


def _kept(
    model: nn.Module, units: list[nn.Module], image_size: int, batch: int, *, amp: bool
) -> tuple[float, float, float]:
    """Return the bytes kept for backward: in all, inputs of units, and inside the unit that keeps most."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}  # the storages are held, so that no number is used twice
    inside: dict[nn.Module, set[int]] = {unit: set() for unit in units}
    inputs: dict[nn.Module, int] = {}
    open_units: list[nn.Module] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
            for unit in open_units:
                inside[unit].add(storage._cdata)
        return tensor

    def enter(unit: nn.Module, arguments: tuple[Any, ...]) -> None:
        open_units.append(unit)
        inputs[unit] = sum(each.untyped_storage().nbytes() for each in arguments if isinstance(each, torch.Tensor))

    def leave(unit: nn.Module, _arguments: Any, _result: Any) -> None:
        open_units.remove(unit)

    hooks = [unit.register_forward_pre_hook(enter) for unit in units]
    hooks += [unit.register_forward_hook(leave) for unit in units]
    try:
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=amp),
        ):
            logits = model(torch.empty(batch, 3, image_size, image_size))
            # The graph must live until everything is counted.
            loss = nn.functional.cross_entropy(logits.float(), torch.zeros(batch, dtype=torch.long))
    finally:
        for hook in hooks:
            hook.remove()
    del loss
    sizes = {number: storage.nbytes() for number, storage in kept.items()}
    largest = max(sum(sizes[number] for number in numbers) for numbers in inside.values())
    return float(sum(sizes.values())), float(sum(inputs.values())), float(largest)


def _forward_flops(model: nn.Module, image_size: int) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, image_size, image_size))
    model.train()
    return float(counter.get_total_flops())


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """A decoder-only language model, or a vision transformer, by its published shape.

    Parameters
    ----------
    name : str
        What tables call it.
    layers, hidden, heads, sequence : int
        Transformer layers, width, attention heads, tokens of a sample.
    vocabulary : int
        Rows of the embedding; for a vision transformer the classes.
    intermediate : int
        Width inside the MLP.
    kv_heads : int
        Heads of keys and values; fewer than `heads` with grouped attention.
    gated : bool
        The MLP has three matrices (SwiGLU), not two.
    tied : bool
        Embedding and output share their weights.
    source : str
        Where the shape was published.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    intermediate: int
    kv_heads: int
    gated: bool
    tied: bool
    source: str

    @property
    def attention_shapes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the four matrices of attention."""
        keys = self.hidden * self.kv_heads // self.heads
        return {"q": (self.hidden, self.hidden), "k": (self.hidden, keys), "v": (self.hidden, keys),
                "o": (self.hidden, self.hidden)}  # fmt: skip

    def size(self, *, flash_attention: bool = True) -> ModelSize:
        """Return the sizes in 16-bit precision.

        Activations of a layer: ``s h (34 + 5 a s / h)`` bytes per sample, of which the second term, the attention
        matrix, is not kept by flash attention, and ``2 s h`` with full recomputation (Korthikanti et al., Reducing
        Activation Recomputation in Large Transformer Models, arXiv:2205.05198, equations 1 and 6). A forward pass takes
        ``2 P s + 4 L s^2 h`` operations (Kaplan et al., arXiv:2001.08361, and the two products of attention).
        """
        tokens, hidden = self.sequence, self.hidden
        attention = sum(rows * columns for rows, columns in self.attention_shapes.values())
        layer = attention + (3 if self.gated else 2) * hidden * self.intermediate + 2 * hidden
        embedding = self.vocabulary * hidden * (1 if self.tied else 2)
        parameters = self.layers * layer + embedding
        matrix = 0 if flash_attention else 5 * self.heads * tokens**2
        kept = 34 * tokens * hidden + matrix
        logits = 6 * tokens * self.vocabulary  # 16-bit logits and their 32-bit copy for the loss
        return ModelSize(
            name=self.name,
            parameters=parameters,
            trainable=parameters,
            largest_block=max(layer, self.vocabulary * hidden),
            activation_bytes=self.layers * kept + logits,
            checkpointed_bytes=self.layers * 2 * tokens * hidden + kept + logits,
            boundary_bytes=2 * tokens * hidden,
            forward_flops=2.0 * (self.layers * layer + self.vocabulary * hidden) * tokens
            + 4.0 * self.layers * tokens**2 * hidden,
            layers=self.layers,
            unsplit_activation_bytes=self.layers * 10 * tokens * hidden,
        )


def with_lora(shape: TransformerShape, rank: int, matrices: str = "qv") -> ModelSize:
    """Return the sizes with low-rank adapters: ``rank (inputs + outputs)`` trained elements per matrix.

    Only adapters get gradients and optimiser state, and only their gradients are communicated (Hu et al., LoRA,
    arXiv:2106.09685, section 4.1).

    Examples
    --------
    >>> with_lora(TRANSFORMERS["7B"], 8).trainable
    4194304
    """
    size = shape.size()
    shapes = shape.attention_shapes
    trained = shape.layers * sum(rank * sum(shapes[matrix]) for matrix in matrices)
    return replace(size, name=f"{size.name} + LoRA {rank}", parameters=size.parameters + trained, trainable=trained)


TRANSFORMERS = {
    "ViT-L": TransformerShape(
        name="ViT-L/16", layers=24, hidden=1024, heads=16, sequence=197, vocabulary=1000, intermediate=4096,
        kv_heads=16, gated=False, tied=True, source="Dosovitskiy et al., arXiv:2010.11929, table 1",
    ),
    "1.5B": TransformerShape(
        name="GPT-2 1.5B", layers=48, hidden=1600, heads=25, sequence=1024, vocabulary=50257, intermediate=6400,
        kv_heads=25, gated=False, tied=True, source="Radford et al., Language Models are Unsupervised ..., table 2",
    ),
    "7B": TransformerShape(
        name="Llama 2 7B", layers=32, hidden=4096, heads=32, sequence=4096, vocabulary=32000, intermediate=11008,
        kv_heads=32, gated=True, tied=False, source="Touvron et al., arXiv:2307.09288, and its model card",
    ),
    "70B": TransformerShape(
        name="Llama 2 70B", layers=80, hidden=8192, heads=64, sequence=4096, vocabulary=32000, intermediate=28672,
        kv_heads=8, gated=True, tied=False, source="Touvron et al., arXiv:2307.09288, and its model card",
    ),
}  # fmt: skip
