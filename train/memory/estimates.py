"""What a strategy makes of a network's sizes: bytes per device, and bytes sent per step.

For N devices and P parameters, with `w` bytes per weight, `g` per gradient and `k` of optimiser state:

==========  ==================  =====================================  =============================================
strategy    weights, gradients  optimiser state                        sent per device and step
==========  ==================  =====================================  =============================================
ddp         w P, g P            k P                                    all-reduce: 2 (N-1)/N g P
zero1       w P/N, g P/N        k P / N                                one all-gather and one reduce-scatter
fsdp        w P/N, g P/N        k P / N                                two all-gathers and one reduce-scatter
hsdp        as fsdp over S      as fsdp over S devices                 as fsdp over S, and an all-reduce of g P/S
tp          w P/T, g P/T        k P / T                                4 all-reduces of an activation per layer
pp          w P/N, g P/N        k P / N                                an activation and its gradient per boundary
==========  ==================  =====================================  =============================================

Our zero1 is FSDP2 that keeps the gathered weights until their backward pass (docs/decisions/0012): within a step it
also holds all weights in the precision of the computation. ZeRO-1 of other systems holds w P and g P instead.

Sources: Rajbhandari et al., ZeRO, arXiv:1910.02054, sections 3, 5 and 7 (bytes, communication); Thakur et al.,
Optimization of Collective Communication Operations in MPICH, 2005 (rings); Zhao et al., PyTorch FSDP,
arXiv:2304.11277, section 3.2 (hybrid sharding); Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3, and
Korthikanti et al., arXiv:2205.05198, section 4 (tensor parallelism); Narayanan et al., arXiv:2104.04473, section 2.2
(1F1B).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dataloading import UsageError

from .model_sizes import ModelSize

__all__ = ["OPTIMIZER_BYTES", "STRATEGIES", "Estimate", "Setup", "estimate"]

# Bytes of state per trained parameter, in float32: momentum; both moments; one moment.
OPTIMIZER_BYTES = {"sgd": 4, "adamw": 8, "lamb": 8, "muon": 4}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a network is trained.

    Parameters
    ----------
    devices : int
        Devices in all.
    batch_size : int
        Samples per device and step.
    optimizer : str
        ``sgd``, ``adamw``, ``lamb`` or ``muon``.
    amp : bool
        Compute in 16 bits; weights, gradients and optimiser state stay in 32 bits.
    checkpointing : bool
        Keep the inputs of blocks only, and compute the rest again in the backward pass.
    offload : bool
        FSDP: weights, gradients and optimiser state live in the host's memory.
    shard_devices : int
        Devices of a node: what hsdp shards over and tp divides over.
    micro_batches : int
        Parts of a batch in a pipeline.

    Raises
    ------
    UsageError
        The optimiser is unknown, or a number is below 1.
    """

    devices: int
    batch_size: int
    optimizer: str = "adamw"
    amp: bool = True
    checkpointing: bool = False
    offload: bool = False
    shard_devices: int = 8
    micro_batches: int = 8

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZER_BYTES:
            raise UsageError(f"optimizer is {self.optimizer!r}; expected one of {', '.join(OPTIMIZER_BYTES)}")
        for name in ("devices", "batch_size", "shard_devices", "micro_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element in the forward and backward pass."""
        return 2 if self.amp else 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes on one device at the peak of a step, and what one step sends.

    Parameters
    ----------
    strategy : str
        ``ddp``, ``zero1``, ``fsdp``, ``hsdp``, ``tp`` or ``pp``.
    setup : Setup
        How it trains.
    weights, gradients, optimizer, activations, buffers : float
        Bytes. `buffers` are gathered blocks, 16-bit copies of weights, and gradients on their way.
    sent_bytes : float
        What one device sends in a step over the network between devices.
    idle_share : float
        Share of the step in which a device waits by design: the pipeline's bubble.
    """

    strategy: str
    setup: Setup
    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    sent_bytes: float
    idle_share: float = 0.0

    @property
    def total(self) -> float:
        """Bytes on one device."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def estimate(size: ModelSize, strategy: str, setup: Setup) -> Estimate:
    """Estimate the memory and the communication of a strategy.

    Parameters
    ----------
    size : ModelSize
        The network.
    strategy : str
        One of `STRATEGIES`.
    setup : Setup
        How it is trained.

    Raises
    ------
    UsageError
        The strategy is unknown, or does not apply to the network.

    Examples
    --------
    Mixed precision and AdamW take 16 bytes per parameter, and autocast's copies 2 more:

    >>> from train.memory import TRANSFORMERS
    >>> size = TRANSFORMERS["7B"].size()
    >>> found = estimate(size, "ddp", Setup(devices=8, batch_size=1))
    >>> round((found.total - found.activations) / size.parameters)
    18
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"strategy is {strategy!r}; expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[strategy](size, setup)


def _activations(size: ModelSize, setup: Setup) -> float:
    return setup.batch_size * (size.checkpointed_bytes if setup.checkpointing else size.activation_bytes)


def _ring(devices: int, size_bytes: float) -> float:
    """Return what a device sends in an all-gather or a reduce-scatter of `size_bytes`; an all-reduce is both."""
    return (devices - 1) / devices * size_bytes


def _ddp(size: ModelSize, setup: Setup) -> Estimate:
    return Estimate(
        strategy="ddp",
        setup=setup,
        weights=4.0 * size.parameters,
        gradients=4.0 * size.trainable,  # DDP's buckets are the gradients (gradient_as_bucket_view)
        optimizer=float(OPTIMIZER_BYTES[setup.optimizer] * size.trainable),
        activations=_activations(size, setup),
        buffers=2.0 * size.parameters if setup.amp else 0.0,  # autocast keeps its copies until the step ends
        sent_bytes=2 * _ring(setup.devices, 4.0 * size.trainable),
    )


def _zero1(size: ModelSize, setup: Setup) -> Estimate:
    found, compute = _sharded("zero1", size, setup, setup.devices), setup.compute_bytes
    return replace(
        found,
        buffers=float(compute * (size.parameters + size.largest_block)),
        sent_bytes=found.sent_bytes - _ring(setup.devices, compute * size.parameters),
    )


def _fsdp(size: ModelSize, setup: Setup) -> Estimate:
    return _sharded("fsdp", size, setup, setup.devices)


def _hsdp(size: ModelSize, setup: Setup) -> Estimate:
    shards = _node(setup) if _node(setup) < setup.devices else max(1, setup.devices // 2)
    found = _sharded("hsdp", size, setup, shards)
    replicas = setup.devices / shards
    return replace(found, sent_bytes=found.sent_bytes + 2 * _ring(int(replicas), 4.0 * size.trainable / shards))


def _sharded(strategy: str, size: ModelSize, setup: Setup, shards: int) -> Estimate:
    compute = setup.compute_bytes
    kept = 0 if setup.offload else 1
    return Estimate(
        strategy=strategy,
        setup=setup,
        weights=kept * 4.0 * size.parameters / shards,
        gradients=kept * 4.0 * size.trainable / shards,
        optimizer=kept * OPTIMIZER_BYTES[setup.optimizer] * size.trainable / shards,
        activations=_activations(size, setup),
        # The block in use, the next one, which is gathered meanwhile, and the gradient of the one before.
        buffers=3.0 * compute * size.largest_block,
        sent_bytes=2 * _ring(shards, compute * size.parameters) + _ring(shards, compute * size.trainable),
    )


def _tp(size: ModelSize, setup: Setup) -> Estimate:
    if not size.layers:
        raise UsageError(f"tensor parallelism divides the matrices of transformer layers; {size.name} has none")
    parts = _node(setup)
    replicas = setup.devices // parts
    # The devices of a group work on the same samples: as many as they would have had between them.
    samples = setup.batch_size * parts
    split = (size.activation_bytes - size.unsplit_activation_bytes) / parts + size.unsplit_activation_bytes
    if setup.checkpointing:
        split = min(split, size.checkpointed_bytes)
    return replace(
        _divided("tp", size, setup, parts),
        activations=samples * split,
        sent_bytes=4 * size.layers * 2 * _ring(parts, samples * size.boundary_bytes)
        + 2 * _ring(replicas, 4.0 * size.trainable / parts),
    )


def _pp(size: ModelSize, setup: Setup) -> Estimate:
    stages = setup.devices
    samples = setup.batch_size * stages
    in_flight = min(stages, setup.micro_batches) / setup.micro_batches  # of the first stage, which holds most
    return replace(
        _divided("pp", size, setup, stages),
        activations=_activations(size, setup) * in_flight,
        sent_bytes=2 * samples * size.boundary_bytes if stages > 1 else 0.0,
        idle_share=(stages - 1) / (setup.micro_batches + stages - 1),
    )


def _divided(strategy: str, size: ModelSize, setup: Setup, parts: int) -> Estimate:
    """Return what a device holds that has one of `parts` equal parts of the network, and all else as with ddp."""
    plain = _ddp(size, setup)
    return replace(
        plain,
        strategy=strategy,
        weights=plain.weights / parts,
        gradients=plain.gradients / parts,
        optimizer=plain.optimizer / parts,
        buffers=plain.buffers / parts,
    )


def _node(setup: Setup) -> int:
    return min(setup.shard_devices, setup.devices)


STRATEGIES: dict[str, Callable[[ModelSize, Setup], Estimate]] = {
    "ddp": _ddp,
    "zero1": _zero1,
    "fsdp": _fsdp,
    "hsdp": _hsdp,
    "tp": _tp,
    "pp": _pp,
}
