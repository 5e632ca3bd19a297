"""The contract between the harness and a contender, and copies of the data in other formats. Knows no contender."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dataloading.tools import PartFolder, remove_orphans
from train.bench.spec import BenchSpec
from train.loaders.stored_images import FileImages

__all__ = ["Contender", "as_images", "image_folder", "prepared_copy"]


class Contender:
    """One loader, ready to be measured; the base class of all.

    Attributes
    ----------
    num_ahead : int
        Batches it may have ready before they are asked for; so many are thrown away before the clock starts.
    """

    num_ahead: int = 0

    def batches(self) -> Iterator[Any]:
        """Go through one epoch; each item is the images of a batch: a tensor or array of `batch_size` rows."""
        raise NotImplementedError

    def window(self, opens: bool) -> None:
        """Hear that the clock starts (`opens`) or has stopped."""

    def report(self) -> dict[str, Any]:
        """Return what the contender itself has to say about the timed parts of its run, JSON-able."""
        return {}

    def close(self) -> None:
        """End threads and processes. The child process ends soon after in any case."""


def as_images(batch: Any) -> Any:
    """Return the images of a batch that is a tensor, or begins with one."""
    return batch[0] if isinstance(batch, (list, tuple)) else batch


def prepared_copy(spec: BenchSpec, name: str, write: Callable[[FileImages, Path], None]) -> Path:
    """Return a folder with the samples of ``spec.path`` in another format, writing it the first time.

    Parameters
    ----------
    spec : BenchSpec
        Its `path` and `work_dir` are used.
    name : str
        Of the format.
    write : callable
        ``write(source, folder)`` fills an empty folder.
    """
    file = Path(spec.path).resolve()
    stat = file.stat()
    # Another file of the same name must not be measured in its place.
    key = hashlib.sha256(json.dumps([str(file), stat.st_size, stat.st_mtime_ns]).encode()).hexdigest()[:12]
    folder = Path(spec.work_dir) / f"{file.stem}-{key}-{name}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_orphans(str(folder))
    with PartFolder(str(folder)) as unfinished:
        write(FileImages(spec.path), Path(unfinished.part))
        unfinished.publish()
    return folder


def image_folder(spec: BenchSpec) -> Path:
    """Return the samples as files in class folders: JPEG bytes as they are, raw images as PPM.

    Such a tree is what DALI, timm and most scripts read.
    """

    def write(source: FileImages, folder: Path) -> None:
        for index in range(len(source)):
            item = source[index]
            place = folder / f"{item.label:05d}"
            place.mkdir(exist_ok=True)
            if item.encoded is not None:
                (place / f"{index:08d}.jpg").write_bytes(item.encoded)
            else:
                assert item.raw is not None
                height, width = item.raw.shape[:2]
                # Netpbm: pixels behind a line of text, the nearest to "raw" that image libraries read.
                header = f"P6 {width} {height} 255\n".encode()
                (place / f"{index:08d}.ppm").write_bytes(header + item.raw.tobytes())

    return prepared_copy(spec, "folder", write)
