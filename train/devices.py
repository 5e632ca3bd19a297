"""Devices that a run can stand in for: their published training rates, with the sources. Imports nothing heavy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dataloading import UsageError
from dataloading.messages import did_you_mean

__all__ = ["PUBLISHED", "REAL", "PublishedRate", "peak_flops", "published", "sim_rate"]

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


_DATA_CENTER = "https://www.nvidia.com/en-us/data-center"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"

# Matrix units in bfloat16 or float16 with float32 sums, without sparsity (many data sheets state twice as much, with
# it), TFLOP/s, and NVIDIA's page or paper. Longer names come before those that they contain.
_PEAKS = (
    ("B200", 2250.0, f"{_DATA_CENTER}/hgx/"),
    ("GH200", 989.0, f"{_DATA_CENTER}/grace-hopper-superchip/"),
    ("H200 NVL", 835.0, f"{_DATA_CENTER}/h200/"),
    ("H200", 989.0, f"{_DATA_CENTER}/h200/"),
    ("H100 PCIe", 756.0, f"{_DATA_CENTER}/h100/"),
    ("H100 NVL", 835.0, f"{_DATA_CENTER}/h100/"),
    ("H100", 989.0, f"{_DATA_CENTER}/h100/"),
    ("A100", 312.0, f"{_DATA_CENTER}/a100/"),
    ("L40S", 362.0, f"{_DATA_CENTER}/l40s/"),
    ("RTX 4090", 165.0, _ADA),
    ("RTX 3090", 71.0, _GA102),
    ("A10", 125.0, f"{_DATA_CENTER}/products/a10-gpu/"),
    ("L4", 121.0, f"{_DATA_CENTER}/l4/"),
    ("V100-PCIE", 112.0, f"{_DATA_CENTER}/v100/"),
    ("V100", 125.0, f"{_DATA_CENTER}/v100/"),
    ("T4", 65.0, f"{_DATA_CENTER}/tesla-t4/"),
)
_NO_BFLOAT16 = ("V100-PCIE", "V100", "T4")


def peak_flops(device_name: str, precision: str) -> tuple[float, str]:
    """Return the peak of a device in FLOP/s and an empty text, or 0 and why it is not known.

    Parameters
    ----------
    device_name : str
        As CUDA reports it.
    precision : str
        Value of ``--amp``.

    Examples
    --------
    >>> peak_flops("NVIDIA A100-SXM4-80GB", "bf16"), peak_flops("x86_64", "bf16")[1]
    ((312000000000000.0, ''), 'no peak is known for x86_64; pass --peak-tflops')
    """
    if precision not in ("bf16", "fp16"):
        return 0.0, "without --amp the peak depends on the use of TF32; pass --peak-tflops"
    # "A10" is neither A100 nor A10G; a 4090 for laptops and a 3090 Ti are other devices.
    name = device_name + " "
    found = next((each for each in _PEAKS if re.search(rf"\b{each[0]}[ -](?!Laptop|D |Ti)", name)), None)
    if found is None:
        return 0.0, f"no peak is known for {device_name}; pass --peak-tflops"
    if precision == "bf16" and found[0] in _NO_BFLOAT16:
        return 0.0, f"{device_name} has no matrix units for bfloat16; pass --peak-tflops"
    return found[1] * 1e12, ""


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
