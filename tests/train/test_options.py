"""Options are checked when they are made, and the message names the flag."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dataloading import UsageError
from train.devices import PUBLISHED, published, sim_rate
from train.options import GROUPS, make_options, option_fields


def test_defaults_are_the_imagenet_recipe(tmp_path: Any) -> None:
    options = make_options(data=str(tmp_path), loader="torch")
    assert (options.optim.epochs, options.optim.label_smoothing, options.optim.nesterov) == (90, 0.1, True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data": ""}, "--data is missing"),
        ({"data": "/no/such/place"}, "no such file"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"num_workers": -2}, "--num-workers"),
        ({"val_fraction": 0.6}, "--val-fraction is 0.6"),
        ({"val": ".", "val_fraction": 0.1}, "--val and --val-fraction"),
        ({"image_size": 64, "resize_size": 32}, "--resize-size is 32"),
        ({"loader": "grain"}, "expected one of beton, torch"),
        ({"loader": "grain"}, "bench` can measure grain, but it cannot train: its adapter neither divides"),
        ({"loader": "kernels"}, "it is a ceiling"),
        ({"loader": "beton"}, "beton convert imagefolder"),
        ({"strategy": "horovod"}, "expected one of ddp, fsdp"),
        ({"strategy": "fsdp", "amp": "fp16"}, "use --amp bf16"),
        ({"strategy": "fsdp", "sync_bn": True}, "--sync-bn"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"accum": 0}, "--accum is 0"),
        ({"lr": 0.0}, "--lr is 0.0"),
        ({"label_smoothing": 1.0}, "--label-smoothing"),
        ({"ema": 1.0}, "--ema"),
        ({"momentum": 0.0}, "--no-nesterov"),
        ({"accelerator": "sim:"}, "sim:RATE"),
        ({"accelerator": "sim:-3"}, "sim:RATE"),
        ({"accelerator": "sim:nan"}, "sim:RATE"),
        ({"accelerator": "fake:3"}, "sim:RATE"),
        ({"accelerator": "sim:a100-resnet5"}, "Did you mean 'a100-resnet50'"),
        ({"device": "tpu"}, "expected auto, cpu or cuda"),
        ({"resume": "auto"}, "--output, which is missing"),
        ({"resume": "/no/checkpoint"}, "--resume"),
        ({"overwrite_output": True}, "--output, which is missing"),
        ({"overwrite_output": True, "output": "o", "resume": "auto"}, "choose one"),
        ({"seed": -1}, "--seed is -1"),
        ({"lerning_rate": 3}, "unknown training options: lerning_rate"),
    ],
)
def test_an_impossible_option_is_refused_with_its_name(values: dict[str, Any], words: str, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=words):
        make_options(**{"data": str(tmp_path), "loader": "torch", **values})


def test_a_number_that_is_not_a_number_is_refused(tmp_path: Any) -> None:
    for name in ("lr", "momentum", "weight_decay", "ema", "val_fraction"):
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is nan"):
            make_options(data=str(tmp_path), loader="torch", **{name: float("nan")})


def test_options_are_frozen_and_named_once_over_all_groups(tmp_path: Any) -> None:
    options = make_options(data=str(tmp_path), loader="torch")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.optim.lr = 3.0  # type: ignore[misc]
    names = [item.name for item in option_fields()]
    assert len(names) == len(set(names)) == sum(len(dataclasses.fields(group)) for group in GROUPS.values())
    assert all(item.metadata["help"] for item in option_fields())


def test_sim_rate_reads_the_rate() -> None:
    assert sim_rate("real") == 0.0
    assert sim_rate("sim:412.5") == 412.5


def test_a_published_device_has_a_rate_and_a_source() -> None:
    assert sim_rate("sim:a100-resnet50") == 2470.0
    figures = published("sim:a100-resnet50")
    assert figures is not None and figures.model == "ResNet-50 v1.5"
    assert published("sim:2470") is None and published("real") is None
    assert all(figures.source.startswith("https://") and figures.images_per_s > 0 for figures in PUBLISHED.values())
