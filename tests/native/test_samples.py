"""Stored images found by number in tables of several files, and what must be looked at more closely."""

from __future__ import annotations

import numpy as np
import pytest

from dataloading import _native as native
from dataloading.format import MODE_JPEG, MODE_RAW

RECORD = np.dtype([("label", "<i8"), ("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])
ALLOCATION = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
LAYOUT = native.ImageLayout(RECORD.itemsize, 8, 1, 2, MODE_JPEG, MODE_RAW + 1, 3, 3)
BEGIN, END = 100, 1000


def make_file(seed: int, num: int) -> native.FileTables:
    """Two stored values a sample, the image the second; samples with odd numbers are JPEGs."""
    rng = np.random.default_rng(seed)
    samples, allocations = np.zeros(num, RECORD), np.zeros(2 * num, ALLOCATION)
    samples["mode"] = [MODE_JPEG if k % 2 else MODE_RAW for k in range(num)]
    samples["width"], samples["height"] = rng.integers(1, 6, num), rng.integers(1, 6, num)
    samples["data_ptr"] = rng.integers(BEGIN, END - 200, num)
    allocations["sample_id"] = np.arange(2 * num) // 2
    allocations["ptr"][1::2] = samples["data_ptr"]
    allocations["size"] = rng.integers(1, 100, 2 * num)
    return native.FileTables(samples, allocations, np.zeros(END + 50, np.uint8), BEGIN, END)


def test_images_of_several_files_are_found_by_number():
    files = [make_file(seed, num) for seed, num in enumerate((5, 1, 7))]
    places = [(file, k) for file in files for k in range(len(file.samples))]
    indices = np.random.default_rng(3).permutation(np.repeat(np.arange(13), 3))
    found = native.ImageTables(LAYOUT, files).find(indices)
    assert found is not None
    requests, num_bytes = found
    for index, request in zip(indices.tolist(), requests, strict=True):
        file, k = places[index]
        record = file.samples[k]
        raw = int(record["width"]) * int(record["height"]) * 3
        assert request["src"] == file.memory.ctypes.data + int(record["data_ptr"])
        assert request["src_bytes"] == (file.allocations["size"][2 * k + 1] if k % 2 else raw)
        assert (request["src_width"], request["src_height"]) == (record["width"], record["height"])
        assert (request["mode"], request["channels"], request["status"]) == (record["mode"], 3, 0)
    assert num_bytes == requests["src_bytes"].sum()


@pytest.mark.parametrize(
    ("table", "column", "row", "value"),
    [
        ("samples", "mode", 2, 2),
        ("samples", "width", 2, 0),
        ("samples", "data_ptr", 2, BEGIN - 1),
        ("samples", "data_ptr", 2, END - 2),
        ("samples", "data_ptr", 2, 2**64 - 1),
        ("allocations", "ptr", 7, 99),
        ("allocations", "sample_id", 7, 4),
        ("allocations", "size", 7, 0),
        ("allocations", "size", 7, 2**64 - 1),
    ],
)
def test_what_is_damaged_or_elsewhere_is_not_found(table, column, row, value):
    file = make_file(1, 6)
    tables = native.ImageTables(LAYOUT, [file])
    assert tables.find(np.arange(6)) is not None
    getattr(file, table)[column][row] = value
    assert tables.find(np.arange(6)) is None
    bad = row if table == "samples" else row // 2
    assert tables.find(np.delete(np.arange(6), bad)) is not None


@pytest.mark.parametrize("index", [-1, 6, 2**62, -(2**63)])
def test_a_number_out_of_range_is_not_found(index):
    tables = native.ImageTables(LAYOUT, [make_file(1, 6)])
    assert tables.find(np.array([0, index])) is None
    few = make_file(1, 6)
    assert native.ImageTables(LAYOUT, [few._replace(allocations=few.allocations[:3])]).find(np.array([3])) is None


def test_keys_take_views_of_each_sample_and_their_sum():
    indices, views = np.array([3, 3, 9]), np.array([0, 2, -1])
    each = [native.sample_keys(7, indices[k : k + 1], None, int(views[k]) + 5)[0] for k in range(3)]
    assert native.sample_keys(7, indices, views, 5).tolist() == each
    with pytest.raises(ValueError, match=r"shape of indices, \(3,\), got \(2,\)"):
        native.sample_keys(7, indices, views[:2], 0)
