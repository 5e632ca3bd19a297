"""The Loader in Lightning, Accelerate, DeepSpeed and by torchdata's conventions.

Each runs in processes of its own: what importing a framework does must not reach other tests. They are forked from one
process for each framework, which has imported it, because that takes longest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloading import ImageField, IntField, Loader, Writer
from tests.support.forks import preloaded
from train.launch import launch_environment, run_local_processes

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_IMAGES = 50


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 images whose label is their number."""
    path = tmp_path_factory.mktemp("numbered") / "numbered.beton"
    rng = np.random.default_rng(4)
    with Writer(path, {"image": ImageField(), "label": IntField()}, num_samples=NUM_IMAGES) as writer:
        for label in range(NUM_IMAGES):
            writer.append({"image": rng.integers(0, 256, (40, 40, 3), dtype=np.uint8), "label": label})
    return path


def environment() -> dict[str, str]:
    return launch_environment(
        {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    )


def python_with(*modules: str) -> Any:
    """A fixture: the beginning of a command for a Python that has imported these modules."""

    @pytest.fixture(scope="module")
    def python() -> Iterator[list[str]]:
        with preloaded(modules, environment()) as command:
            yield command

    return python


# Behind each framework: what it imports later.
lightning = python_with("lightning", "torch.distributed.checkpoint", "gcsfs", "dataloading.loader")
accelerate = python_with("accelerate", "torch._dynamo", "torch.distributed.checkpoint", "datasets")
deepspeed = python_with("deepspeed", "networkx", "torch._inductor.compile_fx", "dataloading.loader")


def run(python: list[str], code: str, folder: Path, world: int, *words: object) -> None:
    """Run `code` with `words` as its arguments, on so many processes, in `folder`."""
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(f"import os, runpy, sys\nos.chdir({str(folder)!r})\n{code}")
    command = [*python, str(script), *map(str, words)]
    with (folder / "output.txt").open("a") as stream:
        status = run_local_processes(command, world, environment(), stream)
    assert status == 0, (folder / "output.txt").read_text()[-3000:]


def order(path: Path, epoch: int, **options: Any) -> list[list[int]]:
    """Return the batches that a plain loop gets."""
    loader = Loader(path, shuffle="global", tail="even", num_workers=1, fields=["label"], **options)
    loader.set_epoch(epoch)
    return [batch.indices.tolist() for batch in loader]


LIGHTNING = """
import json
space = runpy.run_path(sys.argv[1])
seen, real = [], space["Classifier"].training_step
def noted(self, batch, batch_idx):
    assert batch.indices.tolist() == batch["label"].tolist() and batch.global_size == len(batch["label"])
    seen.append([self.current_epoch, batch.indices.tolist()])
    return real(self, batch, batch_idx)
space["Classifier"].training_step = noted
space["main"](*sys.argv[3:])
open(sys.argv[2], "w").write(json.dumps(seen))
"""


def test_lightning_trains_in_order_and_resumes_inside_an_epoch(
    numbered: Path, lightning: list[str], tmp_path: Path
) -> None:
    script = EXAMPLES / "lightning_module.py"
    run(lightning, LIGHTNING, tmp_path, 1, script, "whole.json", numbered)
    checkpoint = "lightning/step=4.ckpt"
    run(lightning, LIGHTNING, tmp_path, 1, script, "resumed.json", numbered, checkpoint)
    whole, resumed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "resumed"))
    expected = [[epoch, batch] for epoch in (0, 1) for batch in order(numbered, epoch, batch_size=8)]
    assert whole == expected and len(whole) == 14
    assert resumed == expected[4:]


LIGHTNING_LIMITS = """
import lightning, torch
from dataloading import Loader
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.trained, self.validated = torch.nn.Linear(1, 1), [], []
    def training_step(self, batch, number):
        self.trained.append(batch.indices.tolist())
        return self.layer(batch["label"].float()[:, None]).mean()
    def validation_step(self, batch, number):
        self.validated.append(batch.indices.tolist())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
module = Module()
loaders = [Loader(sys.argv[1], batch_size=8, fields=["label"], tail="even", num_workers=1) for _ in range(2)]
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, limit_train_batches=3,
    num_sanity_val_steps=1, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(module, *loaders)
assert len(module.trained) == 6 and module.trained[:3] == module.trained[3:], module.trained
counted = sorted(sum(module.validated, []))
assert counted == sorted([*range(8), *range(50), *range(50)]), counted
"""


def test_lightning_limits_batches_and_validates_each_image_once(
    numbered: Path, lightning: list[str], tmp_path: Path
) -> None:
    run(lightning, LIGHTNING_LIMITS, tmp_path, 1, numbered)


ACCELERATE = """
import json
from dataloading import Loader
seen, real = [], Loader.__iter__
def noted(self):
    for batch in real(self):
        seen.append(batch.indices.tolist())
        yield batch
Loader.__iter__ = noted
space = runpy.run_path(sys.argv[1])
space["main"](*sys.argv[3:])
open(f"{sys.argv[2]}-{os.environ.get('RANK', '0')}.json", "w").write(json.dumps(seen))
"""


