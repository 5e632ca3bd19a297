"""FFCV's names over our engine: scripts written for FFCV run unchanged.

``import dataloading.ffcv as ffcv`` gives its packages. ``python -m dataloading.ffcv script.py`` runs a script in which
``import ffcv`` means this package; `install` does so for the running process. docs/from-ffcv.md says what is covered.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

from dataloading.errors import UsageError

from .absent import Absent
from .loader import Loader
from .writer import DatasetWriter

__all__ = ["DatasetWriter", "Loader", "install"]

__version__ = "1.0.2"
"""Of FFCV, whose names these are."""


def install() -> None:
    """Make ``import ffcv`` mean this package, in this process and those that it forks.

    Raises
    ------
    UsageError
        The real ffcv is imported already.
    """
    own = sys.modules[__name__]
    if sys.modules.get("ffcv", own) is not own:
        raise UsageError("the real ffcv is imported already: call dataloading.ffcv.install() before it")
    sys.modules["ffcv"] = own
    for module in pkgutil.walk_packages(own.__path__, f"{__name__}."):
        if not module.name.endswith("__main__"):
            sys.modules[module.name.removeprefix("dataloading.")] = importlib.import_module(module.name)
    sys.meta_path.append(Absent())
