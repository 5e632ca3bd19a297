"""Geometry: boxes, sizes and pixels are torchvision's, for each transform and for chains of them."""

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading._native import REQUEST
from dataloading.errors import UsageError
from dataloading.transforms.pipeline import Pipeline, PipelineFault
from dataloading.transforms.rng import child, randint, uniform

from .support import Draws, decode_raw, keys_for, plan, torch_draws

SIZES = [(375, 500), (500, 333), (224, 224), (1, 1), (7, 301), (301, 7), (64, 65), (2, 1000), (33, 17)]


def noise(height, width, seed=0):
    return np.random.default_rng(seed + height * 1000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def chw(image):
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


@pytest.mark.parametrize(
    "options", [{}, {"scale": (0.5, 1.0), "ratio": (1.0, 1.0)}, {"scale": (0.9, 1.5), "ratio": (2.0, 3.0)}]
)
def test_random_resized_crop_draws_torchvisions_box(options):
    """For the same numbers the box is the same, including the fallback after ten attempts."""
    theirs = v2.RandomResizedCrop(8, **options)
    pipeline = Pipeline([T.RandomHorizontalFlip(0.0), T.RandomResizedCrop(8, **options)])
    fallbacks = 0
    for seed in range(12):
        keys = keys_for(len(SIZES), seed)
        requests = plan(pipeline, SIZES, keys)
        for size, key, request in zip(SIZES, keys, requests, strict=True):
            draws = Draws(key, 1)
            image = torch.zeros((3, *size), dtype=torch.uint8)
            with torch_draws(draws):
                want = theirs.make_params([image])
            fallbacks += draws.num_integers == 0
            got = {
                "top": request["box_y"],
                "left": request["box_x"],
                "height": request["box_h"],
                "width": request["box_w"],
            }
            assert got == want
            assert (request["scaled_w"], request["scaled_h"], request["window_x"], request["out_w"]) == (8, 8, 0, 8)
    assert fallbacks > 0


def test_random_resized_crop_covers_its_range_of_areas():
    keys = keys_for(4000)
    requests = plan(Pipeline([T.RandomResizedCrop(8, scale=(0.2, 0.6), ratio=(0.8, 1.2))]), [(400, 400)] * 4000, keys)
    areas = requests["box_w"] * requests["box_h"] / 160_000
    assert 0.195 < areas.min() < 0.21 and 0.59 < areas.max() < 0.605
    assert abs(areas.mean() - 0.4) < 0.01
    left = requests["box_x"] / (400 - requests["box_w"])
    assert abs(left.mean() - 0.5) < 0.02 and left.min() == 0 and left.max() == 1


@pytest.mark.parametrize(
    "options",
    [{"size": 256}, {"size": 7}, {"size": (30, 20)}, {"size": 30, "max_size": 40}, {"size": None, "max_size": 50}],
)
def test_resize_gives_torchvisions_size(options):
    resize = T.Resize(**options)
    for height, width in SIZES:
        want = v2.functional._geometry._compute_resized_output_size(
            (height, width),
            size=[options["size"]] if isinstance(options["size"], int) else options["size"],
            max_size=options.get("max_size"),
        )
        assert list(resize.output_size(height, width)) == want
        pipeline = Pipeline([resize, T.CenterCrop(3)])
        if min(want) < 1:
            with pytest.raises(PipelineFault, match="would be resized"):
                plan(pipeline, [(height, width)], keys_for(1))
            continue
        request = plan(pipeline, [(height, width)], keys_for(1))[0]
        assert [request["scaled_h"], request["scaled_w"]] == want


@pytest.mark.parametrize("size", [(5, 5), (4, 9), (11, 2), (30, 31)])
def test_center_crop_gives_torchvisions_pixels(size):
    """Exactly, for odd and even differences, and with black around an image that is smaller."""
    sources = [noise(h, w) for h, w in [(5, 5), (9, 9), (8, 9), (12, 3), (3, 3), (31, 30), (4, 40)]]
    got = decode_raw(Pipeline([T.CenterCrop(size)]), sources, keys_for(len(sources)))
    for image, source in zip(got, sources, strict=True):
        np.testing.assert_array_equal(image, functional.center_crop(chw(source), list(size)).numpy())


@pytest.mark.parametrize(
    "options",
    [
        {"size": 9},
        {"size": (9, 13), "padding": 4},
        {"size": 20, "padding": (1, 2, 3, 4), "pad_if_needed": True, "fill": (9, 50, 255)},
        {"size": (25, 12), "padding": (3, 5), "pad_if_needed": True, "padding_mode": "edge"},
        {"size": 17, "padding": 4, "padding_mode": "reflect"},
        {"size": 17, "padding": 4, "padding_mode": "symmetric"},
    ],
)
def test_random_crop_gives_torchvisions_pixels(options):
    theirs = v2.RandomCrop(**options)
    sources = [noise(h, w) for h, w in [(13, 13), (14, 15), (13, 29), (15, 14)]] * 3
    keys = keys_for(len(sources))
    got = decode_raw(Pipeline([T.RandomCrop(**options)]), sources, keys)
    for image, source, key in zip(got, sources, keys, strict=True):
        # torchvision draws nothing where there is no room; our numbers are 0 for the top and 1 for the left.
        params = theirs.make_params([chw(source)])
        left, top, right, bottom = params["padding"]
        room_h = source.shape[0] + top + bottom - params["height"]
        room_w = source.shape[1] + left + right - params["width"]
        stream = child(int(key), 0)
        params["top"], params["left"] = randint(stream, 0, room_h + 1), randint(stream, 1, room_w + 1)
        np.testing.assert_array_equal(image, theirs.transform(chw(source), params).numpy())


def test_random_translate_is_a_padded_random_crop_of_the_same_size():
    sources = [noise(12, 15, seed) for seed in range(11)]
    keys = keys_for(len(sources))
    translated = decode_raw(Pipeline([T.RandomTranslate(4, fill=(1, 2, 3))], source_size=(12, 15)), sources, keys)
    cropped = decode_raw(Pipeline([T.RandomCrop((12, 15), padding=4, fill=(1, 2, 3))]), sources, keys)
    np.testing.assert_array_equal(translated, cropped)
    assert (translated != np.stack([s.transpose(2, 0, 1) for s in sources])).any()


@pytest.mark.parametrize(("flip", "axis"), [(T.RandomHorizontalFlip, 2), (T.RandomVerticalFlip, 1)])
def test_flips_mirror_the_right_axis_with_the_right_probability(flip, axis):
    sources = [noise(5, 8)] * 400
    keys = keys_for(400)
    plain = sources[0].transpose(2, 0, 1)
    mirrored = np.flip(plain, axis)
    for p, low, high in [(0.0, 0, 0), (1.0, 400, 400), (0.3, 95, 145)]:
        got = decode_raw(Pipeline([flip(p)], source_size=(5, 8)), sources, keys)
        is_mirrored = (got == mirrored).all(axis=(1, 2, 3))
        assert np.array_equal(is_mirrored, ~(got == plain).all(axis=(1, 2, 3)))
        assert low <= is_mirrored.sum() <= high


def step_by_step(chain, source, key):
    """Apply geometry one transform after the other on pixels, drawing our numbers; None where it must be refused."""
    image = chw(source)
    for position, op in enumerate(chain):
        stream = child(int(key), position)
        if isinstance(op, T.RandomHorizontalFlip):
            image = image.flip(2) if uniform(stream, 0) < op.p else image
        elif isinstance(op, T.RandomVerticalFlip):
            image = image.flip(1) if uniform(stream, 0) < op.p else image
        elif isinstance(op, T.CenterCrop):
            image = functional.center_crop(image, list(op.size))
        elif isinstance(op, T.RandomCrop):
            left, top, right, bottom = op.padding or (0, 0, 0, 0)
            image = functional.pad(image, [left, top, right, bottom], fill=op.fill, padding_mode=op.padding_mode)
            y = randint(stream, 0, image.shape[1] - op.size[0] + 1)
            x = randint(stream, 1, image.shape[2] - op.size[1] + 1)
            image = functional.crop(image, y, x, *op.size)
        else:
            size = [op.size] if isinstance(op.size, int) else list(op.size)
            image = functional.resize(image, size, antialias=True)
    return image.numpy()


FLIPS = [T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
EXACT_CHAINS = [
    [*FLIPS, T.CenterCrop(18), T.RandomCrop(11)],
    [
        T.RandomCrop(19),
        *FLIPS,
        T.RandomCrop((13, 8)),
        T.RandomHorizontalFlip(),
        T.CenterCrop((7, 7)),
    ],
    [
        T.CenterCrop((17, 15)),
        T.RandomHorizontalFlip(),
        T.RandomCrop((17, 15), padding=(1, 2, 3, 4), fill=7),
        *FLIPS,
    ],
    [
        T.RandomVerticalFlip(),
        T.RandomCrop(20, padding=5, padding_mode="reflect"),
        *FLIPS,
        T.RandomCrop(9),
    ],
    [
        T.RandomCrop(20, padding=(0, 3, 6, 1), padding_mode="symmetric"),
        T.CenterCrop(12),
        T.RandomVerticalFlip(),
    ],
]
RESIZED_CHAINS = [
    [T.Resize(24), T.CenterCrop(20), T.RandomHorizontalFlip()],
    [
        *FLIPS,
        T.RandomCrop((17, 20)),
        T.Resize((12, 9)),
        T.RandomVerticalFlip(),
        T.RandomCrop(7),
    ],
    [
        T.RandomHorizontalFlip(),
        T.Resize((16, 20)),
        T.RandomCrop((16, 20), padding=4),
        *FLIPS,
    ],
]


@pytest.mark.parametrize("chain", EXACT_CHAINS, ids=range(len(EXACT_CHAINS)))
def test_chains_without_a_resize_equal_one_step_after_the_other(chain):
    sources = [noise(h, w, seed) for seed in range(6) for h, w in [(20, 20), (21, 33), (40, 23)]]
    keys = keys_for(len(sources), 1)
    got = decode_raw(Pipeline(chain), sources, keys)
    for image, source, key in zip(got, sources, keys, strict=True):
        np.testing.assert_array_equal(image, step_by_step(chain, source, key))


@pytest.mark.parametrize("chain", RESIZED_CHAINS, ids=range(len(RESIZED_CHAINS)))
def test_chains_with_a_resize_equal_one_step_after_the_other(chain):
    """Up to the resize's own rounding, which may differ by one level between torchvision and the native core."""
    sources = [noise(h, w, seed) for seed in range(4) for h, w in [(22, 31), (40, 23)]]
    keys = keys_for(len(sources), 2)
    got = decode_raw(Pipeline(chain), sources, keys)
    for image, source, key in zip(got, sources, keys, strict=True):
        difference = np.abs(image.astype(int) - step_by_step(chain, source, key))
        assert difference.max() <= 2 and difference.mean() < 0.3


def test_geometry_depends_on_the_key_alone():
    pipeline = Pipeline([T.RandomResizedCrop(9), *FLIPS])
    keys = keys_for(13)
    sizes = [(100 + i, 90) for i in range(13)]
    whole = plan(pipeline, sizes, keys)
    singles = np.concatenate([plan(pipeline, sizes[i : i + 1], keys[i : i + 1]) for i in range(13)])
    assert np.array_equal(whole, singles)
    assert len({tuple(r) for r in whole[["box_x", "box_y", "box_w", "box_h"]].tolist()}) > 10


def test_a_sample_that_does_not_fit_is_named_and_the_rest_can_go_on():
    pipeline = Pipeline([T.RandomHorizontalFlip(), T.RandomCrop(50)])
    sizes = [(60, 60), (60, 40), (50, 50)]
    keys = keys_for(3)
    requests = np.zeros(3, REQUEST)
    requests["src_width"], requests["src_height"] = [60, 40, 50], [60, 60, 50]
    with pytest.raises(PipelineFault, match=r"transform 1 \(RandomCrop\).*60x40.*50x50") as info:
        pipeline.plan(keys, requests)
    assert info.value.position == 1 and isinstance(info.value.cause, ValueError)
    pipeline.plan(keys, requests, start=2)
    assert requests["out_w"].tolist() == [50, 0, 50]
    assert np.array_equal(requests[[0, 2]], plan(pipeline, [sizes[0], sizes[2]], keys[[0, 2]]))


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (
            [T.Resize(256), T.RandomResizedCrop(224)],
            r"transform 1: RandomResizedCrop would resize .* already resized",
        ),
        (
            [T.RandomCrop(32, padding=4), T.Resize(64)],
            r"transform 1: Resize would resize an image after padding",
        ),
        (
            [T.Resize((64, 64)), T.CenterCrop(32), T.RandomCrop(32, padding=4)],
            r"transform 2: RandomCrop would pad a crop",
        ),
        (
            [T.RandomCrop(32, padding=4), T.RandomTranslate(4)],
            r"transform 1: RandomTranslate .* already padded",
        ),
        (
            [T.Resize((20, 20)), T.RandomCrop(32)],
            r"transform 1: RandomCrop: size 32x32 is larger .* 20x20",
        ),
        (
            [T.Resize((9, 9)), T.RandomCrop(9, padding=9, padding_mode="reflect")],
            r"reflect padding .* smaller",
        ),
        ([T.RandomHorizontalFlip()], r"must have one size.*sizes that differ.*RandomResizedCrop"),
        ([T.Resize(256)], r"must have one size.*transform 0 \(Resize\).*at least 256"),
    ],
)
def test_what_cannot_be_decoded_is_refused_when_the_pipeline_is_made(chain, message):
    with pytest.raises(UsageError, match=message):
        Pipeline(chain)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomResizedCrop(0), "RandomResizedCrop: size must be between"),
        (lambda: T.RandomResizedCrop((1, 2, 3)), "RandomResizedCrop: size must be an integer or"),
        (lambda: T.RandomResizedCrop(8, scale=(0.9, 0.1)), "RandomResizedCrop: scale"),
        (lambda: T.RandomResizedCrop(8, ratio=0.5), "RandomResizedCrop: ratio must be a pair"),
        (
            lambda: T.RandomResizedCrop(8, interpolation="lanczos"),
            "RandomResizedCrop: interpolation must be one of",
        ),
        (lambda: T.Resize(None), "Resize: max_size must be given"),
        (lambda: T.Resize((3, 4), max_size=9), "Resize: max_size works with an integer size"),
        (lambda: T.Resize(9, max_size=9), "Resize: max_size=9 must be larger"),
        (lambda: T.RandomCrop(8, padding=(1, 2, 3)), "RandomCrop: padding"),
        (lambda: T.RandomCrop(8, padding=-1), "RandomCrop: padding"),
        (lambda: T.RandomCrop(8, fill=256), "RandomCrop: fill"),
        (lambda: T.RandomCrop(8, padding_mode="wrap"), "RandomCrop: padding_mode must be one of"),
        (lambda: T.RandomHorizontalFlip(1.5), "RandomHorizontalFlip: p must be"),
        (lambda: T.RandomTranslate(-1), "RandomTranslate: padding"),
    ],
)
def test_parameters_are_checked_when_written(make, message):
    with pytest.raises(UsageError, match=message):
        make()


