"""Names: whoever comes from torchvision finds each transform, or is told what to write instead."""

import inspect
import re
from pathlib import Path

import pytest
from torchvision.transforms import v2

from dataloading import UsageError
from dataloading import transforms as T

THEIRS = [name for name, each in vars(v2).items() if inspect.isclass(each) and not name.startswith("_")]


@pytest.mark.parametrize("name", THEIRS)
def test_each_of_torchvisions_names_is_here_or_says_what_to_write(name):
    if name not in T.__all__:
        with pytest.raises(AttributeError, match=r"There is no such transform; \w+ "):
            getattr(T, name)


def test_the_page_lists_what_is_not_here_and_says_what_the_errors_say():
    page = (Path(__file__).resolve().parents[2] / "docs" / "transforms.md").read_text()
    table = page.partition("## What other libraries have and this one lacks")[2].partition("\n## ")[0]
    listed = {}
    for names, advice in re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), advice.replace("`", ""))
    assert set(THEIRS) <= listed.keys() | set(T.__all__)
    for name in sorted(listed.keys() - set(T.__all__)):
        with pytest.raises(AttributeError, match=re.escape(f"There is no such transform; {listed[name]}") + "$"):
            getattr(T, name)


@pytest.mark.parametrize("name", sorted(set(THEIRS) & set(T.__all__)))
def test_options_have_torchvisions_names_order_and_defaults(name):
    ours = inspect.signature(getattr(T, name)).parameters
    for option, theirs in inspect.signature(getattr(v2, name)).parameters.items():
        if option in KNOWN.get(name, ()):
            continue
        assert option in ours, option
        assert plain(ours[option].default) == plain(theirs.default), option


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.ColorJitter(brightnes=0.4), "ColorJitter has no option 'brightnes'. Did you mean 'brightness'"),
        (lambda: T.RandomApply([T.RandomInvert()], prob=0.3), "RandomApply has no option 'prob'. It has transforms, p"),
        (lambda: T.MixUp(label_smoothing=0.1), "MixUp has no option 'label_smoothing'. Did you mean 'smoothing'"),
        (lambda: T.Custom(print, in_palce=True), "Custom has no option 'in_palce'. Did you mean 'in_place'"),
        (lambda: T.ClampBoundingBoxes(mode="soft"), "no option 'mode'"),
        (lambda: T.recipes.deit(cut_mix=0), "deit has no option 'cut_mix'. Did you mean 'cutmix'"),
    ],
)
def test_misspelt_options_are_answered_with_the_nearest(make, words):
    with pytest.raises(UsageError, match=words):
        make()


# Options that differ on purpose.
KNOWN = {
    "MixUp": ["labels_getter"],
    "CutMix": ["labels_getter"],
    "ToDtype": ["dtype"],  # ours has a default
}


def plain(default):
    value = getattr(default, "value", default)  # of an enumeration
    return tuple(value) if isinstance(value, list) else value
