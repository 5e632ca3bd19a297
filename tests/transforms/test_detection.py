"""Transforms of detection against torchvision's, fed with our random numbers."""

from __future__ import annotations

import inspect
import itertools
from unittest import mock

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading._native import REQUEST, BoxesOfSamples
from dataloading.errors import UsageError
from dataloading.transforms.matrices import joined, moved_boxes, moved_points
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import child, randint, uniform
from tests.transforms.support import decode_raw, keys_for, plan

H, W, N = 61, 83, 60
IMAGE = tv_tensors.Image(torch.zeros(3, H, W, dtype=torch.uint8))
PARTS = ("box_x", "box_y", "box_w", "box_h")


def random_boxes(count: int, seed: int = 0) -> np.ndarray:
    corners = np.random.default_rng(seed).uniform(0, 1, (count, 2, 2)) * [W, H]
    return np.hstack([corners.min(axis=1), corners.max(axis=1)])


def theirs(box: np.ndarray) -> tv_tensors.BoundingBoxes:
    return tv_tensors.BoundingBoxes(torch.tensor(box), format="XYXY", canvas_size=(H, W))


def fed(stream: int, numbers: itertools.count):
    """Replace torch's random numbers by those of one of our streams, in order."""

    def rand(*size):
        return torch.tensor([uniform(stream, next(numbers)) for _ in range(size[0])], dtype=torch.float64)

    return mock.patch.multiple(
        torch, rand=rand, randint=lambda high, size: torch.tensor(randint(stream, next(numbers), high))
    )


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (T.ScaleJitter((90, 120)), v2.ScaleJitter((90, 120))),
        (T.ScaleJitter((64, 64), (0.5, 0.7)), v2.ScaleJitter((64, 64), (0.5, 0.7))),
        (T.RandomShortestSize([20, 30, 50], max_size=60), v2.RandomShortestSize([20, 30, 50], max_size=60)),
        (T.RandomShortestSize(33), v2.RandomShortestSize(33)),
    ],
)
def test_sizes_are_torchvisions_for_the_same_numbers(ours, other):
    keys = keys_for(N)
    requests = plan(Pipeline([ours, T.RandomCrop(40, pad_if_needed=True)]), [(H, W)] * N, keys)
    for request, key in zip(requests, keys, strict=True):
        with fed(child(int(key), 0), itertools.count()):
            assert other.make_params([IMAGE])["size"] == (request["scaled_h"], request["scaled_w"])


def test_zooming_out_gives_torchvisions_pixels():
    pixels = np.random.default_rng(1).integers(0, 256, (H, W, 3), dtype=np.uint8)
    keys = keys_for(N)
    pipeline = Pipeline([T.RandomZoomOut(fill=(1, 2, 3), side_range=(1.2, 2), p=1.0), T.CenterCrop(70)])
    ours = decode_raw(pipeline, [pixels] * N, keys)
    other = v2.RandomZoomOut(fill=(1, 2, 3), side_range=(1.2, 2), p=1.0)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    for key, result in zip(keys, ours, strict=True):
        with fed(child(int(key), 0), itertools.count(1)):
            params = other.make_params([image])
        canvas = functional.pad(image, fill=[1, 2, 3], **params)
        assert torch.equal(torch.from_numpy(result), functional.center_crop(canvas, [70, 70]))


def test_a_resize_behind_zooming_out_is_within_half_a_pixel_of_torchvisions():
    yy, xx = np.mgrid[:H, :W]
    pixels = np.stack([xx * 3, yy * 4, xx + yy], axis=2).astype(np.uint8)  # smooth: half a pixel is a few levels
    keys = keys_for(20)
    ours = decode_raw(Pipeline([T.RandomZoomOut(p=1.0, side_range=(1, 2)), T.Resize((64, 64))]), [pixels] * 20, keys)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    for key, result in zip(keys, ours, strict=True):
        with fed(child(int(key), 0), itertools.count(1)):
            params = v2.RandomZoomOut(p=1.0, side_range=(1, 2)).make_params([image])
        expected = functional.resize(functional.pad(image, fill=0, **params), [64, 64], antialias=True)
        inside = (expected > 0).all(0) & torch.from_numpy(result > 0).all(0)
        difference = (torch.from_numpy(result).int() - expected.int()).abs()[:, inside]
        assert inside.float().mean() > 0.15
        assert difference.float().median() <= 4


class IoUNumbers:
    """Our numbers of one RandomIoUCrop: a stream for each round, in it four for each trial."""

    lines = inspect.getsource(v2.RandomIoUCrop.make_params).splitlines()
    first_line = v2.RandomIoUCrop.make_params.__code__.co_firstlineno

    def __init__(self, stream: int) -> None:
        self.stream, self.round, self.trial = stream, -1, -1

    def randint(self, *, low, high, size):
        self.round, self.trial = self.round + 1, -1
        return torch.tensor([randint(child(self.stream, self.round), 0, high)])

    def rand(self, count):
        # Whether it asks for a size or a place is written in the line that asks.
        is_size = "min_scale" in self.lines[inspect.currentframe().f_back.f_lineno - self.first_line]
        self.trial += is_size
        first = 4 * self.trial + (1 if is_size else 3)
        stream = child(self.stream, self.round)
        return torch.tensor([uniform(stream, first), uniform(stream, first + 1)], dtype=torch.float64)


