"""Which native library the gateway takes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("", "lacks beton_interface: it is older than its gateway; build it again"),
        (
            "int beton_interface(void) { return 0; }",
            "has interface 0, its gateway needs [1-9][0-9]*: .*; build it again",
        ),
    ],
)
def test_a_library_of_another_version_is_refused_when_it_is_imported(source: str, fault: str, tmp_path: Path) -> None:
    library = tmp_path / "old.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import dataloading._native"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "BETON_NATIVE_LIBRARY": str(library)},
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(f"ImportError: {library} {fault}", done.stderr), done.stderr
