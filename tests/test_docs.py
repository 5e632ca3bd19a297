"""What the documentation shows is what the project does."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import torch

import dataloading
from dataloading import Loader
from dataloading import transforms as T
from dataloading.cli import beton
from dataloading.format import MODE_JPEG, EncodedImage
from tests.support.files import jpeg, photo_like, write_images
from tests.support.loading import MEAN, STD
from train.bench.shuffle import shuffle

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "dataloading").rglob("*.py")
    if path.name != "__init__.py"
)
# Code blocks that this module does not run, by their first line.
RUN_ELSEWHERE = {
    "import io": "tests/format/test_docs_format.py reads files with it",
    "class Skipped:": "needs the real ffcv: tests/format/test_interop_ffcv.py",
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page's text without its blocks of code."""
    return BLOCK.sub("", page.read_text())


def heading_ids(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


# What the pages show.

README_EXAMPLE = next(code for kind, code in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "python")
PYTHON_BLOCKS = [
    pytest.param(page, code, id=f"{name_of(page)}-{number}")
    for page in PAGES
    for number, code in enumerate(code for kind, code in BLOCK.findall(page.read_text()) if kind == "python")
    if code != README_EXAMPLE and not code.startswith(tuple(RUN_ELSEWHERE))
]


def test_the_readme_example_runs_as_printed(tmp_path):
    assert len(README_EXAMPLE.splitlines()) <= 13
    write_images(tmp_path / "train.beton", 70, sizes=(60, 90))
    done = subprocess.run(
        [sys.executable, "-c", README_EXAMPLE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "140 samples in 4 batches" in done.stdout


@pytest.mark.parametrize(("page", "code"), PYTHON_BLOCKS)
def test_python_code_in_the_pages_runs(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels = photo_like(np.random.default_rng(0), 40, 50)
    encoded = jpeg(pixels)
    names: dict[str, object] = {"T": T, "Loader": Loader, "mean": MEAN, "std": STD, "__name__": "__main__"}
    names |= {"EncodedImage": EncodedImage, "MODE_JPEG": MODE_JPEG, "pixels_HWC": pixels}
    names |= {"width": 50, "height": 40, "jpeg_bytes": encoded.data, "model": lambda image, label: (image, label)}
    if page.name == "storage.md":  # there is no such store: the options must be ones that Loader has
        names["Loader"] = inspect.signature(Loader).bind
    if "getitem" in code:  # a dataset that opens its files
        code = code.replace("return 1000", "return 6")
        for index in range(6):
            Path(f"{index}.jpg").write_bytes(encoded.data)
        assert "write(Photos()" in code
        Path("script.py").write_text(code)  # worker processes import it
        done = subprocess.run(
            [sys.executable, "script.py"], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        assert dataloading.Reader("pets.beton").num_samples == 6
        return
    if "JpegFolder(" in code:
        Path("imagenet/train/cat").mkdir(parents=True)
        Path("imagenet/train/cat/1.jpg").write_bytes(encoded.data)
    if "Writer(" not in code:
        write_images(Path("train.beton"), 20)
    if "= batch" in code:
        names["batch"] = next(iter(Loader("train.beton", batch_size=4, transforms={"image": [T.Resize((8, 8))]})))
    exec(compile(code, name_of(page), "exec"), names)
    lists = names.get("transforms", [])
    images = lists["image"] if isinstance(lists, dict) else lists
    if images:
        images_NCHW, _ = next(iter(Loader("train.beton", batch_size=4, transforms={"image": images})))
        assert images_NCHW.shape[:2] == (4, 3) and images_NCHW.dtype != torch.uint8


def test_blocks_that_run_elsewhere_are_still_in_the_pages():
    code = [code for page in PAGES for _, code in BLOCK.findall(page.read_text())]
    assert all(any(block.startswith(line) for block in code) for line in RUN_ELSEWHERE)


COMMAND = re.compile(r"(?:\$ )?(?:\w+=\S+ )*(?:srun )?(beton [a-z].*)")  # also `$ beton ...`, `VARIABLE=x beton ...`
COMMANDS_IN_BLOCKS = sorted(
    {
        (name_of(page), match.group(1))
        for page in PAGES
        for _, code in BLOCK.findall(page.read_text())
        for line in code.replace("\\\n", " ").splitlines()
        if (match := COMMAND.match(line.strip()))
    }
)
COMMANDS_IN_SENTENCES = sorted(
    {
        (name_of(page), match.group(1))
        for page in PAGES
        for code in re.findall(r"`([^`]+)`", prose(page))
        if (match := COMMAND.match(" ".join(code.split())))
    }
)


def find_command(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that words name, its context, and the words left; fails where there is no such command."""
    command: click.Command = beton
    context = click.Context(beton)
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z]+", words[0]):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r} in {command.name}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context, resilient_parsing=True)
    if command.name == "bench" and words[:1] == ["shuffle"]:  # a verb beside a file, not a group's command
        return shuffle, click.Context(shuffle, parent=context, resilient_parsing=True), words[1:]
    return command, context, words


def options_of(command: click.Command, context: click.Context) -> set[str]:
    """The options of a command; of a group those of all its commands."""
    found = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found |= options_of(child, context)
    return found


@pytest.mark.parametrize(("page", "line"), COMMANDS_IN_BLOCKS)
def test_every_command_in_the_pages_parses(page, line):
    command, context, words = find_command(shlex.split(line, comments=True)[1:])
    command.make_parser(context).parse_args(args=words)


@pytest.mark.parametrize(("page", "line"), COMMANDS_IN_SENTENCES)
def test_commands_in_sentences_have_options_that_exist(page, line):
    command, context, words = find_command(shlex.split(line.split("|")[0])[1:])
    used = {word.strip("[]").split("=")[0] for word in words if word.startswith(("--", "[--"))}
    assert not used - options_of(command, context)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        if "://" not in target:
            linked = (page.parent / target).resolve() if target else page
            assert linked.exists(), f"{page.name} links to {target}, which is not there"
            assert not anchor or anchor in heading_ids(linked), f"{page.name}: {target} has no heading #{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_the_pages_name_exist(page):
    for name in re.findall(
        r"[`(]((?:dataloading|converters|train|tests|benchmarks|docs|examples)/[\w./-]*)", prose(page)
    ):
        assert (ROOT / name).exists(), f"{page.name} names {name}, which is not there"


def test_the_architecture_page_lists_every_package():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for top in ("dataloading", "converters", "train"):
        packages = sorted(path.parent.name for path in (ROOT / top).glob("*/__init__.py"))
        assert len(packages) >= 3
        _, found, rows = text.partition(f"| `{top}/` |")
        assert found and all(f"`{name}/`" in rows.partition("\n\n")[0] for name in packages), (top, packages)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_have_at_most_120_characters(page):
    for number, line in enumerate(prose(page).splitlines()):
        table_or_address = line.startswith("|") or "://" in line
        assert table_or_address or len(line) <= 120, f"{page.name}, line {number + 1} without code: {line}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
