"""Checks a file's tables and the contents of its samples.

Defines the structural rules that need no checksums, so they apply to FFCV's files too: every value lies inside one
page, and exactly one allocation covers it. Reads the tables in chunks, so memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading.errors import FormatError

from .coordinates import extent, image_of
from .fields import JSONField, TextField
from .findings import Findings, Problem, in_order
from .images import MODE_JPEG, MODE_PNG, EncodedImage, ImageField, MaskField
from .png import check_png
from .ragged import VarArrayField
from .reader import Reader

__all__ = ["Decode", "check_contents", "check_geometry", "check_structure"]

Decode = Callable[[Any], object]
SAMPLES_PER_STEP = 1 << 16
SAMPLES_PER_TASK = 64

_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})  # SOF markers of the kinds that are decoded


def check_structure(reader: Reader, found: Findings) -> None:
    """Check every record of the sample table and of the allocation table."""
    for name, field in reader.fields.items():
        if field.has_data:
            for start in range(0, reader.num_samples, SAMPLES_PER_STEP):
                if found.full:
                    return
                stop = min(start + SAMPLES_PER_STEP, reader.num_samples)
                _check_records(reader, found, name, np.arange(start, stop, dtype=np.int64))
    _check_allocations(reader, found)


def _check_records(reader: Reader, found: Findings, name: str, samples: npt.NDArray[np.int64]) -> None:
    pointers, sizes, errors = reader.examine(name, samples)
    reported = {position for position, _ in errors}
    filled = np.flatnonzero(sizes)
    allocated, exists = reader.allocated(name, samples[filled], pointers[filled])
    for row in np.flatnonzero(~exists | (allocated != sizes[filled])).tolist():
        position = int(filled[row])
        if position not in reported:
            what = f"{allocated[row]:,} bytes" if exists[row] else "nothing"
            reason = f"its record declares {sizes[position]:,} bytes where the allocation table has {what}"
            errors.append((position, reason))
    for position, reason in sorted(errors):
        sample = int(samples[position])
        found.add(Problem(region="sample table", message=f"field '{name}': {reason}", samples=((sample, sample + 1),)))
        if found.full:
            return


def _check_allocations(reader: Reader, found: Findings) -> None:
    table = reader.allocations
    highest = 0
    ascending = True
    for start in range(0, len(table), SAMPLES_PER_STEP):
        part = table[start : start + SAMPLES_PER_STEP]
        owners, pointers, sizes = part["sample_id"], part["ptr"], part["size"]
        # FFCV gives empty values an arbitrary pointer.
        filled = sizes > 0
        limit = np.uint64(reader.data_end)
        outside = (pointers < reader.table_end) | (pointers > limit) | (sizes > limit - np.minimum(pointers, limit))
        crosses = pointers // reader.page_size != (pointers + (sizes - filled)) // reader.page_size
        for bad, reason in (
            (owners >= reader.num_samples, f"belongs to no sample (there are {reader.num_samples:,})"),
            (filled & outside, f"lies outside the pages (bytes {reader.table_end:,} to {reader.data_end - 1:,})"),
            (filled & ~outside & crosses, "crosses the border of a page"),
        ):
            for position in np.flatnonzero(bad).tolist():
                _report_allocation(found, table, start + position, reason)
                if found.full:
                    return
        pointers, sizes = pointers[filled & ~outside], sizes[filled & ~outside]
        if len(pointers):
            ends = np.maximum.accumulate(pointers + sizes)
            ascending &= int(pointers[0]) >= highest and not (pointers[1:] < ends[:-1]).any()
            highest = int(ends[-1])
    if not ascending:
        _check_overlaps(table, found)


def _check_overlaps(table: npt.NDArray[np.void], found: Findings) -> None:
    order = np.argsort(table["ptr"], kind="stable")
    order = order[table["size"][order] > 0]
    highest, owner = 0, -1
    for start in range(0, len(order), SAMPLES_PER_STEP):
        rows = order[start : start + SAMPLES_PER_STEP]
        pointers, ends = table["ptr"][rows], table["ptr"][rows] + table["size"][rows]
        before = np.maximum.accumulate(np.concatenate([np.array([highest], dtype=np.uint64), ends]))[:-1]
        for position in np.flatnonzero(pointers < before).tolist():
            if position or owner >= 0:
                other = int(rows[position - 1]) if position else owner
                reason = f"overlaps that of sample {int(table['sample_id'][other])}"
                _report_allocation(found, table, int(rows[position]), reason)
                if found.full:
                    return
        highest, owner = int(max(before[-1], ends[-1])), int(rows[-1])


def _report_allocation(found: Findings, table: npt.NDArray[np.void], row: int, reason: str) -> None:
    owner, pointer, size = table[row].item()
    message = f"entry {row}, {size:,} bytes at {pointer:,} for sample {owner}, {reason}"
    found.add(Problem(region="allocation table", message=message, samples=((owner, owner + 1),)))


def check_geometry(reader: Reader, found: Findings) -> None:
    """Report masks whose size differs from their image's, and boxes and points more than a pixel outside it.

    The structure must have been checked.
    """
    image = image_of(reader.fields)
    if image is None:
        return
    sizes: npt.NDArray[np.void] = reader.column(image)  # type: ignore[assignment]  # an image's record
    for name, field in reader.fields.items():
        if isinstance(field, MaskField):
            own: npt.NDArray[np.void] = reader.column(name)  # type: ignore[assignment]
            for start in range(0, reader.num_samples, SAMPLES_PER_STEP):
                part, other = own[start : start + SAMPLES_PER_STEP], sizes[start : start + SAMPLES_PER_STEP]
                for row in np.flatnonzero((part["width"] != other["width"]) | (part["height"] != other["height"])):
                    _report(found, start + int(row), name, _misfit(part[row], image, other[row]))
        elif (coordinates := getattr(field, "coordinates", None)) not in (None, "none"):
            for sample in range(reader.num_samples):
                if found.full:
                    return
                size = int(sizes["width"][sample]), int(sizes["height"][sample])
                bounds = extent(np.asarray(reader.value(name, sample)), coordinates, size)
                outside = (bounds[:, :2] < -1).any(axis=1) | (bounds[:, 2:] > np.add(size, 1)).any(axis=1)
                if outside.any():
                    first = [round(number, 1) for number in bounds[outside][0].tolist()]
                    text = (
                        f"{np.count_nonzero(outside)} of {len(bounds)} ({coordinates}) lie outside the image '{image}' "
                        f"of {size[0]}x{size[1]} pixels, the first from {first[:2]} to {first[2:]}"
                    )
                    _report(found, sample, name, text)
        if found.full:
            return


def _misfit(mask: np.void, image: str, record: np.void) -> str:
    size, other = ((int(each["width"]), int(each["height"])) for each in (mask, record))
    swapped = "; width and height are swapped: the EXIF orientation was applied to one and not to the other"
    return (
        f"the mask is {size[0]}x{size[1]} pixels, its image '{image}' {other[0]}x{other[1]}"
        f"{swapped if size == other[::-1] else ''}; convert both again, with one --max-resolution and --orientation"
    )


def _report(found: Findings, sample: int, name: str, message: str) -> None:
    found.add(Problem(region="samples", message=f"field '{name}': {message}", samples=((sample, sample + 1),)))


def check_contents(
    reader: Reader,
    found: Findings,
    spans: tuple[tuple[int, int], ...],
    decode: Decode | None,
    pool: ThreadPoolExecutor,
    workers: int,
) -> int:
    """Decode the images, texts and variable-length arrays of some samples; return how many images were decoded.

    Parameters
    ----------
    spans : tuple of (int, int)
        Half-open ranges of samples.
    decode : callable or None
        Raises if a JPEG's bytes do not decode; images are left alone without one.
    """
    names = [
        name
        for name, field in reader.fields.items()
        if isinstance(field, (JSONField, TextField, VarArrayField))
        or (isinstance(field, ImageField) and decode is not None)
    ]
    if not names:
        return 0
    num_decoded = 0
    jobs = (
        partial(_decode_range, reader, names, low, min(low + SAMPLES_PER_TASK, stop), decode)
        for start, stop in spans
        for low in range(start, stop, SAMPLES_PER_TASK)
    )
    for count, problems in in_order(pool, 2 * workers, jobs):
        num_decoded += count
        for problem in problems:
            found.add(problem)
        if found.full:
            break
    return num_decoded


def _decode_range(
    reader: Reader, names: list[str], start: int, stop: int, decode: Decode | None
) -> tuple[int, list[Problem]]:
    samples = np.arange(start, stop, dtype=np.int64)
    problems = []
    count = 0
    for name in names:
        field = reader.fields[name]
        pointers, sizes, errors = reader.examine(name, samples)
        # Already reported: the structure was checked before.
        faulty = {position for position, _ in errors}
        records = reader.column(name)[start:stop]
        for position in range(len(samples)):
            if position in faulty:
                continue
            low = int(pointers[position])
            payload = reader.data[low : low + int(sizes[position])]
            try:
                value = field.decode(records[position], payload)
                if isinstance(value, EncodedImage) and value.mode == MODE_JPEG:
                    count += 1
                    _decode_image(value, decode)
                elif isinstance(value, EncodedImage) and value.mode == MODE_PNG:
                    count += 1
                    check_png(payload, value.width, value.height, value.channels, np.dtype(value.dtype).itemsize)
            except Exception as error:  # the caller's decoder may raise anything
                sample = start + position
                message = f"field '{name}': {error}"
                problems.append(Problem(region="samples", message=message, samples=((sample, sample + 1),)))
    return count, problems


def _decode_image(image: EncodedImage, decode: Decode | None) -> None:
    assert decode is not None
    pixels = decode(image.data)
    shape = getattr(pixels, "shape", None)
    if shape is not None and tuple(shape[:2]) != (image.height, image.width):
        raise FormatError(f"the JPEG is {shape[1]}x{shape[0]} pixels, its record declares {image.width}x{image.height}")
    # The decoder returns RGB for gray JPEGs too, but gray fields need JPEGs with one component.
    if image.channels == 1 and (found := _num_components(bytes(image.data))) != 1:
        raise FormatError(f"the JPEG has {found} colour components, where a gray image was declared")


def _num_components(jpeg: bytes) -> int:
    """Return what the frame header of a valid JPEG declares; skips stray bytes between segments."""
    position = 2
    while True:
        position = jpeg.index(b"\xff", position)
        while jpeg[position] == 0xFF:
            position += 1
        marker, length = jpeg[position], int.from_bytes(jpeg[position + 1 : position + 3], "big")
        if marker in _FRAMES:
            return jpeg[position + 8]
        has_length = marker >= 0xC0 and not 0xD0 <= marker <= 0xD9
        position += 1 + (max(length, 2) if has_length else 0)
