"""Resampling: torchvision's pixels for the same parameters, and those of the definition."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms.kernels import warp
from dataloading.transforms.pipeline import Pipeline
from dataloading.transforms.rng import child

from .kernel_calls import SHAPES, apply_kernel, differences, smooth, stream_bits
from .support import assert_equally_likely, assert_uniform, image_by_image, keys_for, run

SAMPLERS = ["nearest", "bilinear"]
FILLS = [None, 0.0, 200.0, "one a channel"]


def fill_of(fill, channels):
    """Return torchvision's fill, and the constants of ours."""
    if fill is None:
        return None, [0.0] * (1 + channels)
    values = [float((40 + 50 * c) % 256) for c in range(channels)] if isinstance(fill, str) else [fill] * channels
    return (values if channels > 1 else values[0]), [1.0, *values]


def assert_resampled(got, want, interpolation):
    """One level at most; nearest pixels may fall the other way where a coordinate lies halfway between two."""
    difference = differences(got, want)
    if interpolation == "bilinear":
        assert difference.max() <= 1 and difference.mean() < 0.02
    else:
        assert (difference > 0).mean() < 0.01 and difference.mean() < 0.5


def reference(source, xs, ys, interpolation, fill):
    """Sample at (xs, ys) in float64, as grid_sample and torchvision's fill are defined; slowly."""
    channels, height, width = source.shape
    padded = np.zeros((channels + 1, height + 2, width + 2))
    padded[:channels, 1:-1, 1:-1] = source
    padded[channels, 1:-1, 1:-1] = 1  # what lies inside
    xs, ys = np.clip(xs, -1, width) + 1, np.clip(ys, -1, height) + 1
    if interpolation == "nearest":
        values = padded[:, np.rint(ys).astype(int), np.rint(xs).astype(int)]
        inside = values[-1] > 0.5
        outside = np.zeros(channels) if fill is None else np.broadcast_to(fill, channels)
        return np.where(inside, values[:-1], np.rint(outside)[:, None, None])
    left, upper = (np.minimum(np.floor(v).astype(int), n) for v, n in ((xs, width), (ys, height)))
    right, lower = xs - left, ys - upper
    values = (
        padded[:, upper, left] * (1 - right) * (1 - lower)
        + padded[:, upper, left + 1] * right * (1 - lower)
        + padded[:, upper + 1, left] * (1 - right) * lower
        + padded[:, upper + 1, left + 1] * right * lower
    )
    if fill is None:
        return np.rint(values[:-1])
    background = np.broadcast_to(fill, channels)[:, None, None]
    return np.rint((values[:-1] - background) * values[-1] + background)


AFFINE = [
    (0.0, 0, 0, 1.0, 0.0, 0.0),
    (17.0, 5, -3, 1.1, 3.0, -7.0),
    (-133.3, -30, 2, 0.37, -41.0, 12.5),
    (179.0, 0, 0, 2.9, 0.0, 30.0),
    (0.0, 500, 0, 1.0, 0.0, 0.0),
]


@pytest.mark.parametrize("interpolation", SAMPLERS)
@pytest.mark.parametrize("fill", FILLS)
def test_affine_equals_torchvision_and_the_definition(interpolation, fill):
    kernel = getattr(warp, f"affine_{interpolation}")
    for number, (shape, (angle, x, y, scale, shear_x, shear_y)) in enumerate(zip(SHAPES, AFFINE, strict=True)):
        for center in (None, [0.0, 0.0], [shape[2] * 0.3, 7.0]):
            source = smooth(shape, number)
            theirs, constants = fill_of(fill, shape[0])
            offset = [0.0, 0.0] if center is None else [center[0] - shape[2] / 2, center[1] - shape[1] / 2]
            got = apply_kernel(kernel, source, (angle, x, y, scale, shear_x, shear_y), [*constants, 1.0, *offset])
            want = functional.affine(
                torch.from_numpy(source), angle, [x, y], scale, [shear_x, shear_y], interpolation, theirs, center
            )
            assert_resampled(got, want, interpolation)

            # Forwards: shear, scale, rotate about the center, then translate; the result's pixels go the way back.
            a, sx, sy = (math.radians(v) for v in (angle, shear_x, shear_y))
            turn = np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
            shear = np.array([[1, 0], [-math.tan(sy), 1]]) @ np.array([[1, -math.tan(sx)], [0, 1]])
            back = np.linalg.inv(scale * turn @ shear)
            middle = np.array([shape[2], shape[1]]) / 2 + offset
            columns, rows = np.meshgrid(np.arange(shape[2]) + 0.5, np.arange(shape[1]) + 0.5)
            points = np.stack([columns - middle[0] - x, rows - middle[1] - y])
            xs, ys = np.einsum("ij,jyx->iyx", back, points) + middle[:, None, None] - 0.5
            assert_resampled(got, reference(source, xs, ys, interpolation, theirs), interpolation)


