"""One global batch shared by one, two and three gloo processes gives one gradient, one loss, one validation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from tests.support.processes import init, join, start
from train.distributed import World
from train.loaders.base import LoaderSpec, Normaliser, TrainBatch
from train.model import MovingAverage, TinyNet, build_model, parameter_groups
from train.options import make_options
from train.step import NetworkCompute
from train.strategies import lay_out, make_mesh

NUM_CLASSES, SMOOTHING, RATE = 7, 0.1, 0.3
# Images of all ranks in each micro-batch of each step: none divides by 2 and 3, and some give a rank nothing.
STEPS = ((7, 7), (7, 5), (1, 4), (2, 1))
VALIDATION = (11, 11, 10, 1)


def global_batch(key: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make normalised images and labels."""
    generator = torch.Generator().manual_seed(key)
    labels = torch.randint(NUM_CLASSES, (size,), generator=generator)
    return torch.randn(size, 3, 16, 16, generator=generator) + labels[:, None, None, None] / 4, labels


def share(key: int, size: int, rank: int, world: int) -> TrainBatch:
    """Deal a global batch out as ``tail="even"`` does; sizes differ by at most one, and may be 0."""
    images, labels = global_batch(key, size)
    return TrainBatch(images[rank::world], labels[rank::world], len(labels[rank::world]), size)


def micro_batches(step: int) -> list[tuple[int, int]]:
    """Key and size of each."""
    return [(100 * step + micro, size) for micro, size in enumerate(STEPS[step])]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a sharded tensor."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def train_rank(rank: int, world: int, folder: Path, strategies: tuple[str, ...]) -> None:
    """Take all steps and validate, with one strategy after the other; rank 0 writes what came out."""
    init(rank, world, folder)
    results = {strategy: train_with(strategy, rank, world) for strategy in strategies}
    if rank == 0:
        torch.save(results, folder / "results.pt")
    dist.barrier()
    dist.destroy_process_group()


def train_with(strategy: str, rank: int, world: int) -> dict[str, Any]:
    """Take all steps and validate with one strategy."""
    options = make_options(
        data=".", loader="torch", strategy=strategy, batch_size=4, accum=2, label_smoothing=SMOOTHING, clip_norm=0.5
    )
    device = torch.device("cpu")
    torch.manual_seed(0)
    mesh = make_mesh(options.model, World(rank=rank, world_size=world, local_world_size=world), device)
    replica = lay_out(build_model("tiny", NUM_CLASSES), options.model, device, mesh)
    groups = parameter_groups(replica.module, weight_decay=1e-3, decay_norms=False)
    optimizer = torch.optim.SGD(groups, lr=0.0, momentum=0.9)
    spec = LoaderSpec(
        path=".", training=True, batch_size=4, num_workers=0, seed=0, rank=rank, world_size=world, device=device
    )
    normaliser = Normaliser(spec, normalised=True, channels_last=True)
    work = NetworkCompute(
        options,
        world=World(rank=rank, world_size=world),
        device=device,
        replica=replica,
        optimizer=optimizer,
        ema=MovingAverage(replica.module, 0.5),
        num_classes=NUM_CLASSES,
        normaliser=normaliser,
    )
    gradients: list[torch.Tensor] = []

    def keep(*_arguments: Any) -> None:
        gradients.extend(whole(p.grad) for p in replica.module.parameters() if p.grad is not None)

    optimizer.register_step_pre_hook(keep)
    losses = []
    for step, sizes in enumerate(STEPS):
        total = torch.zeros((), dtype=torch.float64)
        for micro, (key, size) in enumerate(micro_batches(step)):
            batch = share(key, size, rank, world)
            total = total + work.micro_batch(batch, step=step, micro=micro, last=micro == 1)
        work.update(step=step, lr=RATE, num_images=sum(sizes))
        dist.all_reduce(total)
        losses.append(float(total) / sum(sizes))

    def validation() -> Iterator[TrainBatch]:
        return (share(1000 + number, size, rank, world) for number, size in enumerate(VALIDATION))

    return {
        "losses": losses,
        "gradients": gradients,
        "weights": [whole(parameter) for parameter in replica.module.parameters()],
        "sums": work.tally.result(),
        "validation": work.evaluate(validation(), normaliser),
    }


