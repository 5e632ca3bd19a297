"""Estimates of memory and communication: against formulas written out, and against what tensors really hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from dataloading import UsageError
from train.cli import train
from train.memory import STRATEGIES, TRANSFORMERS, Devices, Setup, advise, estimate, measure_model, with_lora
from train.memory.report import overview, size_by_name
from train.model import build_model
from train.options import STRATEGIES as TRAINED
from train.tables import markdown_table

GIB = 2**30
EIGHT = Devices(count=8, memory_bytes=80 * GIB, bandwidth_bytes=300e9, peak_flops=312e12)


def tracked_peak(name: str, image_size: int, batch_size: int) -> int:
    """Bytes of all tensors at the peak of two steps of SGD with momentum, whose gradients stay as DDP's buckets do."""
    model = build_model(name, 1000).to("meta").train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model.to_empty(device="cpu")
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                logits = model(torch.empty(batch_size, 3, image_size, image_size))
                nn.functional.cross_entropy(logits, torch.zeros(batch_size, dtype=torch.long)).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                tracker.reset_mod_stats()
    return sum(int(each["Total"]) for each in tracker.get_tracker_snapshot("peak").values())


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "squeezenet1_1"])
def test_the_estimate_is_within_a_tenth_of_what_tensors_hold_at_the_peak(name):
    size = size_by_name(name, num_classes=1000, image_size=128, amp=False)
    setup = Setup(devices=1, batch_size=16, optimizer="sgd", amp=False)
    assert estimate(size, "ddp", setup).total == pytest.approx(tracked_peak(name, 128, 16), rel=0.1)


def test_a_network_is_measured_layer_by_layer():
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 2, 1, bias=False), nn.ReLU()),
        nn.Flatten(),
    )
    size = measure_model("two layers", model, 8, amp=False, blocks=[model[0], model[1]])
    images, first, second = 3 * 64 * 4, 4 * 64 * 4, 2 * 64 * 4  # bytes per sample
    assert (size.parameters, size.trainable, size.largest_block) == (20, 20, 12)
    # Convolutions keep their inputs, ReLU its output; the loss keeps the log-probabilities, as large as the logits.
    assert size.activation_bytes == images + first + second + second + 8
    assert size.boundary_bytes == (images + first) / 2
    assert size.forward_flops == 2 * 64 * (3 * 4 + 4 * 2)


@pytest.mark.parametrize(("strategy", "states"), [("ddp", 16), ("fsdp", 16 / 8), ("zero1", 16 / 8), ("hsdp", 16 / 4)])
def test_model_states_follow_the_formulas_of_zero(strategy, states):
    size = TRANSFORMERS["7B"].size()
    found = estimate(size, strategy, Setup(devices=8, batch_size=1))
    assert found.weights + found.gradients + found.optimizer == states * size.parameters


@pytest.mark.parametrize(
    ("strategy", "sent"),
    [
        ("ddp", 2 * 4 * 7 / 8),
        ("fsdp", 3 * 2 * 7 / 8),
        ("zero1", 2 * 2 * 7 / 8),
        ("hsdp", 3 * 2 * 3 / 4 + 2 * (1 / 2) * 4 / 4),
    ],
)
def test_communication_follows_the_formulas_of_rings(strategy, sent):
    size = TRANSFORMERS["1.5B"].size()
    assert estimate(size, strategy, Setup(devices=8, batch_size=1)).sent_bytes == sent * size.parameters


def test_tensor_parallelism_sends_four_activations_per_layer():
    shape = TRANSFORMERS["7B"]
    found = estimate(shape.size(), "tp", Setup(devices=8, batch_size=1))
    activation = 8 * 4096 * 4096 * 2
    assert found.sent_bytes == 32 * 4 * 2 * 7 / 8 * activation
    with pytest.raises(UsageError, match=r"tensor parallelism divides .* resnet18 has none"):
        estimate(
            size_by_name("resnet18", num_classes=10, image_size=64, amp=True), "tp", Setup(devices=8, batch_size=1)
        )


def test_a_pipeline_waits_for_its_ends():
    found = estimate(TRANSFORMERS["7B"].size(), "pp", Setup(devices=4, batch_size=8, micro_batches=12))
    assert found.idle_share == 3 / 15


@pytest.mark.parametrize(("name", "millions"), [("ViT-L", 304), ("1.5B", 1558), ("7B", 6738), ("70B", 68977)])
def test_shapes_have_the_published_number_of_parameters(name, millions):
    assert TRANSFORMERS[name].size().parameters / 1e6 == pytest.approx(millions, rel=0.01)


def test_lora_trains_and_sends_the_adapters_alone():
    size = with_lora(TRANSFORMERS["7B"], 8)
    assert size.trainable == 32 * 2 * 8 * (4096 + 4096)
    found = estimate(size, "ddp", Setup(devices=8, batch_size=1))
    assert found.sent_bytes == 2 * 7 / 8 * 4 * size.trainable


def test_checkpointing_trades_memory_for_a_second_forward_pass():
    size = TRANSFORMERS["7B"].size()
    advice = advise(size, EIGHT, batch_size=1)
    plain, checkpointed = (
        next(each for each in advice.estimates if each.strategy == "fsdp" and each.setup.checkpointing is on)
        for on in (False, True)
    )
    assert checkpointed.activations < plain.activations / 5
    assert advice.seconds(checkpointed)[0] == pytest.approx(advice.seconds(plain)[0] * 4 / 3)


def test_the_simplest_strategy_that_fits_is_advised():
    small = advise(TRANSFORMERS["1.5B"].size(), EIGHT, batch_size=4)
    assert small.best is small.estimates[0]
    assert "simplest" in small.reason()
    large = advise(TRANSFORMERS["70B"].size(), EIGHT, batch_size=1)
    assert large.best is not None
    assert large.best.setup.offload
    assert "of host memory" in large.reason()
    nothing = advise(TRANSFORMERS["70B"].size(), Devices(**{**vars(EIGHT), "memory_bytes": GIB}), batch_size=1)
    assert nothing.best is None
    assert nothing.reason().startswith("Nothing fits")


def test_every_strategy_of_the_trainer_has_an_estimate():
    assert set(TRAINED) <= set(STRATEGIES)


def test_the_documented_table_is_the_computed_one():
    head, *rows = overview(EIGHT)
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
    assert markdown_table(head, rows) in page


def test_advise_prints_the_table_and_the_reason():
    result = CliRunner().invoke(
        train, ["--advise", "--model", "resnet50", "--devices", "8", "--device-memory", "80GiB"]
    )
    assert result.exit_code == 0, result.output
    assert "25.6 million parameters" in result.output
    assert "Take ddp: everything fits on each device" in result.output


def test_advise_names_what_it_knows_beside_the_trainers_networks():
    with pytest.raises(UsageError, match=r"With --advise also: ViT-L, 1\.5B, 7B, 70B"):
        size_by_name("resnet51", num_classes=10, image_size=64, amp=True)