def test_accelerate_leaves_the_loader_alone_and_goes_on_on_another_number_of_processes(
    numbered: Path, accelerate: list[str], tmp_path: Path
) -> None:
    """Saved after three steps of the second epoch by two processes; three see exactly the rest."""
    script = EXAMPLES / "accelerate_script.py"
    run(accelerate, ACCELERATE, tmp_path, 2, script, "two", numbered)
    run(accelerate, ACCELERATE, tmp_path, 3, script, "three", numbered, "accelerate-state")
    two, three = (
        [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(world)]
        for name, world in (("two", 2), ("three", 3))
    )
    assert two == [[*order(numbered, 0, **place), *order(numbered, 1, **place)] for place in places(2)]
    seen = [image for batches in two for batch in batches[4:7] for image in batch]
    rest = [image for batches in three for batch in batches for image in batch]
    assert rest and sorted(seen + rest) == list(range(NUM_IMAGES))


HELPERS = """
import torch
from accelerate.utils import concatenate, find_batch_size, send_to_device, slice_tensors
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.fabric.utilities import move_data_to_device
from lightning_utilities.core.apply_func import apply_to_collection
from dataloading import Loader
batch = next(iter(Loader(sys.argv[1], batch_size=8, fields=["label"], num_workers=1)))
for moved in (send_to_device(batch, "cpu"), move_data_to_device(batch, torch.device("cpu"))):
    assert moved.names == batch.names and moved.indices is batch.indices
assert find_batch_size(batch) == extract_batch_size(batch) == 8
assert concatenate([batch, batch])[0].tolist() == 2 * list(range(8))
assert slice_tensors(batch, slice(0, 3))[0].tolist() == [0, 1, 2]
assert apply_to_collection(batch, torch.Tensor, torch.neg)["label"].tolist() == [-k for k in range(8)]
"""


def test_their_helpers_for_nested_data_take_a_batch(numbered: Path, lightning: list[str], tmp_path: Path) -> None:
    run(lightning, HELPERS, tmp_path, 1, numbered)


ACCELERATE_EPOCHS = """
import json, warnings
import torch
from accelerate import Accelerator, skip_first_batches      # before any Loader is there
from dataloading import Loader
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
world = accelerator.num_processes
def make(tail, num, **options):
    options = {"batch_size": 8, "num_workers": 1, "fields": ["label"], **options}
    return accelerator.prepare(Loader(sys.argv[1], indices=range(num), tail=tail, **options))
model = torch.nn.Linear(1, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
def epoch(batches):
    gathered, syncs = [], []
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["label"].float()[:, None]).mean())
            syncs.append(int(accelerator.sync_gradients))
            optimizer.step()
            optimizer.zero_grad()
        gathered.append(accelerator.gather_for_metrics(batch["label"]).tolist())
    return gathered, syncs
def flat(parts):
    return sorted(sum(parts, []))
warnings.simplefilter("ignore")
for tail in ("pad", "even", "drop"):
    for num, size in ((35, 8), (13, 4), (1, 4)):
        loader = make(tail, num, batch_size=size)
        gathered, syncs = epoch(loader)
        kept = num if tail != "drop" else num // world * world
        assert flat(gathered) == list(range(kept)), (tail, num, gathered)
        steps = -(-kept // (size * world))
        expected = [int(step % 4 == 0 or step == steps) for step in range(1, steps + 1)]
        assert len(loader) == steps and syncs == expected, (tail, num, syncs)
    # The second epoch goes on the same; so does one whose first batches are left out.
    loader = make(tail, 35, shuffle="global")
    first, _ = epoch(loader)
    for skip in (accelerator.skip_first_batches, skip_first_batches):
        loader.set_epoch(0)
        rest = skip(loader, 1)
        assert len(rest) == len(loader) - 1
        again, syncs = epoch(rest)
        assert again == first[1:] and syncs[-1] == 1, (tail, again, first)
    second, _ = epoch(loader)
    assert flat(second) == flat(first) or tail == "drop"
    assert second != first
    loader.set_epoch(0)
    assert epoch(skip_first_batches(loader, 99)) == ([], []) and loader.state_dict()["epoch"] == 1
# A place that was loaded is not skipped twice.
loader = make("pad", 35)
for number, batch in enumerate(loader):
    if number == 1:
        state = loader.state_dict()
        break
loader.load_state_dict(state)
rest, _ = epoch(accelerator.skip_first_batches(loader, 2))
assert flat(rest) == list(range(16 * world, 35)), rest
# A loop inside a loop: the inner one's end is not the outer one's, and leaving it early gives the outer one back.
outer, inner = make("pad", 35), make("even", 13)
state = accelerator.gradient_state
for number, _ in enumerate(outer, 1):
    for _ in inner:
        assert not state.end_of_dataloader or number <= len(outer)
        if number == 1:
            break
    assert state.end_of_dataloader == (number == len(outer))
assert not state.in_dataloader
# torch's own loaders are skipped as before.
plain = accelerator.prepare(torch.utils.data.DataLoader(range(48), batch_size=8))
assert len(list(accelerator.skip_first_batches(plain, 1))) == len(plain) - 1
accelerator.end_training()
"""


