"""Boxes and points that follow the geometry of their image.

Knows arrays, requests and pipelines; no files, batches or threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dataloading._native import BoxesOfSamples
from dataloading.errors import UsageError
from dataloading.format import Field, VarArrayField, absent_points, box_corners, boxes_as, numbers_as
from dataloading.messages import did_you_mean
from dataloading.transforms.base import Geometry, ImageTransform, Transform
from dataloading.transforms.custom import StatedMoves
from dataloading.transforms.detection import (
    AnnotationOp,
    ClampBoundingBoxes,
    CropAroundBox,
    RandomIoUCrop,
    SanitizeBoundingBoxes,
)
from dataloading.transforms.geometry import RandomHorizontalFlip, RandomVerticalFlip
from dataloading.transforms.matrices import Move, joined, moved_boxes, moved_points
from dataloading.transforms.pipeline import Pipeline

__all__ = ["Annotations", "declared_coordinates"]

Floats = npt.NDArray[np.float64]


def declared_coordinates(field: Field) -> str | None:
    """Return what places in an image a field's numbers are; None if they are none."""
    words: str | None = getattr(field, "coordinates", None)
    return None if words == "none" else words


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The fields that follow one image; made by `following`.

    Parameters
    ----------
    pipeline : Pipeline
        Of the image.
    coordinates : dict of str to str
        Name of a field to what its numbers are.
    moves : bool
        Whether the image's transforms move anything.
    boxes : str
        The field of those that follow that transforms of boxes look at; empty if there is no such transform.
    reads : str
        The field whose boxes the geometry reads; empty if it reads none.
    read_as : str
        What its numbers are.
    sanitizer : SanitizeBoundingBoxes, optional
    labels : tuple of str
        The fields with one row a box.
    """

    pipeline: Pipeline
    coordinates: dict[str, str]
    moves: bool
    boxes: str = ""
    reads: str = ""
    read_as: str = ""
    sanitizer: SanitizeBoundingBoxes | None = None
    labels: tuple[str, ...] = ()

    @classmethod
    def following(
        cls,
        pipeline: Pipeline,
        followers: Mapping[str, Field],
        known: Mapping[str, Field],
        stored: Mapping[str, Field],
    ) -> Annotations:
        """Find out what is to be done.

        Parameters
        ----------
        pipeline : Pipeline
            Of the image.
        followers : mapping of str to Field
            The fields that follow it.
        known : mapping of str to Field
            All fields that are delivered.
        stored : mapping of str to Field
            All fields of the files.

        Raises
        ------
        UsageError
            Where a field cannot follow, or it is not clear what a transform of boxes is for.
        """
        coordinates = {name: declared_coordinates(field) or "" for name, field in followers.items()}
        what = " and ".join(f"{'points' if words[:6] == 'points' else 'boxes'} of '{name}'"
                            for name, words in coordinates.items())  # fmt: skip
        if coordinates:
            _check_each(pipeline, f"the {what}")
        ops = [op for op in pipeline.transforms if isinstance(op, (AnnotationOp, RandomIoUCrop))]
        moves = bool(coordinates) and (pipeline.moves_places(f"the {what}") or bool(ops))
        boxes = [name for name, words in coordinates.items() if not words.startswith("points")]
        if ops and not boxes:
            raise UsageError(
                f"{ops[0].name} needs boxes that follow the image, and there are none. A field of boxes is "
                f"declared when it is written, VarArrayField('float32', (None, 4), coordinates='xyxy'), and must have "
                f"no list of its own here"
            )
        readers = [op for op in ops if not isinstance(op, ClampBoundingBoxes)]
        if readers and len(boxes) > 1:
            raise UsageError(
                f"{readers[0].name} works on one field of boxes, but {' and '.join(map(repr, boxes))} follow the "
                f"image. Leave one out with fields=[...], or give it an empty list of its own to get it as it is stored"
            )
        reads = _read_by_crops(pipeline, boxes, stored)
        found = cls(
            pipeline=pipeline,
            coordinates=coordinates,
            moves=moves,
            boxes=boxes[0] if readers else "",
            reads=reads,
            read_as=(declared_coordinates(stored[reads]) or "") if reads else "",
        )
        sanitizers = [op for op in ops if isinstance(op, SanitizeBoundingBoxes)]
        if not sanitizers:
            return found
        _check_place(pipeline, sanitizers)
        if not isinstance(followers[boxes[0]], VarArrayField):
            raise UsageError(
                f"{sanitizers[0].name} drops boxes, but '{boxes[0]}' always has {followers[boxes[0]]!r}. Store boxes "
                f"as VarArrayField, or leave {sanitizers[0].name} out"
            )
        labels = _labels(sanitizers[0], boxes[0], known)
        return dataclasses.replace(found, sanitizer=sanitizers[0], labels=labels)

    def move(
        self,
        values: Mapping[str, Any],
        rows: slice,
        requests: npt.NDArray[np.void],
        keys: npt.NDArray[np.uint64],
        indices: npt.NDArray[np.int64],
        read: BoxesOfSamples | None = None,
    ) -> list[tuple[int, str]]:
        """Move the values of some rows of a batch.

        Parameters
        ----------
        values : mapping of str to list or array
            By field; changed.
        rows : slice
        requests, keys, indices : array
            Of these rows.
        read : BoxesOfSamples, optional
            Of the whole batch: what the pipeline has read, and which boxes it has cut off.

        Returns
        -------
        list of (int, str)
            Which of these rows failed, counted from 0, and why.
        """
        if not self.moves:
            return []
        if not self.pipeline.varies:
            return self._move(self.pipeline, values, rows, requests, keys, indices, read)
        failures = []
        for row in range(len(requests)):
            one = slice(row, row + 1)
            pipeline = self.pipeline.of_size(int(requests["out_h"][row]), int(requests["out_w"][row]))
            at = slice(rows.start + row, rows.start + row + 1)
            found = self._move(pipeline, values, at, requests[one], keys[one], indices[one], read)
            failures += [(row, reason) for _, reason in found]
        return failures

    def _move(
        self,
        pipeline: Pipeline,
        values: Mapping[str, Any],
        rows: slice,
        requests: npt.NDArray[np.void],
        keys: npt.NDArray[np.uint64],
        indices: npt.NDArray[np.int64],
        read: BoxesOfSamples | None,
    ) -> list[tuple[int, str]]:
        moves = pipeline.moves(requests, keys, indices)
        stored = np.stack([requests["src_width"], requests["src_height"]], axis=1).astype(np.float64)
        final = stored
        for move in moves:
            final = np.where(move.happens[:, None], move.sizes, final)
        keep: list[npt.NDArray[np.bool_]] = []
        failures: list[tuple[int, str]] = []
        for name, words in self.coordinates.items():
            arrays = values[name][rows]
            moved = _Moved(arrays, words, stored, final)
            moved.move(moves)
            if name == self.reads and read is not None:
                moved.cut_off(read.kept[read.starts[rows.start] : read.starts[rows.stop]] == 0)
            for row, array in enumerate(arrays):
                try:
                    values[name][rows.start + row] = numbers_as(moved.numbers[moved.of(row)], array)
                except UsageError as error:
                    failures.append((row, f"{name}: {error}"))
            if name == self.boxes and self.sanitizer is not None:
                large = moved.large_enough(self.sanitizer)
                keep = [large[moved.of(row)] for row in range(len(arrays))]
        for row, kept in enumerate(keep):
            failures += self._drop(values, rows.start + row, row, kept)
        return failures

    def read(self, values: Sequence[npt.NDArray[Any] | None], requests: npt.NDArray[np.void]) -> BoxesOfSamples:
        """Return the stored boxes of a batch for the pipeline to read; a sample without a value has none."""
        form, _, relative = self.read_as.partition(" ")
        corners, starts = [np.zeros((0, 4))], [0]
        for value, request in zip(values, requests, strict=True):
            if value is not None:
                size = (float(request["src_width"]), float(request["src_height"])) if relative else (1.0, 1.0)
                corners.append(box_corners(value.reshape(-1, 4), form) * np.array([*size, *size]))
            starts.append(starts[-1] + (0 if value is None else len(corners[-1])))
        return BoxesOfSamples(
            np.ascontiguousarray(np.concatenate(corners)), np.array(starts, np.int64), np.ones(starts[-1], np.uint8)
        )

    def _drop(self, values: Mapping[str, Any], at: int, row: int, kept: npt.NDArray[np.bool_]) -> list[tuple[int, str]]:
        for name in self.labels:
            if len(values[name][at]) != len(kept):
                reason = (
                    f"'{name}' has {len(values[name][at])} rows and '{self.boxes}' {len(kept)}: which to drop? Name "
                    f"the fields with one row a box, SanitizeBoundingBoxes(labels_getter=...)"
                )
                return [(row, reason)]
        for name in (self.boxes, *self.labels):
            values[name][at] = values[name][at][kept]
        return []


class _Moved:
    """The boxes or points of several samples, one below the other."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], words: str, stored: Floats, final: Floats) -> None:
        self._form, _, relative = words.partition(" ")
        counts = [array.size // array.shape[-1] for array in arrays]
        self._starts = [0, *np.cumsum(counts).tolist()]
        self._sample = np.repeat(np.arange(len(arrays)), counts)
        self.numbers = np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays]).astype(np.float64)
        self._before = stored[self._sample] if relative else np.ones((len(self._sample), 2))
        self._after = final[self._sample] if relative else self._before
        self._corners: Floats = np.zeros((0, 4))

    def of(self, row: int) -> slice:
        """Return where the numbers of a sample are."""
        return slice(self._starts[row], self._starts[row + 1])

    def move(self, moves: Sequence[Move]) -> None:
        """Change the numbers to where they are after the moves."""
        corners = box_corners(self.numbers, self._form) * np.tile(self._before, 2)
        if self._form == "points":
            places = moved_points(corners[:, :2], joined(moves, len(moves[0].happens))[self._sample])
            there = ~absent_points(self.numbers)
            self.numbers[there, :2] = (places / self._after)[there]
        else:
            self._corners = moved_boxes(corners, moves, self._sample)
            self.numbers = boxes_as(self._corners / np.tile(self._after, 2), self._form)

    def cut_off(self, which: npt.NDArray[np.bool_]) -> None:
        """Make boxes 0."""
        self._corners[which] = 0
        self.numbers[which] = 0

    def large_enough(self, sanitizer: SanitizeBoundingBoxes) -> npt.NDArray[np.bool_]:
        """Tell which boxes are."""
        width, height = (self._corners[:, 2:] - self._corners[:, :2]).T
        # Written so that "not a number" is dropped, too.
        large = (width >= sanitizer.min_size) & (height >= sanitizer.min_size)
        return np.asarray(large & (width * height >= sanitizer.min_area))


