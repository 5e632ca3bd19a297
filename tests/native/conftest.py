"""Runs what asks for it once with every set of kernels this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dataloading import _native as native


def available_kernels() -> list[str]:
    names = []
    for name in ("portable", "avx2", "neon"):
        try:
            native.use_kernels(name)
        except ValueError:
            continue
        names.append(name)
    native.use_kernels("auto")
    return names


@pytest.fixture(params=available_kernels())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    native.use_kernels(request.param)
    yield request.param
    native.use_kernels("auto")