def test_iou_crops_and_what_they_cut_off_are_torchvisions_for_the_same_numbers():
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 5, N)
    starts = np.concatenate([[0], np.cumsum(counts)])
    corners = random_boxes(int(starts[-1]))
    boxes = BoxesOfSamples(corners, starts, np.ones(len(corners), np.uint8))
    keys = keys_for(N)
    requests = np.zeros(N, REQUEST)
    pipeline = Pipeline([T.RandomIoUCrop(), T.Resize((64, 64))])
    assert pipeline.reads_boxes
    requests["src_width"], requests["src_height"] = W, H
    pipeline.plan(keys, requests, 0, boxes)
    crops = 0
    for i, key in enumerate(keys):
        got = tuple(int(requests[name][i]) for name in PARTS)
        kept = boxes.kept[starts[i] : starts[i + 1]]
        if counts[i] == 0:
            assert got == (0, 0, W, H)
            continue
        numbers = IoUNumbers(child(int(key), 0))
        with mock.patch.multiple(torch, rand=numbers.rand, randint=numbers.randint):
            params = v2.RandomIoUCrop().make_params([IMAGE, theirs(corners[starts[i] : starts[i + 1]])])
        crops += bool(params)
        expected = tuple(params[name] for name in ("left", "top", "width", "height")) if params else (0, 0, W, H)
        assert got == expected
        assert kept.tolist() == (params["is_within_crop_area"].tolist() if params else [1] * len(kept))
    assert crops > 20


def reference_crop(corners, op, stream):
    """The part (left, top, width, height) of an image of W x H around a box, in the words of the docstring."""
    ratio = op.size[1] / op.size[0]
    corners = np.clip(corners, 0, [W, H, W, H])
    sides = corners[:, 2:] - corners[:, :2]
    good = np.flatnonzero((sides > 0).all(1))
    if not len(good):
        middle, w = np.array([W, H]) / 2, min(W, H * ratio)
        sides = np.array([w, min(H, W / ratio)])
    else:
        first = {"first": 0, "largest": int(np.argmax(sides[good].prod(1)))}
        box = good[first[op.pick] if op.pick in first else randint(stream, 0, len(good))]
        scale = op.scale[0] + uniform(stream, 1) * (op.scale[1] - op.scale[0])
        w = max(sides[box, 0] * scale, sides[box, 1] * scale * ratio)
        sides = np.array([w, w / ratio])
        shift = 2 * np.array([uniform(stream, 2), uniform(stream, 3)]) - 1
        middle = (corners[box, :2] + corners[box, 2:]) / 2 + shift * op.shift * sides
    sides = np.rint(np.clip(sides, 1, [W, H]))
    first = np.rint(np.clip(middle - sides / 2, 0, np.array([W, H]) - sides))
    return tuple(np.concatenate([first, sides]).astype(int).tolist())


@pytest.mark.parametrize("pick", ["random", "first", "largest"])
@pytest.mark.parametrize(
    ("size", "options"), [((20, 31), {"scale": 1}), ((40, 16), {"scale": (0.8, 2.5), "shift": 0.3}), (64, {})]
)
def test_crops_around_a_box_are_those_of_the_definition(size, options, pick):
    rng = np.random.default_rng(4)
    counts = rng.integers(0, 4, N)
    starts = np.concatenate([[0], np.cumsum(counts)])
    corners = random_boxes(int(starts[-1]))
    corners[::5, 2] = corners[::5, 0]  # without an area
    corners[1] = np.nan
    corners[2] = [-30, 5, 2 * W, 3 * H]
    op = T.CropAroundBox(size, pick=pick, **options)
    pipeline, keys, requests = Pipeline([op]), keys_for(N), np.zeros(N, REQUEST)
    boxes = BoxesOfSamples(corners, starts, np.ones(len(corners), np.uint8))
    requests["src_width"], requests["src_height"] = W, H
    pipeline.plan(keys, requests, 0, boxes)
    for i, key in enumerate(keys):
        got = tuple(int(requests[f"box_{name}"][i]) for name in "xywh")
        assert got == reference_crop(corners[starts[i] : starts[i + 1]], op, child(int(key), 0))
        assert (requests["scaled_h"][i], requests["scaled_w"][i]) == op.size
    assert boxes.kept.all()


