"""The gallery of docs/transforms.md shows every transform as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataloading import transforms as T

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("make_gallery", ROOT / "docs" / "make_gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_transform_is_shown_or_is_listed_as_not_shown(gallery):
    public = {name for name in T.__all__ if isinstance(getattr(T, name), type)}
    shown = gallery.SHOWN.keys() | gallery.MIXED.keys()
    assert shown | gallery.NOT_SHOWN == public
    assert not shown & gallery.NOT_SHOWN


def test_the_picture_shows_what_the_transforms_do_now(gallery):
    picture = np.asarray(Image.open(ROOT / "docs" / "images" / "transforms.png"))
    side, gap, down = gallery.SIDE, gallery.GAP, gallery.SIDE + gallery.CAPTION + gallery.GAP
    same = 0
    for number, (name, pixels) in enumerate(gallery.tiles()):
        top, left = gap + number // gallery.COLUMNS * down, gap + number % gallery.COLUMNS * (side + gap)
        tile = picture[top : top + side, left : left + side]
        y, x = (side - pixels.shape[1]) // 2, (side - pixels.shape[2]) // 2
        shown = tile[y : y + pixels.shape[1], x : x + pixels.shape[2]]
        # Another version of libjpeg may decode differently by a few levels.
        assert np.abs(shown - np.moveaxis(pixels.astype(int), 0, -1)).mean() < 2, name
        same += pixels.shape == (3, side, side) and np.array_equal(pixels, gallery.synthetic_image())
    assert same == 2  # the image itself, and ToDtype, which changes only the dtype
