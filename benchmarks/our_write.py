"""Convert class folders or arrays with this package, and print time and CPU time as JSON.

    python benchmarks/our_write.py pixels|bytes|never FOLDER OUT.beton [--num-workers N]
    python benchmarks/our_write.py arrays|dataset ARRAYS.npz OUT.beton [--num-workers N]

Folders with their JPEGs' pixels or bytes kept, or encoded again; arrays by the source ``arrays`` or by
``converters.write`` of an indexable dataset (which chooses its workers), both with ``mode="raw"``. Imports are not
timed, the start of workers is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import Any


def conversion(case: str, source: str, out: str, num_workers: int) -> Any:
    """Return the function that converts."""
    # Imported here, since a worker imports this script first: as few modules as `beton`.
    from converters import ImageFolder, ImagePolicy, Options, convert
    from converters import write as write_dataset
    from converters.sources.arrays import Arrays
    from dataloading import ImageField, IntField

    options = Options(num_workers=num_workers, quiet=True, overwrite=True)
    if case == "dataset":
        import numpy as np
        from inputs import ArraySamples

        arrays = np.load(source)
        samples = ArraySamples(arrays["image"], arrays["label"])
        fields = {"image": ImageField(), "label": IntField()}
        return lambda: write_dataset(samples, out, fields, mode="raw", quiet=True, overwrite=True)
    if case == "arrays":
        return lambda: convert(Arrays([source]), out, policy=ImagePolicy(mode="raw"), options=options)
    folder = ImageFolder(source)
    keep: Any = case
    return lambda: convert(folder, out, policy=ImagePolicy(keep=keep), options=options)


def cpu_seconds(who: int) -> float:
    """Return the CPU time of this process, or of the workers that have ended."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Convert and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["pixels", "bytes", "never", "arrays", "dataset"])
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()
    convert_all = conversion(options.case, options.source, options.out, options.num_workers)
    scopes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    before, start = [cpu_seconds(who) for who in scopes], time.perf_counter()
    report = convert_all()
    seconds = time.perf_counter() - start
    parent, workers = (cpu_seconds(who) - used for who, used in zip(scopes, before, strict=True))
    result = {"seconds": seconds, "num_samples": report.num_samples, "num_bytes": os.stat(options.out).st_size}
    print(json.dumps({**result, "parent_cpu_seconds": parent, "workers_cpu_seconds": workers}))


if __name__ == "__main__":
    main()