def hits(logits: torch.Tensor, labels: torch.Tensor, num_best: int) -> int:
    """Count labels among the best few, the slow way."""
    best = logits.argsort(dim=1, descending=True)[:, :num_best].tolist()
    return sum(label in row for row, label in zip(best, labels.tolist(), strict=True))


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What an ordinary loop gives: one process, one batch a step, the mean loss, torch's own optimiser."""
    torch.manual_seed(0)
    model = TinyNet(NUM_CLASSES).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(parameter_groups(model, weight_decay=1e-3, decay_norms=False), lr=RATE, momentum=0.9)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    losses: list[float] = []
    gradients: list[torch.Tensor] = []
    counts = {"num_images": 0, "loss": 0.0, "top1": 0.0, "top5": 0.0}
    for step in range(len(STEPS)):
        parts = [global_batch(key, size) for key, size in micro_batches(step)]
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        logits = model(images)
        loss = functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        gradients += [whole(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        losses.append(loss.item())
        counts["num_images"] += len(labels)
        counts["loss"] += loss.item() * len(labels)
        counts["top1"] += 100.0 * hits(logits, labels, 1)
        counts["top5"] += 100.0 * hits(logits, labels, 5)
        for average, parameter in zip(averages, model.parameters(), strict=True):
            average.lerp_(parameter.detach(), 1 - min(0.5, (1 + step) / (10 + step)))
    sums = {name: value / (1 if name == "num_images" else counts["num_images"]) for name, value in counts.items()}
    weights = [whole(parameter) for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, average in zip(model.parameters(), averages, strict=True):
            parameter.copy_(average)
        parts = [global_batch(1000 + number, size) for number, size in enumerate(VALIDATION)]
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        logits = model(images)
        validation = {
            "num_images": sum(VALIDATION),
            "loss": functional.cross_entropy(logits.double(), labels).item(),
            "top1": 100 * hits(logits, labels, 1) / sum(VALIDATION),
            "top5": 100 * hits(logits, labels, 5) / sum(VALIDATION),
        }
    return {"losses": losses, "gradients": gradients, "weights": weights, "sums": sums, "validation": validation}


STRATEGIES = {1: ("ddp",), 2: ("ddp", "fsdp", "hsdp", "zero1"), 3: ("ddp", "fsdp")}
CASES = [(strategy, world) for world, strategies in STRATEGIES.items() for strategy in strategies]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """The same steps on 1, 2 and 3 processes, with replicas and with shards."""
    root = tmp_path_factory.mktemp("worlds")
    found = {}
    for world, strategies in STRATEGIES.items():
        folder = root / str(world)
        join(start(train_rank, world, folder, strategies))
        found |= {(strategy, world): result for strategy, result in torch.load(folder / "results.pt").items()}
    return found


@pytest.mark.parametrize(("strategy", "world"), CASES)
def test_ranks_with_unequal_shares_take_the_step_of_one_process(
    strategy: str, world: int, results: dict[tuple[str, int], Any], expected: dict[str, Any]
) -> None:
    """Losses, clipped gradients, weights and running sums, with accumulation, also where a rank has no image."""
    found = results[strategy, world]
    assert found["losses"] == pytest.approx(expected["losses"], rel=2e-6)
    assert len(found["gradients"]) == len(expected["gradients"]) > 0
    for name in ("gradients", "weights"):
        for tensor, right in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(tensor, right, rtol=1e-4, atol=2e-6)
    assert found["sums"] == pytest.approx(expected["sums"], rel=2e-6)


@pytest.mark.parametrize(("strategy", "world"), CASES)
def test_ranks_with_unequal_shares_validate_like_one_process(
    strategy: str, world: int, results: dict[tuple[str, int], Any], expected: dict[str, Any]
) -> None:
    found, right = results[strategy, world]["validation"], expected["validation"]
    assert found["num_images"] == right["num_images"]
    assert found["top1"] == pytest.approx(right["top1"], rel=1e-12)
    assert found["top5"] == pytest.approx(right["top5"], rel=1e-12)
    assert math.isclose(found["loss"], right["loss"], rel_tol=2e-6)
    assert 0 < right["top1"] < right["top5"] <= 100