@pytest.mark.parametrize("interpolation", SAMPLERS)
@pytest.mark.parametrize("angle", [0.0, 31.0, 90.0, 180.0, 270.0, -90.0, 451.0])
def test_rotation_turns_counter_clockwise_as_torchvisions(interpolation, angle):
    kernel = getattr(warp, f"affine_{interpolation}")
    for shape in [(3, 32, 32), (1, 17, 17), (3, 17, 29)]:
        source = smooth(shape)
        got = apply_kernel(kernel, source, (angle, 0, 0, 1, 0, 0), [1.0, *[9.0] * shape[0], -1.0, 0.0, 0.0])
        want = functional.rotate(torch.from_numpy(source), angle, interpolation, fill=9.0).numpy()
        assert_resampled(got, want, interpolation)
        if angle % 90 == 0 and (shape[1] == shape[2] or angle % 180 == 0):
            assert np.array_equal(got, want)  # a quarter turn only moves pixels


@pytest.mark.parametrize("interpolation", SAMPLERS)
def test_rotation_onto_a_larger_canvas_keeps_the_middle(interpolation):
    source = smooth((3, 31, 44))
    want = functional.rotate(torch.from_numpy(source), 33.0, interpolation, expand=True, fill=[1.0, 2.0, 3.0]).numpy()
    constants = [1.0, 1.0, 2.0, 3.0, -1.0, 0.0, 0.0]
    kernel = getattr(warp, f"affine_{interpolation}")
    got = apply_kernel(kernel, source, (33.0, 0, 0, 1, 0, 0), constants, shape=want.shape)
    assert want.shape[1] > 31 and want.shape[2] > 44
    assert_resampled(got, want, interpolation)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("sampler", ["affine_nearest", "affine_bilinear", "affine_shift"])
def test_moves_by_whole_pixels_copy_pixels(sampler, dtype):
    source = smooth((2, 11, 17)).astype(dtype)
    kernel = getattr(warp, sampler + "_deep" * (sampler.endswith("bilinear") and dtype != np.uint8))
    for x, y in [(0, 0), (3, -2), (-16, 10), (17, 0), (0, -11), (400, 400)]:
        got = apply_kernel(kernel, source, (0, x, y, 1, 0, 0), [1.0, 7.0, 9.0, 1.0, 0.0, 0.0])
        want = np.empty_like(source)
        want[0], want[1] = 7, 9
        for row in range(11):
            for column in range(17):
                if 0 <= row + y < 11 and 0 <= column + x < 17:
                    want[:, row + y, column + x] = source[:, row, column]
        # Mixing floats rounds, at the edge too, where a sliver of the last pixel is left.
        assert np.abs(got - want.astype(float)).max() <= (1e-3 if kernel is warp.affine_bilinear_deep else 0)


@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 0.5), (np.int64, 70000)])
def test_nearest_pixels_of_any_dtype_move_alike(dtype, scale):
    source = smooth((2, 20, 31)) & 0xFE
    params, shared = (25.0, 3, 1, 0.8, 10.0, 0.0), [1.0, 0.0, 0.0]
    want = apply_kernel(warp.affine_nearest, source, params, [1.0, 4.0, 6.0, *shared])
    got = apply_kernel(
        warp.affine_nearest, source.astype(dtype) * dtype(scale), params, [1.0, 4 * scale, 6 * scale, *shared]
    )
    assert np.array_equal(got, want.astype(dtype) * dtype(scale))


QUADRILATERALS = [
    ((0, 0), (52, 0), (52, 36), (0, 36)),
    ((5, 3), (50, 1), (40, 30), (2, 33)),
    ((12, 0), (30, 9), (52, 36), (0, 20)),
    ((25, 17), (27, 0), (52, 18), (0, 36)),
]


