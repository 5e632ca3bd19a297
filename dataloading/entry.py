"""Entry point of ``beton`` and its child processes: makes sure that our packages are imported, not others of that name.

A user's ``train.py``, ``converters/`` or ``dataloading.py`` in the current directory or on PYTHONPATH must not be
imported instead of ours. So child processes are started with the path of this file, not with ``-m NAME``, and the
installed command is a copy of it under a name that nobody uses (CMakeLists.txt installs it as ``_beton_command``).
It imports nothing of ours, since it runs before our packages can be found.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import NoReturn

__all__ = ["main", "own_packages_first"]

_OWN = ("converters", "dataloading", "train")
_HERE = os.path.dirname(os.path.abspath(__file__))


class OwnPackages:
    """Finds our three packages in one folder, before ``sys.path`` is searched.

    Parameters
    ----------
    folder : str
        The folder of the packages.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of our packages; leave all others to other finders."""
        return PathFinder.find_spec(fullname, [self.folder], target) if path is None and fullname in _OWN else None


def own_packages_first() -> None:
    """Make this process, and those that ``multiprocessing`` spawns from it, import our packages first."""
    # Python puts a script's folder first on its path: here the inside of a package, whose modules must not be found.
    if os.path.basename(_HERE) == "dataloading" and sys.path and os.path.abspath(sys.path[0] or ".") == _HERE:
        del sys.path[0]
    for folder in (_HERE, os.path.dirname(_HERE)):
        if os.path.isfile(os.path.join(folder, "dataloading", "__init__.py")):
            break
    else:
        return  # an editable install, whose own finder comes first
    if not any(isinstance(finder, OwnPackages) for finder in sys.meta_path):
        # Below the finder of an editable install, which also knows where the native library is.
        sys.meta_path.insert(sys.meta_path.index(PathFinder), OwnPackages(folder))


def main() -> NoReturn:
    """Run ``beton``."""
    own_packages_first()
    importlib.import_module("dataloading.cli").main()
    raise AssertionError("the command line leaves the process")


if __name__ != "dataloading.entry":
    own_packages_first()  # also in a spawned process, which imports the script of its parent
if __name__ == "__main__":
    main()
