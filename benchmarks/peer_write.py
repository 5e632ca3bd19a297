"""Pack class folders with another system's writer, and print the time as JSON; run in the peers' environment.

    .venv-peers/bin/python benchmarks/peer_write.py webdataset|litdata|mds FOLDER OUT [--num-workers N]

Each copies the images' bytes, as in its documentation: ``webdataset.ShardWriter``, ``litdata.optimize`` (its workers),
``streaming.MDSWriter``. None of them checks the images: a damaged file is packed like any other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

Samples = list[tuple[str, int]]


class Read:
    """Returns a sample's bytes and label by index; sent to LitData's workers."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __call__(self, number: int) -> dict[str, bytes | int]:
        path, label = self.samples[number]
        return {"image": Path(path).read_bytes(), "label": label}


def write_webdataset(samples: Samples, out: Path, num_workers: int) -> None:
    import webdataset

    read = Read(samples)
    with webdataset.ShardWriter(str(out / "%05d.tar"), maxsize=512e6, verbose=0) as writer:
        for number in range(len(samples)):
            sample = read(number)
            writer.write({"__key__": f"{number:08d}", "jpg": sample["image"], "cls": sample["label"]})


def write_litdata(samples: Samples, out: Path, num_workers: int) -> None:
    import litdata

    litdata.optimize(
        fn=Read(samples),
        inputs=list(range(len(samples))),
        output_dir=str(out),
        chunk_bytes="64MB",
        num_workers=num_workers,
        start_method="fork",
        verbose=False,
    )


def write_mds(samples: Samples, out: Path, num_workers: int) -> None:
    import streaming

    read = Read(samples)
    with streaming.MDSWriter(out=str(out), columns={"image": "bytes", "label": "int"}) as writer:
        for number in range(len(samples)):
            writer.write(read(number))


WRITERS: dict[str, Callable[[Samples, Path, int], None]] = {
    "webdataset": write_webdataset,
    "litdata": write_litdata,
    "mds": write_mds,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("writer", choices=WRITERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--num-workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    classes = sorted(path for path in options.folder.iterdir() if path.is_dir())
    samples = [(str(path), label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())]
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    start = time.perf_counter()
    WRITERS[options.writer](samples, options.out, options.num_workers)
    seconds = time.perf_counter() - start
    num_bytes = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    shutil.rmtree(options.out)
    print("\n" + json.dumps({"seconds": seconds, "num_samples": len(samples), "num_bytes": num_bytes}))


if __name__ == "__main__":
    main()
