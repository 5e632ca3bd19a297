"""``beton doctor``: options, and what is run for them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from dataloading import UsageError
from dataloading.cli import Choice, Size, default_num_workers, note, option_json, option_quiet
from train.launch import launch_environment, leaving_on_interrupt, own_command, run_local_processes
from train.option_types import different_numbers

__all__ = ["doctor"]

_Say = Callable[[str], None]


@click.command("doctor", context_settings={"show_default": True, "max_content_width": 100})
@click.argument("file", required=False)
@click.option("--network", is_flag=True, help="Measure how fast ranks exchange data; under torchrun, srun or alone.")
@click.option("--hang", is_flag=True, help="Show what a desynchronised collective looks like, on two processes.")
@click.option("--scaling", is_flag=True, help="Measure loading FILE with 1, 2, 4 ... processes.")
@click.option("--recipe", default=None, metavar="NAME|FILE",
              help="Transforms: a recipe by name, or a YAML file.  [default: those of beton train]")  # fmt: skip
@click.option("--image-size", type=click.IntRange(min=1), default=224, help="Side of the crop.")
@click.option("-b", "--batch-size", type=click.IntRange(min=1), default=128, help="Images per batch and process.")
@click.option("--num-workers", type=click.IntRange(min=1), default=None, show_default="this process's cores",
              help="Workers of each process, as training has them.")  # fmt: skip
@click.option("--nproc-per-node", type=click.IntRange(min=1), default=None, show_default="1, or the launcher's",
              help="Training processes on this machine.")  # fmt: skip
@click.option("--shuffle", type=Choice(("global", "pages", "none")), default="global",
              help="Order, as training has it.")  # fmt: skip
@click.option("--device", default="auto", help="Device to measure: auto, cpu (none), cuda, cuda:1.")
@click.option("--device-rate", type=click.FloatRange(min=0.0, min_open=True), default=None,
              help="Images/s that the device of one process takes, instead of measuring it.")  # fmt: skip
@click.option("--model", default="resnet50", help="Network whose training is timed on the device.")
@click.option("--max-bytes", type=Size(), default="64MiB", help="--network: the largest message.")
@click.option("--link-rate", type=click.FloatRange(min=0.0, min_open=True), default=None,
              help="--network: GB/s that the link should give.  [default: the interface's speed]")  # fmt: skip
@click.option("--processes", callback=different_numbers, metavar="LIST", help="--scaling: such as 1,2,4,8.")
@click.option("--payload-bytes", type=Size(), default="0", help="--scaling: size of an all_reduce after each batch.")
@click.option("--seconds", type=click.FloatRange(0.1, 600.0), default=None, show_default="1.5, scaling 5",
              help="About how long each measurement takes.")  # fmt: skip
@click.option("--hang-seconds", type=click.FloatRange(0.1, 600.0), default=5.0, help="--hang: the time-out.")
@click.option("--out", type=click.Path(file_okay=False), default=None,
              help="Write Markdown, JSON and a picture here.")  # fmt: skip
@click.option("--hang-folder", default=None, hidden=True)
@click.option("--scaling-result", default=None, hidden=True)
@option_json
@option_quiet
def doctor(file: str | None, as_json: bool, quiet: bool, **options: Any) -> int:
    """Say what bounds a training run on FILE, and what to change.

    Checks the host (limits, network, devices) and, with a FILE, measures the disk, decoding and transforms, the Loader
    and the device, in less than a minute. Under torchrun or srun it checks all ranks. The exit code is 1 if there is a
    problem.
    """
    modes = [name for name in ("network", "hang", "scaling") if options[name]]
    if len(modes) > 1:
        raise UsageError(f"--{' and --'.join(modes)} are different measurements: give one")
    inner = options["hang_folder"] or options["scaling_result"]
    if modes in (["hang"], ["scaling"]) and "RANK" in os.environ and not inner:
        raise UsageError(f"--{modes[0]} starts processes itself: run it without torchrun")
    say = (lambda text: None) if quiet else note
    with leaving_on_interrupt(lambda: "interrupted"):
        run = {"network": _network, "hang": _hang, "scaling": _scaling}.get("".join(modes), _host)
        ok = run(file, options, as_json, say)
    if not ok:
        click.get_current_context().exit(1)
    return 0


def _host(file: str | None, options: dict[str, Any], as_json: bool, say: _Say) -> bool:
    from train.distributed import detect_world

    from .checks import check_all
    from .ranks import gather_facts
    from .report import as_data, diagnosis_text, draw, findings_text

    world = detect_world(os.environ)
    processes = options["nproc_per_node"] or world.local_world_size
    num_workers = options["num_workers"] or max(1, default_num_workers() // processes)
    ranks = gather_facts(world, path=file, num_workers=num_workers)
    if not world.is_main and len(ranks) == world.world_size:
        return True  # rank 0 reports
    findings = check_all(ranks)
    diagnosis = measured = None
    if file is not None:
        from .judge import judge

        measured = _examine(file, options, num_workers, processes, say)
        diagnosis = judge(measured)
        known = {finding.name for finding in diagnosis.findings}
        findings = [*diagnosis.findings, *(finding for finding in findings if finding.name not in known)]
    data = {**as_data(findings, diagnosis, measured), "ranks": [dataclasses.asdict(facts) for facts in ranks]}
    text, figure = "", None
    if diagnosis is not None and measured is not None:
        found = diagnosis
        text = diagnosis_text(found, measured) + "\n\n"
        title = f"{Path(measured.file.path).name}: {found.verdict}"
        figure = functools.partial(draw, found, title)
    return _print("host" if file is None else "run", data, text + findings_text(findings), as_json, options, figure)


def _examine(file: str, options: dict[str, Any], num_workers: int, processes: int, say: _Say) -> Any:
    import torch

    from .examine import examine
    from .measurements import Setup

    setup = Setup(
        num_workers=num_workers,
        num_processes=processes,
        batch_size=options["batch_size"],
        image_size=options["image_size"],
        shuffle=options["shuffle"],
    )
    transforms = None
    if options["recipe"] is not None:
        from dataloading import transforms as T

        transforms = T.recipes.find(options["recipe"], size=options["image_size"])
    return examine(
        file,
        setup=setup,
        transforms=transforms,
        device=torch.device(_device(options["device"])),
        device_rate=options["device_rate"],
        model=options["model"],
        seconds=options["seconds"] or 1.5,
        progress=say,
    )


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not torch.cuda.is_available():
        raise UsageError(
            f"--device {name}, but torch sees no CUDA device; use --device-rate with the images/s it takes"
        )
    return name


def _network(_file: str | None, options: dict[str, Any], as_json: bool, say: _Say) -> bool:
    from train.distributed import detect_world, pick_device, process_group

    world = detect_world(os.environ)
    if world.launcher == "none":
        return _start_ranks(options["nproc_per_node"] or 2)
    from . import network
    from .checks import check_all
    from .ranks import exchange_facts, own_facts
    from .report import as_data, findings_text

    own = own_facts(world)  # before the group begins to use the rendezvous
    device = pick_device("cpu" if options["device"] == "cpu" else "auto", world)
    say = say if world.is_main else lambda text: None
    sizes = [1 << power for power in range(10, 40, 2) if 1 << power <= options["max_bytes"]] or [options["max_bytes"]]
    with process_group(world, device):
        ranks = exchange_facts(own)
        exchanges = network.measure_network(sizes, device=device, progress=say)
    if not world.is_main:
        return True
    given = options["link_rate"]
    link = network.link_rate(own) if given is None else (given * 1e9, "--link-rate")
    findings = [*network.judge_network(exchanges, link), *check_all(ranks)]
    title = f"{world.world_size} ranks, {'NCCL' if device.type == 'cuda' else 'Gloo'}"
    data = {
        **as_data(findings),
        "ranks": [dataclasses.asdict(facts) for facts in ranks],
        "link": None if link is None else {"bytes_per_second": link[0], "source": link[1]},
        "exchanges": [
            {
                **dataclasses.asdict(each),
                "algorithm_bandwidth": each.algorithm_bandwidth,
                "bus_bandwidth": each.bus_bandwidth,
            }
            for each in exchanges
        ],
    }
    text = f"{title}\n\n{network.table(exchanges)}\n\n"
    if link is not None:
        text += f"the link should give {link[0] / 1e9:.3g} GB/s ({link[1]})\n\n"
    figure = functools.partial(network.draw, exchanges, title, link)
    return _print("network", data, text + findings_text(findings), as_json, options, figure)


def _start_ranks(count: int) -> bool:
    """Run this command line again in several processes, and wait for them."""
    words = sys.argv[sys.argv.index("doctor") + 1 :] if "doctor" in sys.argv else sys.argv[1:]
    return run_local_processes(own_command("doctor", *words), count, launch_environment(os.environ), sys.stdout) == 0


def _hang(_file: str | None, options: dict[str, Any], as_json: bool, say: _Say) -> bool:
    from . import hang

    if options["hang_folder"] is not None:
        from train.distributed import detect_world

        hang.run_rank(detect_world(os.environ), Path(options["hang_folder"]), options["hang_seconds"])
        return True
    cases = hang.demonstrate(options["hang_seconds"], say)
    click.echo(json.dumps(cases, indent=1) if as_json else hang.text(cases))
    return True


def _scaling(file: str | None, options: dict[str, Any], as_json: bool, say: _Say) -> bool:
    from dataloading.tools import open_files

    from . import scaling

    if file is None:
        raise UsageError("--scaling needs a FILE: beton doctor --scaling train.beton")
    open_files(file)  # a file that cannot be read fails here, before any process starts
    cores = default_num_workers()
    counts = options["processes"] or [1 << power for power in range(cores.bit_length())]
    settings = {
        "num_workers": options["num_workers"] or max(1, cores // max(counts)),
        "batch_size": options["batch_size"],
        "image_size": options["image_size"],
        "seconds": options["seconds"] or 5.0,
        "payload_bytes": options["payload_bytes"],
    }
    if options["scaling_result"] is not None:
        from train.distributed import detect_world

        scaling.run_rank(detect_world(os.environ), file, Path(options["scaling_result"]), settings)
        return True
    points = scaling.measure_scaling(file, sorted(counts), options=settings, progress=say)
    law = scaling.law_of(points)
    title = f"{Path(file).name}: workers of each process {settings['num_workers']}, batch {settings['batch_size']}"
    data = {
        **settings,
        "points": [dataclasses.asdict(point) for point in points],
        "law": None if law is None else dataclasses.asdict(law),
    }
    text = f"{title}\n\n{scaling.summary(points)}"
    return _print("scaling", data, text, as_json, options, functools.partial(scaling.draw, points, title))


def _print(
    topic: str,
    data: dict[str, Any],
    text: str,
    as_json: bool,
    options: Mapping[str, Any],
    figure: Callable[[], Any] | None,
) -> bool:
    """Print a result, write it to --out if that is given, and return whether all is well."""
    click.echo(json.dumps(data, indent=1) if as_json else text)
    if options["out"] is not None:
        from train.bench.report import write_report

        paths = write_report(
            Path(options["out"]),
            f"doctor-{topic}",
            title=f"beton doctor: {topic}",
            command="beton " + shlex.join(sys.argv[1:]),
            sections=[f"```\n{text}\n```"],
            data=data,
            figure=None if figure is None else figure(),
        )
        for path in paths:
            note(f"wrote {path}")
    return bool(data.get("ok", True))
