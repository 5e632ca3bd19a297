"""The pure parts: shares of an epoch, schedule, mixing, counting, the launcher's environment."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dataloading import UsageError
from train.batch_shares import Shares
from train.data import split_indices
from train.distributed import StopVote, detect_world
from train.metrics import RunLog, Tally, read_log, row_losses
from train.mixing import mix_batch
from train.model import MovingAverage, TinyNet, build_model, count_flops, parameter_groups
from train.schedule import Schedule


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9), st.booleans())
def test_shares_count_what_distributed_sampler_deals(num: int, world: int, batch: int, drop: bool) -> None:
    """num_valid and global_size agree with enumerating every rank's entries and marking the padding."""
    entries = []
    for rank in range(world):
        sampler = DistributedSampler(range(num), num_replicas=world, rank=rank, shuffle=False, drop_last=drop)
        length = len(list(sampler)) if num >= world or not drop else 0
        entries.append([position * world + rank < num for position in range(length)])
    steps = [[row[start : start + batch] for row in entries] for start in range(0, len(entries[0]), batch)]
    if drop:
        steps = [step for step in steps if len(step[0]) == batch]
    for rank in range(world):
        shares = Shares(num_samples=num, rank=rank, world_size=world, batch_size=batch, drop_last=drop)
        assert len(shares) == len(steps)
        for number, step in enumerate(steps):
            assert shares.size(number) == len(step[rank])
            assert shares.num_valid(number) == sum(step[rank])
            assert step[rank] == sorted(step[rank], reverse=True), "padding comes last"
            assert shares.global_size(number) == sum(sum(row) for row in step)


def test_schedule_rises_falls_and_survives_tiny_runs() -> None:
    schedule = Schedule(peak=0.4, warmup=0.1)
    rates = [schedule(step / 100, (step + 1) / 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.04) and max(rates) == pytest.approx(0.4)
    assert all(a < b for a, b in itertools.pairwise(rates[:10]))
    assert all(a >= b for a, b in itertools.pairwise(rates[10:])) and rates[-1] < 1e-3
    assert Schedule(peak=1.0, warmup=0.5)(0.0, 1.0) == 1.0
    with pytest.raises(UsageError, match=r"got 0.7"):
        Schedule(peak=1.0, warmup=0.7)


@given(st.integers(1, 30), st.integers(1, 30))
def test_halving_the_steps_keeps_the_learning_rate_on_its_curve(num_steps: int, warm: int) -> None:
    """A run that goes on with batches of twice the size takes every second value, but for the warm-up's step width."""
    warmup = min(0.5, warm / (2 * num_steps))
    schedule = Schedule(peak=1.0, warmup=warmup)
    small = [schedule(step / (2 * num_steps), (step + 1) / (2 * num_steps)) for step in range(2 * num_steps)]
    large = [schedule(step / num_steps, (step + 1) / num_steps) for step in range(num_steps)]
    for step, rate in enumerate(large):
        warming = step / num_steps < warmup
        if not warming:
            assert rate == small[2 * step]
        elif (2 * step + 1) / (2 * num_steps) < warmup:
            assert rate == small[2 * step + 1]


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.3, 0.7)])
def test_mixing_gives_each_row_the_targets_its_pixels_earned(size: int, mixup: float, cutmix: float) -> None:
    """Image k holds the constant k, so a mixed image's mean tells the share of its partner."""
    images = torch.arange(size, dtype=torch.float32)[:, None, None, None].expand(size, 3, 7, 9).contiguous()
    labels = torch.arange(size)
    before = images.clone()
    for step in range(20):
        key = (1, step, 0, 0)
        mixed, targets = mix_batch(images, labels, size, mixup=mixup, cutmix=cutmix, key=key)
        again, _ = mix_batch(images, labels, size, mixup=mixup, cutmix=cutmix, key=key)
        assert torch.equal(mixed, again) and torch.equal(images, before)
        torch.testing.assert_close(targets.sum(1), torch.ones(size))
        expected = targets @ torch.arange(size, dtype=torch.float32)
        torch.testing.assert_close(mixed.mean((1, 2, 3)), expected)


def test_mixing_differs_between_steps_and_ranks() -> None:
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    keys = [(0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 0, 0, 0)]
    mixed = [mix_batch(images, labels, 4, mixup=1.0, cutmix=0.0, key=key)[0] for key in keys]
    assert all(not torch.equal(mixed[0], other) for other in mixed[1:])


@pytest.mark.parametrize("num_classes", [2, 5, 11])
def test_tally_ignores_padding_and_handles_few_classes(num_classes: int) -> None:
    rng = np.random.default_rng(num_classes)
    tally = Tally(torch.device("cpu"))
    rows: list[tuple[float, bool, bool]] = []
    for size, valid in ((4, 4), (3, 1), (1, 0)):
        logits = torch.from_numpy(rng.normal(size=(size, num_classes)).astype(np.float32))
        labels = torch.from_numpy(rng.integers(num_classes, size=size))
        tally.add(logits, labels, valid, row_losses(logits, labels, 0.0))
        for row in range(valid):
            values = logits[row].tolist()
            label = int(labels[row])
            rank = sorted(values, reverse=True).index(values[label])
            loss = math.log(sum(math.exp(value) for value in values)) - values[label]
            rows.append((loss, rank < 1, rank < 5))
    result = tally.result()
    assert result["num_images"] == 5
    assert result["loss"] == pytest.approx(sum(row[0] for row in rows) / 5, rel=1e-5)
    assert result["top1"] == pytest.approx(100 * sum(row[1] for row in rows) / 5)
    assert result["top5"] == pytest.approx(100 * sum(row[2] for row in rows) / 5)


