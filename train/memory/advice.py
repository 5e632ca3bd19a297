"""Which strategy fits so many devices of so much memory, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dataloading import UsageError
from dataloading.messages import counted
from train.tables import format_table

from .estimates import OPTIMIZER_BYTES, STRATEGIES, Estimate, Setup, estimate
from .model_sizes import ModelSize

__all__ = ["RESERVE", "Advice", "Devices", "advise"]

# Left free on a device: the driver's context, workspaces of libraries, and what the allocator cannot use.
RESERVE = 0.1
# Share of the peak that well-tuned training reaches; 0.3 to 0.55 are usual (PaLM, arXiv:2204.02311, table 3).
EFFICIENCY = 0.4


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What there is to train on.

    Parameters
    ----------
    count : int
        Devices in all.
    memory_bytes : float
        Memory of one.
    bandwidth_bytes : float
        What one device sends per second to the others.
    peak_flops : float
        Operations per second of one, in the precision used.
    per_node : int
        Devices of a node.
    """

    count: int
    memory_bytes: float
    bandwidth_bytes: float
    peak_flops: float
    per_node: int = 8

    @property
    def usable_bytes(self) -> float:
        """Memory of one device without the reserve."""
        return self.memory_bytes * (1 - RESERVE)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What was looked at, and what to take.

    Parameters
    ----------
    size : ModelSize
        The network.
    devices : Devices
        What there is.
    estimates : tuple of Estimate
        All ways to train that apply, the simplest first.
    best : Estimate or None
        The simplest that fits.
    """

    size: ModelSize
    devices: Devices
    estimates: tuple[Estimate, ...]
    best: Estimate | None

    def seconds(self, found: Estimate) -> tuple[float, float]:
        """Return the seconds per step of computing, the bubble included, and of communicating if nothing overlaps."""
        passes = 4 if found.setup.checkpointing else 3  # forward, backward twice as much, forward again
        flops = passes * self.size.forward_flops * found.setup.batch_size
        compute = flops / (self.devices.peak_flops * EFFICIENCY)
        return compute / (1 - found.idle_share), found.sent_bytes / self.devices.bandwidth_bytes

    def share(self, found: Estimate) -> float:
        """Return the share of a step that is communication if nothing overlaps."""
        compute, communication = self.seconds(found)
        return communication / (compute + communication)

    def __str__(self) -> str:
        size, devices = self.size, self.devices
        head = ("strategy", "weights", "gradients", "optimizer", "activations", "buffers", "total", "sent/step",
                "share", "fits", "largest batch")  # fmt: skip
        rows = []
        for found in self.estimates:
            parts = (found.weights, found.gradients, found.optimizer, found.activations, found.buffers, found.total,
                     found.sent_bytes)  # fmt: skip
            fits = "yes" if found.total <= devices.usable_bytes else "no"
            largest = largest_batch(size, found, devices)
            rows.append([describe(found), *map(gib, parts), f"{self.share(found):.0%}", fits, f"{largest or '-'}"])
        trained = f", {size.trainable / 1e6:,.1f} million of them trained" if size.trainable < size.parameters else ""
        lines = [
            f"{size.name}: {size.parameters / 1e6:,.1f} million parameters{trained}; "
            f"{size.forward_flops / 1e9:,.1f} GFLOP forward per sample",
            f"{devices.count} devices of {gib(devices.memory_bytes)} GiB, {RESERVE:.0%} of it in reserve, "
            f"{counted(self.estimates[0].setup.batch_size, 'sample')} per device; GiB per device:",
            "",
            format_table(head, rows, notes=False),
            "",
            f"share: communication if nothing overlaps, at {devices.bandwidth_bytes / 1e9:,.0f} GB/s and "
            f"{devices.peak_flops * EFFICIENCY / 1e12:,.0f} TFLOP/s ({EFFICIENCY:.0%} of the peak).",
            self.reason(),
        ]
        return "\n".join(lines)

    def reason(self) -> str:
        """Say in a sentence or two what to take and why."""
        if self.best is None:
            least = min(self.estimates, key=lambda found: found.total)
            return (
                f"Nothing fits: {describe(least)} needs least, {gib(least.total)} GiB per device. Take a smaller "
                "batch, more devices, or combine tensor and pipeline parallelism."
            )
        first = self.estimates[0]
        if self.best is first:
            return (
                f"Take {describe(first)}: everything fits on each device, and it is the simplest. Sharding would save "
                "memory that you do not need."
            )
        states = (8 + OPTIMIZER_BYTES[self.best.setup.optimizer]) * self.size.parameters / 2**30
        host = f" It takes {states:,.0f} GiB of host memory in all." if self.best.setup.offload else ""
        return (
            f"Take {describe(self.best)}: it is the simplest that fits, {gib(self.best.total)} GiB per device where "
            f"{describe(first)} would take {gib(first.total)}.{host}"
        )


def advise(size: ModelSize, devices: Devices, *, batch_size: int, optimizer: str = "adamw", amp: bool = True) -> Advice:
    """Compare all strategies for a network on some devices.

    Parameters
    ----------
    size : ModelSize
        The network.
    devices : Devices
        What there is.
    batch_size : int
        Samples per device and step.
    optimizer : str
        ``sgd``, ``adamw``, ``lamb`` or ``muon``.
    amp : bool
        Compute in 16 bits.

    Examples
    --------
    >>> from train.memory import TRANSFORMERS
    >>> devices = Devices(count=8, memory_bytes=80 * 2**30, bandwidth_bytes=300e9, peak_flops=312e12)
    >>> advice = advise(TRANSFORMERS["7B"].size(), devices, batch_size=1)
    >>> advice.best.strategy
    'zero1'
    """
    setup = Setup(
        devices=devices.count, batch_size=batch_size, optimizer=optimizer, amp=amp, shard_devices=devices.per_node
    )
    ways = [(name, setup) for name in STRATEGIES]
    ways += [("fsdp", replace(setup, checkpointing=True)), ("fsdp", replace(setup, checkpointing=True, offload=True))]
    found = []
    for strategy, each in ways:
        if devices.count == 1 and strategy != "ddp" and not each.checkpointing:
            continue  # nothing to share
        try:
            found.append(estimate(size, strategy, each))
        except UsageError:
            continue  # tensor parallelism of a network without transformer layers
    best = next((each for each in found if each.total <= devices.usable_bytes), None)
    return Advice(size=size, devices=devices, estimates=tuple(found), best=best)


def largest_batch(size: ModelSize, found: Estimate, devices: Devices) -> int:
    """Return the samples per device that fit; 0 if not even one does."""
    per_sample = found.activations / found.setup.batch_size
    return max(0, int((devices.usable_bytes - (found.total - found.activations)) / per_sample))


def describe(found: Estimate) -> str:
    """Return the strategy with its options, as tables call it."""
    extras = [
        name for name, on in (("checkpointing", found.setup.checkpointing), ("offload", found.setup.offload)) if on
    ]
    return " + ".join([found.strategy, *extras])


def gib(size_bytes: float) -> str:
    """Write bytes in GiB."""
    value = size_bytes / 2**30
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
