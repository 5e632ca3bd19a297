"""The command ``beton bench FILE``: measures our loader and others on a file.

Parses options and prints; ``harness`` measures. Progress goes to stderr, the result to stdout. The subcommand ``beton
bench shuffle`` is in ``shuffle``.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dataloading import Reader, UsageError
from dataloading.cli import Choice, default_num_workers, note, option_json, option_quiet, option_seed
from dataloading.messages import counted
from train.option_types import different_numbers, measured_loaders

from .spec import PIPELINES, BenchSpec

if TYPE_CHECKING:
    from train.bench.harness import Result

__all__ = ["bench"]

# Small files are repeated to epochs of this many images (40 to 160 batches), since real epochs are long.
_EPOCH_IMAGES = 20_000
_DEFAULT_LOADERS = "beton,torch,kernels,synthetic"


class _Bench(click.Command):
    """A command with subcommands: the first argument names one, or belongs to this command."""

    verbs: Mapping[str, str] = {"shuffle": 'Show how well shuffle="pages" mixes files, for several windows.'}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Create the subcommand's context if one is named; a file of that name is written ``./shuffle``."""
        if args and args[0] in self.verbs:
            from train.bench.shuffle import shuffle

            return shuffle.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the context's command: this one or a subcommand."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands below the options."""
        super().format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(self.verbs.items()))


@click.command(cls=_Bench, context_settings={"show_default": True, "max_content_width": 100})
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--loaders", default=_DEFAULT_LOADERS, callback=measured_loaders, metavar="NAMES",
              help="Separated by commas: beton; torch, torch-fast, ffcv; dali, webdataset, litdata, "
                   "mosaicml-streaming, grain, spdl, timm; kernels and synthetic are ceilings; or all.")  # fmt: skip
@click.option("--pipeline", type=Choice(tuple(PIPELINES)), default="train",
              help="train: RandomResizedCrop 224 and flip, uint8; eval: Resize 256, CenterCrop 224.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), default=128, help="Images per batch.")
@click.option(
    "--num-workers", type=click.IntRange(min=1), default=None, show_default="all cores", help="Workers of each."
)
@click.option(
    "--workers", callback=different_numbers, metavar="LIST", help="Sweep over numbers of workers, such as 1,2,4."
)
@click.option("--search-workers", is_flag=True,
              help="Give each other loader the number of workers (up to twice ours) it is fastest with.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Interleaved rounds of each loader.")
@click.option("--seconds", type=click.FloatRange(0.1, 600.0), default=3.0, help="Length of a round.")
@click.option("--baseline", default=None, help="Loader whose rate is 1.  [default: the first]")
@click.option("--peers-python", type=click.Path(exists=True, dir_okay=False), default=None,
              help="Interpreter with loaders that are missing here (benchmarks/peers.sh makes one).")  # fmt: skip
@click.option("--work-dir", type=click.Path(file_okay=False), default=None,
              help="Folder for copies in other loaders' formats.  [default: a temporary folder]")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False), default=None, help="Folder for Markdown, JSON and a plot.")
