"""Who may import whom: arrows point down, and importing changes nothing."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the top down. What stands on one line does not import each other; `package/` is all that lies in a folder.
LAYERS = {
    "dataloading": """
        ffcv/
        warm_up
        cli | jpeg_folder | loader | testing | tools
        engine/
        transforms/ | decode/
        cache/
        dataset/ | keeper
        sampling/ | format/ | _native/ | batch | stats
        arrays | checks | messages | entry | finalisers | limits | locks | retry
        errors
    """,
    "converters": """
        commands/ | demo/
        cli | tools/ | python_dataset
        settings | next_command
        engine/
        output/
        sources/
        images/
        fields | options | report | beton_files
        source | sample_random | local_file
    """,
    "train": """
        cli | doctor/
        compare/ | bench/ | trainer | memory/
        step | data | checkpoint | steplog
        strategies/ | meters
        recompute | optimizers | config
        model | metrics | mixing | seen | host
        options | option_types | launch
        loaders/
        profile
        distributed | schedule | clock | charts | rank_states | batch_shares | classes | networks
        rendezvous | output | summaries | tables | devices | machine | trackers
    """,
}
RANK = {
    (package, name.strip(" /")): level
    for package, layers in LAYERS.items()
    for level, line in enumerate(layers.strip().splitlines())
    for name in line.split("|")
}
# Circles that are left: a transform that is called by itself runs a pipeline, which is made of transforms; recipes are
# written with what their package has.
LATE_IMPORTS = [
    ("dataloading.transforms.base", "dataloading.transforms.alone"),
    ("dataloading.transforms", "dataloading.transforms.recipes"),
]
FRONT_DOOR = {"checks", "cli", "errors", "messages", "testing", "tools", "transforms"}
MAY_IMPORT = {
    "torch": {"engine/transfer.py", "jpeg_folder.py", "loader.py", "transforms", "ffcv"},
    "numba": {"transforms", "ffcv", "engine/kernel_ceiling.py", "testing.py"},
}
FILES = sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


@functools.cache
def imported(path: Path) -> list[tuple[list[str], int]]:
    """Modules that a file imports, anywhere in it, as the parts of their names, with the line."""
    return list(_imported(path))


def _imported(path: Path) -> Iterator[tuple[list[str], int]]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split("."), node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                yield [*base, alias.name], node.lineno


@pytest.mark.parametrize("package", LAYERS)
def test_no_modules_import_each_other(package):
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    imports: dict[str, set[str]] = {}
    for name, path in names.items():
        if name.startswith(f"{package}."):
            # A late import, or one for type checkers alone, counts as well; the longest name is the module.
            dotted = [".".join(parts) for parts, _ in imported(path) if not parts[-1].startswith("__")]
            imports[name] = {each if each in names else each.rpartition(".")[0] for each in dotted} - {package}
    for name, other in LATE_IMPORTS:
        imports.get(name, set()).discard(other)
    graphlib.TopologicalSorter(imports).prepare()  # a CycleError names the circle


def place_of(path: Path) -> tuple[str, str]:
    """The package and the room in it that a file belongs to: ("dataloading", "format") for format/reader.py."""
    package, *inside = path.relative_to(ROOT).with_suffix("").parts
    return package, inside[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    package, own = place_of(path)
    if own in ("__init__", "__main__"):
        return  # the front door names everything, lazily
    assert (package, own) in RANK, f"{own} has no place in LAYERS: give it one"
    for parts, line in imported(path):
        if parts[0] == package and (package, parts[1]) in RANK and parts[1] != own:
            below = RANK[package, parts[1]] > RANK[package, own]
            assert below, f"{path}:{line}: {own} may not import {parts[1]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_applications_use_the_front_door_and_nobody_imports_an_application(path):
    package, _ = place_of(path)
    for parts, line in imported(path):
        if parts[0] in LAYERS and parts[0] != package:
            assert parts[0] == "dataloading", f"{path}:{line} imports the application {parts[0]}"
            room = ROOT / "dataloading" / parts[1] if len(parts) > 1 else ROOT
            inside = len(parts) > 1 and (room.exists() or room.with_suffix(".py").exists())
            assert not inside or parts[1] in FRONT_DOOR, f"{path}:{line} goes past the front door: {'.'.join(parts)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_and_numba_stay_in_the_modules_that_own_them(path):
    inside = path.relative_to(ROOT / "dataloading") if path.is_relative_to(ROOT / "dataloading") else None
    for parts, line in imported(path):
        if inside is not None and parts[0] in MAY_IMPORT:
            allowed = MAY_IMPORT[parts[0]]
            assert {str(inside), inside.parts[0]} & allowed, f"{path}:{line}: {inside} may not import {parts[0]}"


def test_importing_changes_nothing_global():
    code = """
import os, random, signal, sys, threading, warnings
import numpy, torch, torchvision, multiprocessing
before = lambda: (
    torch.get_num_threads(), torch.initial_seed(), random.getstate(), numpy.random.get_state()[1].tolist(),
    multiprocessing.get_start_method(allow_none=True), threading.active_count(), dict(os.environ),
    signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), list(warnings.filters),
)
a = before()
import dataloading, dataloading.loader, dataloading.transforms.pipeline, dataloading.tools, converters, train
names = [getattr(dataloading, name) for name in dataloading.__all__]
b = before()
changed = [k for k, (x, y) in enumerate(zip(a, b)) if x != y]
# numba and torch add warning filters of their own when first imported: only ours would be a fault
sys.exit(repr(changed) if set(changed) - {9} else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_cache_is_used_through_its_front_door(path):
    inside = path.is_relative_to(ROOT / "dataloading" / "cache")
    for parts, line in imported(path):
        if parts[:2] == ["dataloading", "cache"] and not inside:
            name = ROOT.joinpath(*parts[:3]).with_suffix(".py")
            assert not name.exists(), f"{path}:{line} imports {'.'.join(parts)}: take it from dataloading.cache"


@pytest.mark.parametrize(
    "module", ["dataloading", "dataloading.format", "dataloading.cli", "dataloading.tools", "converters"]
)
def test_the_format_and_the_command_line_start_without_torch_and_numba(module):
    code = f"import {module}, sys; sys.exit(' '.join({{'torch', 'numba'}} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module} imports {done.stderr}"


def test_a_loader_without_transforms_that_compile_starts_without_numba():
    code = "import dataloading.loader, dataloading.transforms, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