@pytest.mark.parametrize("ends", QUADRILATERALS)
@pytest.mark.parametrize("interpolation", SAMPLERS)
def test_perspective_equals_torchvision_and_the_definition(interpolation, ends):
    kernel = getattr(warp, f"perspective_{interpolation}")
    source = smooth((3, 37, 53))
    starts = QUADRILATERALS[0]
    coefficients = np.array(ends, np.float64).T.ravel()
    warp.perspective_coefficients(coefficients, 52.0, 36.0)
    # What the coefficients are for: each corner of the quadrilateral comes from a corner of the image.
    a, b, c, d, e, f, g, h = coefficients
    for (x, y), (u, v) in zip(ends, starts, strict=True):
        w = g * x + h * y + 1
        assert ((a * x + b * y + c) / w, (d * x + e * y + f) / w) == pytest.approx((u, v), abs=1e-9)
    columns, rows = np.meshgrid(np.arange(53) + 0.5, np.arange(37) + 0.5)
    w = g * columns + h * rows + 1
    sources = (a * columns + b * rows + c) / w - 0.5, (d * columns + e * rows + f) / w - 0.5
    for fill in FILLS:
        theirs, constants = fill_of(fill, 3)
        got = apply_kernel(kernel, source, coefficients, constants)
        want = functional.perspective(
            torch.from_numpy(source), None, None, interpolation, theirs, coefficients=coefficients.tolist()
        )
        assert_resampled(got, want, interpolation)
        assert_resampled(got, reference(source, *sources, interpolation, theirs), interpolation)


def test_a_perspective_that_divides_by_zero_shows_the_fill():
    source = smooth((3, 16, 16))
    got = apply_kernel(warp.perspective_nearest, source, [0, 0, 0, 0, 0, 0, 0, -2.0], [1.0, 7.0, 8.0, 9.0])
    assert got.shape == source.shape  # row 0 divides 0 by 0: nothing to say but that nothing breaks
    far = apply_kernel(warp.perspective_bilinear, source, [1, 0, 1e9, 0, 1, -1e9, 0, 0], [1.0, 7.0, 8.0, 9.0])
    assert (far == np.array([7, 8, 9])[:, None, None]).all()


def elastic_field(shape, key, alpha, sigma):
    constants = np.array([*alpha, *sigma], np.float64)
    work = np.zeros(64 * shape[1] * shape[2] + 65536, np.uint8)
    field, _ = warp.elastic_field(shape[1], shape[2], np.array([stream_bits(key)]), constants, work)
    return field.reshape(2, *shape[1:]).copy()


@pytest.mark.parametrize("fill", [None, 0.0, 99.0])
@pytest.mark.parametrize("interpolation", SAMPLERS)
def test_elastic_moves_pixels_as_torchvision_by_the_same_field(interpolation, fill):
    kernel = getattr(warp, f"elastic_{interpolation}")
    for shape, alpha, sigma in [((3, 45, 61), (50.0, 80.0), (5.0, 3.0)), ((1, 23, 12), (9.0, 9.0), (0.0, 0.0))]:
        source = smooth(shape)
        field = elastic_field(shape, 5, alpha, sigma)
        displacement = np.stack([field[0] * 2 / shape[2], field[1] * 2 / shape[1]], axis=-1)[None]
        theirs, constants = fill_of(fill, shape[0])
        got = apply_kernel(kernel, source, [stream_bits(5)], [*constants, *alpha, *sigma])
        want = functional.elastic(torch.from_numpy(source), torch.from_numpy(displacement), interpolation, theirs)
        assert_resampled(got, want, interpolation)