@option_seed
@option_json
@option_quiet
def bench(
    file: str,
    loaders: list[str],
    workers: list[int] | None,
    num_workers: int | None,
    baseline: str | None,
    out: str | None,
    work_dir: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure how fast FILE loads on this machine.

    Each loader runs in its own process, with the same stored images and transforms; rounds are interleaved. The table
    shows the median of the rounds and their spread. Below it: seconds per hop, and the bottleneck of our Loader.
    """
    with Reader(file) as reader:  # an unreadable file fails here, before any process starts
        num_samples, num_bytes = reader.num_samples, reader.num_bytes
    with tempfile.TemporaryDirectory(prefix="beton-bench-") as temporary:
        counts = workers or [num_workers or default_num_workers()]
        specs = _specs(file, loaders, counts, work_dir or temporary, options, sweep=bool(workers))
        labels = [spec.label for spec in specs]
        base = _baseline(baseline, labels, specs)
        say = (lambda text: None) if quiet else note
        results = _measure(specs, options, say)
    head = (
        f"{file}: {counted(num_samples, 'sample')}, {num_bytes / 2**20:,.0f} MiB; {PIPELINES[options['pipeline']]}; "
        f"batch {options['batch_size']}; {counted(options['rounds'], 'round')} of {options['seconds']:g} s"
    )
    if out is not None:
        for path in _write(Path(out), results, base, head, workers):
            say(f"wrote {path}")
    if as_json:
        from train.bench.report import results_as_data

        click.echo(json.dumps({"file": file, "baseline": base, "results": results_as_data(results)}, indent=1))
    else:
        click.echo("\n".join([head, "", *_text(results, base)]))
    if not any(result.rates for result in results):
        click.get_current_context().exit(1)


def _specs(
    file: str, loaders: Sequence[str], workers: Sequence[int], work_dir: str, options: dict[str, Any], *, sweep: bool
) -> list[BenchSpec]:
    return [
        BenchSpec(
            loader=name,
            label=f"{name}, {count}" if sweep and name != "synthetic" else name,
            path=file,
            work_dir=work_dir,
            pipeline=options["pipeline"],
            batch_size=options["batch_size"],
            num_workers=count,
            seed=options["seed"],
            epoch_images=_EPOCH_IMAGES,
        )
        for name in loaders
        for count in (workers[:1] if name == "synthetic" else workers)
    ]


def _baseline(given: str | None, labels: list[str], specs: Sequence[BenchSpec]) -> str:
    if given is None:
        return labels[0]
    found = [spec.label for spec in specs if given in (spec.label, spec.loader)]
    if not found:
        raise UsageError(f"--baseline {given} is not measured; the loaders are {', '.join(labels)}")
    return found[0]


def _measure(specs: Sequence[BenchSpec], options: dict[str, Any], say: Any) -> list[Result]:
    from train.bench.harness import measure, search_workers
    from train.launch import find_peers_python

    python = find_peers_python(options["peers_python"])
    chosen = []
    for spec in specs:
        if options["search_workers"] and spec.loader not in ("beton", "kernels", "synthetic"):
            candidates = range(1, 2 * spec.num_workers + 1)
            best, _ = search_workers(spec, candidates, seconds=options["seconds"], peers_python=python, progress=say)
            spec = replace(spec, num_workers=best, label=f"{spec.label} ({counted(best, 'worker')})")
        chosen.append(spec)
    return measure(chosen, num_rounds=options["rounds"], seconds=options["seconds"], peers_python=python, progress=say)


def _text(results: Sequence[Result], baseline: str) -> list[str]:
    from train.bench.report import RATE_HEAD, noise, rate_rows
    from train.summaries import compare
    from train.tables import format_table

    text = [format_table(RATE_HEAD, rate_rows(results, baseline))]
    text += _stock_lines(results)
    ours = _best(results, "beton")
    if ours is not None:
        text += ["", *hop_lines(ours)]
        kernels = _best(results, "kernels", num_workers=ours.spec.num_workers)
        if kernels is not None:
            share = compare(ours.rates, kernels.rates).of_medians
            text.append(f"The Loader delivers {share:.0%} of what its kernels reach without it.")
        text.append(str(ours.report.get("verdict", "")))
    warning = noise(results)
    return [*text, "", warning] if warning else text


def _stock_lines(results: Sequence[Result]) -> list[str]:
    """Describe the tuning of the stock loaders."""
    from train.loaders import LOADERS

    tuned = "processes that persist, prefetch_factor=4, one thread each; the same images and transforms"
    found = {result.spec.loader: result.spec for result in results if result.rates}
    lines = [
        f"{name}: {LOADERS[name].summary}; {counted(spec.num_workers, 'worker')} as {tuned}."
        for name, spec in found.items()
        if name in ("torch", "torch-fast")
    ]
    return ["", *lines] if lines else []


def _best(results: Sequence[Result], loader: str, num_workers: int | None = None) -> Result | None:
    found = [
        result
        for result in results
        if result.spec.loader == loader and result.rates and num_workers in (None, result.spec.num_workers)
    ]
    return max(found, key=lambda result: result.median, default=None)


def hop_lines(result: Result) -> list[str]:
    """Return our Loader's worker time per hop, one line each."""
    seconds = result.report.get("hop_seconds", {})
    total = sum(seconds.values())
    if not total:
        return []
    made = max(1, result.report["num_samples"])
    return [
        f"hops of {result.spec.label}, worker time:",
        *(f"  {hop:<10}{value / made * 1e3:8.3f} ms per image {value / total:6.1%}" for hop, value in seconds.items()),
    ]


def _write(out: Path, results: Sequence[Result], baseline: str, head: str, workers: list[int] | None) -> list[Path]:
    from train.bench.report import RATE_HEAD, bars, rate_rows, rates_by_workers, results_as_data, write_report
    from train.charts import lines
    from train.tables import markdown_table

    title = head.replace(results[0].spec.path, Path(results[0].spec.path).name, 1)
    figure = (
        lines(rates_by_workers(results), title=title, x="workers", y="images/s")
        if workers
        else bars(results, title=title, baseline=baseline)
    )
    ours = _best(results, "beton")
    hops = "```\n" + "\n".join([*hop_lines(ours), str(ours.report.get("verdict", ""))]) + "\n```" if ours else ""
    return write_report(
        out,
        "workers" if workers else "bench",
        title=f"beton bench: {Path(results[0].spec.path).name}",
        command="beton " + shlex.join(sys.argv[1:]),
        sections=[
            title,
            markdown_table(RATE_HEAD, rate_rows(results, baseline)),
            *filter(None, ["\n".join(_stock_lines(results)).strip()]),
            hops,
        ],
        data=results_as_data(results),
        results=results,
        figure=figure,
    )
