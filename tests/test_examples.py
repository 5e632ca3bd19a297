"""Each example runs for a few steps, in real processes.

What needs other packages is in tests/train/test_frameworks.py. Importing torch takes longer than the examples do: it
is imported once, those of several processes share one launch of two, and all processes are forked.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataloading import ImageField, IntField, MaskField, VarArrayField, Writer
from tests.support.forks import preloaded
from train.cli import train
from train.doctor.cli import doctor
from train.launch import launch_environment, run_local_processes

EXAMPLES = Path(__file__).parents[1] / "examples"

# The scripts start and end the process group themselves; here it lives as long as the processes.
TOGETHER = """
import os, runpy, sys
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.init_process_group, end = (lambda backend: None), dist.destroy_process_group
dist.destroy_process_group = dist.barrier
examples, folder, images = sys.argv[1:4]
calls = {
    "simclr_two_views": [((images,), {"image_size": 32, "batch_size": 4, "epochs": 1})],
    "gradient_accumulation": [((images,), {"side": 32, "batch_size": 4, "accumulate": 2, "epochs": 1})],
    "communication_overlap": [((images,), {"side": 32, "batch_size": 4, "repeats": 1})],
    "torchvision_reference": [((["--train", images, "--val", images, "--model", "resnet18", "--crop", "32", "--resize",
        "36", "--batch-size", "4", "--epochs", "1", "--mixup", "0.2", "--workers", "1"],), {})],
    "timm_loop": [((images,), {"model": "test_resnet", "batch_size": 4, "epochs": 1})],
    "fsdp2_loop": [((images, folder), {"side": 32, "batch_size": 4, "epochs": epochs, "save_steps": steps})
        for epochs, steps in ((1, 2), (2, 1))],
}
for name, runs in calls.items():
    if os.environ["RANK"] == "0":
        print("running", name, flush=True)
    main = runpy.run_path(os.path.join(examples, name + ".py"))["main"]
    for words, options in runs:
        main(*words, **options)
