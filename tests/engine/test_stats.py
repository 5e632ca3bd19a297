"""The verdict names what is slow: each case here is made slow on purpose."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dataloading import Loader
from dataloading import transforms as T
from dataloading.stats import Clock, LoaderStats
from tests.support.files import write_images, write_labels
from tests.support.servers import Faults, http_range_server

CROP = [T.RandomResizedCrop(16)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    path = tmp_path_factory.mktemp("stats") / "photos.beton"
    write_images(path, 64)
    return path


def stats_of(**given: Any) -> LoaderStats:
    """Statistics of 100 batches of 16 in ten seconds of the caller's time, with 4 of 8 cores at work."""
    hops = {"sampler": 0.01, "view": 0.02, "decode": 30.0, "transform": 5.0, "transfer": 0.1} | given.pop("hops", {})
    defaults = {
        "num_workers": 4, "num_cores": 8, "num_samples": 1600, "num_batches": 100, "num_skipped": 0, "num_replaced": 0,
        "num_bytes_read": 1 << 20, "data_wait_seconds": 5.0, "consumer_seconds": 5.0, "worker_busy_seconds": 35.0,
        "worker_cpu_seconds": 34.0, "consumer_cpu_seconds": 1.0,
    }  # fmt: skip
    return LoaderStats(**(defaults | given), hop_seconds=hops)


def run(loader: Loader, *, epochs: int = 2, step_seconds: float = 0.0) -> str:
    for _ in range(epochs):
        for _ in loader:
            time.sleep(step_seconds)
    return loader.stats().verdict


def run_until(loader: Loader, start: str, **options: Any) -> str:
    """Run until the verdict starts so: on a loaded machine any thread may wait for a core, and be what is slow."""
    for _ in range(20):
        loader.stats(reset=True)
        verdict = run(loader, **options)
        if verdict.startswith(start):
            break
    assert verdict.startswith(start)
    return verdict


# ---- real runs


def test_a_slow_callable_is_named_with_its_place_and_where_it_runs(photos):
    def slow(images):
        time.sleep(0.02)
        return images

    loader = Loader(photos, batch_size=8, num_workers=2, transforms={"image": [*CROP, slow], "label": [lambda x: x]})
    verdict = run_until(loader, "The callable slow (transforms['image'][1]) is the limit")
    assert "in the calling thread, inside next()" in verdict
    stats = loader.stats()
    assert stats.callable_seconds["slow (transforms['image'][1])"] >= 16 * 0.02
    assert stats.callable_seconds["<lambda> (transforms['label'][0])"] < 8 * 0.02
    assert stats.data_wait_fraction < 0.5


def test_a_slow_step_is_the_callers_own(photos):
    loader = Loader(photos, batch_size=8, num_workers=2, transforms={"image": CROP})
    assert run_until(loader, "The consumer is the limit", step_seconds=0.05)


def test_a_slow_sampler_is_named(tmp_path):
    class Slow:
        def __len__(self) -> int:
            return 40

        def __iter__(self):
            for index in range(40):
                time.sleep(0.01)
                yield index

    loader = Loader(write_labels(tmp_path / "l.beton", 40), batch_size=8, num_workers=2, sampler=Slow())
    assert "goes to sampler" in run_until(loader, "The loader is the limit", epochs=3)


def test_slow_storage_is_named(tmp_path):
    write_images(tmp_path / "p.beton", 40, mode="raw", sizes=(300, 301))
    with http_range_server(tmp_path, Faults()) as server:
        loader = Loader(f"{server.url}/p.beton", batch_size=4, num_workers=2, transforms={"image": [T.CenterCrop(16)]})
        server.faults.delay_seconds = 0.3
        verdict = run(loader, epochs=1)
        assert "goes to view" in verdict
        assert "storage is slow" in verdict
        loader.close()


