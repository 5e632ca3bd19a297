"""A pipeline with a source: several outputs of one field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["PipelineSpec"]


class PipelineSpec:
    """What an output is made of.

    Parameters
    ----------
    source : str
        Name of a field.
    decoder : Operation, optional
    transforms : list of Operation, optional
    """

    def __init__(self, source: Any, decoder: Any = None, transforms: Sequence[Any] | None = None) -> None:
        self.source = source
        self.decoder = decoder
        self.transforms = list(transforms or [])
        self.default_pipeline = decoder is None and not transforms and isinstance(source, str)

    def __repr__(self) -> str:
        return repr((self.source, self.decoder, self.transforms))
