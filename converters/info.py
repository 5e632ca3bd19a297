"""``beton info FILE``: what a file holds, in words, as JSON, or as pictures."""

from __future__ import annotations

import json
from typing import Any

import click

from dataloading.cli import option_json

__all__ = ["info"]


class Grid(click.ParamType[tuple[int, int]]):
    """Rows and columns: ``5x5``, ``3x8``."""

    name = "rows x columns"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse ``value`` or fail."""
        if isinstance(value, tuple):
            return value
        rows, _, columns = str(value).lower().partition("x")
        if not (rows.isdigit() and columns.isdigit() and 1 <= int(rows) <= 100 and 1 <= int(columns) <= 100):
            self.fail(f"{value!r} is not a grid; write ROWSxCOLUMNS such as 5x5, at most 100x100", param, ctx)
        return int(rows), int(columns)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--sample", type=int, default=None, metavar="N", help="Show sample N; --out gets its image.")
@click.option(
    "--grid", type=Grid(), default=None, metavar="RxC", help="Write a contact sheet of R x C samples to --out."
)
@click.option("--out", type=click.Path(dir_okay=False), default=None, help="Picture to write, such as x.png.")
@click.option("--field", default=None, help="Image field to show. Default: the first.")
@option_json
def info(
    file: str, *, sample: int | None, grid: tuple[int, int] | None, out: str | None, field: str | None, as_json: bool
) -> None:
    """Show what FILE holds: fields, sizes, resolutions, classes, where it came from.

    With --sample or --grid show samples instead. Files written by FFCV are understood too.
    """
    from dataloading import Reader

    if sample is not None and grid is not None:
        raise click.UsageError("give either --sample or --grid, not both")
    if out is not None and sample is None and grid is None:
        raise click.UsageError("--out needs --sample N or --grid RxC: what should be drawn?")
    if grid is not None and out is None:
        raise click.UsageError("--grid needs --out PICTURE.png")
    with Reader(file) as reader:
        if grid is not None and out is not None:
            from .inspect_file import first_image_field
            from .pictures import contact_sheet

            _save(contact_sheet(reader, first_image_field(reader, field), *grid), out)
            click.echo(json.dumps({"written": out}) if as_json else f"wrote {out}")
        elif sample is not None:
            _show_sample(reader, sample, out, field, as_json)
        else:
            from .inspect_file import as_text, summary

            facts = summary(reader)
            click.echo(json.dumps(facts, indent=2) if as_json else as_text(facts))


def _show_sample(reader: Any, index: int, out: str | None, field: str | None, as_json: bool) -> None:
    if not 0 <= index < reader.num_samples:
        raise click.BadParameter(
            f"there is no sample {index}: {reader.path} has samples 0 to {reader.num_samples - 1}",
            param_hint="--sample",
        )
    values: dict[str, Any] = {"sample": index}
    for name in reader.fields:
        values[name] = _plain(reader.value(name, index))
    names = None if reader.extension is None else reader.extension.class_names
    if names is not None and isinstance(values.get("label"), int) and 0 <= values["label"] < len(names):
        values["class"] = names[values["label"]]
    if out is not None:
        from PIL import Image

        from .inspect_file import first_image_field
        from .pictures import decode_sample

        _save(Image.fromarray(decode_sample(reader, first_image_field(reader, field), index)), out)
        values["written"] = out
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    width = max(map(len, values))
    for name, value in values.items():
        shown = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        click.echo(f"{name:<{width}}  {shown}")


def _plain(value: Any) -> Any:
    """Return a field's value as something JSON can hold, briefly."""
    from dataloading import EncodedImage

    if isinstance(value, EncodedImage):
        kind = "raw" if value.mode else "JPEG"
        return {"kind": kind, "width": value.width, "height": value.height, "bytes": len(value.data)}
    if isinstance(value, bytes):
        return {"bytes": len(value), "starts_with": value[:16].hex(" ")}
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        values = value.reshape(-1)[:8].tolist()
        return {"dtype": str(value.dtype), "shape": list(value.shape), "starts_with": [str(item) for item in values]}
    return value


def _save(picture: Any, out: str) -> None:
    try:
        picture.save(out)
    except (ValueError, OSError) as error:
        raise click.BadParameter(f"cannot write {out}: {error}", param_hint="--out") from error