def _check_each(pipeline: Pipeline, what: str) -> None:
    """Refuse what moves pixels in ways of its own: what a mask cannot follow, boxes and points cannot either."""
    for position, op in enumerate(pipeline.transforms):
        if not isinstance(op, Transform):
            continue
        try:
            op.for_mask()
        except UsageError:
            way_out = op.way_out if isinstance(op, StatedMoves) else "Leave it out,"
            raise UsageError(
                f"transform {position} ({op.name}) may move pixels in a way that {what} cannot follow. {way_out} "
                f"leave the field out with fields=[...], or give it an empty list to get it as it is stored"
            ) from None


def _check_place(pipeline: Pipeline, sanitizers: Sequence[SanitizeBoundingBoxes]) -> None:
    place = max(n for n, op in enumerate(pipeline.transforms) if isinstance(op, SanitizeBoundingBoxes))
    behind = [
        op for op in pipeline.transforms[place:] if not isinstance(op, (RandomHorizontalFlip, RandomVerticalFlip))
    ]
    late = [op for op in behind if isinstance(op, Geometry) or pipeline.moves_in(op)]
    if len(sanitizers) > 1 or late:
        reason = f"behind {late[0].name}" if late and isinstance(late[0], ImageTransform) else "once"
        raise UsageError(
            f"{sanitizers[0].name} looks at boxes in the finished image: put it {reason}, behind all geometry"
        )


