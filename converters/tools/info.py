"""``beton info FILES``: the contents of a file as text, JSON or pictures."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import click

from converters.local_file import LocalFile
from dataloading.cli import option_json

__all__ = ["info"]


class Grid(click.ParamType):  # type: ignore[type-arg]
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
@click.argument("files", type=LocalFile(), nargs=-1, required=True)
@click.option("--sample", type=int, default=None, metavar="N", help="Show sample N; --out gets its image.")
@click.option(
    "--grid", type=Grid(), default=None, metavar="RxC", help="Write a contact sheet of R x C samples to --out."
)
@click.option("--out", type=click.Path(dir_okay=False), default=None, help="Picture to write, such as x.png.")
@click.option(
    "--histogram",
    type=click.Path(dir_okay=False),
    default=None,
    metavar="PICTURE",
    help="Draw resolutions, stored bytes and class counts.",
)
@click.option("--field", default=None, help="Image field to show. Default: the first.")
@option_json
def info(
    files: Sequence[str],
    *,
    sample: int | None,
    grid: tuple[int, int] | None,
    out: str | None,
    histogram: str | None,
    field: str | None,
    as_json: bool,
) -> None:
    """Show what FILES hold: fields, sizes, resolutions, classes, where they came from.

    Several files, or the shards of a manifest (SET.beton.json), are shown as one dataset. With --sample, --grid or
    --histogram show pictures instead. Files written by FFCV are understood too.
    """
    if sum(each is not None for each in (sample, grid, histogram)) > 1:
        raise click.UsageError("give one of --sample, --grid and --histogram, not both or all")
    if out is not None and sample is None and grid is None:
        raise click.UsageError("--out needs --sample N or --grid RxC: what should be drawn?")
    if grid is not None and out is None:
        raise click.UsageError("--grid needs --out PICTURE.png")
    from converters.beton_files import list_files
    from converters.tools.summary import as_text, first_image_field, summary
    from dataloading import Reader
    from dataloading.tools import check_fields, common_classes

    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Reader(file)) for file in list_files(files)]
        for reader in readers[1:]:
            check_fields(readers[0], reader)
        alone = "; or look at them one by one"
        common_classes(readers, hint=alone, advice=alone)
        if grid is not None and out is not None:
            from converters.tools.pictures import contact_sheet, save_picture

            save_picture(contact_sheet(readers, first_image_field(readers[0], field), *grid), out)
            click.echo(json.dumps({"written": out}) if as_json else f"wrote {out}")
        elif histogram is not None:
            from converters.tools.histograms import draw

            draw(readers, histogram, field=field)
            click.echo(json.dumps({"written": histogram}) if as_json else f"wrote {histogram}")
        elif sample is not None:
            _show_sample(readers, sample, out, field, as_json)
        else:
            facts = summary(*readers)
            click.echo(json.dumps(facts, indent=2) if as_json else as_text(facts))


def _show_sample(readers: Sequence[Any], index: int, out: str | None, field: str | None, as_json: bool) -> None:
    from converters.tools.pictures import decode_sample, save_picture, viewable
    from converters.tools.summary import find_sample, first_image_field
    from dataloading import MaskField, UsageError

    try:
        reader, local = find_sample(readers, index)
    except UsageError as error:
        raise click.BadParameter(str(error), param_hint="--sample") from error
    values: dict[str, Any] = {"sample": index}
    if len(readers) > 1:
        values |= {"file": reader.path, "sample_in_file": local}
    for name in reader.fields:
        values[name] = _plain(reader.value(name, local))
    names = reader.class_names
    if names is not None and isinstance(values.get("label"), int) and 0 <= values["label"] < len(names):
        values["class"] = names[values["label"]]
    if out is not None:
        from PIL import Image

        shown = first_image_field(reader, field)
        pixels = viewable(decode_sample(reader, shown, local), is_mask=isinstance(reader.fields[shown], MaskField))
        save_picture(Image.fromarray(pixels), out)
        values["written"] = out
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    width = max(map(len, values))
    for name, value in values.items():
        text = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else value
        click.echo(f"{name:<{width}}  {text}")


def _plain(value: Any) -> Any:
    """Return a field's value as something JSON can hold, briefly."""
    from dataloading import EncodedImage

    if isinstance(value, EncodedImage):
        kind = ("JPEG", "raw", "PNG")[value.mode]
        return {"kind": kind, "width": value.width, "height": value.height, "bytes": len(value.data)}
    if isinstance(value, bytes):
        return {"bytes": len(value), "starts_with": value[:16].hex(" ")}
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        values = value.reshape(-1)[:8].tolist()
        return {"dtype": str(value.dtype), "shape": list(value.shape), "starts_with": [str(item) for item in values]}
    return value
