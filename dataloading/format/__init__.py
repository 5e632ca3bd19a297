"""The ``.beton`` file: layout, fields, reading, writing, verifying. NumPy and the standard library, plus xxhash."""

from __future__ import annotations

from .arrays import NDArrayField, TorchTensorField
from .base import Field, has_beton_kind
from .coordinates import absent_points, box_corners, boxes_as, image_of, moved_coordinates, numbers_as
from .extension import Extension
from .fields import BytesField, CustomField, FloatField, IntField, JSONField, TextField
from .file_info import FileInfo, probe_descriptors, probe_file, probe_header
from .images import MODE_JPEG, MODE_PNG, MODE_RAW, EncodedImage, ImageField, MaskField, RasterField
from .manifest import Manifest, Shard, is_manifest, manifest_path, set_of_shard, shard_path
from .output import PartFolder, remove_orphans, sync_folder, whole_file
from .png import check_png_chunks
from .ragged import VarArrayField
from .reader import Reader
from .regions import Region, regions
from .tables import TableSet, pointers_of
from .verify import Problem, VerifyReport, verify_file
from .writer import Writer

__all__ = [
    "MODE_JPEG",
    "MODE_PNG",
    "MODE_RAW",
    "BytesField",
    "CustomField",
    "EncodedImage",
    "Extension",
    "Field",
    "FileInfo",
    "FloatField",
    "ImageField",
    "IntField",
    "JSONField",
    "Manifest",
    "MaskField",
    "NDArrayField",
    "PartFolder",
    "Problem",
    "RasterField",
    "Reader",
    "Region",
    "Shard",
    "TableSet",
    "TextField",
    "TorchTensorField",
    "VarArrayField",
    "VerifyReport",
    "Writer",
    "absent_points",
    "box_corners",
    "boxes_as",
    "check_png_chunks",
    "has_beton_kind",
    "image_of",
    "is_manifest",
    "manifest_path",
    "moved_coordinates",
    "numbers_as",
    "pointers_of",
    "probe_descriptors",
    "probe_file",
    "probe_header",
    "regions",
    "remove_orphans",
    "set_of_shard",
    "shard_path",
    "sync_folder",
    "verify_file",
    "whole_file",
]
