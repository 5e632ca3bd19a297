"""What pipelines are made of."""

from .compiler import Compiler
from .pipeline_spec import PipelineSpec

__all__ = ["Compiler", "PipelineSpec"]
