"""What tests of several sources stand on: a store in memory, and tries without pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def memory() -> Iterator[Callable[[str, bytes], str]]:
    """fsspec's store in this process's memory, empty before and after: `memory(url, data)` puts an object."""
    import fsspec

    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]

    def put(url: str, data: bytes) -> str:
        store.pipe_file(url.removeprefix("memory:/"), data)
        return url

    yield put
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited between tries."""
    waited: list[float] = []
    monkeypatch.setattr("converters.sources.reading.time.sleep", waited.append)
    return waited
