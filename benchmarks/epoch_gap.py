"""Measure the wait between the last batch of an epoch and the first of the next.

    python benchmarks/epoch_gap.py --photos DIR

The consumer takes batches as fast as they arrive. The gap is compared with the mean time per batch: a loader that
prefetches across epochs has gaps of about one batch time, as between any two batches. About 15 s per loader and round.
"""

from __future__ import annotations

from common import bench_spec, parse, publish, say
from inputs import our_file

from train.bench.harness import measure
from train.bench.spec import PIPELINES
from train.summaries import summarise

LOADERS = ("beton", "torch-fast", "torch", "ffcv")


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv, seconds=10.0, rounds=3)
    path = our_file(options, 500)
    results = measure(
        [bench_spec(options, name, path) for name in LOADERS],
        num_rounds=options.rounds,
        seconds=options.seconds if not options.quick else 3.0,
        peers_python=options.peers_python,
        progress=say,
    )
    rows = []
    for result in results:
        gaps = [gap for entry in result.rounds for gap in entry["gap_seconds"]]
        if not gaps:
            rows.append([result.spec.label, "-", "", "", "", "0", result.status])
            continue
        batch = summarise([entry["seconds"] * options.batch_size / entry["images"] for entry in result.rounds]).median
        gap = summarise(gaps)
        rows.append(
            [
                result.spec.label,
                f"{batch * 1e3:.1f}",
                f"{gap.median * 1e3:.1f}",
                f"{gap.high * 1e3:.1f}",
                f"**{gap.median / batch:.2f}**",
                str(gap.count),
                "" if result.status == "ok" else result.status,
            ]
        )
    head = ["loader", "batch, ms", "gap median, ms", "gap max, ms", "gap in batches", "epochs", "note"]
    publish(
        options.out,
        options.command,
        "epoch-gap",
        "The gap between epochs",
        f"{PIPELINES['train']}; epochs of {options.num_images // options.batch_size} batches of "
        f"{options.batch_size}, {options.num_workers} workers, {options.rounds} interleaved rounds.",
        head=head,
        rows=rows,
        data=[{"label": r.spec.label, "status": r.status, "rounds": r.rounds} for r in results],
        results=results,
    )


if __name__ == "__main__":
    main()
