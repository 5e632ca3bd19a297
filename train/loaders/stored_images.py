"""Reads encoded images and labels of a ``.beton`` file or a directory of class folders, by index.

Peers use the images; the trainer uses the number of samples and the classes. Decodes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from dataloading import UsageError
from dataloading.tools import MODE_JPEG


class StoredImage(NamedTuple):
    """One stored sample.

    Parameters
    ----------
    encoded : bytes or None
        The compressed image file, if it is stored compressed.
    raw : numpy.ndarray or None
        Pixels (H, W, 3), uint8, if they are stored uncompressed.
    label : int
        Label.
    """

    encoded: bytes | None
    raw: np.ndarray | None
    label: int


class StoredImages(Protocol):
    """A dataset by index; picklable, so that worker processes can open their own."""

    path: str
    classes: list[str]
    named: bool  # False if the classes are only numbers

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> StoredImage: ...

    def labels(self) -> np.ndarray:
        """Return the label of every sample, integers of shape (n,), without reading images."""


class FolderImages:
    """Class folders, as in `torchvision.datasets.ImageFolder`.

    Raises
    ------
    UsageError
        There are no class folders with images.
    """

    def __init__(self, path: str) -> None:
        from torchvision.datasets import ImageFolder

        self.path = path
        try:
            folder = ImageFolder(path)
        except FileNotFoundError as error:
            raise UsageError(f"{path} is not a directory of class folders with images: {error}") from error
        self.classes = list(folder.classes)
        self.named = True
        self._samples = folder.samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> StoredImage:
        name, label = self._samples[index]
        return StoredImage(Path(name).read_bytes(), None, label)

    def labels(self) -> np.ndarray:
        """Return the label of every file."""
        return np.array([label for _, label in self._samples], np.int64)


class FileImages:
    """The first image field and the first integer field of a ``.beton`` file.

    The offset of every sample is looked up once (24 bytes each), so that a stock loader only copies a sample's bytes,
    which is cheaper than opening a file.

    Raises
    ------
    UsageError
        The file has no image field, no integer field or no sample.
    """

    def __init__(self, path: str) -> None:
        from dataloading import ImageField, IntField, Reader

        self.path = path
        reader = Reader(path)
        self.image_field = _first(reader, ImageField, "image")
        self.label_field = _first(reader, IntField, "label")
        self._num_samples = int(reader.num_samples)
        if self._num_samples == 0:
            raise UsageError(f"{path} has no samples")
        self._reader: Any = reader
        names = reader.class_names
        self.named = names is not None
        if names is None:  # FFCV's files have none
            names = tuple(str(number) for number in range(int(self.labels().max()) + 1))
        self.classes = list(names)
        self._positions: tuple[np.ndarray, ...] | None = None

    def __len__(self) -> int:
        return self._num_samples

    def labels(self) -> np.ndarray:
        """Return the label of every sample, from the file's table."""
        return np.asarray(self._opened().column(self.label_field))

    def _opened(self) -> Any:
        if self._reader is None:
            from dataloading import Reader

            self._reader = Reader(self.path)
        return self._reader

    def locate(self) -> None:
        """Look up the offsets of all samples. Otherwise the first read does it, with spawn in each worker."""
        self._opened()
        starts, sizes = self._reader.locate(self.image_field, np.arange(self._num_samples))
        columns = self._reader.column(self.image_field), self._reader.column(self.label_field)
        self._positions = starts, sizes, *columns

    def __getitem__(self, index: int) -> StoredImage:
        if self._positions is None:
            self.locate()
        assert self._positions is not None
        starts, sizes, images, labels = self._positions
        start = int(starts[index])
        stored = self._reader.data[start : start + int(sizes[index])]
        image, label = images[index], int(labels[index])
        if image["mode"] == MODE_JPEG:
            return StoredImage(stored.tobytes(), None, label)
        return StoredImage(None, stored.reshape(int(image["height"]), int(image["width"]), 3), label)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_places": None}


def _first(reader: Any, kind: type, usual_name: str) -> str:
    # Exactly this class: our other image fields do not hold RGB.
    names = [name for name, field in reader.fields.items() if type(field) is kind]
    if not names:
        raise UsageError(
            f"{reader.path} has no {usual_name} field ({kind.__name__}); its fields: {list(reader.fields)}"
        )
    return usual_name if usual_name in names else names[0]


def open_images(path: str) -> StoredImages:
    """Open a ``.beton`` file or a directory of class folders.

    Raises
    ------
    UsageError
        The path is neither.
    """
    return FolderImages(path) if Path(path).is_dir() else FileImages(path)
