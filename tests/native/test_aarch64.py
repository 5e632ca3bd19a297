"""The native core for ARM servers, on any machine with Debian's cross compiler and qemu."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from dataloading import _native as native
from tests.conftest import IN_CI

SCRIPT = Path(__file__).with_name("aarch64.sh")
ROOT = SCRIPT.parents[2]


def run(*arguments: str | Path) -> str:
    result = subprocess.run([SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout


def missing() -> str:
    """Say what this machine lacks."""
    tools = ("cmake", "make", "aarch64-linux-gnu-g++", "qemu-aarch64")
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if not (ROOT / "build/aarch64/libjpeg/usr").exists():
        lacking.append("libjpeg for arm64 (tests/native/aarch64.sh libjpeg)")
    return ", ".join(lacking)


def exports(library: Path) -> set[str]:
    lines = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True).splitlines()
    return {line.split()[-1] for line in lines if "beton_" in line}


def test_the_kernels_of_aarch64_equal_the_portable_ones(tmp_path: Path) -> None:
    if platform.machine() == "aarch64":
        pytest.skip("test_kernels.py runs them here, without qemu")
    # Ubuntu's archive has no packages for arm64: there a machine with that processor runs the tests.
    debian = "ID=debian\n" in Path("/etc/os-release").read_text()
    if missing() and not (IN_CI and debian):
        pytest.skip(f"this machine has no {missing()}; on Debian `./run test` installs it")
    run("build", tmp_path)
    output = run("run", tmp_path / "beton_native_check", "20", "1")
    assert "kernels: neon" in output
    assert "20 rounds" in output  # it stops at the first difference
    assert exports(tmp_path / "libbeton_native.so") == exports(Path(native.library_path()))