def _read_by_crops(pipeline: Pipeline, boxes: Sequence[str], stored: Mapping[str, Field]) -> str:
    """Return the field whose boxes the geometry reads; empty if it reads none."""
    found = ""
    for op in pipeline.transforms:
        if isinstance(op, RandomIoUCrop):
            name = boxes[0]
        elif isinstance(op, CropAroundBox):
            name = op.field
            words = declared_coordinates(stored[name]) if name in stored else None
            if words is None or words.startswith("points"):
                known = [each for each, field in stored.items()
                         if not (declared_coordinates(field) or "points").startswith("points")]  # fmt: skip
                there = did_you_mean(name, known) or f"Such are {', '.join(map(repr, known)) or 'none of the file'}"
                raise UsageError(
                    f"{op.name}: field={name!r} is no field of boxes, whose coordinates are declared when it is "
                    f"written, VarArrayField('float32', (None, 4), coordinates='xyxy'). {there}"
                )
        else:
            continue
        if found not in ("", name):
            raise UsageError(
                f"{op.name} reads the boxes of '{name}', but another transform of the list those of '{found}'. One "
                f"decode reads one field: leave one of the two out"
            )
        found = name
    return found


def _labels(sanitizer: SanitizeBoundingBoxes, boxes: str, known: Mapping[str, Field]) -> tuple[str, ...]:
    """Return the fields whose rows belong to boxes."""
    given = sanitizer.labels_getter
    rows = [name for name, field in known.items() if isinstance(field, VarArrayField) and name != boxes]
    if given is None:
        return ()
    if given == "default":
        found = [name for name in rows if any(word in name.lower() for word in ("label", "categor", "class"))]
        if not found:
            raise UsageError(
                f"{sanitizer.name} drops labels with their boxes, but none of the fields "
                f"{', '.join(map(repr, rows)) or '(there are no others with rows)'} is named like labels. Name all "
                f"with one row a box, as in labels_getter={tuple(rows) or ('category',)!r}, or pass labels_getter=None"
            )
        return tuple(found)
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in rows:
            raise UsageError(
                f"{sanitizer.name}: labels_getter={given!r}, but there is no field {name!r} of VarArrayField in the "
                f"batch. {did_you_mean(name, rows) or 'There are ' + (', '.join(map(repr, rows)) or 'none')}"
            )
    return names
