"""Policies: torchvision's operations at torchvision's magnitudes, chosen as often as published."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.transforms import policies, simple
from dataloading.transforms.base import ImageState
from dataloading.transforms.pipeline import Pipeline

from .kernel_calls import differences, smooth
from .support import assert_equally_likely, assert_uniform, image_by_image, keys_for, run

SIZE = (40, 56)
STILL = {"angle": 0.0, "translate_x": 0.0, "translate_y": 0.0, "scale": 1.0, "shear_x": 0.0, "shear_y": 0.0}


def executed(pipeline, keys):
    """Return for each sample the operations that change it, in order, each with its one number."""
    return [executed_of(drawn) for drawn in image_by_image(pipeline, keys)]


def executed_of(drawn):
    steps = {}
    for name, value in drawn.items():
        path, what, param = name.rsplit(".", 2)
        if value != STILL.get(param):
            steps[path, what] = value
        steps.setdefault((path, what), 0.0)
    return [(what, value) for (_, what), value in steps.items()]


def their_magnitude(what, value):
    """Turn the number of one of our operations into torchvision's magnitude."""
    if what.startswith("Shear"):
        return np.tan(np.radians(value))
    if what in ("Brightness", "Color", "Contrast", "Sharpness"):
        return value - 1
    return value / 255 if what == "Solarize" else value


@pytest.mark.parametrize("op", [T.RandAugment(3, 11), T.TrivialAugmentWide(), T.AutoAugment("svhn")])
@pytest.mark.parametrize("fill", [None, (10.0, 200.0, 90.0)])
def test_pixels_are_torchvisions_for_the_same_choices(op, fill):
    op = type(op)(**{**vars(op), "fill": fill, "interpolation": "bilinear"})
    keys = keys_for(60)
    decoded = np.stack([smooth((3, *SIZE), n) for n in range(60)])
    pipeline = Pipeline([op], source_size=SIZE)
    theirs = v2.RandAugment()
    seen = set()
    for got, image, steps in zip(run(pipeline, decoded, keys), decoded, executed(pipeline, keys), strict=True):
        want = torch.from_numpy(image)
        for what, value in steps:
            seen.add(what)
            magnitude = their_magnitude(what, value)
            want = theirs._apply_image_or_video_transform(
                want, what, magnitude, "bilinear", {"others": None if fill is None else list(fill)}
            )
        # A level lost in one operation can grow in the next ones.
        assert differences(got, want).mean() < 1
    assert len(seen) >= 8


def test_identity_is_one_of_the_choices():
    keys = keys_for(300)
    decoded = np.broadcast_to(smooth((3, 12, 12)), (300, 3, 12, 12))
    got = run(Pipeline([T.RandAugment(1)], source_size=(12, 12)), decoded, keys)
    assert 8 <= (got == decoded).all(axis=(1, 2, 3)).sum() <= 50  # 300 / 14, and a translation by 0 pixels


SPACES = [
    (simple.STANDARD, v2.RandAugment(), 31),
    (simple.STANDARD, v2.AutoAugment(), 10),
    (simple.WIDE, v2.TrivialAugmentWide(), 31),
    (simple.WIDE, v2.TrivialAugmentWide(), 4),
    (simple.MIXED, v2.AugMix(), 10),
]


