"""How the golden files were made. Tests never run this; see README.md before you do."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
COUNT = 9
PAGE = 1 << 21


def sample(index: int) -> dict[str, Any]:
    """The values of sample ``index`` in both files; the odd ones' images are tiny.jpg."""
    return {
        "image": np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) + np.uint8(index),
        "label": (-1) ** index * index * 10**15,
        "weight": float("inf") if index == 0 else index / 3,
        "text": bytes(range(index + 1)),
        "box": np.arange(6, dtype=np.float32).reshape(2, 3) / (index + 1),
        "wide": np.array([index, -index], np.int16),
        "meta": {"index": index, "name": "ü" * index, "nested": [None, {"a": 0.5}]},
    }


def write_ours(path: Path) -> None:
    """Write beton-1.beton; the test compares its bytes with the golden file's."""
    from dataloading import format as beton

    fields = {
        "image": beton.ImageField(),
        "label": beton.IntField(),
        "weight": beton.FloatField(),
        "text": beton.BytesField(),
        "box": beton.NDArrayField("float32", (2, 3)),
        "wide": beton.TorchTensorField("int16", (2,)),
        "meta": beton.JSONField(),
    }
    tiny = (HERE / "tiny.jpg").read_bytes()
    with beton.Writer(
        path,
        fields,
        num_samples=COUNT + 2,
        page_size=PAGE,
        class_names=["cat", "größer als eine Maus"],
        provenance={"source": "golden", "options": {"quality": 90}},
        field_facts={"image": {"restart_markers": False}},
    ) as writer:
        for index in range(COUNT):
            values = sample(index)
            if index % 2:
                values["image"] = beton.EncodedImage(beton.MODE_JPEG, 6, 4, tiny)
            writer.append(values)


def write_theirs(path: Path) -> None:
    """Write ffcv-1.0.2.beton with the real FFCV, two workers, raw images."""
    import torch
    from ffcv import fields
    from ffcv.writer import DatasetWriter

    class Samples:
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> tuple[Any, ...]:
            values = sample(int(index))
            values["text"] = np.frombuffer(values["text"], np.uint8)
            values["wide"] = torch.from_numpy(values["wide"])
            return tuple(values.values())

    kinds = {
        "image": fields.RGBImageField(write_mode="raw"),
        "label": fields.IntField(),
        "weight": fields.FloatField(),
        "text": fields.BytesField(),
        "box": fields.NDArrayField(np.dtype("float32"), (2, 3)),
        "wide": fields.TorchTensorField(torch.int16, (2,)),
        "meta": fields.JSONField(),
    }
    DatasetWriter(str(path), kinds, page_size=PAGE, num_workers=2).from_indexed_dataset(Samples(), chunksize=2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("beton-1.beton", write_ours), ("ffcv-1.0.2.beton", write_theirs)):
            write(Path(folder) / name)
            packed = gzip.compress((Path(folder) / name).read_bytes(), mtime=0)
            (HERE / f"{name}.gz").write_bytes(packed)
