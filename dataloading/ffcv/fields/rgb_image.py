"""Images."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from dataloading import format as kinds
from dataloading import transforms as T
from dataloading.errors import UsageError
from dataloading.ffcv.fields.base import Decoder, EngineField, Field
from dataloading.ffcv.libffcv import imdecode, memcpy, resize_crop
from dataloading.ffcv.pipeline.allocation_query import AllocationQuery
from dataloading.ffcv.pipeline.compiler import Compiler
from dataloading.ffcv.pipeline.state import State
from dataloading.transforms.base import Geometry, ImageState
from dataloading.transforms.geometry import CENTER_PART, check_before_resize, row_of

__all__ = [
    "IMAGE_MODES",
    "CenterCropRGBImageDecoder",
    "DifferentSizes",
    "RGBImageField",
    "RandomResizedCropRGBImageDecoder",
    "ResizedCropRGBImageDecoder",
    "SimpleRGBImageDecoder",
    "encode_jpeg",
    "get_center_crop",
    "get_random_crop",
    "resizer",
]


class DifferentSizes(UsageError, TypeError):  # noqa: N818 (never caught by name)
    """Images of several sizes where one is needed; FFCV raises a TypeError."""


IMAGE_MODES = {"jpg": kinds.MODE_JPEG, "raw": kinds.MODE_RAW}


def get_center_crop(height: Any, width: Any, scale: Any, ratio: Any) -> Any:
    """Return first row, first column, height and width of the square in the middle, for decoders of your own."""
    side = int(ratio * min(height, width))
    return (height - side) // 2, (width - side) // 2, side, side


def get_random_crop(height: Any, width: Any, scale: Any, ratio: Any) -> Any:
    """Draw a part of random area and shape by torchvision's law, from NumPy's generator; as `get_center_crop`."""
    least, most = np.log(ratio[0]), np.log(ratio[1])
    for _ in range(10):
        area = height * width * np.random.uniform(scale[0], scale[1])  # noqa: NPY002 (Numba has no other)
        shape = np.exp(np.random.uniform(least, most))  # noqa: NPY002
        columns, rows = round(np.sqrt(area * shape)), round(np.sqrt(area / shape))
        if 0 < columns <= width and 0 < rows <= height:
            top = np.random.randint(0, height - rows + 1)  # noqa: NPY002
            return top, np.random.randint(0, width - columns + 1), rows, columns  # noqa: NPY002
    columns = min(width, round(height * ratio[1]))
    rows = min(height, round(width / ratio[0]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def encode_jpeg(numpy_image: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    """Encode RGB pixels."""
    memory = io.BytesIO()
    Image.fromarray(numpy_image).save(memory, "JPEG", quality=int(quality))
    return np.frombuffer(memory.getvalue(), np.uint8)


def resizer(image: npt.NDArray[np.uint8], target_resolution: int | None) -> npt.NDArray[np.uint8]:
    """Make an image smaller whose longer side has more than `target_resolution` pixels."""
    height, width = image.shape[:2]
    if target_resolution is None or max(height, width) <= target_resolution:
        return image
    ratio = target_resolution / max(height, width)
    size = max(1, int(ratio * width)), max(1, int(ratio * height))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))


class SimpleRGBImageDecoder(Decoder):
    """Images as they are stored, all of one size."""

    stored = (kinds.ImageField,)

    def first(self, field: kinds.Field) -> State:
        """See ``Decoder``; the loader fills in the size."""
        return State(jit_mode=True, device=torch.device("cpu"), shape=None, dtype=np.dtype(np.uint8))

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        """See ``Operation``."""
        heights, widths = self.metadata["height"], self.metadata["width"]
        shape = (int(heights.max()), int(widths.max()), 3)
        if (heights.min(), widths.min()) != shape[:2]:
            raise DifferentSizes(
                f"SimpleRGBImageDecoder takes images of one size, got heights of {heights.min()} to {shape[0]} and "
                f"widths of {widths.min()} to {shape[1]} pixels"
            )
        dtype = np.dtype(np.uint8)
        return dataclasses.replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(
            shape, dtype
        )

    def generate_code(self) -> Callable[..., Any]:
        """See ``Decoder``."""
        read, over, jpeg = self.memory_read, Compiler.get_iterator(), kinds.MODE_JPEG
        decode_jpeg, copy = Compiler.compile(imdecode), Compiler.compile(memcpy)

        def decode(indices: Any, out: Any, metadata: Any, storage_state: Any) -> Any:
            for row in over(len(indices)):
                record = metadata[indices[row]]
                data = read(record["data_ptr"], storage_state)
                if record["mode"] == jpeg:
                    decode_jpeg(data, out[row], record["height"], record["width"])
                else:
                    copy(data, out[row])
            return out

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class ResizedCropRGBImageDecoder(SimpleRGBImageDecoder):
    """Base of decoders that crop and resize; `output_size` may be changed between epochs.

    A decoder of your own has a property `get_crop_generator`: a function of height, width and the decoder's `scale`
    and `ratio`, which Numba can compile, and which returns the crop's first row, first column, height and width.
    """

    scale: Any = None
    ratio: Any = None

    def __init__(self, output_size: Sequence[int]) -> None:
        super().__init__()
        self.output_size = output_size

    def first(self, field: kinds.Field) -> State:
        """See ``Decoder``."""
        height, width = (int(side) for side in self.output_size)
        return dataclasses.replace(super().first(field), shape=(height, width, 3))

    @property
    def get_crop_generator(self) -> Callable[..., Any]:
        """Refuse: the crops of FFCV's decoders are the engine's."""
        raise UsageError(
            f"{type(self).__name__} has no get_crop_generator: the engine draws its crops. In a decoder of your own, "
            f"define it: a function that returns first row, first column, height and width of the crop"
        )

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        """See ``Operation``."""
        shape, dtype = (*(int(side) for side in self.output_size), 3), np.dtype(np.uint8)
        largest = int((self.metadata["height"].astype(np.int64) * self.metadata["width"]).max())
        return (
            dataclasses.replace(previous_state, jit_mode=True, shape=shape, dtype=dtype),
            (AllocationQuery(shape, dtype), AllocationQuery((largest * 3,), dtype)),
        )

    def generate_code(self) -> Callable[..., Any]:
        """See ``Decoder``."""
        read, over, jpeg = self.memory_read, Compiler.get_iterator(), kinds.MODE_JPEG
        decode_jpeg, resize = Compiler.compile(imdecode), Compiler.compile(resize_crop)
        crop = Compiler.compile(self.get_crop_generator)
        scale, ratio = (np.array(each) if isinstance(each, tuple) else each for each in (self.scale, self.ratio))

        def decode(indices: Any, memory: Any, metadata: Any, storage_state: Any) -> Any:
            out, whole = memory
            for row in over(len(indices)):
                record = metadata[indices[row]]
                height, width = np.int64(record["height"]), np.int64(record["width"])
                data = read(record["data_ptr"], storage_state)
                pixels = whole[row][: height * width * 3].reshape(height, width, 3)
                if record["mode"] == jpeg:
                    decode_jpeg(data, pixels, height, width)
                else:
                    pixels[:] = data.reshape(height, width, 3)
                top, left, rows, columns = crop(height, width, scale, ratio)
                resize(pixels, top, top + rows, left, left + columns, out[row])
            return out

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class RandomResizedCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Crop a random part of random shape and resize it; only its pixels are decoded."""

    def __init__(
        self,
        output_size: Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (0.75, 4 / 3),
    ) -> None:
        super().__init__(output_size)
        self.scale = scale
        self.ratio = ratio

    def transforms(self) -> list[Any]:
        """See ``Decoder``."""
        return [T.RandomResizedCrop(tuple(self.output_size), tuple(self.scale), tuple(self.ratio))]


class CenterCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Cut out the square in the middle with `ratio` of the shorter side, and resize it."""

    def __init__(self, output_size: Sequence[int], ratio: float) -> None:
        super().__init__(output_size)
        self.scale = None
        self.ratio = ratio

    def transforms(self) -> list[Any]:
        """See ``Decoder``."""
        height, width = (int(side) for side in self.output_size)
        return [CenterPart(height=height, width=width, share=float(self.ratio))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CenterPart(Geometry):
    """The crop of `CenterCropRGBImageDecoder`: a part of the image, where torchvision's is a number of pixels."""

    height: int
    width: int
    share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise UsageError(f"CenterCropRGBImageDecoder: ratio must be above 0 and at most 1, got {self.share}")

    def lower(self, state: ImageState) -> tuple[int, list[float], ImageState]:
        """See ``Geometry.lower``."""
        check_before_resize(self, state)
        row = row_of(self.height, self.width, self.share, 0, 0, 0, 0, 0, 0, True)
        side = min(self.height, self.width)
        after = state.replace(height=self.height, width=self.width, min_side=side, resized=True, cropped=False)
        return CENTER_PART, row, after


class RGBImageField(EngineField):
    """RGB images.

    Parameters
    ----------
    write_mode : {"raw", "jpg", "smart", "proportion"}
        As pixels; as JPEG; as JPEG where pixels take more than `smart_threshold` bytes; as JPEG with the probability
        `compress_probability`.
    max_resolution : int, optional
        Longest side: larger images are made smaller.
    smart_threshold : int, optional
    jpeg_quality : int
    compress_probability : float
    """

    def __init__(
        self,
        write_mode: str = "raw",
        max_resolution: int | None = None,
        smart_threshold: int | None = None,
        jpeg_quality: int = 90,
        compress_probability: float = 0.5,
    ) -> None:
        if write_mode not in ("raw", "jpg", "smart", "proportion"):
            raise UsageError(f"RGBImageField: write_mode must be raw, jpg, smart or proportion, got {write_mode!r}")
        self.write_mode = write_mode
        self.max_resolution = max_resolution
        self.smart_threshold = smart_threshold
        self.jpeg_quality = int(jpeg_quality)
        self.proportion = compress_probability

    def stored(self) -> kinds.Field:
        """See ``Field``."""
        return kinds.ImageField()

    @staticmethod
    def from_binary(binary: Any) -> Field:
        """See ``Field``."""
        return RGBImageField()

    def get_decoder_class(self) -> type[Decoder]:
        """Return the decoder of a pipeline that names none."""
        return SimpleRGBImageDecoder

    def prepared(self, value: Any, place: int) -> Any:
        """See ``Field``."""
        pixels = np.asarray(value) if isinstance(value, Image.Image) else value
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            mode = f" of mode {value.mode}: call .convert('RGB')" if isinstance(value, Image.Image) else ""
            shape = f" {pixels.shape} of {pixels.dtype}" if isinstance(pixels, np.ndarray) and not mode else ""
            raise UsageError(
                f"RGBImageField takes PIL images of mode RGB, or uint8 arrays (height, width, 3), got "
                f"{type(value).__name__}{mode}{shape}"
            )
        pixels = resizer(pixels, self.max_resolution)
        if not self._as_jpeg(pixels, place):
            return pixels
        height, width = pixels.shape[:2]
        data = encode_jpeg(pixels, self.jpeg_quality).tobytes()
        return kinds.EncodedImage(kinds.MODE_JPEG, width, height, data)

    def _as_jpeg(self, pixels: npt.NDArray[np.uint8], place: int) -> bool:
        if self.write_mode == "smart":
            return self.smart_threshold is not None and pixels.nbytes > self.smart_threshold
        if self.write_mode == "proportion":
            # A function of the sample's place, so that equal input gives equal files.
            return bool(np.random.default_rng([place]).random() < self.proportion)
        return self.write_mode == "jpg"