end()
"""


def environment() -> dict[str, str]:
    return launch_environment({**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def python() -> Iterator[list[str]]:
    """A Python that has imported what the examples import."""
    with preloaded(["timm", "torch.distributed.checkpoint", "dataloading.loader"], environment()) as python:
        yield python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples write."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def images(folder: Path) -> Path:
    """Twenty images of five classes."""
    path, rng = folder / "images.beton", np.random.default_rng(6)
    with Writer(
        path, {"image": ImageField(), "label": IntField()}, num_samples=20, class_names=list("abcde")
    ) as writer:
        for number in range(20):
            writer.append({"image": rng.integers(0, 256, (64, 64, 3), dtype=np.uint8), "label": number % 5})
    return path


@pytest.fixture(scope="module")
def annotated(folder: Path) -> Path:
    """Eight images with a mask, and one or two boxes with their categories."""
    path, rng = folder / "annotated.beton", np.random.default_rng(7)
    fields = {
        "image": ImageField(),
        "mask": MaskField(),
        "boxes": VarArrayField("float32", (None, 4), coordinates="xyxy"),
        "category": VarArrayField("int64", (None,)),
    }
    with Writer(path, fields, num_samples=8) as writer:
        for number in range(8):
            boxes = np.array([[5, 5, 40, 40], [20, 10, 60, 50]][: 1 + number % 2], np.float32)
            writer.append(
                {
                    "image": rng.integers(0, 256, (64, 64, 3), dtype=np.uint8),
                    "mask": rng.integers(0, 21, (64, 64), dtype=np.uint8),
                    "boxes": boxes,
                    "category": np.arange(1, 1 + len(boxes), dtype=np.int64),
                }
            )
    return path


def test_examples_of_several_processes_train(images: Path, folder: Path, python: list[str]) -> None:
    script, log = folder / "together.py", folder / "output.txt"
    script.write_text(TOGETHER)
    with log.open("w") as stream:
        command = [*python, *map(str, (script, EXAMPLES, folder, images))]
        status = run_local_processes(command, 2, environment(), stream)
    output = log.read_text()
    assert status == 0, output[-3000:]
    pieces = re.split(r"^running (\S+)$", output, flags=re.MULTILINE)[1:]
    printed = dict(zip(pieces[::2], pieces[1::2], strict=True))
    loss = r"epoch 0, loss \d+\.\d"
    for name, lines in {
        "simclr_two_views": [f"rank 0: {loss}"],
        "gradient_accumulation": [f"rank 0: {loss}"],
        "communication_overlap": ["buckets of 1 MB, float32: step", "buckets of 100 MB, bfloat16: step"],
        "torchvision_reference": [r"epoch 0 \[0/2\] loss \d", r"epoch 0: accuracy \d+\.\d%"],
        "timm_loop": [f"rank 0: {loss}"],
        # The first run saves after the last step of its only epoch; the second goes on with the next epoch.
        "fsdp2_loop": [r"rank 0: epoch 0, step 2, loss .*, saved", r"rank 0: epoch 1, step 1, loss .*, saved"],
    }.items():
        for line in lines:
            assert re.search(line, printed[name]), f"{name}: {line} is not in:\n{printed[name]}"
    assert not re.search(r"\bnan\b", output)


ANNOTATED = """
import os, runpy, sys
import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
torch.set_num_threads(1)
examples, path = sys.argv[1:]
main = runpy.run_path(os.path.join(examples, "segmentation_masks.py"))["main"]
main(path, image_size=64, batch_size=4, epochs=1)
network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
main = runpy.run_path(os.path.join(examples, "detection_boxes.py"))["main"]
main(path, network=network, side=64, batch_size=4, epochs=1)
"""


def test_segmentation_and_detection_train(annotated: Path, python: list[str], tmp_path: Path) -> None:
    script = tmp_path / "annotated.py"
    script.write_text(ANNOTATED)
    command = [*python, *map(str, (script, EXAMPLES, annotated))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(re.findall(r"epoch 0: loss \d+\.\d", done.stdout)) == 2, done.stdout


def test_the_change_to_a_ddp_script_is_at_most_ten_lines_and_none_of_them_in_the_training() -> None:
    before, after = ((EXAMPLES / "ddp_script" / f"{name}.py").read_text().splitlines() for name in ("before", "after"))
    changes = list(difflib.ndiff(before, after))
    added = [line[2:] for line in changes if line.startswith("+ ") and line.strip("+ ")]
    removed = [line[2:] for line in changes if line.startswith("- ")]
    assert len(added) <= 18
    assert 0 < len([line for line in added if not line.startswith(('"""', "beton convert", "torchrun"))]) <= 10
    assert not any(word in line for line in [*added, *removed] for word in ("optimizer", "ddp(", "backward", "rate"))


def test_the_changed_ddp_script_trains_on_two_gloo_processes(images: Path, python: list[str], tmp_path: Path) -> None:
    command = [*python, str(EXAMPLES / "ddp_script" / "after.py"), str(images)]
    with (tmp_path / "output.txt").open("w") as stream:
        status = run_local_processes(command, 2, environment(), stream)
    output = (tmp_path / "output.txt").read_text()
    assert status == 0, output
    assert "epoch 0: 1 steps, loss" in output and "epoch 1: 1 steps, loss" in output


@pytest.mark.parametrize("script", sorted((EXAMPLES / "slurm").glob("*.sbatch")), ids=lambda path: path.name)
def test_batch_scripts_run_what_exists(script: Path) -> None:
    """bash reads them, and `beton train` and `beton doctor` know the options they give."""
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text().replace("\\\n", " ")
    used = set(re.findall(r"beton (?:train|doctor) .*", text))
    assert used
    for command in used:
        verb = {"train": train, "doctor": doctor}[command.split()[1]]
        known = {name for option in verb.params for name in (*option.opts, *option.secondary_opts)}
        assert set(re.findall(r" (--[a-z][a-z-]*|-[a-z])\b", command)) <= known


def test_the_readme_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    scripts = [path.relative_to(EXAMPLES) for kind in ("*.py", "*.sbatch", "*.json") for path in EXAMPLES.rglob(kind)]
    assert len(scripts) > 10
    for script in scripts:
        assert str(script) in page or f"`{script.parent}/`" in page, f"examples/README.md does not name {script}"
