"""Measure what an image costs: decoding and transforms on one worker, the Loader with all of them, the device.

Only a few hundred images are used, which are read beforehand, so that the disk does not count here.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dataloading import Loader, UsageError
from dataloading import transforms as T
from dataloading.tools import MODE_RAW, FileSet

from .measurements import FileFacts, Work
from .storage import cached_share

__all__ = [
    "cached_images",
    "default_transforms",
    "describe_files",
    "image_field",
    "measure_loader",
    "measure_work",
    "stored_images",
]

_MAX_IMAGES = 256
_MAX_BYTES = 64 << 20
_LONGEST_READ_SECONDS = 5.0
_MOST_TRANSFORMS = 8
_FIRST_RUN = 8  # images
_EPOCHS = 3
Transforms = Mapping[str, Any]


def image_field(files: FileSet) -> str:
    """Return the name of the first image field.

    Raises
    ------
    UsageError
        There is none, or no sample.
    """
    names = [name for name, field in files.fields.items() if type(field).__name__ == "ImageField"]
    if not names or not files.num_samples:
        raise UsageError(f"{files.path} has {'no image field' if not names else 'no samples'}: nothing to measure")
    return names[0]


def describe_files(files: FileSet) -> FileFacts:
    """Read sizes from the tables; no image is opened."""
    field = image_field(files)
    some = np.linspace(0, files.num_samples - 1, min(files.num_samples, 10_000)).astype(np.int64)
    records = files.records(field, some)
    _, _, sizes = files.locate(field, some)
    return FileFacts(
        path=files.path,
        num_samples=files.num_samples,
        num_bytes=sum(reader.num_bytes for reader in files.readers),
        image_bytes=float(sizes.mean()),
        raw_share=float((records["mode"] == MODE_RAW).mean()),
        shorter_side=float(np.median(np.minimum(records["width"], records["height"]))),
    )


def cached_images(files: FileSet) -> float | None:
    """Return the share of the stored images that is in the page cache; None where the system does not say."""
    field = image_field(files)
    some = np.linspace(0, files.num_samples - 1, min(files.num_samples, 10_000)).astype(np.int64)
    numbers, pointers, sizes = files.locate(field, some)
    shares = []
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        share = cached_share(files.paths[number], pointers[mine].tolist(), sizes[mine].tolist())
        if share is None:
            return None
        shares += [share] * int(mine.sum())
    return float(np.mean(shares))


def default_transforms(field: str, image_size: int) -> dict[str, list[Any]]:
    """Return those of ``beton train``: random crop, flip, normalising to float32."""
    recipe = T.recipes.find("imagenet_train", size=image_size, field=field)
    return dict(recipe)


def stored_images(files: FileSet) -> np.ndarray:
    """Choose some images at random and read them into the page cache; return their indices.

    Reading ends after a few seconds, however slow the disk is.
    """
    field = image_field(files)
    chosen = np.random.default_rng(0).permutation(files.num_samples)[:_MAX_IMAGES]
    numbers, pointers, sizes = files.locate(field, chosen)
    fits = np.cumsum(sizes.astype(np.int64)) <= _MAX_BYTES
    started = time.perf_counter()
    kept = 0
    for number, pointer, size in zip(numbers.tolist(), pointers.tolist(), sizes.tolist(), strict=True):
        if kept and (not fits[kept] or time.perf_counter() - started > _LONGEST_READ_SECONDS):
            break
        files.memory[number][pointer : pointer + size : 512].max(initial=0)  # touches each page
        kept += 1
    return chosen[:kept]


def measure_work(
    path: Any, *, transforms: Transforms, field: str, indices: np.ndarray, seconds: float = 1.5, device: Any = "cpu"
) -> Work:
    """Measure decoding and transforms on one worker.

    Parameters
    ----------
    path
        The dataset, as the Loader's.
    transforms : mapping
        As the Loader's.
    field : str
        The image field, whose transforms are told apart.
    indices : ndarray
        Samples to use.
    seconds : float
        About how long it takes.
    device : str or torch.device
        Where batches go, and callables on them run.
    """
    costs = _run(path, transforms, indices, seconds, device)
    transform = costs.transform
    steps = transforms.get(field)
    by_transform = {}
    if isinstance(steps, Sequence) and 1 < len(steps) <= _MOST_TRANSFORMS:
        by_transform = _by_transform(path, transforms, field, indices, seconds / 3, device)
        # Measured one after the other, under a load that changes: their proportions count.
        scale = transform / (sum(by_transform.values()) or 1.0)
        by_transform = {name: scale * value for name, value in by_transform.items()}
    every = [step for each in transforms.values() for step in _nested(each)]
    serial = [step for step in every if isinstance(step, T.PerSample)]
    known = sum(by_transform.get(_name(step), 0.0) for step in serial)
    return Work(
        decode_seconds=costs.decode,
        transform_seconds=transform,
        output_bytes=costs.output_bytes,
        by_transform=by_transform,
        serial_seconds=min(known or transform, transform) if serial else 0.0,
        callable_seconds=costs.callables,
    )


def measure_loader(
    path: Any, *, transforms: Transforms, indices: np.ndarray, seconds: float = 2.0, **options: Any
) -> float:
    """Return the images per second that the Loader delivers from memory.

    Parameters
    ----------
    path, transforms, indices, seconds
        As for `measure_work`.
    **options
        Of the Loader: workers, batch size, device.
    """
    num = options["batch_size"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            loader = _loader(path, np.resize(indices, num), transforms=transforms, **options)
            started = time.perf_counter()
            for _ in loader:
                pass
            taken = time.perf_counter() - started
            loader.close()
            if taken >= seconds / 2 or num >= 1 << 20:
                return float(num / taken)
            num = int(num * min(16.0, max(2.0, seconds / taken)))


def _nested(value: Any) -> list[Any]:
    """Return all transforms in a list, a view, or a composite."""
    if isinstance(value, (list, tuple)):
        return [step for each in value for step in _nested(each)]
    inner = [getattr(value, each.name) for each in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return [
        value,
        *_nested([each for each in inner if isinstance(each, (list, tuple)) or dataclasses.is_dataclass(each)]),
    ]


def _name(step: Any) -> str:
    return str(getattr(step, "name", type(step).__name__))


def _by_transform(
    path: Any, transforms: Transforms, field: str, indices: np.ndarray, seconds: float, device: Any
) -> dict[str, float]:
    """Return seconds per image of each transform: what the list takes longer with it than without it."""
    steps = list(transforms[field])
    found: dict[str, float] = {}
    before = 0.0
    for end in range(1, len(steps) + 1):
        try:
            now = _run(path, {**transforms, field: steps[:end]}, indices, seconds, device).transform
        except UsageError:
            continue  # a list cannot end here: the next transform counts for both
        name = _name(steps[end - 1])
        found[name] = found.get(name, 0.0) + max(0.0, now - before)
        before = max(before, now)
    return found


class _Costs(NamedTuple):
    """Seconds, and bytes in a batch, of one image."""

    decode: float
    transform: float
    callables: float
    output_bytes: float


def _run(path: Any, transforms: Transforms, indices: np.ndarray, seconds: float, device: Any) -> _Costs:
    """Measure one worker over whole epochs, so that what it did and what was delivered agree.

    The fastest of several epochs counts for each figure: other load on the machine can only make them slower.
    """
    options: dict[str, Any] = {"transforms": transforms, "num_workers": 1, "batch_size": 8, "device": device}
    runs = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a slow callable is what is measured here
        loader = _loader(path, np.resize(indices, _FIRST_RUN), **options)
        started = time.perf_counter()
        output_bytes = [_output_bytes(batch) for batch in loader][-1]
        num = int(np.clip(seconds / _EPOCHS * _FIRST_RUN / (time.perf_counter() - started), _FIRST_RUN, 4096))
        loader.close()
        loader = _loader(path, np.resize(indices, num), **options)
        for _ in range(_EPOCHS):
            for _ in loader:
                pass
            runs.append(loader.stats(reset=True))
        loader.close()
    return _Costs(
        decode=min(stats.hop_seconds["decode"] for stats in runs) / num,
        transform=min(stats.hop_seconds["transform"] for stats in runs) / num,
        callables=min(sum(stats.callable_seconds.values()) for stats in runs) / num,
        output_bytes=output_bytes,
    )


def _loader(path: Any, indices: np.ndarray, **options: Any) -> Loader:
    return Loader(path, indices=indices, persistent_workers=False, rank=0, world_size=1, **options)


def _output_bytes(batch: Any) -> float:
    """Return the bytes of a batch's images per row."""

    def size(value: Any) -> int:
        if isinstance(value, (list, tuple)):
            return sum(map(size, value))
        return value.nbytes if isinstance(value, torch.Tensor) and value.ndim >= 3 else 0

    return sum(map(size, batch)) / float(max(1, batch.num_valid))
