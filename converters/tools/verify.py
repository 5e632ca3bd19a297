"""``beton verify FILES``: checks that no byte has changed and every image decodes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from converters.local_file import LocalFile
from dataloading.cli import default_num_workers, note, option_json, option_quiet
from dataloading.messages import counted

if TYPE_CHECKING:
    from dataloading import VerifyReport

__all__ = ["verify"]

_SHOWN_AT_MOST = 20


@click.command()
@click.argument("files", type=LocalFile(), nargs=-1, required=True)
@click.option("--checksums-only", is_flag=True, help="Do not decode images whose checksums are right (much faster).")
@click.option(
    "--num-workers",
    "--workers",
    type=click.IntRange(min=0),
    default=None,
    show_default="all cores",
    help="Threads; the result does not depend on it.",
)
@option_json
@option_quiet
def verify(files: Sequence[str], *, checksums_only: bool, num_workers: int | None, as_json: bool, quiet: bool) -> None:
    """Check FILES: structure, checksums, and that every image decodes. Exit code 1 if anything is wrong.

    Damaged bytes are reported with the affected samples, as are masks whose size differs from their image's, and boxes
    or points outside it. A manifest (SET.beton.json) stands for its shards, which must match it. Files written by FFCV
    have no checksums: there only the structure and the decoder reveal damage.
    """
    from converters.beton_files import fingerprints_of, list_files

    workers = max(1, default_num_workers() if num_workers is None else num_workers)
    paths = list_files(files)
    expected = fingerprints_of(files)
    reports = []
    for path in paths:
        report = _check(path, expected.get(path), workers, checksums_only=checksums_only, quiet=quiet)
        reports.append(report)
        if not as_json:
            _show(report)
    single = len(paths) == 1 and not expected
    if as_json:
        facts = [dataclasses.asdict(each) | {"ok": each.ok, "samples": each.samples} for each in reports]
        done: Any = facts[0] if single else {"ok": all(each.ok for each in reports), "files": facts}
        click.echo(json.dumps(done, indent=2))
    damaged = [each for each in reports if not each.ok]
    if not single and not as_json:
        total = sum(each.num_samples for each in reports)
        click.echo(f"{counted(len(reports), 'file')}, {counted(total, 'sample')}: {len(damaged) or 'none'} damaged")
    for each in damaged:
        count = len(each.samples)
        touched = f"{count:,} of {counted(each.num_samples, 'sample')} affected" if count else "no sample is affected"
        note(f"beton: {each.path} is damaged; {touched if each.num_samples else 'it cannot be read'}")
    if damaged:
        raise click.exceptions.Exit(1)


def _check(path: str, fingerprint: str | None, workers: int, *, checksums_only: bool, quiet: bool) -> VerifyReport:
    from dataloading import Problem, Reader, verify_file
    from dataloading.tools import decode_jpeg

    with _progress(path, quiet) as progress:
        report = verify_file(
            path,
            decode=decode_jpeg,
            decode_all=None if checksums_only else True,
            geometry=not checksums_only,
            num_workers=workers,
            progress=progress,
        )
    if fingerprint is None or not report.ok:
        return report
    with Reader(path) as reader:
        if reader.fingerprint == fingerprint:
            return report
        message = (
            f"sound, but not the file the manifest lists: fingerprint {reader.fingerprint}, expected {fingerprint}"
        )
    return dataclasses.replace(report, problems=(Problem(region="header", message=message),))


def _show(report: VerifyReport) -> None:
    # Shows only a readable number of problems; all are in the JSON.
    click.echo(str(dataclasses.replace(report, problems=report.problems[:_SHOWN_AT_MOST])))
    if len(report.problems) > _SHOWN_AT_MOST:
        click.echo(f"  ... and {counted(len(report.problems) - _SHOWN_AT_MOST, 'more problem')}; --json lists them")


@contextmanager
def _progress(path: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show the progress of the checksum comparison, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    import tqdm

    with tqdm.tqdm(desc=f"verifying {path}", unit="B", unit_scale=True, file=sys.stderr, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
