"""What the documentation shows is what the project does."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dataloading.cli import beton
from tests.support.files import write_images

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "dataloading").rglob("*.py")
    if path.name != "__init__.py"
)


def test_the_readme_example_runs_as_printed(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    assert len(code.group(1).splitlines()) <= 13
    write_images(tmp_path / "train.beton", 70, sizes=(60, 90))
    done = subprocess.run(
        [sys.executable, "-c", code.group(1)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "140 samples in 4 batches" in done.stdout


def _command_lines() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            joined = block.replace("\\\n", " ")
            found += [(page.name, line.strip()) for line in joined.splitlines() if line.strip().startswith("beton ")]
    return found


@pytest.mark.parametrize(("page", "line"), _command_lines())
def test_every_command_line_in_the_pages_parses(page, line):
    words = shlex.split(line, comments=True)[1:]
    if "..." in line or "[" in line:
        pytest.skip("a pattern, not a command")
    command: click.Command = beton
    context = click.Context(beton)
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"{page}: {line}: no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context, resilient_parsing=True)
    command.make_parser(context).parse_args(args=list(words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
