"""Devices that a run can stand in for: their published training rates, with the sources. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from dataloading import UsageError
from dataloading.messages import did_you_mean

__all__ = ["PUBLISHED", "REAL", "PublishedRate", "published", "sim_rate"]

REAL = "real"
_NVIDIA = "https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets"
_TIMM = (
    "https://github.com/huggingface/pytorch-image-models/blob/main/results/"
    "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"
)


@dataclass(frozen=True, kw_only=True)
class PublishedRate:
    """What somebody measured and published: training of one network on one device, without waiting for data.

    Parameters
    ----------
    device, model, precision : str
        What ran.
    images_per_s : float
        Of one device, at 224 pixels.
    source : str
        URL of the publication.
    """

    device: str
    model: str
    precision: str
    images_per_s: float
    source: str


def _by_nvidia(device: str, model: str, precision: str, rate: float, folder: str) -> PublishedRate:
    return PublishedRate(
        device=device, model=model, precision=precision, images_per_s=rate, source=f"{_NVIDIA}/{folder}"
    )


def _by_timm(model: str, rate: float) -> PublishedRate:
    return PublishedRate(device="RTX 3090", model=model, precision="mixed precision", images_per_s=rate, source=_TIMM)


PUBLISHED = {
    "a100-resnet50": _by_nvidia("A100 80GB", "ResNet-50 v1.5", "mixed precision", 2470.0, "resnet50v1.5"),
    "a100-resnet50-tf32": _by_nvidia("A100 80GB", "ResNet-50 v1.5", "TF32", 938.0, "resnet50v1.5"),
    "a100-efficientnet-b0": _by_nvidia("A100 80GB", "EfficientNet-B0", "mixed precision", 2489.0, "efficientnet"),
    "v100-resnet50": _by_nvidia("V100 16GB", "ResNet-50 v1.5", "mixed precision", 1200.0, "resnet50v1.5"),
    "v100-resnet50-fp32": _by_nvidia("V100 16GB", "ResNet-50 v1.5", "FP32", 367.0, "resnet50v1.5"),
    "rtx3090-resnet18": _by_timm("ResNet-18", 3481.78),
    "rtx3090-resnet50": _by_timm("ResNet-50", 1218.01),
    "rtx3090-vit-s16": _by_timm("ViT-S/16", 1057.92),
    "rtx3090-convnext-tiny": _by_timm("ConvNeXt-T", 819.24),
}
"""Names for ``sim:NAME``."""


def published(accelerator: str) -> PublishedRate | None:
    """Return the published figure that ``sim:NAME`` names, or None for a plain rate and a real device."""
    return PUBLISHED.get(accelerator.removeprefix("sim:")) if accelerator.startswith("sim:") else None


def sim_rate(accelerator: str) -> float:
    """Return the images/s of a simulated device, or 0 for a real one.

    Raises
    ------
    UsageError
        The text is neither ``real``, ``sim:RATE`` with a positive rate, nor ``sim:NAME`` of a published device.

    Examples
    --------
    >>> sim_rate("real"), sim_rate("sim:400"), sim_rate("sim:a100-resnet50")
    (0.0, 400.0, 2470.0)
    """
    if accelerator == REAL:
        return 0.0
    known = published(accelerator)
    if known is not None:
        return known.images_per_s
    kind, _, text = accelerator.partition(":")
    try:
        rate = float(text) if kind == "sim" else -1.0
    except ValueError:
        rate = -1.0
    if not 0 < rate < float("inf"):
        hint = did_you_mean(text, PUBLISHED) or f"Published devices: {', '.join(PUBLISHED)}."
        raise UsageError(
            f"--accelerator is {accelerator!r}; expected real, sim:RATE with RATE in images/s, e.g. sim:400, or "
            f"sim:NAME of a published device, e.g. sim:a100-resnet50. {hint}"
        )
    return rate