def test_split_is_a_partition_and_the_same_every_time() -> None:
    train, val = split_indices(101, 0.25, 3)
    assert train is not None and val is not None
    assert sorted([*train, *val]) == list(range(101)) and len(val) == 25
    assert np.array_equal(val, split_indices(101, 0.25, 3)[1])
    assert split_indices(10, 0.0, 0) == (None, None)
    with pytest.raises(UsageError, match="one of the parts empty"):
        split_indices(3, 0.1, 0)


def test_norms_and_biases_do_not_decay_unless_asked() -> None:
    model = TinyNet(3)
    decayed, free = parameter_groups(model, weight_decay=0.1, decay_norms=False)
    assert {parameter.ndim for parameter in decayed["params"]} == {2, 4} and decayed["weight_decay"] == 0.1
    assert {parameter.ndim for parameter in free["params"]} == {1} and free["weight_decay"] == 0.0
    assert len(parameter_groups(model, weight_decay=0.1, decay_norms=True)) == 1


def test_moving_average_follows_the_formula() -> None:
    model = torch.nn.BatchNorm1d(2)
    ema = MovingAverage(model, 0.5)
    expected = 1.0
    for step in range(6):
        with torch.no_grad():
            model.weight.fill_(step)
            model.num_batches_tracked.fill_(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        ema.update(step)
    torch.testing.assert_close(ema.weights["weight"], torch.full((2,), expected))
    assert int(ema.buffers["num_batches_tracked"]) == 5


def test_unknown_model_gets_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="resnet18"):
        build_model("resnet_18", 10)


def test_flops_of_a_linear_layer_are_counted() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 10))
    assert count_flops(model, 4) == 2 * 48 * 10


@pytest.mark.parametrize(
    ("nodes", "master"),
    [("gpu[07-09,12],cpu1", "gpu07"), ("alpha,beta", "alpha"), ("n1-[3,5]", "n1-3"), ("one", "one")],
)
def test_slurm_is_read_and_all_tasks_agree_on_the_master(nodes: str, master: str) -> None:
    common = {
        "SLURM_NTASKS": "6",
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_ID": "70123",
        "SLURM_TASKS_PER_NODE": "2(x2),1(x2)",
    }
    worlds = [
        detect_world({**common, "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(node)})
        for rank, node in ((0, 0), (2, 1), (5, 3))
    ]
    assert {world.master for world in worlds} == {f"{master}:20123"}
    assert [(world.rank, world.world_size, world.local_world_size) for world in worlds] == [
        (0, 6, 2),
        (2, 6, 2),
        (5, 6, 1),
    ]


def test_torchrun_wins_over_slurm_and_nothing_means_one_process() -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    world = detect_world({**slurm, "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert (world.launcher, world.rank, world.world_size, world.local_world_size) == ("torchrun", 3, 8, 2)
    assert detect_world({}).world_size == 1
    assert detect_world({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}).launcher == "none"
    with pytest.raises(UsageError, match="SLURM_LOCALID"):
        detect_world({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    with pytest.raises(UsageError, match="WORLD_SIZE is 'two'"):
        detect_world({"RANK": "0", "WORLD_SIZE": "two"})


def test_a_lone_process_decides_alone() -> None:
    vote = StopVote()
    assert vote.cast(False) is False and vote.cast(True) is True and vote.settle() is False


def test_a_log_whose_last_line_was_cut_off_is_still_read(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "deep" / "log.jsonl", active=True)
    log.record("step", step=0)
    log.close()
    with (tmp_path / "deep" / "log.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert read_log(tmp_path / "deep" / "log.jsonl") == [{"event": "step", "step": 0}]


def test_mixing_is_what_our_transforms_do() -> None:
    from dataloading import tools
    from dataloading import transforms as T

    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    key = 0
    for part in (5, 7, 1, 2):
        key = tools.random.child(key, part)
    for values, transform in (
        ({"mixup": 0.4, "cutmix": 0.0}, T.MixUp(alpha=0.4, num_classes=6)),
        ({"mixup": 0.0, "cutmix": 0.9}, T.CutMix(alpha=0.9, num_classes=6)),
    ):
        mixed, targets = mix_batch(images, labels, 6, **values, key=(5, 7, 1, 2))
        expected, soft = transform(images, labels, key)
        assert torch.equal(mixed, expected) and torch.equal(targets, soft)


def test_with_mixup_and_cutmix_on_each_is_drawn_now_and_then() -> None:
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    mixed = [mix_batch(images, labels, 4, mixup=1.0, cutmix=1.0, key=(0, step, 0, 0))[0] for step in range(20)]
    pasted = [bool(torch.isin(batch, images).all()) for batch in mixed]  # pasting makes no new values
    assert 0 < sum(pasted) < 20
