"""Every public name of FFCV 1.0.2: it is here, or the documentation and an error say what to take."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dataloading.ffcv.absent import INSTEAD, Absent

NAMES = {
    "": "Loader DatasetWriter __version__",
    "fields": "Field BytesField IntField FloatField RGBImageField NDArrayField JSONField TorchTensorField",
    "fields.base": "Field ARG_TYPE",
    "fields.basics": "BasicDecoder IntDecoder FloatDecoder IntField FloatField",
    "fields.bytes": "BytesDecoder BytesField",
    "fields.decoders": "FloatDecoder IntDecoder NDArrayDecoder RandomResizedCropRGBImageDecoder "
    "CenterCropRGBImageDecoder SimpleRGBImageDecoder BytesDecoder",
    "fields.json": "JSONField",
    "fields.ndarray": "NDArrayDecoder NDArrayField TorchTensorField",
    "fields.rgb_image": "IMAGE_MODES RGBImageField SimpleRGBImageDecoder ResizedCropRGBImageDecoder encode_jpeg "
    "RandomResizedCropRGBImageDecoder CenterCropRGBImageDecoder get_center_crop get_random_crop resizer",
    "libffcv": "imdecode memcpy read resize_crop",
    "loader": "Loader OrderOption",
    "loader.loader": "Loader OrderOption ORDER_MAP ORDER_TYPE",
    "memory_managers": "OSCacheManager ProcessCacheManager MemoryManager MemoryContext",
    "memory_managers.base": "MemoryManager MemoryContext",
    "memory_managers.os_cache": "OSCacheManager OSCacheContext",
    "pipeline": "PipelineSpec Compiler",
    "pipeline.allocation_query": "AllocationQuery allocate_query",
    "pipeline.compiler": "Compiler",
    "pipeline.operation": "Operation AllocationQuery",
    "pipeline.pipeline_spec": "PipelineSpec",
    "pipeline.state": "State",
    "reader": "Reader",
    "transforms": "ToTensor ToDevice ToTorchImage NormalizeImage Convert Squeeze View RandomResizedCrop Cutout Poison "
    "RandomHorizontalFlip RandomTranslate ImageMixup LabelMixup MixupToOneHot ReplaceLabel ModuleWrapper "
    "RandomBrightness RandomContrast RandomSaturation",
    "transforms.color_jitter": "RandomBrightness RandomContrast RandomSaturation",
    "transforms.common": "Squeeze",
    "transforms.cutout": "Cutout",
    "transforms.flip": "RandomHorizontalFlip",
    "transforms.mixup": "ImageMixup LabelMixup MixupToOneHot",
    "transforms.module": "ModuleWrapper",
    "transforms.normalize": "NormalizeImage",
    "transforms.ops": "Convert ToDevice ToTensor ToTorchImage View",
    "transforms.poisoning": "Poison",
    "transforms.random_resized_crop": "RandomResizedCrop",
    "transforms.replace_label": "ReplaceLabel",
    "transforms.translate": "RandomTranslate",
    "traversal_order": "Sequential Random QuasiRandom",
    "traversal_order.base": "TraversalOrder",
    "traversal_order.quasi_random": "QuasiRandom",
    "traversal_order.random": "Random",
    "traversal_order.sequential": "Sequential",
    "writer": "DatasetWriter MIN_PAGE_SIZE MAX_PAGE_SIZE",
}
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from-ffcv.md").read_text()


@pytest.mark.parametrize("module", NAMES)
def test_a_public_name_of_ffcv_is_here_and_on_the_page(module):
    ours = importlib.import_module(f"dataloading.ffcv.{module}".rstrip("."))
    for name in NAMES[module].split():
        assert hasattr(ours, name), name
        assert name.startswith("__") or f"`{name}" in PAGE, name


def test_modules_that_are_not_here_say_what_to_take_and_the_page_does():
    for name in INSTEAD:
        with pytest.raises(ModuleNotFoundError, match=rf"has no {name}.inner. Take "):
            Absent().find_spec(f"{name}.inner", None)
        assert f"`{name.removeprefix('ffcv.')}`" in PAGE, name
    assert Absent().find_spec("ffcv.loader", None) is None
