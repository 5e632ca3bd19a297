"""How much memory training takes per device, how much it communicates, and which strategy fits.

Arithmetic from published formulas, checked against measured peaks (docs/memory.md). `model_sizes` says what a network
needs, `estimates` what a strategy makes of it, `advice` which strategy fits the devices.
"""

from .advice import Advice, Devices, advise
from .estimates import STRATEGIES, Estimate, Setup, estimate
from .model_sizes import TRANSFORMERS, ModelSize, TransformerShape, measure_model, with_lora

__all__ = [
    "STRATEGIES",
    "TRANSFORMERS",
    "Advice",
    "Devices",
    "Estimate",
    "ModelSize",
    "Setup",
    "TransformerShape",
    "advise",
    "estimate",
    "measure_model",
    "with_lora",
]
