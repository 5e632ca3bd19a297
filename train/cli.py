"""The commands ``beton train`` and ``beton compare``, generated from the options.

Imports no torch until a command runs, so that ``--help`` is immediate.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import click

from dataloading import UsageError
from dataloading.cli import Choice, Size, note, run_command
from dataloading.messages import counted

from .config import config_text, read_config, shipped_configs
from .launch import launched_environment, leaving_on_interrupt, option_flag, torchrun_command
from .option_types import LoaderChoice, training_loaders
from .options import make_options, option_fields
from .output import resume_hint


def training_options(
    *, skip: tuple[str, ...] = (), shown: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds one click option for each training option but those in `skip`.

    `shown` describes the default of options whose effective default differs from the declared one.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for item in reversed(option_fields()):
            if item.name in skip:
                continue
            kind: Any = type(item.default)
            names = [option_flag(item.name)]
            if kind is bool:
                names = [f"{names[0]}/{option_flag('no_' + item.name)}"]
            if item.metadata["short"]:
                names.append(item.metadata["short"])
            if item.metadata["choices"]:
                kind = (LoaderChoice if item.name == "loader" else Choice)(item.metadata["choices"])
            command = click.option(
                *names,
                item.name,
                type=kind,
                default=item.default,
                show_default=(shown or {}).get(item.name, item.default != ""),
                help=item.metadata["help"],
            )(command)
        return click.option(
            "--config",
            is_eager=True,
            expose_value=False,
            callback=_use_config,
            metavar="FILE",
            help="YAML file of options, under the names below with underscores; the command line overrides it. Or one "
            f"of {', '.join(shipped_configs())}",
        )(command)

    return decorate


def _use_config(context: click.Context, _param: click.Parameter, value: str | None) -> None:
    """Make a file's values the defaults of the other options."""
    if value is not None:
        context.default_map = read_config(value)


@click.command("train", context_settings={"show_default": True, "max_content_width": 110})
@click.option("--nproc-per-node", type=click.IntRange(min=0), default=0, help="processes to start with torchrun")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    help="with --nproc-per-node: after a process fails, start all again from the last checkpoint, this many times",
)
@click.option("--print-config", is_flag=True, help="print the options in force as a file for --config, and exit")
@click.option("--advise", is_flag=True, help="do not train: print which strategy fits --devices, and why")
@click.option("--devices", type=click.IntRange(min=1), default=8, help="--advise: devices in all")
@click.option("--devices-per-node", type=click.IntRange(min=1), default=8, help="--advise: devices of a node")
@click.option("--device-memory", type=Size(), default="80GiB", help="--advise: memory of a device")
@click.option("--bandwidth", type=Size(), default="300GB", help="--advise: bytes that a device sends per second")
@click.option("--device-tflops", type=float, default=312.0, help="--advise: peak of a device, TFLOP/s")
@training_options()
def train(
    nproc_per_node: int,
    max_restarts: int,
    print_config: bool,
    advise: bool,
    devices: int,
    devices_per_node: int,
    device_memory: int,
    bandwidth: int,
    device_tflops: float,
    **values: Any,
) -> int:
    """Train an ImageNet-style model with DDP or FSDP.

    Run it as one process, let --nproc-per-node start several, or start it under srun (`srun beton train ...`) or
    torchrun (`torchrun --nproc-per-node 2 "$(command -v beton)" train ...`).
    """
    if print_config:
        click.echo(config_text(values), nl=False)
        return 0
    if advise:
        from .memory import Devices
        from .memory.report import advise_by_name

        described = Devices(
            count=devices,
            memory_bytes=device_memory,
            bandwidth_bytes=bandwidth,
            peak_flops=device_tflops * 1e12,
            per_node=devices_per_node,
        )
        click.echo(str(advise_by_name(described, **values)))
        return 0
    options = make_options(**values)
    if max_restarts and not (nproc_per_node and options.run.output and options.run.checkpoints):
        raise UsageError("--max-restarts needs --nproc-per-node, which starts torchrun, and --output for checkpoints")
    with leaving_on_interrupt(lambda: f"interrupted; {resume_hint(options.run.output)}"):
        if nproc_per_node:
            if "RANK" in os.environ:
                raise UsageError("--nproc-per-node starts torchrun, but this process already runs under it; drop one")
            return _launch(nproc_per_node, max_restarts)
        from .trainer import run_training

        return _leave(run_training(options))


