"""What is not ours in a list of transforms: torch modules and other callables, which get the finished batch.

A random one among them is a fault that nobody sees: most draw once for all images of the batch, and from a global
generator that the loader's seed does not reach. So they are refused when the loader is made. Libraries are recognised
by the names of classes and modules; none is imported.

What makes an object random, in this order:

1. Its class, or one it inherits from, says so by name (``Random...``, ``...Jitter``, ``AutoAugment``, ``MixUp`` ...).
2. Its class draws parameters: torchvision's ``make_params`` (v2) or ``get_params`` (v1), or a probability below 1 of
   kornia's. A range of a single value (``GaussianBlur(3, sigma=1.0)``) leaves nothing to draw.
3. It drops out, and is in training mode.
4. It works on single NumPy images, as albumentations does: then it cannot take a batch at all.
5. Something it holds is random: children of a module, elements of a list, attributes of an object, the function of a
   `functools.partial`, the object of a bound method.

A function of the user's own is taken as it is: nobody can tell what it does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import types
from collections.abc import Iterator
from typing import Any

from dataloading.errors import UsageError
from dataloading.transforms.base import Transform
from dataloading.transforms.names import name_of, root, works_on_arrays

__all__ = ["check_callable", "name_of"]

_RANDOM_NAME = re.compile(
    r"Random|^Rand[A-Z]|Jitter|Jiggle|AutoAugment|TrivialAug|AugMix|AugmentOp|MixUp|Mixup|CutMix|Cutmix|PatchMix|Mosaic|"
    r"GaussianNoise|ElasticTransform|ThreeAugment"
)
_DROPOUT_NAME = re.compile(r"Dropout|DropPath|DropBlock|StochasticDepth|RReLU|FractionalMaxPool")
_RANDOM_FUNCTION = re.compile(
    r"dropout|drop_block|drop_path|stochastic_depth|gaussian_noise|^rand|bernoulli|^poisson$|^rrelu"
)
_LIBRARIES = ("torch", "torchvision", "kornia", "timm")
_MOST_ELEMENTS = 1000  # of one list that are looked at: transforms stand in short ones

# Names elsewhere -> ours; a name that is ours as well needs no entry.
_OURS = {
    "HorizontalFlip": "RandomHorizontalFlip",
    "VerticalFlip": "RandomVerticalFlip",
    "RandomResizedCropAndInterpolation": "RandomResizedCrop",
    "RandomCropOrPad": "RandomCrop",
    "ColorJiggle": "ColorJitter",
    "ToGray": "RandomGrayscale",
    "InvertImg": "RandomInvert",
    "Solarize": "RandomSolarize",
    "Posterize": "RandomPosterize",
    "AutoContrast": "RandomAutocontrast",
    "RandomAutoContrast": "RandomAutocontrast",
    "CoarseDropout": "RandomErasing",
    "GaussNoise": "GaussianNoise",
    "ImageCompression": "JPEG",
    "PhotoMetricDistort": "RandomPhotometricDistort",
    "RandomCropNearBBox": "CropAroundBox",
    "RandomSizedBBoxSafeCrop": "RandomIoUCrop",
    "RandomMixUpV2": "MixUp",
    "Mixup": "MixUp",
    "FastCollateMixup": "MixUp",
    "RandomMixupCutmix": "MixUp",
    "RandomMixup": "MixUp",
    "RandomCutmix": "CutMix",
    "RandomCutMixV2": "CutMix",
}


def check_callable(op: Any, position: int) -> None:
    """Refuse what cannot work on a batch: no callable, a class, or something random.

    Parameters
    ----------
    op : object
        An element of a list of transforms that is none of ours.
    position : int
        Its place in the list.

    Raises
    ------
    UsageError
        Naming place, what it is, and the fix.
    """
    if isinstance(op, type):
        raise UsageError(f"transform {position} is the class {op.__name__}, not an instance. Write {op.__name__}(...)")
    if root(type(op)) == "ffcv":
        raise UsageError(
            f"transform {position} is FFCV's {name_of(op)}. Leave out ToTensor, ToDevice, ToTorchImage and decoders: "
            f"fields arrive as tensors, on device=; for the others take those of dataloading.transforms"
        )
    if not callable(op):
        raise UsageError(
            f"transform {position} must be a transform of dataloading.transforms, a torch module or another "
            f"callable, got {type(op).__name__}: {op!r}"
        )
    for found, reason in _random_parts(op):
        inner = "" if found is op else f" holds {name_of(found)}, which"
        raise UsageError(f"transform {position} ({name_of(op)}){inner} {reason}")


def _random_parts(root: Any) -> Iterator[tuple[Any, str]]:
    """Walk through an object and what it holds; yield what is random, and the rest of a sentence about it."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        reason = _why_random(op)
        if reason:
            yield op, reason
        waiting += _held(op)


