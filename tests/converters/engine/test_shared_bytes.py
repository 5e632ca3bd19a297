"""The ring of shared memory: what is put is what is got, for as long as anybody refers to it."""

from __future__ import annotations

import numpy as np
import pytest

from converters.engine import shared_bytes
from converters.engine.shared_bytes import RING_BYTES, SharedBytes


@pytest.fixture
def ring() -> SharedBytes:
    made = SharedBytes.create()
    if made is None:
        pytest.skip("this system has no anonymous shared files")
    return made


def block(number: int, size: int) -> memoryview:
    return np.full(size, number % 251, np.uint8).data


def test_more_than_the_ring_holds_goes_through_it_in_turn(ring: SharedBytes) -> None:
    for number in range(200):
        size = 1 + number * 7919 % (RING_BYTES // 4)
        position = ring.put(block(number, size))
        assert position is not None
        assert ring.get(position, size) == block(number, size)


def test_memory_that_is_referred_to_is_never_given_away(ring: SharedBytes) -> None:
    size = RING_BYTES // 4
    kept = []
    for number in range(4):
        position = ring.put(block(number, size))
        assert position is not None
        kept.append(np.frombuffer(ring.get(position, size), np.uint8)[1:])
    assert ring.put(block(9, 1)) is None
    del kept[2]  # not the oldest, so there is no room yet
    assert ring.put(block(9, 1)) is None
    del kept[0]
    assert ring.put(block(9, size)) is not None
    assert ring.put(block(9, 1)) is None
    assert [int(each[0]) for each in kept] == [1, 3]
    assert all((each == each[0]).all() for each in kept)
    ring.close()
    assert [int(each[-1]) for each in kept] == [1, 3]


def test_a_block_larger_than_the_ring_is_refused(ring: SharedBytes) -> None:
    assert ring.put(block(0, RING_BYTES + 1)) is None
    assert ring.put(block(0, RING_BYTES)) == 0


def test_a_system_without_anonymous_files_has_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(shared_bytes.os, "memfd_create", raising=False)
    assert SharedBytes.create() is None
