"""``beton warm-up``: compile operations of transforms ahead of their use, as for the image of a container."""

from __future__ import annotations

import dataclasses
import json

import click

from dataloading.cli import option_json
from dataloading.messages import counted

__all__ = ["warm_up"]


@click.command("warm-up")
@click.option(
    "--recipe",
    default=None,
    metavar="NAME|FILE",
    help="Only the operations of this recipe: a name, such as deit, or a YAML file. Default: all.",
)
@option_json
def warm_up(recipe: str | None, as_json: bool) -> None:
    """Compile the operations of transforms and store them, so that trainings start without compiling.

    They are stored for this machine's kind of processor in $BETON_CACHE_DIR, else in beton below $XDG_CACHE_HOME, else
    in ~/.cache/beton. What is there already is not compiled again.
    """
    from dataloading.transforms.warm_up import warm_up as compile_and_store

    transforms = None
    if recipe is not None:
        from dataloading.transforms import recipes

        transforms = recipes.find(recipe)
    done = compile_and_store(transforms)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done) | {"folder": str(done.folder)}, indent=2))
        return
    click.echo(
        f"compiled {counted(done.num_compiled, 'operation')} in {done.seconds:.1f} s, found {done.num_found} more "
        f"in {done.folder}"
    )
    if done.num_not_stored:
        click.echo(
            f"{done.num_not_stored} of them cannot be stored, such as functions of yours: each process compiles them"
        )