def _leave(status: int) -> int:
    if status:
        click.get_current_context().exit(status)
    return status


def _launch(nproc_per_node: int, max_restarts: int) -> int:
    """Run this command line in several processes, and forward signals to them."""
    arguments = _without_option(_without_option(_own_arguments(), "--nproc-per-node"), "--max-restarts")
    command = torchrun_command(nproc_per_node, arguments, max_restarts=max_restarts)
    child = subprocess.Popen(command, env=launched_environment(os.environ))

    def forward(_number: int, _frame: object) -> None:
        child.send_signal(signal.SIGTERM)  # SIGUSR1 would end torchrun and leave its processes behind

    kept = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        status = child.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return _leave(status if status >= 0 else 128 - status)


def _own_arguments() -> list[str]:
    # click has parsed the arguments, but the launcher needs the original ones: those after the verb, if there is one.
    words = sys.argv[1:]
    return words[words.index("train") + 1 :] if "train" in words[:2] else words


def _without_option(words: list[str], name: str) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == name:
            skip = True
        elif not word.startswith(name + "="):
            kept.append(word)
    return kept


@click.command("compare", context_settings={"show_default": True, "max_content_width": 110})
@click.option(
    "--loaders", default="torch,torch-fast,beton", callback=training_loaders, help="the first is the baseline"
)
@click.option("--nproc-per-node", type=click.IntRange(min=1), default=1, help="training processes")
@click.option("--repeats", type=click.IntRange(min=1), default=3, help="runs per loader, interleaved")
@click.option("--warmup", type=click.IntRange(min=0), default=5, help="first steps to exclude from rates")
@click.option("--stock-data", default="", help="data for the torch loaders instead of --data, e.g. the source folders")
@click.option(
    "--price-per-gpu-hour",
    type=click.FloatRange(min=0),
    default=2.0,
    help="US dollars, for the cost of an ImageNet epoch",
)
@click.option("--out", default="compare-out", help="directory for compare.html, .png, .json and the runs' logs")
@click.option("--json", "as_json", is_flag=True, help="print the JSON instead of the table")
@training_options(
    skip=(
        "loader",
        "output",
        "overwrite_output",
        "resume",
        "checkpoints",
        "checkpoint_steps",
        "keep",
        "log_steps",
        "log_seen",
    ),
    shown={"tail": "drop", "steps": "50, unless --epochs is given", "epochs": "--steps"},
)
def compare(
    loaders: list[str],
    nproc_per_node: int,
    repeats: int,
    warmup: int,
    stock_data: str,
    price_per_gpu_hour: float,
    out: str,
    as_json: bool,
    **values: Any,
) -> int:
    """Run the same training with several loaders and compare them.

    Each run starts new processes; repeats are interleaved, so that a slow minute of the machine affects all loaders.
    The table goes to stdout; compare.html (open it in a browser), compare.png and compare.json to --out.
    """
    with leaving_on_interrupt(lambda: f"interrupted; logs of the runs so far are in {os.path.join(out, 'runs')}"):
        from train.compare.report import comparison_table, write_reports
        from train.compare.runs import CompareOptions, run_comparison

        explicit = click.get_current_context().get_parameter_source
        typed = {
            name: value for name, value in values.items() if explicit(name) is not click.core.ParameterSource.DEFAULT
        }
        options = CompareOptions(
            loaders=tuple(loaders),
            nproc_per_node=nproc_per_node,
            repeats=repeats,
            warmup=warmup,
            out=out,
            stock_data=stock_data,
            price_per_gpu_hour=price_per_gpu_hour,
            command=shlex.join(["beton", *sys.argv[1:]]),
            training=typed,
        )
        note(
            f"comparing {', '.join(loaders)}: {counted(repeats * len(loaders), 'run')} of "
            f"{counted(nproc_per_node, 'process')}, one after another; logs in {os.path.join(out, 'runs')}"
        )
        comparison = run_comparison(options, progress=note)
        paths = write_reports(comparison, out)
    click.echo(comparison.to_json() if as_json else comparison_table(comparison))
    for path in paths:
        click.echo(f"wrote {path}", err=True)
    return 0


def main() -> NoReturn:
    """Run ``python -m train``: the arguments of ``beton train``, and the same exit codes."""
    run_command(train, prog_name="python -m train")
