"""FFCV's modules that are not here, and what to take instead: the message of ``import ffcv.such``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

__all__ = ["INSTEAD", "Absent"]

_READER = "dataloading.Reader, which has fields, records and stored bytes"
_INSIDE = "nothing: the engine does its work, and dataloading.ffcv.Loader has all that scripts set"

INSTEAD = {
    "ffcv._libffcv": "ffcv.libffcv",
    "ffcv.benchmarks": "the command 'beton bench'",
    "ffcv.memory_allocator": "ffcv.writer.DatasetWriter",
    "ffcv.memory_managers.common": "ffcv.memory_managers",
    "ffcv.memory_managers.process_cache": "ffcv.memory_managers.ProcessCacheManager, or Loader(os_cache=False)",
    "ffcv.loader.epoch_iterator": "iter(loader)",
    "ffcv.pipeline.graph": _INSIDE,
    "ffcv.pipeline.pipeline": _INSIDE,
    "ffcv.transforms.utils": "ffcv.fields.rgb_image.get_random_crop and get_center_crop, ffcv.libffcv.resize_crop",
    "ffcv.types": _READER,
    "ffcv.utils": _READER,
}


class Absent(MetaPathFinder):
    """Asked last, when no module was found."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise the error of a module of FFCV's that is not here."""
        for module, instead in INSTEAD.items():
            if name == module or name.startswith(f"{module}."):
                raise ModuleNotFoundError(f"dataloading.ffcv has no {name}. Take {instead}", name=name)