def affine_params(params, name):
    return {
        "angle": params[f"0.{name}.angle"],
        "translate": [int(params[f"0.{name}.translate_{axis}"]) for axis in "xy"],
        "scale": params[f"0.{name}.scale"],
        "shear": [params[f"0.{name}.shear_{axis}"] for axis in "xy"],
    }


@pytest.mark.parametrize(
    ("op", "call"),
    [
        (T.RandomRotation(40), lambda b, p: functional.rotate(b, p["0.RandomRotation.angle"])),
        (
            T.RandomRotation(40, center=(10, 20)),
            lambda b, p: functional.rotate(b, p["0.RandomRotation.angle"], center=[10, 20]),
        ),
        (
            T.RandomAffine(30, translate=(0.2, 0.2), scale=(0.5, 1.5), shear=(-20, 20, -10, 10)),
            lambda b, p: functional.affine(b, **affine_params(p, "RandomAffine")),
        ),
        (
            T.RandomPerspective(0.5, p=1.0),
            lambda b, p: functional.perspective(
                b, None, None, coefficients=[p[f"0.RandomPerspective.coefficient_{k}"] for k in range(8)]
            ),
        ),
        (T.Pad((3, 4, 5, 6)), lambda b, p: functional.pad(b, [3, 4, 5, 6])),
        (T.RandomHorizontalFlip(1.0), lambda b, p: functional.horizontal_flip(b)),
        (T.RandomVerticalFlip(1.0), lambda b, p: functional.vertical_flip(b)),
        (T.CenterCrop((40, 50)), lambda b, p: functional.center_crop(b, [40, 50])),
        (T.Resize((40, 50)), lambda b, p: functional.resize(b, [40, 50])),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_boxes_move_as_torchvisions_do_with_the_same_params(op, call):
    n = 20
    pipeline = Pipeline([op], source_size=(H, W))
    keys, boxes = keys_for(n), random_boxes(n)
    moves = pipeline.moves(plan(pipeline, [(H, W)] * n, keys), keys)
    ours = moved_boxes(boxes, moves, np.arange(n))
    drawn = pipeline.params_of(pipeline.draw(keys)) if pipeline.operations else {}
    for i in range(n):
        expected = call(theirs(boxes[i : i + 1]), {name: float(values[i]) for name, values in drawn.items()})
        np.testing.assert_allclose(ours[i : i + 1], expected.as_subclass(torch.Tensor).numpy(), atol=1e-9)
        assert moves[-1].sizes[i].tolist() == [expected.canvas_size[1], expected.canvas_size[0]]


def test_one_matrix_does_what_the_steps_do_one_after_the_other():
    ops = [T.RandomCrop(50), T.RandomAffine(20, shear=5), T.RandomVerticalFlip(), T.RandomPerspective(0.3)]
    pipeline = Pipeline(ops, source_size=(H, W))
    keys = keys_for(9)
    moves = pipeline.moves(plan(pipeline, [(H, W)] * 9, keys), keys)
    places = random_boxes(9)[:, :2]
    step_by_step = places
    for move in moves:
        step_by_step = moved_points(step_by_step, move.matrices)
    np.testing.assert_allclose(moved_points(places, joined(moves, 9)), step_by_step, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.ScaleJitter(64, (0, 1)), "ScaleJitter: scale_range must"),
        (lambda: T.RandomShortestSize([]), "RandomShortestSize: min_size must be 1 to 54 integers"),
        (lambda: T.RandomShortestSize([3.5]), "RandomShortestSize: min_size must be 1 to 54 integers"),
        (lambda: T.RandomZoomOut(side_range=(0.5, 2)), "RandomZoomOut: side_range must"),
        (lambda: T.RandomIoUCrop(trials=0), "RandomIoUCrop: trials must"),
        (lambda: T.RandomIoUCrop(0.5, 0.2), r"RandomIoUCrop: \(min_scale, max_scale\) must"),
        (lambda: T.RandomIoUCrop(sampler_options=[]), "RandomIoUCrop: sampler_options must"),
        (lambda: T.SanitizeBoundingBoxes(min_size=0), "SanitizeBoundingBoxes: min_size must"),
        (lambda: T.SanitizeBoundingBoxes(labels_getter=3), "SanitizeBoundingBoxes: labels_getter must"),
        (lambda: T.ClampBoundingBoxes("firm"), "ClampBoundingBoxes: clamping_mode must"),
        (lambda: T.PadBatch(0), "PadBatch: size_divisor must"),
        (lambda: T.PadBatch(fill="black"), "PadBatch: fill must"),
        (lambda: Pipeline([T.RandomZoomOut(), T.RandomCrop(9, padding=2)]), "RandomCrop would pad"),
        (lambda: Pipeline([T.RandomShortestSize(9)]), "end it with AsList"),
        (lambda: Pipeline([T.Resize(9), T.ScaleJitter((9, 9))]), "already resized"),
    ],
)
def test_wrong_options_are_refused_by_name(make, words):
    with pytest.raises(UsageError, match=words):
        make()
