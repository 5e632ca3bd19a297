"""A folder of classes as a torch Dataset: crops are decoded straight from the image files, without converting anything.

For the stock DataLoader. Our Loader on a ``.beton`` file is faster: its JPEGs have restart markers, and it needs no
worker processes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torchvision.datasets import ImageFolder

from dataloading._native import REQUEST, decode_regions, probe_jpeg, status_text
from dataloading.engine.transfer import as_tensor
from dataloading.errors import DecodeError, TransformError, UsageError
from dataloading.format import MODE_JPEG, MODE_RAW
from dataloading.transforms.pipeline import Pipeline, PipelineFault

__all__ = ["JpegFolder"]


class JpegFolder(ImageFolder):  # type: ignore[misc]  # torchvision states no types
    """The images below a folder, labelled by their class folder: torchvision's ``ImageFolder`` with our decoder.

    Classes, order, ``samples`` and ``targets`` are those of ``ImageFolder``. Of a baseline JPEG only the region that
    the transforms ask for is decoded. Other images (PNG, CMYK ...) are opened with Pillow and converted to RGB.

    Parameters
    ----------
    root : str or path-like
        Folder with one folder per class.
    transforms : sequence
        Transforms of ``dataloading.transforms`` for single images, as for a Loader. They must give all images one size,
        or end with ``T.AsList()``.
    target_transform : callable, optional
        Applied to the label.
    **options
        As for ``ImageFolder``: ``is_valid_file``, ``allow_empty``.

    Raises
    ------
    UsageError
        If the transforms cannot work, or work on batches.
    DecodeError, TransformError
        When an image is loaded; the message names the file.

    Notes
    -----
    Random numbers come from torch's generator, one per image, as those of torchvision's transforms do:
    ``torch.manual_seed`` and the seeds that a DataLoader gives its workers decide them. A DataLoader asks for a batch
    at once (``__getitems__``), which is decoded in one call.

    Examples
    --------
    >>> import tempfile
    >>> from dataloading import transforms as T
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "cat").mkdir()
    >>> Image.new("RGB", (40, 30), "red").save(root / "cat" / "1.jpg")
    >>> dataset = JpegFolder(root, [T.RandomResizedCrop(24), T.RandomHorizontalFlip()])
    >>> image, label = dataset[0]
    >>> image.shape, image.dtype, dataset.classes[label]
    (torch.Size([3, 24, 24]), torch.uint8, 'cat')
    """

    def __init__(
        self, root: str | Path, transforms: Sequence[object], *, target_transform: Any = None, **options: Any
    ) -> None:
        super().__init__(root, target_transform=target_transform, **options)
        self._transforms = list(transforms)
        self._pipeline: Pipeline | None = _pipeline(self._transforms)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pipeline": None}  # compiled code does not travel to a process

    def __repr__(self) -> str:
        return f"JpegFolder({str(self.root)!r}, {self._transforms!r})"

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return image and label.

        Returns
        -------
        tensor, shape (3, height, width), and int
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return images and labels of a batch."""
        if self._pipeline is None:
            self._pipeline = _pipeline(self._transforms)
        keys = torch.randint(2**63 - 1, (len(indices),)).numpy().view(np.uint64)
        labels = [self.samples[index][1] for index in indices]
        if self.target_transform is not None:
            labels = [self.target_transform(label) for label in labels]
        # Images of any size are made one at a time.
        step = 1 if self._pipeline.varies else max(1, len(indices))
        images: list[Any] = []
        for first in range(0, len(indices), step):
            images += self._images(self._pipeline, indices[first : first + step], keys[first : first + step])
        return list(zip(images, labels, strict=True))

    def _images(self, pipeline: Pipeline, indices: Sequence[int], keys: npt.NDArray[np.uint64]) -> torch.Tensor:
        n = len(indices)
        paths = [self.samples[index][0] for index in indices]
        stored = [_stored(path) for path in paths]
        requests = np.zeros(n, REQUEST)
        requests["channels"] = 3
        requests["src"] = [data.ctypes.data for data, *_ in stored]
        requests["src_bytes"] = [data.nbytes for data, *_ in stored]
        for request, (data, mode, width, height) in zip(requests, stored, strict=True):
            request["src"], request["src_bytes"], request["mode"] = data.ctypes.data, data.nbytes, mode
            request["src_width"], request["src_height"] = width, height
        try:
            pipeline.plan(keys, requests)
            if pipeline.varies:
                pipeline = pipeline.of_size(int(requests["out_h"][0]), int(requests["out_w"][0]))
            decoded = np.empty((n, *pipeline.decode_shape), np.uint8)
            if decode_regions(requests, decoded):
                row = int(np.flatnonzero(requests["status"])[0])
                raise DecodeError(status_text(int(requests["status"][row])), path=paths[row], advice=_ADVICE)
            out = decoded if pipeline.in_place else np.empty((n, *pipeline.out_shape), pipeline.storage_dtype)
            pipeline.run(decoded, keys, out, indices=np.asarray(indices, np.int64))
        except PipelineFault as fault:
            reason = f"{fault.transform} raised {type(fault.cause).__name__}: {fault.cause}"
            raise TransformError(reason, path=paths[fault.position]) from fault.cause
        return as_tensor(out, pipeline.out_dtype)


_ADVICE = "Take the file out of the folder, or convert with `beton convert imagefolder --on-error skip`"


def _pipeline(transforms: Sequence[object]) -> Pipeline:
    pipeline = Pipeline(transforms)
    if pipeline.batch_transforms:
        name = type(pipeline.batch_transforms[0]).__name__
        raise UsageError(f"{name} works on batches: apply it to the batches that the DataLoader gives")
    if pipeline.reads_boxes:
        raise UsageError("a transform of the list reads the boxes of stored samples: use a Loader on a .beton file")
    return pipeline


def _stored(path: str) -> tuple[npt.NDArray[np.uint8], int, int, int]:
    """Return an image's bytes, their mode, width and height: a JPEG as it is, others as RGB pixels."""
    data = Path(path).read_bytes()
    try:
        info = probe_jpeg(data)
    except DecodeError:
        info = None
    if info is not None and info.num_components in (1, 3):
        return np.frombuffer(data, np.uint8), MODE_JPEG, info.width, info.height
    try:
        with Image.open(io.BytesIO(data)) as opened:
            pixels = np.asarray(opened.convert("RGB"))
    except UnidentifiedImageError as error:
        raise DecodeError("Pillow knows no image of this kind", path=path, advice=_ADVICE) from error
    except Exception as error:  # Pillow raises many kinds of errors on damaged data
        raise DecodeError(str(error) or type(error).__name__, path=path, advice=_ADVICE) from error
    return np.ascontiguousarray(pixels).reshape(-1), MODE_RAW, pixels.shape[1], pixels.shape[0]
