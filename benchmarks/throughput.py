"""Measure images per second of every loader, on every kind of input.

    python benchmarks/throughput.py --photos DIR [--topics jpeg500,raw256,...]

Topics (each takes about ``loaders x rounds x (seconds + 2)``, plus start-ups of up to 30 s):

================ ==================================================================================================
``jpeg500``      longest side 500, quality 90, training pipeline: all loaders; the project's main figure
``ffcvfile500``  the same images as FFCV's writer stores them (no restart markers): FFCV, ours and stock on that file
``raw256``       longest side 256, stored as pixels
``jpeg400``      longest side 400
``jpeg256``      longest side 256
``eval500``      Resize 256 and CenterCrop 224 instead of random crops
``normalized500`` training pipeline with normalisation to float32
``workers``      jpeg500 with 1, 2 and 4 workers
================ ==================================================================================================
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import Options, bench_spec, parse, publish, say
from inputs import ffcv_file, our_file

from train.bench.harness import Result, measure, search_workers
from train.bench.report import RATE_HEAD, bars, rate_rows, results_as_data
from train.bench.spec import PIPELINES, BenchSpec
from train.charts import lines
from train.summaries import compare

PEERS = ("dali", "webdataset", "litdata", "mosaicml-streaming", "grain", "spdl", "timm")
CEILINGS = ("kernels", "synthetic")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One comparison.

    Parameters
    ----------
    title : str
        For the report.
    longest, mode : int, str
        Longest side and mode of the input.
    pipeline : str
        Of `PIPELINES`.
    loaders : sequence of str
        Loaders on our file.
    on_ffcv_file : sequence of str
        Loaders on the file that FFCV wrote of the same images; the first is the baseline.
    search : bool
        Also measure the stock loader with its best number of workers.
    """

    title: str
    longest: int
    loaders: Sequence[str]
    on_ffcv_file: Sequence[str] = ("ffcv",)
    mode: str = "jpg"
    pipeline: str = "train"
    search: bool = False


TOPICS = {
    "jpeg500": Topic(
        title="JPEG, longest side 500, quality 90: every loader",
        longest=500,
        loaders=("beton", "kernels", "torch", "torch-fast", *PEERS, "synthetic"),
        search=True,
    ),
    "ffcvfile500": Topic(
        title="JPEG, longest side 500, as FFCV's writer stores them",
        longest=500,
        loaders=(),
        on_ffcv_file=("ffcv", "beton", "kernels", "torch-fast"),
    ),
    "raw256": Topic(
        title="Raw pixels, longest side 256",
        longest=256,
        mode="raw",
        loaders=("beton", "kernels", "ffcv", "torch-fast"),
    ),
    "jpeg400": Topic(title="JPEG, longest side 400", longest=400, loaders=("beton", "kernels", "torch-fast", "dali")),
    "jpeg256": Topic(title="JPEG, longest side 256", longest=256, loaders=("beton", "kernels", "torch-fast", "dali")),
    "eval500": Topic(
        title="Evaluation pipeline, JPEG, longest side 500",
        longest=500,
        pipeline="eval",
        loaders=("beton", "kernels", "torch", "torch-fast", "dali"),
    ),
    "normalized500": Topic(
        title="Training pipeline with Normalize to float32, JPEG, longest side 500",
        longest=500,
        pipeline="train-normalized",
        loaders=("beton", "kernels", "torch-fast", "dali"),
    ),
}


def specs_of(topic: Topic, options: Options) -> list[BenchSpec]:
    """Return the loaders of a topic, those on FFCV's file first."""
    foreign = ffcv_file(options, topic.longest, topic.mode) if topic.on_ffcv_file else None
    ours = our_file(options, topic.longest, topic.mode)
    pairs: list[tuple[str, Path, str]] = []
    for name in topic.on_ffcv_file:
        # FFCV on its own file is just "ffcv"; other labels say whose file was read.
        label = name if name == "ffcv" or not topic.loaders else f"{name}, FFCV's file"
        pairs.append((name, foreign or ours, label))
    for name in topic.loaders:
        taken = any(label == name for _, _, label in pairs)
        pairs.append((name, ours, f"{name}, our file" if taken else name))
    return [_spec(options, name, path, label, topic.pipeline) for name, path, label in pairs]


def _spec(options: Options, name: str, path: Path, label: str, pipeline: str, num_workers: int = 0) -> BenchSpec:
    return bench_spec(
        options,
        name,
        path,
        work_dir=str(options.work_dir / "copies"),
        label=label,
        pipeline=pipeline,
        num_workers=num_workers or options.num_workers,
        epoch_images=20 * options.batch_size if options.quick else 10_000,
    )