@pytest.mark.parametrize(("space", "theirs", "bins"), SPACES)
@pytest.mark.parametrize("size", [(224, 224), (33, 500)])
def test_magnitudes_are_torchvisions(space, theirs, bins, size):
    state = ImageState(3, *size)
    for what, (magnitudes, signed) in theirs._AUGMENTATION_SPACE.items():
        want = magnitudes(bins, *size)
        for k, values in enumerate(space.values(what, bins, state)):
            if want is None:
                assert values == []
                continue
            magnitude = float(want[k])
            if what.startswith("Translate"):
                magnitude = float(int(magnitude))
            if what in ("Brightness", "Color", "Contrast", "Sharpness"):
                wanted = [1 + magnitude, 1 - magnitude]
            else:
                magnitude *= 255 if what == "Solarize" else 1
                wanted = [magnitude, -magnitude] if signed else [magnitude]
            assert values == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_rand_augment_chooses_all_operations_equally_often_and_signs_too():
    pipeline = Pipeline([T.RandAugment()], source_size=SIZE)
    steps = executed(pipeline, keys_for(6000))
    for slot in range(2):
        counts = dict.fromkeys(v2.RandAugment._AUGMENTATION_SPACE, 0)
        for drawn in image_by_image(pipeline, keys_for(6000)):
            here = {name.split(".")[5] for name in drawn if name.split(".")[2] == str(slot)}
            assert len(here) <= 1
            counts[here.pop() if here else "Identity"] += 1
        assert_equally_likely(list(counts.values()))
    signed = [
        value > (1 if what in ("Brightness", "Color", "Contrast", "Sharpness") else 0)
        for sample in steps
        for what, value in sample
        if what not in ("Posterize", "Solarize", "AutoContrast", "Equalize")
    ]
    assert_equally_likely([sum(signed), len(signed) - sum(signed)])
    pairs = [tuple(what for what, _ in sample) for sample in steps]
    both = sum(pair == ("Equalize", "Rotate") for pair in pairs)
    assert 10 <= both <= 60  # 6000 / 14 / 14: the two slots choose independently


def test_trivial_augment_chooses_operations_and_magnitudes_equally_often():
    pipeline = Pipeline([T.TrivialAugmentWide()], source_size=SIZE)
    drawn = executed(pipeline, keys_for(20000))
    counts = dict.fromkeys(v2.TrivialAugmentWide._AUGMENTATION_SPACE, 0)
    for sample in drawn:
        counts[sample[0][0] if sample else "Identity"] += 1
    assert_equally_likely(list(counts.values()))
    angles = [value for sample in drawn for what, value in sample if what == "Rotate"]
    bins = np.rint(np.abs(angles) / 4.5).astype(int)
    assert_equally_likely(np.bincount(bins, minlength=31))
    assert_equally_likely([sum(angle > 0 for angle in angles), sum(angle < 0 for angle in angles)])


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_sub_policies_are_the_published_ones(policy):
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(policy))._policies
    assert [tuple(pair) for pair in policies.sub_policies(policy)] == theirs
    assert T.AutoAugment(v2.AutoAugmentPolicy(policy)) == T.AutoAugment(policy)


def test_auto_augment_applies_each_sub_policy_and_operation_as_often_as_published():
    pipeline = Pipeline([T.AutoAugment("imagenet")], source_size=SIZE)
    n = 20000
    counts = {}
    for drawn in image_by_image(pipeline, keys_for(n)):
        for name in {name.rsplit(".", 1)[0] for name in drawn}:
            counts[name] = counts.get(name, 0) + 1
    for number, pair in enumerate(policies.sub_policies("imagenet")):
        for step, (what, p, _) in enumerate(pair):
            wanted = n / 25 * p
            got = counts.get(f"0.AutoAugment.{number}.policy {number}.{step}.{what}", 0)
            assert abs(got - wanted) <= 4.5 * max(wanted, 1e-9) ** 0.5


def test_gray_images_have_no_colour_to_change():
    keys = keys_for(50)
    decoded = np.stack([smooth((1, *SIZE), n) for n in range(50)])
    for op in (T.RandAugment(), T.TrivialAugmentWide(), T.AutoAugment()):
        pipeline = Pipeline([op], channels=1, source_size=SIZE)
        assert (run(pipeline, decoded, keys) != decoded).any()
        assert not any("Color" in name for drawn in image_by_image(pipeline, keys) for name in drawn)


# -- AugMix, 3-Augment, timm's strings -------------------------------------------------------------------------------