def test_the_elastic_field_is_blurred_uniform_noise_as_torchvisions():
    height, width, alpha, sigma = 50, 64, (40.0, 70.0), (4.0, 3.0)
    keys = np.array([[child(9, y * width + x) for x in range(width)] for y in range(height)], np.uint64)
    field = elastic_field((1, height, width), 9, alpha, sigma)
    for axis, shift in ((0, 32), (1, 0)):
        bits = ((keys >> np.uint64(shift)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        noise = torch.from_numpy(bits.view(np.int32) / 2.0**31)[None, None]
        size = int(8 * sigma[axis] + 1) | 1
        blurred = functional.gaussian_blur(noise, [size, size], list(sigma))
        side = (width, height)[axis]
        want = blurred * alpha[axis] / side * side / 2  # as a share of the image, and back to pixels
        assert np.abs(field[axis] - want[0, 0].numpy()).max() < 1e-3 * alpha[axis]


# -- the transforms ------------------------------------------------------------------------------------------------

IMAGES = np.stack([smooth((3, 45, 61), n) for n in range(6)])
SIZE = IMAGES.shape[2:]


def drawn_and_run(op, n=6):
    pipeline = Pipeline([op], source_size=SIZE)
    keys = keys_for(n)
    params = [
        {name.rsplit(".", 1)[1]: value for name, value in drawn.items()} for drawn in image_by_image(pipeline, keys)
    ]
    return params, run(pipeline, IMAGES, keys) if n == len(IMAGES) else None


@pytest.mark.parametrize("center", [None, (10, 3.5)])
@pytest.mark.parametrize("interpolation", SAMPLERS)
def test_random_rotation_is_torchvisions_for_the_same_angle(interpolation, center):
    options = {"interpolation": interpolation, "center": center, "fill": (1, 20, 30)}
    params, got = drawn_and_run(T.RandomRotation((-200, 30), **options))
    theirs = v2.RandomRotation((-200, 30), **options)
    for image, source, drawn in zip(got, IMAGES, params, strict=True):
        want = theirs.transform(torch.from_numpy(source), {"angle": drawn["angle"]})
        assert_resampled(image, want, interpolation)


@pytest.mark.parametrize("angle", [0, 90, 180, -90, 33.3, 270])
@pytest.mark.parametrize("center", [None, (10, 3.5)])
def test_expanded_rotations_have_torchvisions_size_and_pixels(angle, center):
    op = T.RandomRotation((angle, angle), expand=True, interpolation="bilinear", center=center, fill=7)
    _, got = drawn_and_run(op)
    want = v2.RandomRotation((angle, angle), expand=True, interpolation="bilinear", center=center, fill=7)(
        torch.from_numpy(IMAGES)
    )
    assert got.shape == tuple(want.shape)
    assert_resampled(got, want, "bilinear")


@pytest.mark.parametrize("interpolation", SAMPLERS)
def test_random_affine_is_torchvisions_for_the_same_numbers(interpolation):
    options = {"translate": (0.2, 0.4), "scale": (0.5, 1.5), "shear": (-10, 5, 0, 20), "interpolation": interpolation}
    params, got = drawn_and_run(T.RandomAffine(40, **options))
    theirs = v2.RandomAffine(40, **options)
    for image, source, drawn in zip(got, IMAGES, params, strict=True):
        numbers = {
            "angle": drawn["angle"],
            "translate": (int(drawn["translate_x"]), int(drawn["translate_y"])),
            "scale": drawn["scale"],
            "shear": (drawn["shear_x"], drawn["shear_y"]),
        }
        assert_resampled(image, theirs.transform(torch.from_numpy(source), numbers), interpolation)


def test_the_numbers_of_rotations_and_affine_maps_are_uniform():
    rotations, _ = drawn_and_run(T.RandomRotation((-20, 70)), 2000)
    assert_uniform([drawn["angle"] for drawn in rotations], -20, 70)
    op = T.RandomAffine((0, 5), translate=(0.2, 0.4), scale=(0.5, 1.5), shear=(-10, 5, 0, 20))
    drawn, _ = drawn_and_run(op, 2000)
    for name, low, high in [("angle", 0, 5), ("scale", 0.5, 1.5), ("shear_x", -10, 5), ("shear_y", 0, 20)]:
        assert_uniform([each[name] for each in drawn], low, high)
    # Whole pixels: 61 * 0.2 = 12.2, so that the outermost come less often.
    counts = np.bincount([int(each["translate_x"]) + 12 for each in drawn], minlength=25)
    assert_equally_likely(counts, [0.7, *[1.0] * 23, 0.7])
    assert {each["translate_y"] for each in drawn} == set(range(-18, 19))
    plain, _ = drawn_and_run(T.RandomAffine(0), 5)
    still = {"angle": 0, "translate_x": 0, "translate_y": 0, "scale": 1, "shear_x": 0, "shear_y": 0}
    assert all(each == still for each in plain)


def test_random_perspective_moves_corners_and_pixels_as_torchvision():
    n, height, width = 2000, *SIZE
    params, _ = drawn_and_run(T.RandomPerspective(0.6, p=0.25), n)
    happened = [drawn for drawn in params if drawn]
    assert abs(len(happened) - n / 4) < 4.5 * (n * 0.25 * 0.75) ** 0.5
    corners = [[], [], [], []]
    for drawn in happened:
        a, b, c, d, e, f, g, h = (drawn[f"coefficient_{k}"] for k in range(8))
        back = np.linalg.inv(np.array([[a, b, c], [d, e, f], [g, h, 1]]))
        for k, (x, y) in enumerate([(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]):
            u, v, w = back @ (x, y, 1)
            corners[k].append((u / w, v / w))
    bound_x, bound_y = int(0.6 * (width // 2)) + 1, int(0.6 * (height // 2)) + 1
    for k, found in enumerate(corners):
        whole = np.rint(found)
        assert np.abs(whole - found).max() < 1e-6
        inwards = np.abs(whole - [(width - 1) * (k in (1, 2)), (height - 1) * (k >= 2)])
        for axis, bound in ((0, bound_x), (1, bound_y)):
            assert_equally_likely(np.bincount(inwards[:, axis].astype(int), minlength=bound))
    params, got = drawn_and_run(T.RandomPerspective(1.0, p=1, fill=(9, 8, 7)))
    for image, source, drawn in zip(got, IMAGES, params, strict=True):
        want = functional.perspective(
            torch.from_numpy(source), None, None, fill=[9, 8, 7], coefficients=list(drawn.values())
        )
        assert_resampled(image, want, "bilinear")


def test_elastic_transform_moves_each_image_by_its_own_field():
    _, got = drawn_and_run(T.ElasticTransform(alpha=(60, 90), sigma=2.0))
    assert (got != IMAGES).any(axis=(1, 2, 3)).all()
    same = np.broadcast_to(IMAGES[0], IMAGES.shape)
    moved = run(Pipeline([T.ElasticTransform(sigma=2)], source_size=SIZE), same, keys_for(6))
    assert len({image.tobytes() for image in moved}) == 6
    assert differences(moved, same).mean() < 40


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
@pytest.mark.parametrize("op", [T.RandomRotation(40, fill=0.5), T.RandomPerspective(p=1), T.ElasticTransform(sigma=1)])
def test_deeper_images_move_as_those_of_uint8(op, dtype):
    op = dataclasses.replace(op, interpolation="bilinear")
    keys = keys_for(len(IMAGES))
    if dtype == "uint16":
        op = dataclasses.replace(op, fill=0)
        pipeline = Pipeline([op], source_size=SIZE, dtype=dtype)
        got = run(pipeline, IMAGES.astype(np.uint16) * 257, keys) / 257
    else:
        pipeline = Pipeline([T.Normalize(0.0, 1.0), T.RandomInvert(0.0), op][::2], source_size=SIZE)
        op = dataclasses.replace(op, fill=op.fill * 255)
        got = run(pipeline, IMAGES, keys) * 255
    want = run(Pipeline([T.RandomInvert(0.0), op][dtype == "uint16" :], source_size=SIZE), IMAGES, keys)
    assert np.abs(got - want).max() < 1.01


@pytest.mark.parametrize(
    "op",
    [
        T.RandomRotation(15, "bilinear", center=[3, 4], fill=[1, 2, 3]),
        T.RandomAffine((0, 3), (0, 0.5), (0.5, 1), 7, fill=None),
        T.RandomPerspective(0.25),
        T.ElasticTransform(30, [4, 5], interpolation=v2.InterpolationMode.NEAREST),
    ],
)
def test_repr_can_be_evaluated_back(op):
    assert eval(repr(op), vars(T)) == op


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomRotation(-3), "degrees must not be negative if it is one number"),
        (lambda: T.RandomRotation((1, 2, 3)), "degrees must be a number, or a sequence of 2"),
        (lambda: T.RandomRotation((5, 1)), "degrees must have its lower bound first"),
        (lambda: T.RandomRotation(30, expand=True), r"expand=True gives each angle another size.*degrees=\(30, 30\)"),
        (lambda: T.RandomRotation(30, center=4), "center must be a sequence of 2 numbers, got 4"),
        (lambda: T.RandomRotation(30, interpolation=3), "interpolation must be nearest or bilinear"),
        (lambda: T.RandomAffine(3, translate=(0.1, 2)), "translate must be two shares between 0 and 1"),
        (lambda: T.RandomAffine(3, scale=(0, 2)), "scale must be positive"),
        (lambda: T.RandomAffine(3, shear=(1, 2, 3)), "shear must be a number, or a sequence of 2 or 4"),
        (lambda: T.RandomPerspective(1.5), "distortion_scale must be a number between 0 and 1"),
        (lambda: T.RandomPerspective(p=7), "p must be a number between 0 and 1"),
        (lambda: T.ElasticTransform(sigma=-1), "sigma must be positive"),
        (lambda: T.ElasticTransform("much"), "alpha must be a sequence of numbers"),
        (lambda: Pipeline([T.ElasticTransform(sigma=12)], source_size=SIZE), "needs larger images than 45x61"),
        (lambda: Pipeline([T.RandomRotation(3, fill=256)], source_size=SIZE), "fill must be between 0 and 255"),
        (lambda: Pipeline([T.RandomRotation(3, fill=(1, 2))], source_size=SIZE), "fill has 2 values, expected 1 or 3"),
        (lambda: Pipeline([T.RandomRotation(3, "bilinear")], source_size=SIZE, dtype="int64"), "mixes classes"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