def run_topic(name: str, options: Options) -> None:
    """Measure one topic and write its report."""
    topic = TOPICS[name]
    specs = specs_of(topic, options)
    notes = [
        f"{PIPELINES[topic.pipeline]}; {options.num_images} images, batch {options.batch_size}, {options.num_workers} "
        f"workers; {options.rounds} interleaved rounds of {options.seconds:g} s, warm cache."
    ]
    if topic.search:
        fast = next(spec for spec in specs if spec.loader == "torch-fast")
        best, rates = search_workers(
            fast, [1, 2, 3, 4], seconds=options.seconds, peers_python=options.peers_python, progress=say
        )
        found = ", ".join(f"{count}: {rate:,.0f}" for count, rate in rates.items())
        notes.append(f"torch-fast by number of workers, images/s: {found}.")
        if best != fast.num_workers:
            specs.append(
                _spec(options, "torch-fast", Path(fast.path), f"torch-fast, {best} workers", topic.pipeline, best)
            )
    results = _measure(specs, options)
    baseline = specs[0].label
    publish(
        options.out,
        f"{options.command} --topics {name}",
        name,
        topic.title,
        " ".join(notes),
        head=RATE_HEAD,
        rows=rate_rows(results, baseline),
        below=[summary(results, baseline)],
        data={"notes": notes, "baseline": baseline, "results": results_as_data(results)},
        results=results,
        figure=bars(results, title=topic.title, baseline=baseline),
    )


def _measure(specs: Sequence[BenchSpec], options: Options) -> list[Result]:
    return measure(
        specs, num_rounds=options.rounds, seconds=options.seconds, peers_python=options.peers_python, progress=say
    )


def summary(results: Sequence[Result], baseline: str) -> str:
    """Return the main ratios as a Markdown list."""
    done = {result.spec.label: result for result in results if result.rates}
    ours = next((result for label, result in done.items() if result.spec.loader == "beton"), None)
    if ours is None:
        return ""
    items = []
    if baseline in done and done[baseline] is not ours:
        ratio = compare(ours.rates, done[baseline].rates)
        items.append(
            f"- ours against {baseline}: **{ratio.of_medians:.2f}x** (rounds {ratio.low:.2f}-{ratio.high:.2f})"
        )
    peers = [r for r in done.values() if r.spec.loader not in ("beton", *CEILINGS)]
    if peers:
        best = max(peers, key=lambda result: result.summary.median if result.summary else 0.0)
        items.append(f"- ours against the best other loader ({best.spec.label}): "
                     f"**{compare(ours.rates, best.rates).of_medians:.2f}x**")  # fmt: skip
    kernels = next((result for result in done.values() if result.spec.loader == "kernels"), None)
    if kernels is not None:
        share = compare(ours.rates, kernels.rates).of_medians
        items.append(f"- the Loader delivers **{share:.0%}** of what its kernels reach without it")
    items += [f"- {ours.report['verdict']}"] if ours.report.get("verdict") else []
    return "\n".join(items)


def run_workers(options: Options) -> None:
    """Measure rates against the number of workers."""
    ours, foreign = our_file(options, 500), ffcv_file(options, 500)
    specs = []
    for count in (1, 2, 4):
        for name in ("beton", "kernels", "torch-fast", "ffcv", "dali"):
            path = foreign if name == "ffcv" and foreign is not None else ours
            specs.append(_spec(options, name, path, f"{name}, {count}", "train", count))
    results = _measure(specs, options)
    series: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        if result.summary is not None:
            series.setdefault(result.spec.loader, []).append((result.spec.num_workers, result.summary.median))
    title = "Images per second against the number of workers (JPEG, longest side 500)"
    publish(
        options.out,
        f"{options.command} --topics workers",
        "workers",
        title,
        f"{PIPELINES['train']}; labels: loader, workers.",
        head=RATE_HEAD,
        rows=rate_rows(results, "ffcv, 1"),
        data=results_as_data(results),
        results=results,
        figure=lines(series, title=title, x="workers", y="images/s"),
    )


def main(argv: list[str] | None = None) -> None:
    """Run the chosen topics."""
    runs: dict[str, Callable[[Options], None]] = {
        name: (lambda options, name=name: run_topic(name, options)) for name in TOPICS
    }
    runs["workers"] = run_workers

    def add_topics(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--topics", default=",".join(runs), help="topics to run, separated by commas")

    options = parse(__doc__, argv, add_options=add_topics)
    for name in options.topics.split(","):
        if name not in runs:
            raise SystemExit(f"no topic is called {name}; there are {', '.join(runs)}")
        say(f"== {name}")
        runs[name](options)


if __name__ == "__main__":
    main()