@pytest.mark.parametrize("world", [1, 2])
def test_accelerate_drops_padding_ends_accumulation_and_skips_batches(
    world: int, numbered: Path, accelerate: list[str], tmp_path: Path
) -> None:
    """After `prepare` alone; every sample is gathered once for any tail, also where ranks' shares differ."""
    run(accelerate, ACCELERATE_EPOCHS, tmp_path, world, numbered)


def test_without_an_accelerator_accelerate_is_neither_imported_nor_asked(numbered: Path) -> None:
    code = (
        "import sys\n"
        "from dataloading import Loader\n"
        "from dataloading.engine.epoch import EpochIterator\n"
        "loader = Loader(sys.argv[1], batch_size=4, fields=['label'], num_workers=1)\n"
        "assert type(iter(loader)) is EpochIterator and 'accelerate' not in sys.modules\n"
        "import accelerate\n"
        "assert type(iter(loader)) is EpochIterator and not accelerate.state.is_initialized()\n"
    )
    command = [sys.executable, "-c", code, str(numbered)]
    done = subprocess.run(command, env=launch_environment(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def places(world: int) -> list[dict[str, int]]:
    return [{"rank": rank, "world_size": world, "batch_size": 8} for rank in range(world)]


DEEPSPEED = """
import deepspeed
deepspeed.ops.__compatible_ops__.clear()  # it would compile an operator of its own, which takes minutes
space = runpy.run_path(sys.argv[1])
space["main"].__globals__["SAVE_STEPS"] = 5
torch = space["torch"]
# One launch for all stages: the process group stays, whatever a run of the example does with it.
torch.distributed.destroy_process_group, end = torch.distributed.barrier, torch.distributed.destroy_process_group
for name in sys.argv[3:]:
    os.makedirs(name, exist_ok=True)
    os.chdir(name)
    if os.environ["RANK"] == "0":
        print("stage", name, flush=True)
    config = os.path.join(os.path.dirname(sys.argv[1]), "deepspeed_configs", name + ".json")
    space["main"](sys.argv[2], config, side=16, num_classes=50, batch_size=4)
    os.chdir("..")
end()
"""
STAGES = ("zero1", "zero2", "zero3", "zero3_offload")


def test_deepspeeds_engine_trains_with_every_stage_of_zero_and_resumes(
    numbered: Path, deepspeed: list[str], tmp_path: Path
) -> None:
    """The newest checkpoint is that of step 10, three steps into the second epoch of seven."""
    run(deepspeed, DEEPSPEED, tmp_path, 2, EXAMPLES / "deepspeed_engine.py", numbered, *STAGES)
    output = (tmp_path / "output.txt").read_text()
    whole = printed(output)
    assert [line.rpartition(",")[0] for line in whole["zero1"]] == ["epoch 0: step 7", "epoch 1: step 14"]
    for stage in STAGES:
        assert whole[stage] == whole["zero1"], f"{stage} computes something else"
        assert (tmp_path / stage / "checkpoints" / "latest").read_text() == "global_step10", stage
    run(deepspeed, DEEPSPEED, tmp_path, 2, EXAMPLES / "deepspeed_engine.py", numbered, "zero2")
    resumed = printed((tmp_path / "output.txt").read_text()[len(output) :])
    assert resumed["zero2"] == whole["zero2"][1:]


def printed(output: str) -> dict[str, list[str]]:
    """What rank 0 printed at each stage: epoch, step and loss."""
    pieces = re.split(r"^stage (\S+)$", output, flags=re.MULTILINE)[1:]
    lines = [re.findall(r"rank 0 of 2, (epoch .: step \d+, loss \d+\.\d+)", piece) for piece in pieces[1::2]]
    return dict(zip(pieces[::2], lines, strict=True))


def test_the_place_is_saved_as_a_stateful_dataloader_saves_it(numbered: Path) -> None:
    """torchdata's convention: state_dict within the loop, load_state_dict before iter, the rest of the epoch."""
    code = (
        "import sys\n"
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "from dataloading import Loader\n"
        "def make(kind):\n"
        "    if kind is StatefulDataLoader:\n"
        "        return kind(range(50), batch_size=4)\n"
        "    return kind(sys.argv[1], batch_size=4, fields=['label'], num_workers=1)\n"
        "def values(batch):\n"
        "    return batch.tolist() if hasattr(batch, 'tolist') else batch['label'].tolist()\n"
        "def use(kind):\n"
        "    loader = make(kind)\n"
        "    seen = []\n"
        "    for number, batch in enumerate(loader):\n"
        "        seen.append(values(batch))\n"
        "        if number == 4:\n"
        "            state = loader.state_dict()\n"
        "            break\n"
        "    fresh = make(kind)\n"
        "    fresh.load_state_dict(state)\n"
        "    seen += ['resumed', *map(values, fresh), 'next', *map(values, fresh)]\n"
        "    return seen\n"
        "assert use(Loader) == use(StatefulDataLoader)\n"
    )
    command = [sys.executable, "-c", code, str(numbered)]
    done = subprocess.run(command, env=launch_environment(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
