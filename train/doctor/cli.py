"""``beton doctor``: options, and what is run for them."""

from __future__ import annotations

import json
from typing import Any

import click

from dataloading import UsageError
from dataloading.cli import Choice, default_num_workers, note, option_json, option_quiet

__all__ = ["doctor"]


@click.command("doctor", context_settings={"show_default": True, "max_content_width": 100})
@click.argument("file", required=False)
@click.option("--recipe", default=None, metavar="NAME|FILE",
              help="Transforms: a recipe by name, or a YAML file.  [default: those of beton train]")  # fmt: skip
@click.option("--image-size", type=click.IntRange(min=1), default=224, help="Side of the crop.")
@click.option("-b", "--batch-size", type=click.IntRange(min=1), default=128, help="Images per batch and process.")
@click.option("--num-workers", type=click.IntRange(min=1), default=None, show_default="this process's cores",
              help="Workers of each process, as training has them.")  # fmt: skip
@click.option("--nproc-per-node", type=click.IntRange(min=1), default=1, help="Training processes on this machine.")
@click.option(
    "--shuffle", type=Choice(("global", "pages", "none")), default="global", help="Order, as training has it."
)
@click.option("--device", default="auto", help="Device to measure: auto, cpu (none), cuda, cuda:1.")
@click.option("--device-rate", type=click.FloatRange(min=0.0, min_open=True), default=None,
              help="Images/s that the device of one process takes, instead of measuring it.")  # fmt: skip
@click.option("--model", default="resnet50", help="Network whose training is timed on the device.")
@option_json
@option_quiet
def doctor(file: str | None, as_json: bool, quiet: bool, **options: Any) -> int:
    """Say what bounds a training run on FILE, and what to change.

    Measures the disk, decoding and transforms, the Loader and the device, in less than a minute. The exit code is 1 if
    there is a problem.
    """
    from .report import as_data, diagnosis_text, findings_text

    say = (lambda text: None) if quiet or as_json else note
    diagnosis = measured = None
    findings: list[Any] = []
    if file is not None:
        from .judge import judge

        measured = _examine(file, options, say)
        diagnosis = judge(measured)
        findings += diagnosis.findings
    data = as_data(findings, diagnosis, measured)
    if as_json:
        click.echo(json.dumps(data, indent=1))
    else:
        if diagnosis is not None and measured is not None:
            click.echo(diagnosis_text(diagnosis, measured) + "\n")
        click.echo(findings_text(findings))
    if not data["ok"]:
        click.get_current_context().exit(1)
    return 0


def _examine(file: str, options: dict[str, Any], say: Any) -> Any:
    import torch

    from .examine import examine
    from .measurements import Setup

    processes = options["nproc_per_node"]
    setup = Setup(
        num_workers=options["num_workers"] or max(1, default_num_workers() // processes),
        num_processes=processes,
        batch_size=options["batch_size"],
        image_size=options["image_size"],
        shuffle=options["shuffle"],
    )
    name = options["device"]
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name != "cpu" and not torch.cuda.is_available():
        raise UsageError(
            f"--device {name}, but torch sees no CUDA device; use --device-rate with the images/s it takes"
        )
    transforms = None
    if options["recipe"] is not None:
        from dataloading import transforms as T

        transforms = T.recipes.find(options["recipe"], size=options["image_size"])
    return examine(
        file,
        setup=setup,
        transforms=transforms,
        device=torch.device(name),
        device_rate=options["device_rate"],
        model=options["model"],
        progress=say,
    )
