"""Image datasets -> ``.beton`` files: sources, the image policy, and the engine of worker processes.

``beton convert`` is the command; `write` does the same from Python for any dataset that can be indexed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import write
    from .encode import Options, convert
    from .policy import ImagePolicy
    from .sources.imagefolder import ImageFolder

__all__ = ["ImageFolder", "ImagePolicy", "Options", "convert", "write"]

_HOME = {
    "ImageFolder": "sources.imagefolder",
    "ImagePolicy": "policy",
    "Options": "encode",
    "convert": "encode",
    "write": "dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    # Lazily: `beton convert --help` imports this package and must not wait for Pillow and NumPy.
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
