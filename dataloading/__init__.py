"""Feed training from ``.beton`` files: the public names of the library, loaded on first use.

This is the front door. Importing it costs nothing: neither torch nor numba, no native library, no global state.
A name's module is imported when the name is first touched, so the converters start fast and need no torch.

Examples
--------
>>> import dataloading
>>> "Loader" in dir(dataloading)
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import transforms
    from ._native import JpegInfo, check_jpeg, decode_jpeg, encode_jpeg, probe_jpeg, resize_rgb, transcode_jpeg
    from .batch import Batch
    from .ceiling import KernelCeiling, KernelTimes
    from .checks import true_or_false
    from .dataset import label_field
    from .errors import (
        BetonError,
        ChecksumError,
        ConvertError,
        DecodeError,
        FormatError,
        SampleError,
        StateError,
        StorageError,
        TransformError,
        UsageError,
        WorkerError,
    )
    from .files import check_all_named
    from .format import (
        BytesField,
        EncodedImage,
        Field,
        FloatField,
        ImageField,
        IntField,
        JSONField,
        Manifest,
        MaskField,
        NDArrayField,
        PartFolder,
        Problem,
        RasterField,
        Reader,
        Shard,
        TextField,
        TorchTensorField,
        VarArrayField,
        VerifyReport,
        Writer,
        check_png_chunks,
        image_of,
        is_manifest,
        manifest_path,
        moved_coordinates,
        remove_orphans,
        shard_path,
        sync_folder,
        verify_file,
    )
    from .format.layout import check_name
    from .loader import Loader
    from .machine import num_cores
    from .mixture import Mixture
    from .pagecache.clients import StoreClient
    from .quality import ShuffleQuality, WindowQuality
    from .selection import compare_windows
    from .stored import decode_image
    from .words import counted, describe, did_you_mean

# Public name -> module that defines it. One line here and one above makes a name public.
_HOME = {
    "BetonError": "errors",
    "ChecksumError": "errors",
    "ConvertError": "errors",
    "DecodeError": "errors",
    "FormatError": "errors",
    "SampleError": "errors",
    "StateError": "errors",
    "StorageError": "errors",
    "TransformError": "errors",
    "UsageError": "errors",
    "WorkerError": "errors",
    "Batch": "batch",
    "KernelCeiling": "ceiling",
    "KernelTimes": "ceiling",
    "Loader": "loader",
    "Mixture": "mixture",
    "ShuffleQuality": "quality",
    "WindowQuality": "quality",
    "compare_windows": "selection",
    "BytesField": "format",
    "EncodedImage": "format",
    "Field": "format",
    "FloatField": "format",
    "ImageField": "format",
    "IntField": "format",
    "JSONField": "format",
    "Manifest": "format",
    "MaskField": "format",
    "NDArrayField": "format",
    "PartFolder": "format",
    "Problem": "format",
    "RasterField": "format",
    "Reader": "format",
    "StoreClient": "pagecache.clients",
    "Shard": "format",
    "TextField": "format",
    "TorchTensorField": "format",
    "VarArrayField": "format",
    "VerifyReport": "format",
    "Writer": "format",
    "image_of": "format",
    "is_manifest": "format",
    "check_all_named": "files",
    "check_name": "format.layout",
    "counted": "words",
    "decode_image": "stored",
    "describe": "words",
    "did_you_mean": "words",
    "label_field": "dataset",
    "manifest_path": "format",
    "moved_coordinates": "format",
    "num_cores": "machine",
    "remove_orphans": "format",
    "shard_path": "format",
    "check_png_chunks": "format",
    "sync_folder": "format",
    "true_or_false": "checks",
    "verify_file": "format",
    "JpegInfo": "_native",
    "check_jpeg": "_native",
    "decode_jpeg": "_native",
    "encode_jpeg": "_native",
    "probe_jpeg": "_native",
    "resize_rgb": "_native",
    "transcode_jpeg": "_native",
}
_MODULES = frozenset({"errors", "transforms"})

__all__ = [
    "Batch",
    "BetonError",
    "BytesField",
    "ChecksumError",
    "ConvertError",
    "DecodeError",
    "EncodedImage",
    "Field",
    "FloatField",
    "FormatError",
    "ImageField",
    "IntField",
    "JSONField",
    "JpegInfo",
    "KernelCeiling",
    "KernelTimes",
    "Loader",
    "Manifest",
    "MaskField",
    "Mixture",
    "NDArrayField",
    "PartFolder",
    "Problem",
    "RasterField",
    "Reader",
    "SampleError",
    "Shard",
    "ShuffleQuality",
    "StateError",
    "StorageError",
    "StoreClient",
    "TextField",
    "TorchTensorField",
    "TransformError",
    "UsageError",
    "VarArrayField",
    "VerifyReport",
    "WindowQuality",
    "WorkerError",
    "Writer",
    "__version__",
    "check_all_named",
    "check_jpeg",
    "check_name",
    "check_png_chunks",
    "compare_windows",
    "counted",
    "decode_image",
    "decode_jpeg",
    "describe",
    "did_you_mean",
    "encode_jpeg",
    "image_of",
    "is_manifest",
    "label_field",
    "manifest_path",
    "moved_coordinates",
    "num_cores",
    "probe_jpeg",
    "remove_orphans",
    "resize_rgb",
    "shard_path",
    "sync_folder",
    "transcode_jpeg",
    "transforms",
    "true_or_false",
    "verify_file",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    home = _HOME.get(name)
    if home is None:
        from .words import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and '. ' + hint}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
