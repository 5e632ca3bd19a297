"""Options from YAML files, the files that come with the package, and what their options do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dataloading import ImageField, IntField, UsageError, Writer
from train import cli
from train.config import read_config, shipped_configs
from train.distributed import World
from train.loaders.base import LoaderSpec, Normaliser, TrainBatch
from train.model import blocks_of, build_model
from train.networks import BlurredConv, ResNet9
from train.options import make_options
from train.recompute import recompute_blocks
from train.schedule import Schedule
from train.step import NetworkCompute
from train.strategies import lay_out

from .conftest import losses, only, train_here


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_config_makes_options_and_a_network(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.beton").write_bytes(b"")
    options = make_options(data=str(tmp_path / "x.beton"), **read_config(name))
    if options.model.model.startswith("timm:"):
        pytest.importorskip("timm")
    with torch.device("meta"):
        model = build_model(
            options.model.model, 10, image_size=options.data.image_size, drop_path=options.model.drop_path
        )
        assert model.eval()(torch.empty(1, 3, options.data.image_size, options.data.image_size)).shape == (1, 10)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 images of 32 pixels, as those of CIFAR."""
    path = tmp_path_factory.mktemp("photos") / "photos.beton"
    rng = np.random.default_rng(5)
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=25) as writer:
        for number in range(25):
            writer.append({"image": rng.integers(0, 256, (32, 32, 3), dtype=np.uint8), "label": number % 5})
    return path


@pytest.mark.parametrize("name", ["cifar10-resnet9", "ffcv-rn18-16"])
def test_a_shipped_config_trains_and_validates(name: str, photos: Path, tmp_path: Path) -> None:
    """Two steps of small images in float32, progressive resizing included; the other configs take too long here."""
    values = read_config(name)
    small = {"image_size": 32, "resize_size": 32, "batch_size": 2, "steps": 2, "amp": "none", "val_fraction": 0.2}
    if "start_size" in values:
        small |= {"start_size": 32, "val_size": 32}
    small |= {"loader": "beton", "num_workers": 1, "checkpoints": False}
    records = train_here(tmp_path, data=str(photos), **{**values, **small})
    assert len(losses(records)) == 2 and all(math.isfinite(loss) for loss in losses(records))
    assert [record["num_images"] for record in only(records, "eval")] == [5]


def test_ffcv_trains_at_160_pixels_until_epoch_11_and_at_192_from_epoch_12(tmp_path: Path) -> None:
    (tmp_path / "x.beton").write_bytes(b"")
    data = make_options(data=str(tmp_path / "x.beton"), **read_config("ffcv-rn50-16")).data
    assert [data.crop_size(epoch) for epoch in range(16)] == [160] * 12 + [192] * 4
    assert data.val_size == 256 and round(data.resize_size * 224 / 256) == 256


def test_the_command_line_overrides_the_file_and_is_printed_as_one(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("lr: 1e-3\nnesterov: false\nepochs: 7\n")
    words = ["--config", str(tmp_path / "mine.yaml"), "--epochs", "9", "--print-config"]
    result = CliRunner().invoke(cli.train, words)
    assert result.exit_code == 0, result.output
    (tmp_path / "again.yaml").write_text(result.output)
    values = read_config(str(tmp_path / "again.yaml"))
    assert (values["lr"], values["nesterov"], values["epochs"], values["model"]) == (1e-3, False, 9, "resnet18")
    assert CliRunner().invoke(cli.train, ["--config", str(tmp_path / "again.yaml"), "--print-config"]).output == (
        result.output
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batchsize: 3", "there is no option 'batchsize'. Did you mean 'batch_size'"),
        ("epochs: 2.5", "epochs is 2.5, expected a whole number"),
        ("epochs: true", "epochs is True, expected a whole number"),
        ("lr: fast", "lr is 'fast', expected a number"),
        ("nesterov: 1", "nesterov is 1, expected true or false"),
        ("model: 18", "model is 18, expected a string"),
        ("- lr", "holds list, expected a mapping"),
        ("lr: [", "is not a YAML file"),
    ],
)
def test_a_file_with_a_fault_is_refused_with_its_name(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "faulty.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"faulty\.yaml") as raised:
        read_config(str(path))
    assert words in str(raised.value)


def test_a_config_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"nor one of cifar10-resnet9, .*Did you mean 'deit-s'"):
        read_config("deits")


