"""All kernel sets give the same bytes, from any number of threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dataloading import _native as native

from .conftest import available_kernels
from .reference import Region, Table, photo, pillow_jpeg, random_box


def table_of_many_requests(seed: int) -> Table:
    rng = np.random.default_rng(seed)
    table = Table()
    for i in range(90):
        height, width = int(rng.integers(1, 130)), int(rng.integers(1, 130))
        noisy = photo(height, width, i, low=0, high=255) ^ rng.integers(0, 64, (height, width, 3), dtype=np.uint8)
        subsampling = str(rng.choice(["4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0"]))
        quality = int(rng.integers(5, 101))
        sources = [
            noisy,
            native.encode_jpeg(noisy, quality=quality, subsampling=subsampling),
            pillow_jpeg(noisy[:, :, 0], quality=quality),
        ]
        region = Region(
            box=random_box(rng, width, height),
            scaled=None if i % 4 == 0 else (int(rng.integers(1, 150)), int(rng.integers(1, 150))),
            interpolation=int(rng.integers(3)),
            antialias=bool(rng.integers(2)),
            flip=int(rng.integers(4)),
        )
        table.add(sources[i % 3], (width, height), region)
    return table


def outputs_of(table: Table) -> list[bytes]:
    failed, _, outputs = table.run()
    assert failed == 0
    return [output.tobytes() for output in outputs]


@pytest.mark.parametrize("name", [name for name in available_kernels() if name != "portable"])
def test_vector_kernels_equal_the_portable_ones(name: str) -> None:
    for seed in range(2):
        table = table_of_many_requests(seed)
        native.use_kernels("portable")
        portable = outputs_of(table)
        native.use_kernels(name)
        assert native.kernels_in_use() == name
        assert outputs_of(table) == portable
    native.use_kernels("auto")


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown"):
        native.use_kernels("abacus")


def test_threads_do_not_disturb_each_other() -> None:
    """Eight threads decode different batches at once, over and over; each gets what one thread alone gets."""
    tables = [table_of_many_requests(seed // 2) for seed in range(8)]  # two threads on equal work
    alone = [outputs_of(table) for table in tables]
    wrong: list[int] = []

    def work(index: int) -> None:
        wrong.extend(index for _ in range(10) if outputs_of(tables[index]) != alone[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_scratch_memory_goes_with_its_thread() -> None:
    """150 short-lived threads that each decode a large region leave nothing behind."""
    data = native.encode_jpeg(photo(900, 900))

    def work() -> None:
        table = Table()
        table.add(data, (900, 900), Region(box=(0, 0, 900, 900)))
        table.run()

    def resident_kib() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4

    def run(count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    run(20)
    before = resident_kib()
    run(150)
    assert resident_kib() - before < 60_000
