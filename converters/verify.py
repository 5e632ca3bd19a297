"""``beton verify FILE``: whether every byte is what was written, and every image decodes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from dataloading.cli import default_num_workers, note, option_json, option_num_workers, option_quiet

__all__ = ["verify"]

_SHOWN_AT_MOST = 20


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--checksums-only", is_flag=True, help="Do not decode images whose checksums are right (much faster).")
@option_num_workers
@option_json
@option_quiet
def verify(file: str, *, checksums_only: bool, num_workers: int | None, as_json: bool, quiet: bool) -> None:
    """Check FILE: its structure, its checksums, and that every image decodes. Exit code 1 if anything is wrong.

    A damaged byte is reported with the samples it touches. A file that FFCV wrote has no checksums: there, only what
    the structure and the decoder can tell is found.
    """
    from dataloading import decode_jpeg, verify_file

    workers = max(1, default_num_workers() if num_workers is None else num_workers)
    with _progress(quiet) as progress:
        report = verify_file(
            file,
            decode=decode_jpeg,
            decode_all=None if checksums_only else True,
            num_workers=workers,
            progress=progress,
        )
    if as_json:
        facts = dataclasses.asdict(report) | {"ok": report.ok, "samples": report.samples}
        click.echo(json.dumps(facts, indent=2))
    elif report.ok:
        click.echo(str(report))
    else:
        # Thousands of findings help nobody at a terminal; all of them are in the JSON.
        short = dataclasses.replace(report, problems=report.problems[:_SHOWN_AT_MOST])
        click.echo(str(short))
        if len(report.problems) > _SHOWN_AT_MOST:
            click.echo(f"  ... and {len(report.problems) - _SHOWN_AT_MOST:,} more problems; --json lists them")
    if not report.ok:
        count = len(report.samples)
        touched = f"{count:,} of {report.num_samples:,} samples are affected" if count else "no sample is affected"
        note(f"beton: {file} is damaged; {touched if report.num_samples else 'it cannot be read'}")
        raise click.exceptions.Exit(1)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show how much has been compared with its checksums, on a terminal only: it runs at the disk's speed."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    import tqdm

    with tqdm.tqdm(desc="verifying", unit="B", unit_scale=True, file=sys.stderr, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
