"""Which form an image is stored in: its own JPEG bytes where they can be kept, new JPEG bytes, or raw pixels.

`ImagePolicy` is the user's wishes; `ImagePolicy.store` applies them to one image in any shape a source delivers.
A JPEG that needs neither resizing nor turning nor a change of colours is never decoded and encoded again: its
coefficients are copied (same pixels, usually fewer bytes) into a baseline JPEG with restart markers, which the loader
cuts crops out of. What is stored depends on the image, the policy and the sample's own random number alone.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor

from converters.images.errors import plain_array, unfit
from converters.images.opened_files import FileImage
from converters.images.pillow_files import MAX_PIXELS, DamagedImage, check_pixels, open_pillow
from converters.images.rasters import (
    LARGEST_SIDE,
    check_fit,
    check_size,
    encode_gray,
    kept_png,
    store_mask,
    store_raster,
)
from converters.images.rgb import (
    as_rgb,
    is_jpeg,
    jpeg_orientation,
    other_orientation,
    read_jpeg,
    read_other,
    target_size,
    upright,
)
from converters.sample_random import chance
from converters.source import SampleFault
from dataloading import DecodeError, EncodedImage, ImageField, MaskField, RasterField, UsageError
from dataloading.tools import check_jpeg, decode_jpeg, encode_jpeg, probe_jpeg, resize_rgb, transcode_jpeg

if TYPE_CHECKING:
    from converters.images.geometry import Geometry

__all__ = [
    "KEPT",
    "RAW",
    "RECODED",
    "TRANSCODED",
    "Annotations",
    "Channels",
    "ImagePolicy",
    "Keep",
    "Mode",
    "Resample",
    "Subsampling",
    "colour",
]

Mode = Literal["jpg", "raw", "mix", "smart", "png"]
Channels = Literal["rgb", "gray", "keep"]
Keep = Literal["pixels", "bytes", "files", "never"]
Annotations = Literal["stored", "upright"]
Resample = Literal["box", "bilinear", "bicubic", "lanczos"]
Subsampling = Literal["4:2:0", "4:2:2", "4:4:4"]

Pixels = npt.NDArray[np.uint8]

JPEG_MODE, RAW_MODE = 0, 1

# What became of an image; the counts in the report carry these names.
TRANSCODED, KEPT, RECODED, RAW = "transcoded", "kept", "encoded", "raw"

_LARGEST_JPEG = 65_500  # libjpeg's own bound, below that of the format

# What TurboJPEG, FFCV's decoder, reads; anything rarer is decoded and encoded again.
_READABLE_SUBSAMPLING = frozenset({"4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "4:0:0"})


def colour(text: str) -> tuple[int, int, int]:
    """Return the levels of a colour: a name, #rrggbb or R,G,B.

    Raises
    ------
    UsageError
        If it is none of them.

    Examples
    --------
    >>> colour("white"), colour("#808080"), colour("1,2,3")
    ((255, 255, 255), (128, 128, 128), (1, 2, 3))
    """
    try:
        levels = tuple(int(word) for word in text.split(",")) if "," in text else ImageColor.getrgb(text)[:3]
    except ValueError:
        levels = ()
    if len(levels) != 3 or not all(0 <= level <= 255 for level in levels):
        raise UsageError(f"{text!r} is not a colour; write white, #808080 or 128,128,128")
    return levels[0], levels[1], levels[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagePolicy:
    """How images are stored.

    Parameters
    ----------
    mode : {"jpg", "raw", "mix", "smart", "png"}
        JPEG; RGB pixels; JPEG for a random fraction of the samples and pixels for the rest; per image whichever
        ``smart_threshold`` prefers; or, in fields of our own kinds, without loss: PNG, or pixels where they are
        smaller. What JPEG cannot hold (16 bits, 2 or more than 3 channels, labels) is stored so with every mode but
        "raw".
    mix_fraction : float
        Fraction stored as JPEG in mode "mix", 0 to 1.
    smart_threshold : float
        In mode "smart" an image becomes a JPEG if its pixels take more than this many times the JPEG's bytes; both
        sizes are the real ones.
    max_resolution : int, optional
        Longest side in pixels; larger images are shrunk, smaller ones are left alone.
    quality : int
        JPEG quality, 1 to 100, of images that are encoded; kept JPEGs keep theirs.
    subsampling : {"4:2:0", "4:2:2", "4:4:4"}
        Chroma subsampling of images that are encoded.
    keep : {"pixels", "bytes", "files", "never"}
        What is kept of a JPEG that could stay as it is: its pixels (coefficients copied losslessly into a baseline
        JPEG with restart markers), its very bytes, or nothing (decoded and encoded at ``quality``, as FFCV does).
        "files" keeps the bytes of JPEGs and of PNGs too, in fields of our own kind, and stores other files without
        loss.
    resample : {"box", "bilinear", "bicubic", "lanczos"}
        Pillow's antialiased filter for shrinking.
    background : tuple of int
        RGB, 0 to 255, behind transparent pixels.
    orient : bool
        Turn images upright as EXIF or XMP say.
    annotations : {"stored", "upright"}
        Which pixels masks, boxes and points are drawn on: those that the image's file stores, so that they are turned
        with it, or those of the upright image.
    to_srgb : bool
        Convert embedded colour profiles to sRGB.
    channels : {"rgb", "gray", "keep"}
        What images become: RGB; one channel of luma (ITU-R 601-2); or what they are, alpha and 16 bits included, where
        all images of a field must be alike and the first one decides (`converters.images.field_kinds.settled`).
    seed : int
        Seed of mode "mix".
    max_pixels : int
        An image with more pixels is refused before they are read: a small PNG or TIFF may unpack to gigabytes. A JPEG
        has at most 2**28 in any case.

    Raises
    ------
    UsageError
        If a value is out of range.
    """

    mode: Mode = "jpg"
    mix_fraction: float = 0.5
    smart_threshold: float = 1.0
    max_resolution: int | None = None
    quality: int = 90
    subsampling: Subsampling = "4:2:0"
    keep: Keep = "pixels"
    resample: Resample = "lanczos"
    background: tuple[int, int, int] = (255, 255, 255)
    orient: bool = True
    annotations: Annotations = "stored"
    to_srgb: bool = False
    channels: Channels = "rgb"
    seed: int = 0
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        choices = {
            "mode": Mode, "keep": Keep, "resample": Resample, "subsampling": Subsampling, "channels": Channels,
            "annotations": Annotations,
        }  # fmt: skip
        for name, allowed in choices.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in get_args(allowed):
                raise UsageError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")
        if self.keep == "files" and self.mode not in ("jpg", "png"):
            raise UsageError(
                f"keep 'files' stores each file as it is, and mode {self.mode!r} does not; give one of them"
            )
        if not _is_number(self.mix_fraction) or not 0 <= self.mix_fraction <= 1:
            raise UsageError(f"mix_fraction must be from 0 to 1, got {self.mix_fraction!r}")
        if not _is_number(self.smart_threshold) or not self.smart_threshold > 0:
            raise UsageError(f"smart_threshold must be above 0, got {self.smart_threshold!r}")
        if not _is_whole(self.quality) or not 1 <= self.quality <= 100:
            raise UsageError(f"quality must be a whole number from 1 to 100, got {self.quality!r}")
        longest = self.max_resolution
        if longest is not None and (not _is_whole(longest) or not 1 <= longest <= LARGEST_SIDE):
            raise UsageError(f"max_resolution must be a whole number from 1 to {LARGEST_SIDE:,}, got {longest!r}")
        if not _is_colour(self.background):
            raise UsageError(f"background must be three levels from 0 to 255, got {self.background!r}")
        for name in ("orient", "to_srgb"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not _is_whole(self.max_pixels) or self.max_pixels < 1:
            raise UsageError(f"max_pixels must be a whole number, 1 or more, got {self.max_pixels!r}")

    def provenance(self) -> dict[str, object]:
        """Return the options as JSON-able values, for the file's record of its origin."""
        options = {**dataclasses.asdict(self), "background": list(self.background)}
        # What went without saying before there were others.
        for name in ("annotations", "channels", "max_pixels"):
            if options[name] == getattr(ImagePolicy, name):
                del options[name]
        return options

    def store(
        self,
        image: object,
        index: int,
        field: ImageField | None = None,
        *,
        notes: list[str] | None = None,
        follow: Geometry | None = None,
    ) -> tuple[EncodedImage, str]:
        """Return the image as it is stored, and what became of it (``TRANSCODED``, ``KEPT``, ...).

        Parameters
        ----------
        image : bytes, PIL.Image.Image, FileImage, numpy.ndarray or EncodedImage
            A whole image file's bytes, a Pillow image, one whose file is known, uint8 pixels of shape (H, W, 3) or
            (H, W), or something that is stored already and passes through.
        index : int
            Index of the sample in its source; decides mode "mix".
        field : ImageField, optional
            Where it goes; by default a field of FFCV's kind. A raster field takes what has its channels and depth,
            arrays of uint16 included; a mask field label maps.
        notes : list of str, optional
            Is told of bytes in a JPEG that belong to nothing: no pixel suffers from them.
        follow : Geometry, optional
            What became of the image that a label map belongs to: it is turned and resized alike.

        Raises
        ------
        SampleFault
            If the image cannot be read or stored, with the reason.
        """
        if isinstance(image, EncodedImage):
            if follow is not None and isinstance(field, MaskField):
                check_fit((image.width, image.height), follow.new_size, follow)
            return image, KEPT
        if isinstance(image, FileImage):
            # Not turned: an image that a program hands over has the pixels the program means.
            return dataclasses.replace(self, orient=False).store(
                self._file_or_image(image, field), index, field, notes=notes, follow=follow
            )
        image = plain_array(image)
        try:
            if isinstance(field, MaskField):
                return store_mask(image, field, self, follow)
            if self.keep == "files" and self.channels == "rgb" and field == RasterField(3):
                return self._store_file(image, index, field, notes)
            if field is not None and (type(field) is not ImageField or self.channels == "keep"):
                return self._store_as_it_is(image, index, field, notes)
            if self.mode == "png":
                raise SampleFault("FFCV's image field holds no PNG; mode 'png' needs --channels keep or gray")
            if isinstance(image, (bytes, bytearray, memoryview)):
                data = bytes(image)
                return self._store_jpeg(data, index, notes) if is_jpeg(data) else self._store_other(data, index)
            return self._store_pixels(self._shrink(_from_object(image, self)), index)
        except DecodeError as error:
            raise DamagedImage(error.reason) from error

    def _file_or_image(self, image: FileImage, field: ImageField | None) -> object:
        """Return a file that can be kept, or the image that it was opened as, whose pixels are the same."""
        is_rgb = (field is None or type(field) is ImageField) and self.channels == "rgb"
        has_form = is_rgb or (image.is_of_its_form and not isinstance(field, MaskField))
        may_stay = is_jpeg(image.data) or self.keep == "files"
        return image.data if has_form and may_stay else image.image

    def as_shown(self, data: bytes) -> Image.Image:
        """Return of a damaged file what Pillow shows of it with ``LOAD_TRUNCATED_IMAGES``, upright.

        Raises
        ------
        SampleFault
            If it shows nothing.
        """
        image = open_pillow(data, max_pixels=self.max_pixels, as_shown=True)
        return upright(image, other_orientation(image) if self.orient else 1)

    def _store_file(
        self, image: object, index: int, field: ImageField, notes: list[str] | None
    ) -> tuple[EncodedImage, str]:
        """Store a JPEG or PNG as it is; what has to change as RGB, that which was no JPEG without loss."""
        if not isinstance(image, (bytes, bytearray, memoryview)):
            return store_raster(self._shrink(_from_object(image, self)), index, field, self, notes)
        data = bytes(image)
        if is_jpeg(data):
            return self._store_jpeg(data, index, notes)
        kept = kept_png(data, field, self)
        if kept is not None:
            return kept
        other = read_other(data, background=self.background, orient=self.orient, to_srgb=self.to_srgb,
                           max_pixels=self.max_pixels)  # fmt: skip
        return store_raster(self._shrink(other), index, field, self, notes)

    def _store_as_it_is(
        self, image: object, index: int, field: ImageField, notes: list[str] | None
    ) -> tuple[EncodedImage, str]:
        """Store an image that has its field's channels and depth, or is made gray."""
        may_keep = JPEG_MODE in field.modes and field.channels == 3 and self.mode != "png" and self.channels != "gray"
        if may_keep and isinstance(image, (bytes, bytearray, memoryview)):
            data = bytes(image)
            if is_jpeg(data) and probe_jpeg(data).num_components != 1:
                return self._store_jpeg(data, index, notes)
        return store_raster(image, index, field, self, notes)

    def encode(self, pixels: Pixels) -> bytes:
        """Return a JPEG of RGB pixels or gray ones (no third axis) at the policy's quality, with restart markers."""
        if max(pixels.shape[:2]) > _LARGEST_JPEG:
            raise SampleFault(
                f"{pixels.shape[1]}x{pixels.shape[0]} pixels: a JPEG has at most {_LARGEST_JPEG:,} a side; "
                "--max-resolution shrinks it, --mode raw stores it"
            )
        if pixels.ndim == 2:
            return encode_gray(pixels, self.quality)
        return encode_jpeg(pixels, quality=self.quality, subsampling=self.subsampling)

    def _store_jpeg(self, data: bytes, index: int, notes: list[str] | None) -> tuple[EncodedImage, str]:
        info = probe_jpeg(data)
        size = (info.width, info.height)
        check_pixels(size, self.max_pixels)
        orientation = jpeg_orientation(data) if self.orient else 1
        cmyk = info.colour_space in {"cmyk", "ycck"}
        profiled = self.to_srgb and b"ICC_PROFILE\0" in data
        if orientation != 1 or cmyk or profiled:
            image = upright(read_jpeg(data, cmyk=cmyk, to_srgb=profiled, notes=notes), orientation)
            return self._store_pixels(self._shrink(image), index)
        if (
            target_size(size, self.max_resolution) != size
            or self.keep == "never"
            or self.wants_raw(index)
            or info.subsampling not in _READABLE_SUBSAMPLING
        ):
            return self._store_pixels(self._shrink(decode_jpeg(data, notes=notes)), index)
        check_size(size)
        kept, label = self.kept(data, notes)
        if self.mode == "smart" and not self._prefers_jpeg(size, len(kept)):
            return self._raw(decode_jpeg(data))
        return EncodedImage(JPEG_MODE, *size, kept), label

    def kept(self, data: bytes, notes: list[str] | None = None) -> tuple[bytes, str]:
        """Return a JPEG that needs no change as it is stored, and what became of it."""
        # Either way all of the data is read, so damage is found here and not in training.
        if self.keep in ("bytes", "files"):
            found: list[str] = []
            check_jpeg(data, notes=found)
            if notes is not None:
                notes += [f"{note}, kept with the file's other bytes" for note in found]
            return data, KEPT
        return transcode_jpeg(data, notes=notes), TRANSCODED

    def _store_other(self, data: bytes, index: int) -> tuple[EncodedImage, str]:
        image = read_other(
            data, background=self.background, orient=self.orient, to_srgb=self.to_srgb, max_pixels=self.max_pixels
        )
        return self._store_pixels(self._shrink(image), index)

    def _store_pixels(self, pixels: Pixels, index: int) -> tuple[EncodedImage, str]:
        height, width = pixels.shape[:2]
        check_size((width, height))
        if self.wants_raw(index) or (self.mode == "smart" and max(width, height) > _LARGEST_JPEG):
            return self._raw(pixels)
        data = self.encode(pixels)
        if self.mode == "smart" and not self._prefers_jpeg((width, height), len(data)):
            return self._raw(pixels)
        return EncodedImage(JPEG_MODE, width, height, data), RECODED

    def _raw(self, pixels: Pixels) -> tuple[EncodedImage, str]:
        return EncodedImage(RAW_MODE, pixels.shape[1], pixels.shape[0], pixels.tobytes()), RAW

    def wants_raw(self, index: int) -> bool:
        """Return whether the sample at ``index`` is stored as raw pixels whatever it is."""
        return self.mode == "raw" or (self.mode == "mix" and chance(self.seed, index) >= self.mix_fraction)

    def _prefers_jpeg(self, size: tuple[int, int], jpeg_bytes: int) -> bool:
        return size[0] * size[1] * 3 > self.smart_threshold * jpeg_bytes

    def _shrink(self, image: Image.Image | Pixels) -> Pixels:
        """Return an RGB image's pixels, no larger than wanted: the same as Pillow's, which takes many times as long."""
        pixels: Pixels = np.asarray(image)
        size = (pixels.shape[1], pixels.shape[0])
        smaller = target_size(size, self.max_resolution)
        return pixels if smaller == size else resize_rgb(pixels, smaller, resample=self.resample)


def _from_object(image: object, policy: ImagePolicy) -> Image.Image:
    """Return RGB for what a Python dataset delivers, or say clearly what it delivered."""
    if isinstance(image, Image.Image):
        check_pixels(image.size, policy.max_pixels)
        try:
            image.load()
        except Exception as error:
            raise SampleFault(f"cannot be decoded: {error or type(error).__name__}") from error
        # Not turned: an image that a program hands over has the pixels the program means.
        return as_rgb(image, background=policy.background, to_srgb=policy.to_srgb)
    if isinstance(image, np.ndarray):
        if image.dtype == np.uint8 and (image.ndim == 2 or (image.ndim == 3 and image.shape[2] in {1, 3, 4})):
            if 0 in image.shape:
                raise SampleFault(f"an array of shape {image.shape} holds no pixels")
            array = np.ascontiguousarray(image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image)
            return as_rgb(Image.fromarray(array), background=policy.background)
        raise unfit(image, "an image as uint8 of shape (height, width) or (height, width, 1, 3 or 4)")
    raise unfit(image, "an image as a file's bytes, a Pillow image or a uint8 array (height, width, channels)")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_colour(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 3:
        return False
    return all(_is_whole(level) and 0 <= level <= 255 for level in value)
