"""Measure the time to the first batch, in a new process.

    python benchmarks/first_batch.py --photos DIR

``build`` is the constructor, ``first batch`` the wait after it; a user waits for both, and for the imports.
``NUMBA_CACHE_DIR`` is an empty folder each time, so no compiled code is reused; ours is also measured with a folder
that a first run has filled. About 20 s per loader and round, more for FFCV.
"""

from __future__ import annotations

import tempfile
from typing import Any

from common import bench_spec, failure, parse, publish, say, started
from inputs import our_file

from train.bench.harness import LoaderProcessError
from train.bench.spec import PIPELINES
from train.summaries import interleave, summarise

CASES = ("beton", "beton, normalised", "beton, again", "torch-fast", "torch", "ffcv")


def main(argv: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = parse(__doc__, argv)
    path = our_file(options, 500)
    steps: dict[str, list[dict[str, Any]]] = {}
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as kept:
        for number, case in interleave(CASES, options.rounds):
            if case in notes:
                continue
            pipeline = "train-normalized" if case.endswith("normalised") else "train"
            spec = bench_spec(options, case.partition(",")[0], path, pipeline=pipeline)
            try:
                with tempfile.TemporaryDirectory() as empty:
                    process, start = started(spec, NUMBA_CACHE_DIR=kept if case.endswith("again") else empty)
                    process.close()
            except LoaderProcessError as error:
                notes[case] = failure(error)
                continue
            steps.setdefault(case, []).append(start)
            waited = start["build_seconds"] + start["first_batch_seconds"]
            say(
                f"round {number + 1}  {case}: {waited:.2f} s from construction, {start['process_seconds']:.2f} s in all"
            )
    rows = []
    for case in CASES:
        if case not in steps:
            rows.append([case, "-", notes.get(case, "")])
            continue
        built, first, whole, imported = (
            [entry[key] for entry in steps[case]]
            for key in ("build_seconds", "first_batch_seconds", "process_seconds", "import_seconds")
        )
        both = summarise([one + other for one, other in zip(built, first, strict=True)])
        rows.append(
            [
                case,
                f"{summarise(built).median:.2f}",
                f"{summarise(first).median:.2f}",
                f"**{both.median:.2f}** ({both.low:.2f}-{both.high:.2f})",
                f"{summarise(imported).median:.2f}",
                f"{summarise(whole).median:.2f}",
                "",
            ]
        )
    head = ["loader", "build, s", "first batch, s", "both, s", "imports, s", "process, s", "note"]
    publish(
        options.out,
        options.command,
        "first-batch",
        "Time to the first batch in a fresh process",
        f"{PIPELINES['train']}; batch {options.batch_size}, {options.num_workers} workers, warm page cache, "
        f"{options.rounds} interleaved rounds. No compiled code is reused between runs, except for "
        '"beton, again".',
        head=head,
        rows=rows,
        data={"steps": steps, "notes": notes},
    )


if __name__ == "__main__":
    main()
