"""Run every benchmark in sequence; each writes its own results.

    python benchmarks/run_all.py --photos DIR [--only throughput,opening,...] [--quick] [...]

All other options are passed to the scripts (see ``python benchmarks/throughput.py --help``). Takes about 90 minutes on
two cores; ``--quick`` tries everything in a few minutes, but its figures mean nothing. If a script fails, the others
still run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = ("throughput", "cold_cache", "first_batch", "epoch_gap", "utilisation", "opening", "memory", "converting")


def main() -> int:
    """Run the selected scripts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCRIPTS), help="scripts to run, separated by commas")
    options, rest = parser.parse_known_args()
    failed = []
    for name in options.only.split(","):
        if name not in SCRIPTS:
            parser.error(f"there is no script {name}; there are {', '.join(SCRIPTS)}")
        start = time.monotonic()
        print(f">> {name}", file=sys.stderr, flush=True)
        script = Path(__file__).with_name(f"{name}.py")
        if subprocess.run([sys.executable, str(script), *rest], check=False).returncode:
            failed.append(name)
        print(f">> {name} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
