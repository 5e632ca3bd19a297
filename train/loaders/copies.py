"""Copies the stored images into the formats of other loaders, in the benchmark's work folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from dataloading import UsageError
from dataloading.tools import PartFolder, open_locked, remove_orphans

from .base import LoaderSpec
from .stored_images import FileImages

__all__ = ["encoded_bytes", "image_folder", "prepared_copy"]

_WAIT_SECONDS = 6 * 3600.0  # ImageNet as millions of files takes its time


def prepared_copy(spec: LoaderSpec, name: str, write: Callable[[FileImages, Path], None]) -> Path:
    """Return a folder with the samples of ``spec.path`` in another format; the first call writes it.

    Parameters
    ----------
    spec : LoaderSpec
        Its `path` and `work_dir` are used.
    name : str
        Of the format.
    write : callable
        ``write(images, folder)`` fills an empty folder.

    Raises
    ------
    UsageError
        There is no folder for it.
    """
    if not spec.work_dir:
        raise UsageError(f"a copy of {spec.path} in another format needs a folder; pass --copies, or --output")
    file = Path(spec.path).resolve()
    stat = file.stat()
    # The name identifies the file, so that another file of the same name is not used instead.
    key = hashlib.sha256(json.dumps([str(file), stat.st_size, stat.st_mtime_ns]).encode()).hexdigest()[:12]
    folder = Path(spec.work_dir) / f"{file.stem}-{key}-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # One rank writes, the others wait for it.
    lock = open_locked(folder.with_suffix(".lock"), wait_seconds=_WAIT_SECONDS)
    try:
        if not folder.is_dir():
            remove_orphans(str(folder))
            with PartFolder(str(folder)) as unfinished:
                write(FileImages(spec.path), Path(unfinished.part))
                unfinished.publish()
    finally:
        os.close(lock)
    return folder


def encoded_bytes(images: FileImages, index: int) -> bytes:
    """Return the compressed file of a sample, for formats that hold only compressed images.

    Raises
    ------
    ValueError
        The image is stored as pixels.
    """
    data = images[index].encoded
    if data is None:
        raise ValueError("this loader's format holds compressed images only; the file stores pixels")
    return data


def image_folder(spec: LoaderSpec) -> Path:
    """Return the samples as files in class folders: unchanged JPEG bytes, raw images as PPM.

    DALI, timm and most scripts read such a tree.
    """

    def write(images: FileImages, folder: Path) -> None:
        for index in range(len(images)):
            item = images[index]
            path = folder / f"{item.label:05d}" / f"{index:08d}"
            path.parent.mkdir(exist_ok=True)
            if item.encoded is not None:
                path.with_suffix(".jpg").write_bytes(item.encoded)
            else:
                assert item.raw is not None
                height, width = item.raw.shape[:2]
                # Netpbm: pixels after a text header, the closest to "raw" that image libraries read.
                header = f"P6 {width} {height} 255\n".encode()
                path.with_suffix(".ppm").write_bytes(header + item.raw.tobytes())

    return prepared_copy(spec, "folder", write)
