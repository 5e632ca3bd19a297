"""Helpers for programs built on the library: file sets, single JPEGs, and object stores.

The converters and the trainer use these. Training scripts rarely need them.
"""

from dataloading._native import (
    JpegInfo,
    check_jpeg,
    decode_jpeg,
    encode_jpeg,
    probe_jpeg,
    reencode_jpeg,
    resize_rgb,
    transcode_jpeg,
)
from dataloading.dataset.agreement import check_fields, common_classes, field_differences
from dataloading.dataset.files import FileSet
from dataloading.dataset.info import label_field
from dataloading.dataset.open_files import open_files
from dataloading.dataset.remote.clients import StoreClient, is_url
from dataloading.format import (
    MODE_JPEG,
    MODE_PNG,
    MODE_RAW,
    FileInfo,
    PartFolder,
    check_png_chunks,
    image_of,
    is_manifest,
    manifest_path,
    moved_coordinates,
    probe_file,
    remove_orphans,
    shard_path,
    sync_folder,
    whole_file,
)
from dataloading.format.layout import check_name
from dataloading.limits import cpu_quota, memory_bytes, memory_limit, num_cores, read_text, visible_cores
from dataloading.locks import open_locked
from dataloading.retry import Retry
from dataloading.sampling import random

__all__ = [
    "MODE_JPEG",
    "MODE_PNG",
    "MODE_RAW",
    "FileInfo",
    "FileSet",
    "JpegInfo",
    "PartFolder",
    "Retry",
    "StoreClient",
    "check_fields",
    "check_jpeg",
    "check_name",
    "check_png_chunks",
    "common_classes",
    "cpu_quota",
    "decode_jpeg",
    "encode_jpeg",
    "field_differences",
    "image_of",
    "is_manifest",
    "is_url",
    "label_field",
    "manifest_path",
    "memory_bytes",
    "memory_limit",
    "moved_coordinates",
    "num_cores",
    "open_files",
    "open_locked",
    "probe_file",
    "probe_jpeg",
    "random",
    "read_text",
    "reencode_jpeg",
    "remove_orphans",
    "resize_rgb",
    "shard_path",
    "sync_folder",
    "transcode_jpeg",
    "visible_cores",
    "whole_file",
]
