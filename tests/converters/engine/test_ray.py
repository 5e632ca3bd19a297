"""Shards made by a Ray cluster, also one that loses a node, are those of a single process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from converters import ImagePolicy, Options, convert
from converters.python_dataset import DatasetSource
from converters.sources.huggingface import HuggingFace
from converters.sources.local_copies import LocalCopy
from dataloading import ConvertError, Manifest, UsageError
from tests.converters.engine.test_resume import FIELDS, Blocks
from tests.converters.sources.making import jpeg

ROOT = Path(__file__).resolve().parents[3]

if os.environ.get("CI", "").lower() == "true":
    import ray
else:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")

from ray.cluster_utils import Cluster  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_ADDRESS")}
    os.environ["PYTHONPATH"] = str(ROOT)  # the nodes' processes need the tests' modules
    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        os.environ["RAY_ADDRESS"] = cluster.address
        cluster.add_node(**small)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def write(path: Path, dataset: Any, **options: Any) -> Any:
    options = {"num_shards": 6, "shuffle": True, "checkpoint_seconds": 0.05, **options}
    return convert(DatasetSource(dataset, FIELDS), path, policy=ImagePolicy(), options=Options(**options))


def content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_a_node_that_is_killed_midway_changes_nothing_in_the_files(cluster: Any, tmp_path: Path) -> None:
    alone, spread = tmp_path / "alone", tmp_path / "spread"
    alone.mkdir()
    spread.mkdir()
    write(alone / "o.beton", Blocks(72))
    node = cluster.worker_nodes.copy().pop()

    def kill() -> None:
        deadline = time.monotonic() + 200
        # Both nodes have begun a shard each.
        while len(list(spread.glob(".*.part"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    report = write(spread / "o.beton", Blocks(72, pause_seconds=0.1), engine="ray")
    killer.join(250)
    assert not ray.is_initialized()
    assert (report.num_samples, len(report.shards), report.is_whole) == (72, 6, True)
    assert content(spread) == content(alone)
    assert Manifest.load(spread / "o.beton.json").num_samples == 72


def test_an_error_on_the_cluster_is_told_as_here_and_resume_goes_on(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "o.beton"
    with pytest.raises(ConvertError, match=r"sample 30 \(Blocks\[30\]\): ValueError: damaged"):
        write(path, Blocks(bad=(30,)), engine="ray")
    assert not Path(str(path) + ".json").exists()
    report = write(path, Blocks(bad=(30,)), engine="ray", resume=True, on_error="skip")
    assert report.num_samples == 59
    assert [item.index for item in report.skipped] == [30]
    assert not list(tmp_path.glob(".*"))


def table(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "a.parquet"
    rows = {"image": [jpeg(number) for number in range(24)], "label": list(range(24))}
    pq.write_table(pa.table(rows), path, row_group_size=5)
    return path


def from_table(source: Path, out: Path, **options: Any) -> Any:
    made = HuggingFace([str(source)], random_access=True)
    options = {"num_shards": 3, "shuffle": True, **options}
    return convert(made, out, policy=ImagePolicy(), options=Options(**options))


def test_rows_in_random_order_reach_tasks_that_see_the_copy_and_others_are_told_what_to_do(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path)
    alone, spread = tmp_path / "alone", tmp_path / "spread"
    alone.mkdir()
    spread.mkdir()
    from_table(source, alone / "o.beton")
    from_table(source, spread / "o.beton", engine="ray")
    assert content(spread) == content(alone)

    # On another machine there is nothing at its path, or another file.
    state = LocalCopy.__getstate__
    monkeypatch.setattr(LocalCopy, "__getstate__", lambda spool: {**state(spool), "path": "/proc/1/fd/0"})
    with pytest.raises(UsageError, match=r"cannot see: leave out --shuffle .*Arrow file.*--engine local"):
        from_table(source, tmp_path / "o.beton", engine="ray")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.parquet", "alone", "spread"]
