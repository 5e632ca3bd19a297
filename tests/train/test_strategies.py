"""Every strategy on four gloo processes gives the loss curve of one process.

The processes are started once and train with one strategy after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dataloading import UsageError
from tests.support.processes import init, join, start
from train.clock import COMMUNICATION
from train.distributed import World
from train.loaders import make_loader
from train.loaders.base import LoaderSpec
from train.metrics import read_log
from train.model import build_model
from train.options import STRATEGIES as NAMES
from train.options import make_options
from train.strategies import STRATEGIES
from train.strategies.base import clip_by_parts
from train.strategies.pipeline import parts_of
from train.strategies.tensor import HeadsAttention
from train.trainer import Trainer

from .conftest import NUM_IMAGES, SMALL, losses, only, train_here

pytestmark = pytest.mark.timeout(1200)  # a loaded machine needs minutes for the one launch

WORLD_SIZE, PER_NODE = 4, 2
VALUES: dict[str, Any] = {
    **SMALL,
    "loader": "beton",
    "num_workers": 1,
    "tail": "pad",
    "batch_size": 2,
    "epochs": 2,
    "clip_norm": 0.5,
    "ema": 0.5,
    "checkpoints": False,
}
SAVED: dict[str, Any] = {"checkpoints": True, "async_checkpoints": True, "checkpoint_steps": 3, "keep": 9}
RUNS: dict[str, dict[str, Any]] = {
    "ddp-static": {"strategy": "ddp", "static_graph": True, "bucket_mb": 1},
    "ddp-bf16-gradients": {"strategy": "ddp", "grad_compression": "bf16"},
    "fsdp": {"strategy": "fsdp"},
    "fsdp-offload": {"strategy": "fsdp", "fsdp_offload": True},
    "fsdp-bf16": {"strategy": "fsdp", "fsdp_dtype": "bf16"},
    "hsdp": {"strategy": "hsdp"},
    "hsdp-accum": {"strategy": "hsdp", "batch_size": 1, "accum": 2},
    "zero1": {"strategy": "zero1"},
    "zero1-accum": {"strategy": "zero1", "batch_size": 1, "accum": 2},
    # Saved in the background after step 3, and continued from there.
    "ddp-saved": {"strategy": "ddp", **SAVED},
    "fsdp-from-ddp": {"strategy": "fsdp", "resume": "ddp-saved"},
    "fsdp-saved": {"strategy": "fsdp", **SAVED},
    "ddp-from-fsdp": {"strategy": "ddp", "resume": "fsdp-saved"},
    "hsdp-from-fsdp": {"strategy": "hsdp", "resume": "fsdp-saved"},
}
VIT: dict[str, Any] = {"model": "tiny-vit", "lr": 0.05, "batch_size": 4}
ALL: dict[str, Any] = {"group_size": 4, "batch_size": 8}  # one group of four processes
STAGES: dict[str, Any] = {"strategy": "pp", "tail": "drop", "epochs": 3}
RUNS |= {
    "tp": {**VIT, "strategy": "tp"},
    "tp-accum": {**VIT, "strategy": "tp", "batch_size": 2, "accum": 2},
    "tp-all": {**VIT, "strategy": "tp", **ALL},
    "tp-saved": {**VIT, "strategy": "tp", **SAVED},
    "tp-all-from-tp": {**VIT, "strategy": "tp", **ALL, "resume": "tp-saved"},
    "pp": {**VIT, **STAGES},
    "pp-accum": {**VIT, **STAGES, "batch_size": 2, "accum": 2, "pp_micro_batches": 2},
    "pp-tiny": {**STAGES, "batch_size": 4},
    "pp-deep": {**VIT, **STAGES, **ALL, "pp_micro_batches": 4},
    "pp-saved": {**VIT, **STAGES, **SAVED},
    "pp-from-pp": {**VIT, **STAGES, "resume": "pp-saved"},
    "ddp-from-pp": {**VIT, **STAGES, "strategy": "ddp", "batch_size": 2, "resume": "pp-saved"},
}
# Relative to the loss. Sums in another order differ by 1e-6; bfloat16 has 8 bits.
TOLERANCE = {"ddp-bf16-gradients": 2e-3, "fsdp-bf16": 2e-2}


def train_ranks(rank: int, world_size: int, folder: Path, data: str) -> None:
    """Train with each strategy, as two nodes of two processes."""
    init(rank, world_size, folder)
    world = World(
        rank=rank, world_size=world_size, local_rank=rank % PER_NODE, local_world_size=PER_NODE, launcher="torchrun"
    )
    for name, values in RUNS.items():
        saved = folder / values["resume"] / "checkpoints" / "step-00000003" if "resume" in values else None
        values = {
            **VALUES,
            "data": data,
            "val": data,
            **values,
            "output": str(folder / name),
            "resume": str(saved or "no"),
        }
        trainer = Trainer(make_options(**values), world, torch.device("cpu"), saved)
        assert trainer.fit() == 0
        trainer.close()
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def root(beton: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    folder = tmp_path_factory.mktemp("strategies")
    join(start(train_ranks, WORLD_SIZE, folder, str(beton)), seconds=1100)
    return folder


def alone(root: Path, beton: Path, **values: Any) -> list[dict[str, Any]]:
    """Return the log of one process with the whole batch."""
    output = root / "-".join(map(str, ["one", *values.values()]))
    if output.exists():
        return read_log(output / "log.jsonl")
    return train_here(output, **{**VALUES, "data": str(beton), "val": str(beton), "batch_size": 8, **values})


@pytest.mark.parametrize("name", RUNS)
def test_a_strategy_trains_and_validates_like_one_process(name: str, root: Path, beton: Path) -> None:
    tolerance = TOLERANCE.get(name, 1e-4)
    recipe = {key: {**VALUES, **RUNS[name]}[key] for key in ("model", "lr", "tail", "epochs")}
    found, expected = read_log(root / name / "log.jsonl"), alone(root, beton, **recipe)
    first, epochs = 3 if "resume" in RUNS[name] else 0, recipe["epochs"]
    assert len(losses(expected)) == {"pad": 4, "drop": 3}[recipe["tail"]] * epochs
    assert losses(found) == pytest.approx(losses(expected)[first:], rel=tolerance)
    assert losses(expected)[-1] < losses(expected)[0]
    ends, right = only(found, "epoch"), only(expected, "epoch")
    assert [end["train_num_images"] for end in ends] == [end["train_num_images"] for end in right[-len(ends) :]]
    evaluations = only(found, "eval")
    for record, counted in zip(evaluations, only(expected, "eval")[-len(evaluations) :], strict=True):
        assert record["num_images"] == NUM_IMAGES
        assert record["loss"] == pytest.approx(counted["loss"], rel=tolerance)


def test_offloading_on_a_cpu_says_that_it_does_nothing(root: Path) -> None:
    notes = {name: only(read_log(root / name / "log.jsonl"), "start")[0]["notes"] for name in ("fsdp", "fsdp-offload")}
    assert notes["fsdp"] == []
    assert [note[:40] for note in notes["fsdp-offload"]] == ["--fsdp-offload does nothing on CPUs: par"]


@pytest.mark.parametrize("name", ["ddp-static", "fsdp", "hsdp", "zero1", "tp", "pp"])
def test_each_strategy_tells_its_communication_apart(name: str, root: Path) -> None:
    records = read_log(root / name / "log.jsonl")
    assert only(records, "start")[0]["communication"] == "measured"
    for step in only(records, "step"):
        assert 0 < step["parts_s"][COMMUNICATION] < step["step_s"]
        assert all(seconds >= 0 for seconds in step["parts_s"].values())
        assert sum(step["parts_s"].values()) + step["wait_s"] <= step["step_s"] * 1.001


@pytest.mark.parametrize("name", ["tiny-bn", "tiny-vit", "resnet18"])
def test_the_links_of_a_pipeline_are_the_network(name: str) -> None:
    """In a row they compute what it computes, and each parameter belongs to one of them."""
    torch.manual_seed(0)
    model = build_model(name, 3, image_size=32).eval()
    images = torch.randn(2, 3, 32, 32)
    values, links = images, parts_of(model)
    for _, run in links:
        values = run(values)
    torch.testing.assert_close(values, model(images))
    owned = [link for parameter, _ in model.named_parameters() for names, _ in links for link in names
             if parameter == link or parameter.startswith(f"{link}.")]  # fmt: skip
    assert len(owned) == len(list(model.parameters()))
    assert all(any(link in owned for link in names) for names, _ in links)


def test_a_network_without_links_is_refused() -> None:
    with pytest.raises(UsageError, match="--strategy pp cuts torchvision's ResNets"):
        parts_of(torch.nn.Linear(3, 3))


def test_attention_in_separate_matrices_is_the_same() -> None:
    torch.manual_seed(0)
    fused = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    tokens = torch.randn(2, 5, 12)
    torch.testing.assert_close(HeadsAttention(fused)(tokens)[0], fused(tokens, tokens, tokens)[0])


def test_norms_of_all_parts_are_clipped_together() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for parameter, gradient in zip(parameters, ([3.0, 0.0], [0.0, 4.0]), strict=True):
        parameter.grad = torch.tensor(gradient)
    clip_by_parts(parameters, 10.0)
    assert parameters[1].grad is not None and parameters[1].grad.tolist() == [0.0, 4.0]
    clip_by_parts(parameters, 1.0)
    assert [p.grad.tolist() for p in parameters if p.grad is not None] == [
        pytest.approx([0.6, 0.0], rel=1e-5), pytest.approx([0.0, 0.8], rel=1e-5)
    ]  # fmt: skip


def test_later_stages_get_labels_without_images(beton: Path) -> None:
    found = []
    for images in (True, False):
        spec = LoaderSpec(path=str(beton), training=True, batch_size=9, num_workers=1, seed=3, images=images)
        loader = make_loader("beton", spec)
        found.append(list(loader))
        loader.close()
    assert [batch.images.numel() for batch in found[1]] == [0, 0, 0]
    assert [batch.labels.tolist() for batch in found[1]] == [batch.labels.tolist() for batch in found[0]]
    assert [batch.indices.tolist() for batch in found[1]] == [batch.indices.tolist() for batch in found[0]]


def test_every_strategy_of_the_command_line_has_a_file() -> None:
    assert tuple(STRATEGIES) == NAMES


def test_an_option_of_another_strategy_is_refused(beton: Path, tmp_path: Path) -> None:
    for strategy, name, value in (("fsdp", "bucket_mb", 50), ("ddp", "fsdp_offload", True), ("zero1", "group_size", 2)):
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} works with --strategy"):
            make_options(data=str(tmp_path), loader="torch", strategy=strategy, **{name: value})
    for values, words in (
        ({"tail": "even"}, "--strategy pp needs batches of one size"),
        ({"compile": True}, "--strategy pp does not compile"),
        ({"start_size": 32, "grow_end": 3}, "--strategy pp needs images of one size"),
        ({"log_seen": True}, "--log-seen"),
        ({"amp": "fp16"}, "use --amp bf16"),
    ):
        with pytest.raises(UsageError, match=words):
            make_options(**{"data": str(beton), "strategy": "pp", **values})
    with pytest.raises(UsageError, match="--static-graph with --accum 2"):
        make_options(data=str(tmp_path), loader="torch", static_graph=True, accum=2)
