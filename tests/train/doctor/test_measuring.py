"""Measuring, with each bad situation really staged by injection: no test depends on the machine's speed or load."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dataloading import UsageError
from dataloading import transforms as T
from dataloading.tools import cpu_quota, open_files
from train.doctor.cli import doctor
from train.doctor.examine import examine
from train.doctor.facts import file_system
from train.doctor.judge import judge
from train.doctor.limits import machine, memory_bytes
from train.doctor.measurements import Setup
from train.doctor.pipeline import describe_files, stored_images
from train.doctor.storage import cached_share, measure_disk

from .test_judge import FINE, GB

Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes a folder that stands for ``/``, from the text of its files."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "root"

    return make


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 64 MiB that occupies no space and that nobody has read."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    return path


def sleeps(image: Any) -> Any:
    time.sleep(0.05)
    return image


def test_a_slow_disk_is_named(large: Path) -> None:
    def read(_path: str, _offset: int, size: int) -> int:
        time.sleep(0.2)
        return size

    disk = measure_disk([str(large)], image_bytes=1e5, num_readers=4, seconds=0.3, read=read, cached=0.0)
    # At most 4 MiB in 0.2 s, and four reads at a time.
    assert disk.sequential_bytes_per_second is not None
    assert disk.sequential_bytes_per_second <= 21e6
    assert disk.random_reads_per_second is not None
    assert disk.random_reads_per_second <= 20
    assert judge(replace(FINE, disk=disk)).cause == "storage"


def test_a_cold_cache_is_named(large: Path) -> None:
    share = cached_share(str(large), [0, 32 << 20], [100_000, 5_000])
    assert share == 0.0
    disk = replace(FINE.disk, cached_share=share, random_reads_per_second=500.0)
    assert judge(replace(FINE, disk=disk)).cause == "cold-cache"


def test_what_was_just_written_is_in_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    share = cached_share(str(path), [0], [1 << 20])
    if share == 0:
        pytest.skip("this file system has a cache of its own")
    assert share is not None
    assert share > 0.9


def test_only_the_parts_asked_for_count(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    with path.open("r+b") as file:
        file.truncate(3 << 20)  # nobody has read the new end
    share = cached_share(str(path), [4_096, 2 << 20], [8_192, 8_192])
    if share == 0:
        pytest.skip("this file system has a cache of its own")
    assert share == pytest.approx(0.5)


def test_reading_past_the_cache_leaves_the_file_out_of_it(large: Path) -> None:
    disk = measure_disk([str(large)], image_bytes=5_000, num_readers=2, cached=None, seconds=0.2)
    if disk.method != "O_DIRECT" or file_system(str(large)) not in ("ext4", "xfs"):
        pytest.skip("some file systems serve O_DIRECT from their cache")
    assert disk.sequential_bytes_per_second
    assert disk.random_reads_per_second
    assert cached_share(str(large), [0], [64 << 20]) == 0.0


def test_too_few_workers_are_named(tree: Tree) -> None:
    root = tree({"proc/meminfo": f"MemAvailable: {400 * GB // 1024} kB"})
    measured = replace(FINE, machine=machine(root, cores=16), setup=Setup(num_workers=1))
    assert judge(measured).cause == "workers"


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/job/step", "sys/fs/cgroup/job/cpu.max": "100000 100000",
         "sys/fs/cgroup/job/step/cpu.max": "max 100000"},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 50000"},
        {"proc/self/cgroup": "0::/seen/from/outside", "sys/fs/cgroup/cpu.max": "50000 50000"},
        {"proc/self/cgroup": "7:memory:/x\n3:cpu,cpuacct:/docker/1",
         "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "20000",
         "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us": "20000"},
        {"proc/self/cgroup": "3:cpu,cpuacct:/docker/1", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
    ],
)  # fmt: skip
def test_a_cpu_quota_of_one_core_is_named(tree: Tree, files: dict[str, str]) -> None:
    root = tree({"proc/meminfo": f"MemAvailable: {400 * GB // 1024} kB", **files})
    assert cpu_quota(root) == 1.0
    assert judge(replace(FINE, machine=machine(root, cores=16))).cause == "cpu-quota"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"},
        {"proc/self/cgroup": "3:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
    ],
)  # fmt: skip
def test_without_a_limit_there_is_no_quota(tree: Tree, files: dict[str, str]) -> None:
    assert cpu_quota(tree({"proc/meminfo": "", **files})) is None


def test_memory_is_what_is_available_or_less_by_the_control_group(tree: Tree) -> None:
    root = tree({"proc/meminfo": "MemTotal: 200 kB\nMemAvailable:     100 kB\n", "proc/self/cgroup": "0::/job"})
    assert memory_bytes(root) == 102_400
    tree({"sys/fs/cgroup/job/memory.max": "max", "sys/fs/cgroup/memory.max": "65536"})
    assert memory_bytes(root) == 65_536


def test_a_slow_transform_is_named(beton: Path) -> None:
    steps = [T.RandomResizedCrop(16), T.PerSample(sleeps, out_shape=(3, 16, 16))]
    measured = examine(
        str(beton), setup=Setup(num_workers=1, image_size=16, batch_size=4), transforms={"image": steps},
        device_rate=1e6, seconds=0.2,
    )  # fmt: skip
    assert measured.work.transform_seconds >= 0.05
    assert measured.work.serial_seconds > 0.01
    # Speed and load of this machine play no part: decoding has the value of a fine run.
    staged = replace(FINE, work=replace(measured.work, decode_seconds=0.003))
    diagnosis = judge(staged)
    assert diagnosis.cause == "transform"
    assert "PerSample(sleeps)" in diagnosis.findings[0].what


def answer(*words: object) -> Result:
    return CliRunner().invoke(doctor, [str(word) for word in words])


def test_a_slow_device_is_named_by_the_command(beton: Path) -> None:
    result = answer(beton, "--json", "--image-size", 16, "--batch-size", 4, "--device-rate", 0.001)
    data = json.loads(result.stdout)
    assert data["cause"] == "device"
    assert data["measured"]["file"]["num_samples"] == 27
    assert data["measured"]["loader_rate"] > 0
    assert data["images_per_second"]["run"] == pytest.approx(0.001)


def test_a_device_that_nothing_can_feed_gives_exit_code_one_and_text(beton: Path, tmp_path: Path) -> None:
    result = answer(beton, "--image-size", 16, "--batch-size", 4, "--device-rate", 1e12, "--out", tmp_path)
    assert result.exit_code == 1
    assert "problem decode" in result.stdout or "problem transform" in result.stdout
    assert "the slowest stage decides" in result.stdout
    assert {path.suffix for path in tmp_path.glob("doctor-run_*")} == {".md", ".json", ".png"}


def test_sizes_come_from_the_tables(beton: Path) -> None:
    files = open_files(beton)
    facts = describe_files(files)
    assert facts.num_samples == 27
    assert facts.num_bytes == beton.stat().st_size
    assert facts.raw_share == 0.0
    assert 40 <= facts.shorter_side < 60
    assert sorted(stored_images(files).tolist()) == list(range(27))


def test_a_file_without_images_is_refused(tmp_path: Path) -> None:
    from dataloading import IntField, Writer

    with Writer(tmp_path / "numbers.beton", {"label": IntField()}, num_samples=1) as writer:
        writer.append({"label": 1})
    with pytest.raises(UsageError, match="no image field"):
        examine(str(tmp_path / "numbers.beton"), setup=Setup(num_workers=1))