SIZES_OF_CROPS = [((32, 33), (7, 8)), ((33, 40), (10, 5)), ((20, 20), 20), ((9, 9), (2, 3))]
MANY_CROPS = [("FiveCrop", {}), ("TenCrop", {}), ("TenCrop", {"vertical_flip": True})]


@pytest.mark.parametrize(("name", "options"), MANY_CROPS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_five_and_ten_crops_are_torchvisions_in_its_order(name, options, dtype):
    for (height, width), size in SIZES_OF_CROPS:
        image = chw(noise(height, width)) / 255 if dtype == "float32" else chw(noise(height, width).astype(dtype))
        ours = getattr(T, name)(size, **options)(image)
        theirs = getattr(v2, name)(size, **options)(image)
        assert isinstance(ours, tuple) and len(ours) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("name", "options"), MANY_CROPS)
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_five_and_ten_crops_are_exact_at_each_place_of_a_list(name, options, place):
    """In decoding, and behind transforms that change pixels; flips before and behind count as well."""

    def chain(module):
        steps = [module.RandomHorizontalFlip(1.0), module.RandomSolarize(100, 1.0), module.RandomVerticalFlip(1.0)]
        return module.Compose([*steps[:place], getattr(module, name)((10, 5), **options), *steps[place:]])

    image = chw(noise(33, 40))
    # Of several plain tensors torchvision changes only the first.
    for a, b in zip(chain(T)(image), chain(v2)(tv_tensors.Image(image)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.FiveCrop(64), r"FiveCrop: size 64x64 is larger than the image, 20x20"),
        (lambda: T.RandomApply([T.TenCrop(4)]), r"TenCrop makes 10 images of one, so it cannot be part of another"),
        (lambda: T.Compose([T.FiveCrop(8), T.TenCrop(4)]), r"TenCrop.*: transform 0 \(FiveCrop\) makes several images"),
        (lambda: T.FiveCrop(0), r"FiveCrop: size must be between 1 and 65535"),
    ],
)
def test_crops_that_cannot_be_made_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()(np.zeros((3, 20, 20), np.uint8))