def test_figures_of_each_epoch_and_sums_that_begin_anew(photos):
    loader = Loader(photos, batch_size=8, num_workers=2, transforms={"image": CROP})
    run(loader, epochs=2, step_seconds=0.002)
    stats = loader.stats()
    assert [(each.epoch, each.num_samples, each.num_batches) for each in stats.epochs] == [(0, 64, 8), (1, 64, 8)]
    assert all(each.consumer_seconds >= 8 * 0.002 for each in stats.epochs)
    assert "epoch 1: 64 samples" in str(stats)
    assert loader.stats(reset=True).num_samples == 128
    assert (loader.stats().num_samples, loader.stats().epochs, loader.stats().hop_seconds["decode"]) == (0, (), 0.0)
    run(loader, epochs=1)
    assert [(each.epoch, each.num_samples) for each in loader.stats().epochs] == [(2, 64)]


def test_the_first_batch_and_step_do_not_count_as_waiting():
    clock = Clock(compile_seconds=2.0)
    clock.note_batch(0, wait=30.0, samples=16)
    clock.note_batch(0, step=20.0, wait=0.0, samples=16)
    for _ in range(100):
        clock.note_batch(0, step=0.1, wait=0.1, samples=16)
    stats = clock.snapshot(2)
    assert (stats.first_batch_seconds, stats.first_step_seconds) == (30.0, 20.0)
    assert stats.data_wait_fraction == pytest.approx(0.5)
    assert stats.data_wait_seconds == pytest.approx(40.0)
    assert "Starting took longer than all that (2.0 s to compile, 30.0 s to the first batch)" in stats.verdict


def test_rates_are_said_to_be_of_one_rank():
    assert "160 images/s per rank" in str(stats_of())


# ---- cases of the verdict


@pytest.mark.parametrize("share", [0.0, 0.02, 0.04])
def test_waiting_of_a_few_percent_is_no_bottleneck(share):
    verdict = stats_of(data_wait_seconds=10 * share, consumer_seconds=10 * (1 - share)).verdict
    assert verdict == f"The consumer is the limit: it waited for data {share:.1%} of the time."


def test_more_workers_are_advised_only_up_to_the_cores():
    assert "add workers (up to 8, this rank's cores)" in stats_of().verdict
    full = stats_of(num_workers=8, hops={"decode": 70.0}, worker_busy_seconds=75.0, worker_cpu_seconds=74.0).verdict
    assert "add workers" not in full
    assert "all of this rank's 8 cores have a worker" in full
    assert "--max-resolution" in full
    one = stats_of(num_workers=1, num_cores=1, hops={"decode": 9.0, "transform": 0.5}, worker_busy_seconds=9.5,
                   worker_cpu_seconds=9.4).verdict  # fmt: skip
    assert "add workers" not in one


def test_a_transform_that_takes_most_is_named():
    assert "transform (88%)" in stats_of(hops={"decode": 5.0, "transform": 36.0}).verdict


def test_workers_that_wait_for_the_disk_are_not_told_to_be_more():
    for read in ({"num_page_faults": 500}, {"num_bytes_read_ahead": 100 << 20}):
        verdict = stats_of(worker_cpu_seconds=8.0, **read).verdict
        assert "workers wait for the disk 77% of it" in verdict
        assert "add workers" not in verdict
    little = stats_of(worker_cpu_seconds=8.0, num_bytes_read_ahead=1 << 20).verdict
    assert "wait for the disk" not in little


def test_a_python_step_that_holds_the_gil_is_named():
    verdict = stats_of(worker_cpu_seconds=6.0, consumer_cpu_seconds=4.9).verdict
    assert "for the GIL, which Python code of the caller's step holds" in verdict


def test_workers_without_a_core_are_not_told_to_be_more():
    verdict = stats_of(worker_cpu_seconds=12.0, consumer_cpu_seconds=0.1).verdict
    assert "other threads or processes hold the cores" in verdict
    assert "add workers" not in verdict


def test_failed_samples_are_part_of_the_verdict():
    assert "160 samples failed and were skipped: see loader.errors" in stats_of(num_skipped=160).verdict
    assert "failed" not in stats_of(num_skipped=3).verdict


def test_callables_beside_a_slower_step_are_mentioned():
    verdict = stats_of(data_wait_seconds=0.1, consumer_seconds=7.0, callable_seconds={"f": 2.9}).verdict
    assert verdict.startswith("The consumer is the limit")
    assert "Callables on finished batches take 29.0% in f." in verdict