# ---- what the options do


def test_crops_grow_from_epoch_to_epoch(beton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = NetworkCompute.micro_batch, []

    def noted(self: NetworkCompute, batch: TrainBatch, **place: Any) -> torch.Tensor:
        sizes.append(tuple(batch.images.shape[2:]))
        return real(self, batch, **place)

    monkeypatch.setattr(NetworkCompute, "micro_batch", noted)
    values = {"data": str(beton), "val": str(beton), "loader": "beton", "num_workers": 1, "batch_size": 9, "epochs": 4}
    grow = {"start_size": 32, "grow_start": 0, "grow_end": 3, "image_size": 96, "resize_size": 96, "val_size": 40}
    records = train_here(tmp_path / "run", **values, **grow)
    assert sizes == [(32, 32)] * 3 + [(64, 64)] * 3 + [(64, 64)] * 3 + [(96, 96)] * 3
    sizes.clear()
    saved = str(tmp_path / "run" / "checkpoints" / "step-00000009")
    resumed = train_here(tmp_path / "on", **values, **grow, resume=saved)
    assert sizes == [(96, 96)] * 3
    assert losses(resumed) == losses(records)[9:]


def test_progressive_sizes_that_cannot_be_are_refused(beton: Path) -> None:
    for values, words in (
        ({"start_size": 32, "loader": "torch"}, "--start-size works with --loader beton only"),
        ({"start_size": 256, "grow_end": 3}, "--start-size grows to --image-size"),
        ({"start_size": 32, "grow_start": 3, "grow_end": 3}, "--start-size grows to --image-size"),
        ({"val_size": 300}, "must not be below --val-size"),
    ):
        with pytest.raises(UsageError, match=words):
            make_options(data=str(beton), **values)


class LeftColumn(nn.Module):
    """Logits for two classes: the mean of the images' left column, times a weight, and 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return shape (N, 2)."""
        left = self.weight * images[:, :, :, 0].mean((1, 2))
        return torch.stack([left, torch.zeros_like(left)], 1)


@pytest.mark.parametrize("flip", [False, True])
def test_flipping_at_test_averages_the_outputs_for_both_images(flip: bool, tmp_path: Path) -> None:
    """Left columns are 2, right ones -3: the mean of the outputs is negative, which is class 1."""
    options = make_options(data=str(tmp_path), loader="torch", flip_at_test=flip)
    device = torch.device("cpu")
    replica = lay_out(LeftColumn(), options.model, device)
    optimizer = torch.optim.SGD(replica.module.parameters(), lr=0.1)
    spec = LoaderSpec(path="", training=False, batch_size=2, num_workers=0, seed=0)
    normaliser = Normaliser(spec, normalised=True, channels_last=True)
    work = NetworkCompute(
        options, world=World(), device=device, replica=replica, optimizer=optimizer, ema=None, num_classes=2,
        normaliser=normaliser,
    )  # fmt: skip
    images = torch.zeros(2, 3, 4, 4)
    images[..., 0], images[..., -1] = 2.0, -3.0
    result = work.evaluate(iter([TrainBatch(images, torch.tensor([1, 1]), 2, 2)]), normaliser)
    logit = -0.5 if flip else 2.0
    assert result["top1"] == (100.0 if flip else 0.0)
    assert result["loss"] == pytest.approx(float(torch.log1p(torch.exp(torch.tensor(logit)))))


def test_a_line_and_steps_of_the_learning_rate() -> None:
    line = Schedule(peak=2.0, warmup=0.25, kind="linear")
    assert [line(step / 8, (step + 1) / 8) for step in range(8)] == pytest.approx(
        [1.0, 2.0, 2.0, 5 / 3, 4 / 3, 1.0, 2 / 3, 1 / 3]
    )
    steps = Schedule(peak=1.0, warmup=0.0, kind="step", drop_every=30 / 90, drop=0.1)
    rates = [steps(epoch / 90, (epoch + 1) / 90) for epoch in range(90)]
    assert rates == pytest.approx([1.0] * 30 + [0.1] * 30 + [0.01] * 30)


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_an_optimiser_learns_and_resumes_bit_for_bit(name: str, beton: Path, tmp_path: Path) -> None:
    if name != "adamw":
        pytest.importorskip("timm")
    values = {"data": str(beton), "epochs": 4, "optimizer": name, "lr": 0.02, "keep": 9, "batch_size": 9}
    records = train_here(tmp_path / "whole", **values)
    assert losses(records)[-1] < 0.8 * losses(records)[0]
    saved = str(tmp_path / "whole" / "checkpoints" / "step-00000006")
    assert losses(train_here(tmp_path / "on", **values, resume=saved)) == losses(records)[6:]


def test_an_optimiser_of_whole_parameters_refuses_shards(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--optimizer muon needs whole parameters"):
        make_options(data=str(tmp_path), loader="torch", optimizer="muon", strategy="fsdp")


def test_activations_computed_again_change_no_bit(beton: Path, tmp_path: Path) -> None:
    """Batch norm must not count a batch twice: validation uses its statistics."""
    values = {"data": str(beton), "val": str(beton), "epochs": 2, "model": "tiny-bn"}
    plain = train_here(tmp_path / "plain", **values)
    again = train_here(tmp_path / "again", **values, activation_checkpointing=True)
    assert losses(again) == losses(plain)
    assert [r["loss"] for r in only(again, "eval")] == [r["loss"] for r in only(plain, "eval")]


def test_blocks_are_checkpointed_once_and_computed_twice() -> None:
    with torch.device("meta"):
        model = build_model("convnext_tiny", 3)
    assert recompute_blocks(model) == sum(type(block).__name__ == "CNBlock" for block in blocks_of(model)) + 4
    model = build_model("tiny-bn", 3)
    calls = []
    model.get_submodule("features.3.0").register_forward_hook(lambda *_: calls.append(1))
    names = [name for name, _ in model.named_parameters()]
    recompute_blocks(model)
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert len(calls) == 2 and [name for name, _ in model.named_parameters()] == names


def test_strides_are_blurred_and_flat_colours_stay() -> None:
    model = build_model("resnet18", 3, blurpool=True)
    blurred = [part for part in model.modules() if isinstance(part, BlurredConv)]
    assert len(blurred) == 6 and not isinstance(model.conv1, BlurredConv)
    conv = nn.Conv2d(16, 16, 1, stride=2, bias=False)
    torch.nn.init.dirac_(conv.weight)
    row = torch.tensor([0.0, 4.0, 0.0, 0.0, 8.0, 8.0, 8.0, 8.0]).expand(1, 16, 8, 8)
    output = BlurredConv(conv)(row)
    assert output[0, 0, 2].tolist() == [1.0, 1.0, 6.0, 8.0]


def test_resnet9_is_the_small_network_of_cifar() -> None:
    model = ResNet9(10)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    weights = 27 * 64 + 25 * 64 * 128 + 9 * (2 * 128**2 + 128 * 256 + 2 * 256**2 + 256 * 128) + 1280
    norms = 2 * (64 + 128 + 2 * 128 + 256 + 2 * 256 + 128)
    assert sum(parameter.numel() for parameter in model.parameters()) == weights + norms


def test_depth_is_stochastic_where_the_network_has_it() -> None:
    with torch.device("meta"):
        model = build_model("convnext_tiny", 3, drop_path=0.3)
    assert model.features[7][2].stochastic_depth.p == pytest.approx(0.3)
    for name in ("resnet18", "tiny"):
        with pytest.raises(UsageError, match=f"--drop-path: {name}|--drop-path: torchvision's {name}"):
            build_model(name, 3, drop_path=0.1)


def test_a_network_of_timm_is_found_with_and_without_its_prefix() -> None:
    pytest.importorskip("timm")
    for name in ("timm:test_vit", "test_vit"):
        assert build_model(name, 5, image_size=64).eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
