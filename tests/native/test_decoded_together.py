"""Requests for one JPEG that follow each other share its decode: same pixels, same failures, as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from dataloading import _native as native

from .kinds import drawing
from .reference import Region, Table, photo, pillow_jpeg, random_box

pytestmark = pytest.mark.usefixtures("kernels")


def check(data: bytes, size: tuple[int, int], seed: int, count: int = 6) -> list[int]:
    """Compare some random requests; return their statuses."""
    rng = np.random.default_rng(seed)
    regions = []
    for _ in range(count):
        scaled = None if rng.random() < 0.3 else tuple(int(v) for v in rng.integers(1, 90, 2))
        regions.append(
            Region(
                box=random_box(rng, *size),
                scaled=scaled,  # type: ignore[arg-type]
                flip=int(rng.integers(4)),
                interpolation=int(rng.integers(3)),
                out=(40, 50) if rng.random() < 0.2 else None,
                window=(-7, 5),
            )
        )
    together = Table()
    for region in regions:
        together.add(data, size, region)
    _, statuses, outputs = together.run()
    for region, status, output in zip(regions, statuses.tolist(), outputs, strict=True):
        alone = Table()
        alone.add(data, size, region)
        _, [expected], [pixels] = alone.run()
        assert status == expected, region
        if status == 0:
            np.testing.assert_array_equal(output, pixels, err_msg=str(region))
    return statuses.tolist()


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:4:0"])
@pytest.mark.parametrize("restart", ["auto", "none"])
def test_pixels_are_those_of_requests_on_their_own(subsampling: str, restart: str) -> None:
    for seed, (height, width) in enumerate([(1, 1), (9, 7), (33, 130), (90, 121), (150, 64)]):
        data = native.encode_jpeg(photo(height, width, seed), subsampling=subsampling, restart=restart)
        assert check(data, (width, height), seed) == [0] * 6


@pytest.mark.parametrize("options", [{"restart_marker_blocks": 5}, {"progressive": True}, {"quality": 100}], ids=str)
def test_pixels_are_the_same_for_jpegs_of_others_and_for_colours_that_clip(options: dict[str, object]) -> None:
    for seed in range(6):
        assert check(pillow_jpeg(drawing((121, 90), seed), **options), (121, 90), seed) == [0] * 6


def test_damage_fails_the_requests_that_it_fails_on_their_own() -> None:
    whole = native.encode_jpeg(photo(120, 130), restart="auto")
    rng = np.random.default_rng(0)
    found = set()
    for seed in range(40):
        data = bytearray(whole)
        at = int(rng.integers(len(data) // 3, len(data)))
        if seed % 2:
            del data[at:]
        else:
            data[at] ^= 0x55
        statuses = check(bytes(data), (130, 120), seed, count=4)
        found.add((0 in statuses, any(statuses)))
    assert (True, True) in found  # some images have both: what is sound of them is still decoded
