"""Who may import whom: arrows point down, and importing changes nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the top down; modules of one level do not import each other, but for the packages' own inside.
LEVELS = [
    ["cli"],
    ["loader", "testing", "ceiling"],
    ["frameworks"],
    ["iteration", "recipes", "place", "selection", "storage"],
    ["assembly"],
    ["workers", "transfer"],
    ["pipeline"],
    ["decode_images"],
    ["decode", "transforms", "dataset", "pagefile"],
    ["gather", "opening", "supply"],
    ["files", "stored", "pagecache"],
    ["keeper"],
    ["sampler", "quality", "format", "_native", "stats", "batch", "ranks"],
    ["cursor", "mixture"],
    ["orders", "pages", "slicing", "subsets"],
    ["permutation"],
    ["splitmix", "checks", "machine", "words", "finalisers", "entry"],
    ["errors"],
]
RANK = {name: level for level, names in enumerate(LEVELS) for name in names}
MAY_IMPORT = {
    "torch": {"transfer", "loader"},
    "numba": {"decode", "gather", "transforms", "pipeline", "testing"},
}


def sources(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names that a file imports, anywhere in it, with the line."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            yield ".".join(base), node.lineno
            for alias in node.names:
                yield ".".join([*base, alias.name]), node.lineno


def module_of(path: Path) -> str:
    """The module of `dataloading` that a file belongs to: 'format' for format/reader.py."""
    parts = path.relative_to(ROOT / "dataloading").with_suffix("").parts
    return parts[0]


@pytest.mark.parametrize("path", sorted(sources("dataloading")), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_levels_below_its_own(path):
    own = module_of(path)
    if own == "__init__":
        return  # the front door names everything, lazily
    assert own in RANK, f"{own} has no place in LEVELS: give it one"
    for name, line in imported(path):
        parts = name.split(".")
        if parts[0] in ("converters", "train"):
            pytest.fail(f"{path}:{line} imports an application: {name}")
        if parts[0] == "dataloading" and len(parts) > 1 and parts[1] in RANK and parts[1] != own:
            assert RANK[parts[1]] > RANK[own], f"{path}:{line}: {own} may not import {parts[1]}"


@pytest.mark.parametrize("path", sorted(sources("dataloading")), ids=lambda p: str(p.relative_to(ROOT)))
def test_torch_and_numba_stay_in_the_modules_that_own_them(path):
    own = module_of(path)
    for name, line in imported(path):
        top = name.split(".")[0]
        if top in MAY_IMPORT and own != "__init__":
            assert own in MAY_IMPORT[top], f"{path}:{line}: {own} may not import {top}"


@pytest.mark.parametrize("package", ["converters", "train"])
def test_applications_import_only_the_front_door_and_not_each_other(package):
    other = "train" if package == "converters" else "converters"
    public = ast.parse((ROOT / "dataloading" / "__init__.py").read_text())
    modules = {path.stem for path in (ROOT / "dataloading").glob("*.py")} - {"__init__", "cli"}
    for path in sources(package):
        for name, line in imported(path):
            parts = name.split(".")
            assert parts[0] != other, f"{path}:{line} imports {other}"
            if parts[0] == "dataloading" and len(parts) > 1:
                inside = parts[1] in modules | {"format", "_native"} and parts[1] not in ("transforms", "errors")
                assert not inside, f"{path}:{line} goes past the front door: {name}"
    assert public.body


def test_importing_changes_nothing_global():
    code = """
import os, random, signal, sys, threading, warnings
import numpy, torch, multiprocessing
before = lambda: (
    torch.get_num_threads(), torch.initial_seed(), random.getstate(), numpy.random.get_state()[1].tolist(),
    multiprocessing.get_start_method(allow_none=True), threading.active_count(), dict(os.environ),
    signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), list(warnings.filters),
)
a = before()
import dataloading, dataloading.loader, dataloading.transforms, dataloading.pipeline, converters, train
names = [getattr(dataloading, name) for name in dataloading.__all__]
b = before()
changed = [k for k, (x, y) in enumerate(zip(a, b)) if x != y]
# numba and torch add warning filters of their own when first imported: only ours would be a fault
sys.exit(repr(changed) if set(changed) - {9} else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["dataloading", "dataloading.format", "dataloading.cli", "converters"])
def test_the_format_and_the_command_line_start_without_torch_and_numba(module):
    code = f"import {module}, sys; sys.exit(' '.join({{'torch', 'numba'}} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module} imports {done.stderr}"
