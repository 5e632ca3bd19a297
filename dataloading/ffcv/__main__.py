"""Run a script that was written for FFCV: ``python -m dataloading.ffcv script.py --its --arguments``."""

from __future__ import annotations

import os
import runpy
import sys

from dataloading.ffcv import install


def main() -> None:
    """Run the script that the first argument names."""
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        given = f"there is no file {sys.argv[1]}" if len(sys.argv) > 1 else "no script was given"
        sys.exit(f"{given}. Write: python -m dataloading.ffcv script.py ...")
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