def _held(op: Any) -> list[Any]:
    """List what an object holds that may be a transform."""
    if isinstance(op, functools.partial):
        return [op.func, *op.args, *op.keywords.values()]
    if isinstance(op, (list, tuple, set)):
        return list(itertools.islice(op, _MOST_ELEMENTS))
    if isinstance(op, dict):
        return list(itertools.islice(op.values(), _MOST_ELEMENTS))
    if isinstance(op, types.MethodType):
        return [op.__self__]
    if isinstance(op, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        return []
    children = getattr(op, "_modules", None)
    inside = list(vars(op).values()) if callable(op) and hasattr(op, "__dict__") else []
    return [*(children.values() if isinstance(children, dict) else ()), *inside]


def _why_random(op: Any) -> str:
    """Say why an object is random, or cannot take a batch; nothing if it is not."""
    if isinstance(op, (types.FunctionType, types.BuiltinFunctionType)):
        name = str(getattr(op, "__name__", ""))
        library = (getattr(op, "__module__", None) or "").partition(".")[0]
        known = library in (*_LIBRARIES, "") or type(getattr(op, "__self__", None)).__module__.startswith("torch")
        return _sentence(op) if known and _RANDOM_FUNCTION.search(name) else ""
    if isinstance(op, (type, Transform)) or not callable(op):
        return ""
    names = [each.__name__ for each in type(op).__mro__] + [str(getattr(op, "original_name", ""))]
    if works_on_arrays(op):
        return (
            f"works on single NumPy images, (height, width, channels): it cannot take the batch, and the loader's seed "
            f"does not reach what it draws. {_advice(op)}"
        )
    if any(map(_DROPOUT_NAME.search, names)):
        return _sentence(op, dropout=True) if _drops(op) else ""
    if any(map(_RANDOM_NAME.search, names)):
        return _sentence(op)
    if getattr(op, "training", False) and _number(getattr(op, "dropout", 0)) > 0:
        return _sentence(op, dropout=True)
    return _sentence(op) if _draws(op) else ""


def _draws(op: Any) -> bool:
    """Whether a library's class draws parameters, and its settings leave something to draw."""
    kinds = type(op).__mro__
    if not any(root(each) in _LIBRARIES for each in kinds):
        return False
    maker = next((each.__name__ for each in kinds if {"make_params", "_get_params"} & vars(each).keys()), "Transform")
    if hasattr(op, "get_params") or maker != "Transform":
        if hasattr(op, "random_scale_prob"):  # timm's ResizeKeepRatio
            return bool(op.random_scale_prob or op.random_aspect_prob)
        ranges = [getattr(op, what, None) for what in ("sigma", "quality")]
        pairs = [each for each in ranges if isinstance(each, (list, tuple)) and len(each) == 2]
        return not pairs or any(low != high for low, high in pairs)
    if any("AugmentationBase" in each.__name__ for each in kinds):  # kornia
        return min(_number(getattr(op, what, 1.0)) for what in ("p", "p_batch")) < 1
    return bool(getattr(op, "random_apply", False))


def _drops(op: Any) -> bool:
    chance = next((_number(getattr(op, what)) for what in ("p", "drop_prob", "drop_rate") if hasattr(op, what)), 1.0)
    return bool(getattr(op, "training", True)) and chance > 0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _sentence(op: Any, *, dropout: bool = False) -> str:
    advice = "Call .eval() on it, or make it part of the model" if dropout else _advice(op)
    return (
        f"is random, and the loader's seed does not reach it: it would get the whole batch and draw from a global "
        f"generator, most such modules once for all images. {advice}. If that is what you want, put it in a function "
        f"of your own: lambda batch: op(batch)"
    )


def _advice(op: Any) -> str:
    """Name our equivalent, with the same arguments where they can be read, and what to do without one."""
    import dataloading.transforms as package

    name = name_of(op).partition(".")[0]
    ours = _OURS.get(name, name)
    if ours in ("MixUp", "CutMix"):
        return f"Use T.{ours}(num_classes=...) of dataloading.transforms, which draws from (seed, epoch, step)"
    keep = f"T.PerSample({name}(...)), among the transforms before those of the batch, runs it for each image"
    if ours in package.__all__:
        return (
            f"Use T.{_written_out(op, ours, getattr(package, ours))} of dataloading.transforms, before everything that "
            f"works on the batch: it draws for each image from (seed, epoch, sample). Or keep it: {keep}"
        )
    return (
        f"dataloading.transforms has no {name}: take T.ColorJitter, T.RandomSolarize and others of its transforms, "
        f"write a function under @T.transform, which draws for each image, or keep it: {keep}"
    )


def _written_out(op: Any, name: str, kind: Any) -> str:
    """Return our transform with the arguments that another library's object shows as attributes."""
    if not dataclasses.is_dataclass(kind) or root(type(op)) != "torchvision":
        return name
    fields = [each for each in dataclasses.fields(kind) if each.init and each.name not in ("transforms", "policy")]
    given = {each.name: getattr(op, each.name) for each in fields if hasattr(op, each.name)}
    try:
        make: Any = kind
        made = make(**given)
        differ = [each.name for each in fields if not _is_default(getattr(made, each.name), each.default)]
    except Exception:  # what they hold is not what ours takes
        return name
    arguments = ", ".join(f"{each}={getattr(made, each)!r}" for each in differ)
    return f"{name}({arguments})" if arguments else name


def _is_default(value: Any, default: Any) -> bool:
    return bool(value == default) or (isinstance(value, (list, tuple)) and list(value) == [default])
