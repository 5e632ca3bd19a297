"""What the parent process holds does not grow with the samples by more than some numbers for each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Measured: 40 to 50, mostly of the order and of what makes it. A list of names would be 70 more.
MOST_BYTES = 90

PEAK = """
import re, sys
sys.path.insert(0, {root!r})

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

count, folder = int(sys.argv[1]), sys.argv[2]
"""
CONVERTING = (
    PEAK
    + """
from converters import ImagePolicy, Options, convert
from converters.python_dataset import DatasetSource
from dataloading import BytesField, IntField

class Small:
    def __len__(self):
        return count
    def __getitem__(self, index):
        return b"x", index

source = DatasetSource(Small(), {{"data": BytesField(), "label": IntField()}})
convert(source, folder + "/o.beton", policy=ImagePolicy(), options=Options(shuffle=True, checkpoint_seconds=0.2))
print(peak())
"""
)
LISTING = (
    PEAK
    + """
from converters import Options
from converters.engine.convert import sample_order
from converters.engine.fingerprint import names_digest
from converters.sources.table import Table

with open(folder + "/t.csv", "w") as file:
    file.write("image,label\\n")
    for row in range(count):
        file.write(f"images/of/some/folder/{{row:09}}.jpg,class-{{row % 1000:03}}\\n")
source = Table(folder + "/t.csv")
order = sample_order(len(source), Options(shuffle=True))
names_digest(source, order)
[source.task(int(index)) for index in order[:100]]
print(peak())
"""
)


def peak_bytes(script: str, count: int, folder: Path) -> int:
    """Return the most memory that a fresh process with so many samples held."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script.format(root=str(ROOT)), str(count), str(folder)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("script", "fewer", "more"), [(CONVERTING, 40_000, 140_000), (LISTING, 20_000, 220_000)])
def test_memory_grows_by_less_than_a_name_a_sample(tmp_path: Path, script: str, fewer: int, more: int) -> None:
    small, large = (peak_bytes(script, count, tmp_path / str(count)) for count in (fewer, more))
    assert (large - small) / (more - fewer) < MOST_BYTES
