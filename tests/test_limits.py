"""How many cores and how much memory a process may use, by the machine and by its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataloading import Loader, UsageError, limits
from dataloading import transforms as T
from dataloading.limits import memory_bytes, memory_limit, num_cores
from tests.support.files import write_images


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"sys/fs/cgroup/memory.max": "max"}, None),
        ("0::/a/b", {"sys/fs/cgroup/a/memory.max": "4096", "sys/fs/cgroup/a/b/memory.max": "8192"}, 4096),
        ("0::/a", {"sys/fs/cgroup/a/memory.max": "8192", "sys/fs/cgroup/a/memory.high": "4096"}, 4096),
        ("4:memory:/job", {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096"}, 4096),
        ("4:memory:/", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("garbled\n4:memory:/job", {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096"}, 4096),
        ("0::/", {"sys/fs/cgroup/memory.max": "0", "sys/fs/cgroup/memory.high": "\u00b2"}, None),
        ("3:cpu:/job", {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096"}, None),
        ("", {}, None),
    ],
)
def test_the_smallest_limit_of_all_control_groups_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert memory_limit(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (0.5, 1), (2.0, 2), (2.5, 3), (64.0, 8)])
def test_cores_are_no_more_than_the_quota_has(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(limits, "visible_cores", lambda: 8)
    monkeypatch.setattr(limits, "cpu_quota", lambda: quota)
    assert num_cores() == expected


def test_a_limit_counts_where_it_is_less_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: None)
    machine = memory_bytes()
    monkeypatch.setattr(limits, "memory_limit", lambda: machine + 1)
    assert memory_bytes() == machine
    monkeypatch.setattr(limits, "memory_limit", lambda: 1 << 20)
    assert memory_bytes() == 1 << 20


def test_a_batch_that_exceeds_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 64)
    monkeypatch.setattr(limits, "memory_limit", lambda: 1 << 20)
    with pytest.raises(UsageError, match=r"process may use 0 GiB of memory: pass a smaller batch_size="):
        Loader(path, batch_size=64, transforms={"image": [T.Resize(224), T.CenterCrop(224)]})


def test_windows_larger_than_memory_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 600, sizes=(100, 200), mode="raw")
    options = {"batch_size": 4, "shuffle": "pages", "num_workers": 1, "transforms": {"image": [T.CenterCrop(32)]}}
    Loader(path, **options)
    monkeypatch.setattr(limits, "memory_limit", lambda: 32 << 20)
    text = r"window_pages=512: two windows are [34]\d.\d MiB, .* use 32.0 MiB of memory, .* Pass window_pages=1$"
    with pytest.warns(UserWarning, match=text):
        Loader(path, **options)
    Loader(path, window_pages=1, **options)
    Loader(path, indices=range(8), **options)  # may lie on a single page
    Loader(path, num_nodes=2, local_world_size=1, rank=0, world_size=2, **options)  # a node reads half of the file
    Loader(path, **{**options, "os_cache": False})  # is bounded by itself


def test_the_cache_takes_half_of_the_limit_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.beton"
    write_images(path, 600, sizes=(100, 200), mode="raw")
    options = {"batch_size": 4, "os_cache": False, "shuffle": "pages", "transforms": {"image": [T.CenterCrop(32)]}}
    loader = Loader(path, **options)
    whole = loader.stats().cache
    loader.close()
    monkeypatch.setattr(limits, "memory_limit", lambda: 32 << 20)
    limited = Loader(path, **options)
    cache = limited.stats().cache
    limited.close()
    assert whole is not None
    assert cache is not None
    assert (whole.max_bytes or 0) > 16 << 20
    assert cache.max_bytes == 16 << 20