def test_a_mix_is_torchvisions_for_the_same_choices_and_weights():
    keys = keys_for(40)
    decoded = np.stack([smooth((3, *SIZE), n) for n in range(40)])
    pipeline = Pipeline([T.AugMix(severity=8, mixture_width=2, fill=7)], source_size=SIZE)
    theirs = v2.AugMix()
    depths = []
    for got, source, drawn in zip(run(pipeline, decoded, keys), decoded, image_by_image(pipeline, keys), strict=True):
        weights = [drawn[f"0.AugMix.0.mix.weight{suffix}"] for suffix in ("", "_0", "_1")]
        assert sum(weights) == pytest.approx(1) and min(weights) > 0
        image = torch.from_numpy(source)
        mixed = weights[0] * image
        for version, weight in enumerate(weights[1:]):
            chain = executed_of({name: value for name, value in drawn.items() if f".version {version}." in name})
            depths.append(len(chain))
            changed = image
            for what, value in chain:
                changed = theirs._apply_image_or_video_transform(
                    changed, what, their_magnitude(what, value), "bilinear", {"others": 7.0}
                )
            mixed = mixed + weight * changed
        assert differences(got, mixed.to(torch.uint8)).mean() < 0.7
    assert set(depths) == {1, 2, 3}


def test_chains_are_as_deep_and_weights_as_spread_as_torchvisions():
    n = 3000
    drawn = image_by_image(Pipeline([T.AugMix(mixture_width=1, alpha=0.7)], source_size=(8, 8)), keys_for(n))
    depths = [len(executed_of({k: v for k, v in each.items() if ".version" in k})) for each in drawn]
    assert_equally_likely(np.bincount(depths, minlength=4)[1:])
    shares = beta(0.7, 0.7).cdf([each["0.AugMix.0.mix.weight"] for each in drawn])
    assert_uniform(shares, 0, 1)
    three = image_by_image(Pipeline([T.AugMix(alpha=2.5, chain_depth=1)], source_size=(8, 8)), keys_for(n))
    rest = [each["0.AugMix.0.mix.weight_1"] / (1 - each["0.AugMix.0.mix.weight"]) for each in three]
    assert_uniform(beta(2.5, 5).cdf(rest), 0, 1)  # one of three shares of a Dirichlet distribution
    few = Pipeline([T.AugMix(all_ops=False)], source_size=(8, 8)).draw(keys_for(5))
    assert few.tapes.shape == (5, 1 + 3 * (3 + 1) + 1)


def test_three_augment_takes_one_of_three_and_jitters():
    n = 900
    decoded = np.broadcast_to(smooth((3, 20, 20)), (n, 3, 20, 20))
    pipeline = Pipeline([T.ThreeAugment(color_jitter=0)], source_size=(20, 20))
    got = run(pipeline, decoded, keys_for(n))
    gray = (got[:, 0] == got[:, 1]).all(axis=(1, 2))
    solarised = (got == functional.solarize(torch.from_numpy(decoded[0].copy()), 128).numpy()).all(axis=(1, 2, 3))
    blurred = np.array([any("sigma" in name for name in drawn) for drawn in image_by_image(pipeline, keys_for(n))])
    assert (gray.astype(int) + solarised + blurred == 1).all()
    assert_equally_likely([gray.sum(), solarised.sum(), blurred.sum()])
    drawn = image_by_image(Pipeline([T.ThreeAugment()], source_size=(20, 20)), keys_for(n))
    for what in ("brightness", "contrast", "saturation"):
        assert_uniform([each[f"0.ThreeAugment.1.ColorJitter.{what}"] for each in drawn], 0.7, 1.3)


def steps_of_timm(config, n=6000):
    return executed(Pipeline([T.RandAugment.from_timm(config)], source_size=(100, 200)), keys_for(n))


