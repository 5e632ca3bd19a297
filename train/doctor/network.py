"""``beton doctor --network``: how fast ranks exchange data, by operation and size of the message.

Names and formulas are those of nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): the
algorithm bandwidth is size / time, where the size of all_gather, reduce_scatter and all_to_all is that of the whole
array; the bus bandwidth is this times a factor of the number of ranks, and comparable with the speed of the link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from train.charts import lines
from train.tables import format_table

from .facts import Facts
from .findings import Finding
from .fits import fit_messages

__all__ = ["OPERATIONS", "Exchange", "bus_factor", "draw", "judge_network", "link_rate", "measure_network", "table"]

_WARM_UP = 2
_SECONDS_EACH = 0.15
_MOST_RUNS = 200
# The names in newer versions of torch; the older names warn there.
_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


def bus_factor(operation: str, ranks: int) -> float:
    """Return bus bandwidth / algorithm bandwidth.

    Examples
    --------
    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if operation in ("broadcast", "send_recv"):
        return 1.0
    return (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One operation with one size of message.

    Parameters
    ----------
    operation : str
    num_bytes : int
        Of the whole array, as nccl-tests counts it.
    ranks : int
    seconds : float
        Of one run, on the slowest rank; 0 where the backend cannot do it.
    right : bool
        Whether the result was right.
    """

    operation: str
    num_bytes: int
    ranks: int
    seconds: float
    right: bool = True

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes per second."""
        return self.num_bytes / self.seconds if self.seconds else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second of each rank's link."""
        return self.algorithm_bandwidth * bus_factor(self.operation, self.ranks)


def _operation(name: str, num_floats: int, device: torch.device) -> tuple[Callable[[], None], Callable[[], bool]]:
    """Return a function that runs the operation, and one that says whether the result is right.

    Each rank's data is its number; arrays of which every rank has a part have `num_floats` in all.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = float(rank)
    whole = torch.full((num_floats,), mine, device=device)
    part = torch.full((num_floats // ranks,), mine, device=device)
    numbers = torch.arange(ranks, dtype=torch.float32, device=device).repeat_interleave(num_floats // ranks)
    total = ranks * (ranks - 1) / 2

    def send_recv() -> None:
        # In a ring, so that every rank sends and receives at the same time.
        requests = [
            dist.P2POp(dist.isend, whole, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, target, (rank - 1) % ranks),
        ]
        for request in dist.batch_isend_irecv(requests):
            request.wait()

    target = torch.zeros(num_floats, device=device)
    runs: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
        "all_reduce": (lambda: dist.all_reduce(target), lambda: True),
        "all_gather": (lambda: _GATHER(target, part), lambda: torch.equal(target, numbers)),
        "reduce_scatter": (
            lambda: _SCATTER(part, whole),
            lambda: bool((part == total).all()),
        ),
        "broadcast": (lambda: dist.broadcast(target, 0), lambda: True),
        "all_to_all": (lambda: dist.all_to_all_single(target, whole), lambda: torch.equal(target, numbers)),
        "send_recv": (send_recv, lambda: bool((target == (rank - 1) % ranks).all())),
    }
    if name in ("all_reduce", "broadcast"):  # in place: checked on data of one run

        def right() -> bool:
            check = whole.clone()
            if name == "all_reduce":
                dist.all_reduce(check)
                return bool((check == total).all())
            dist.broadcast(check, 0)
            return bool((check == 0).all())

        return runs[name][0], right
    return runs[name]


def measure_network(
    sizes: Sequence[int], *, device: torch.device, progress: Callable[[str], None] = lambda text: None
) -> list[Exchange]:
    """Measure every operation with every size, in the process group that is open.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of messages; rounded up to a multiple of 4 bytes per rank.
    device : torch.device
        Where the data is.
    progress : callable
        Called with a line of text now and then.
    """
    ranks = dist.get_world_size()
    found = []
    for operation in OPERATIONS:
        progress(f"measuring {operation}")
        for size in sizes:
            num_floats = -(-max(1, size // 4) // ranks) * ranks
            try:
                seconds, right = _time(operation, num_floats, device)
            except (RuntimeError, NotImplementedError) as error:
                # A backend that lacks an operation says so on every rank, before anything is sent.
                if "support" not in str(error) and "implement" not in str(error):
                    raise
                seconds, right = 0.0, True
            found.append(
                Exchange(operation=operation, num_bytes=4 * num_floats, ranks=ranks, seconds=seconds, right=right)
            )
            if not seconds:
                break
    return found


def _time(operation: str, num_floats: int, device: torch.device) -> tuple[float, bool]:
    run, check = _operation(operation, num_floats, device)

    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    run()
    right = check()
    for _ in range(_WARM_UP):
        run()
    started = wait()
    run()
    # All ranks must do the same number of runs: the slowest one's estimate counts.
    one = _slowest(wait() - started, device)
    runs = int(min(_MOST_RUNS, max(3, _SECONDS_EACH / max(one, 1e-9))))
    dist.barrier()
    started = wait()
    for _ in range(runs):
        run()
    return _slowest((wait() - started) / runs, device), _slowest(float(not right), device) == 0.0


def _slowest(value: float, device: torch.device) -> float:
    number = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(number, dist.ReduceOp.MAX)
    return float(number)


# GB/s per lane and direction, by PCIe generation.
_PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def link_rate(facts: Facts) -> tuple[float, str] | None:
    """Return bytes per second that the slowest link between ranks should give, and which it is; None: not known."""
    if facts.num_nodes > 1:
        rates = [float(rate.split()[0]) for rate in facts.infiniband.values() if rate[:1].isdigit()]
        if rates and facts.environ.get("NCCL_IB_DISABLE") != "1" and facts.cuda_works:
            return sum(rates) * 1e9 / 8, f"InfiniBand, {len(rates)} x {rates[0]:g} Gbit/s"
        speeds = {name: each.speed for name, each in facts.interfaces.items() if each.speed and each.state == "up"}
        if speeds:
            name = max(speeds, key=lambda each: speeds[each] or 0)
            return (speeds[name] or 0) * 1e6 / 8, f"{name}, {speeds[name]:,} Mbit/s"
        return None
    ways = {way for device in facts.devices for way in device.links.values()}
    if not facts.cuda_works or "NVLink" in ways or not facts.devices[1:]:
        return None
    generation, _, lanes = facts.devices[0].pcie.partition(" ")[0].partition("x")
    rate = _PCIE_LANE.get(int(generation or 0), 0.0) * int(lanes or 0) * 1e9
    return (rate, f"PCIe {facts.devices[0].pcie.partition(' ')[0]}") if rate else None


def judge_network(exchanges: Sequence[Exchange], link: tuple[float, str] | None) -> list[Finding]:
    """Compare the bandwidth of large messages with the link's, and report wrong results."""
    found = [
        Finding(
            name="wrong-result",
            what=f"{wrong} gave a wrong result: hardware or driver corrupt data.",
            measured="other values",
            expected="the exact ones",
            advice="Stop training on these hosts; test them one by one.",
        )
        for wrong in sorted({exchange.operation for exchange in exchanges if not exchange.right})
    ]
    best = max((each.bus_bandwidth for each in exchanges if each.operation == "all_reduce"), default=0.0)
    if link is not None and 0 < best < 0.5 * link[0]:
        found.append(
            Finding(
                name="slow-network",
                what="all_reduce reaches less than half of what the link should give.",
                measured=f"bus bandwidth {best / 1e9:.3g} GB/s",
                expected=f"{link[0] / 1e9:.3g} GB/s ({link[1]})",
                advice=(
                    "NCCL_DEBUG=INFO shows which transport is used; check NCCL_SOCKET_IFNAME, NCCL_IB_HCA, "
                    "NCCL_P2P_DISABLE and the cabling; on CPUs Gloo seldom reaches more."
                ),
                gain=link[0] / best,
            )
        )
    return found


def table(exchanges: Sequence[Exchange]) -> str:
    """Return latency and bandwidth of each operation, and all measured points, as text."""
    rows, points = [], []
    for operation in OPERATIONS:
        mine = [each for each in exchanges if each.operation == operation]
        if not mine or not mine[0].seconds:
            rows.append([operation, "", "", "", "not supported by this backend"])
            continue
        cost = fit_messages([each.num_bytes for each in mine], [each.seconds for each in mine])
        best = max(mine, key=lambda each: each.bus_bandwidth)
        rows.append(
            [
                operation,
                f"{mine[0].seconds * 1e6:,.0f}",
                f"{best.algorithm_bandwidth / 1e9:.3g}",
                f"{best.bus_bandwidth / 1e9:.3g}",
                f"{cost.latency_seconds * 1e6:,.0f} us + bytes / {cost.bytes_per_second / 1e9:.3g} GB/s",
            ]
        )
        points += [
            [
                operation,
                f"{each.num_bytes:,}",
                f"{each.seconds * 1e6:,.0f}",
                f"{each.algorithm_bandwidth / 1e9:.3g}",
                f"{each.bus_bandwidth / 1e9:.3g}",
            ]
            for each in mine
        ]
    head = ["operation", "latency us", "best algbw GB/s", "best busbw GB/s", "fitted cost"]
    all_points = format_table(["operation", "bytes", "us", "algbw GB/s", "busbw GB/s"], points, notes=False)
    return f"{format_table(head, rows)}\n\n{all_points}"


def draw(exchanges: Sequence[Exchange], title: str, link: tuple[float, str] | None) -> Any:
    """Draw the bus bandwidth by size of the message."""
    series = {
        operation: [
            (each.num_bytes, each.bus_bandwidth / 1e9)
            for each in exchanges
            if each.operation == operation and each.seconds
        ]
        for operation in OPERATIONS
    }
    figure = lines(
        {name: points for name, points in series.items() if points},
        title=title,
        x="bytes",
        y="bus bandwidth, GB/s",
        log_x=True,
        log_y=True,
    )
    if link is not None:
        [axes] = figure.axes
        axes.axhline(link[0] / 1e9, color="#7F7F7F", lw=1, ls="--")
        axes.annotate(link[1], (1.0, link[0] / 1e9), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    return figure