def test_timms_operations_happen_half_of_the_times():
    steps = [what for sample in steps_of_timm("rand-m9-n3-inc1") for what, _ in sample]
    assert abs(len(steps) - 9000) < 4.5 * 4500**0.5
    assert_equally_likely(np.unique(steps, return_counts=True)[1])
    assert len(set(steps)) == 15
    assert len([1 for sample in steps_of_timm("rand-m9-p0.25", 2000) for _ in sample]) < 1200


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (
            "rand-m5-inc1",
            {"Rotate": {15, -15}, "Posterize": {2}, "Solarize": {128}, "SolarizeAdd": {55}, "Color": {1.45, 0.55},
             "ShearX": {0.15, -0.15}, "TranslateX": {45, -45}, "TranslateY": {22.5, -22.5}},
        ),
        (
            "rand-m10",
            {"Rotate": {30, -30}, "Posterize": {4}, "Solarize": {256}, "SolarizeAdd": {110}, "Contrast": {1.9}},
        ),
        ("rand-m15-mmax8-inc1", {"Rotate": {24, -24}, "Brightness": {1.72, 0.28}}),
    ],
)  # fmt: skip
def test_timms_magnitudes_follow_the_string(config, wanted):
    found = {}
    for sample in steps_of_timm(config, 2000):
        for what, value in sample:
            found.setdefault(what, set()).add(round(float(their_magnitude(what, value)), 9))
    for what, values in wanted.items():
        unit = 255 if what == "Solarize" else 1
        one = 1 if what in ("Color", "Contrast", "Brightness") else 0
        assert found[what] == {round(value / unit - one, 9) for value in values}


def test_timms_magnitudes_are_normal_and_clipped():
    angles = [value for sample in steps_of_timm("rand-m9-mstd0.5-inc1", 20000) for what, value in sample
              if what == "Rotate"]  # fmt: skip
    magnitudes = np.abs(angles) / 3
    assert magnitudes.max() == 10
    places = norm(9, 0.5).cdf(magnitudes[magnitudes < 10])
    assert_uniform(places / norm(9, 0.5).cdf(10), 0, 1)
    flat = [value for sample in steps_of_timm("rand-m9-mstd101", 20000) for what, value in sample if what == "Rotate"]
    assert_uniform(np.abs(flat), 0, 27)


@pytest.mark.parametrize(
    "op",
    [
        T.RandAugment(num_ops=3, magnitude=5, fill=(1, 2, 3)),
        T.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR),
        T.AutoAugment(v2.AutoAugmentPolicy.SVHN, fill=128),
        T.AugMix(severity=2, chain_depth=4),
        T.ThreeAugment(0.2),
        T.RandAugment.from_timm("rand-m7-mstd0.5", fill=0),
    ],
)
def test_repr_can_be_evaluated_back(op):
    assert eval(repr(op), vars(T)) == op


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandAugment(num_ops=-1), "num_ops must be an integer between 0 and 64, got -1"),
        (lambda: T.RandAugment(magnitude=31), "magnitude must be an integer between 0 and 30, got 31"),
        (lambda: T.RandAugment(magnitude=2.5), "magnitude must be an integer"),
        (lambda: T.TrivialAugmentWide(num_magnitude_bins=1), "num_magnitude_bins must be an integer between 2"),
        (lambda: T.AutoAugment("cifar"), "policy must be one of imagenet, cifar10, svhn, got 'cifar'"),
        (lambda: T.AugMix(severity=11), "severity must be an integer between 1 and 10"),
        (lambda: T.AugMix(alpha=0), "alpha must be a positive number"),
        (lambda: T.ThreeAugment(-1), "brightness must not be negative"),
        (lambda: T.RandAugment.from_timm("rand-m9-x3"), "config has 'x3'; parts are mNUMBER"),
        (lambda: T.RandAugment.from_timm("augmix-m3"), "config must be such as 'rand-m9-mstd0.5-inc1'"),
        (lambda: T.RandAugment(interpolation="bicubic"), "interpolation must be nearest or bilinear"),
        (lambda: T.RandAugment(fill="red"), "fill must be one number, or one a channel"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_images_that_a_policy_cannot_work_on_are_refused():
    with pytest.raises(UsageError, match=r"RandAugment needs uint8 images, got float32\. Put it before Normalize"):
        Pipeline([T.Normalize(0.5, 0.5), T.RandAugment()], source_size=SIZE)
    with pytest.raises(UsageError, match="RandAugment works on gray or RGB images, got 4 channels"):
        Pipeline([T.RandAugment()], channels=4, source_size=SIZE)
    with pytest.raises(UsageError, match="fill has 3 values, expected 1"):
        Pipeline([T.RandAugment(fill=(1, 2, 3))], channels=1, source_size=SIZE)
    with pytest.raises(UsageError, match="fill must be between 0 and 255"):
        Pipeline([T.RandAugment(fill=300)], source_size=SIZE)
