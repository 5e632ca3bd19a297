"""The format page tells the truth: its code for reading a file without this library is run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dataloading.format import MODE_JPEG, EncodedImage, ImageField, IntField, Writer, extension
from tests.support.files import jpeg, photo_like

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def test_the_documented_code_reads_a_file_with_numpy_alone(tmp_path: Path, capsys: object) -> None:
    pixels = photo_like(np.random.default_rng(0), 40, 50)
    for name, value in (("raw", pixels), ("jpg", jpeg(pixels))):
        path = tmp_path / f"{name}.beton"
        fields = {"image": ImageField(), "label": IntField()}
        with Writer(path, fields, num_samples=1, class_names=["cat", "dog"]) as writer:
            writer.append({"image": value, "label": 7})
        [code] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "np.memmap" in block]
        assert "dataloading" not in code
        found: dict[str, object] = {}
        exec(code.replace('"train.beton"', repr(str(path))), found)
        assert found["names"] == ["image", "label"] and found["entry"]["label"] == 7  # type: ignore[index]
        picture = np.asarray(found["picture"])
        assert picture.shape == pixels.shape
        if isinstance(value, EncodedImage):
            assert value.mode == MODE_JPEG and found["data"] == value.data
        else:
            assert np.array_equal(picture, pixels)
        assert capsys.readouterr().out == "['cat', 'dog']\n"  # type: ignore[attr-defined]


def test_the_documented_numbers_are_those_of_the_code() -> None:
    assert extension.LOCATOR_POSITION == 1001 and "byte 1,001" in PAGE
    assert f"({extension.BLOCK_BYTES:,})" in PAGE
    assert extension.MAGIC.hex(" ") in PAGE
    for name in ("text_xxh3", "header_xxh3", "file_bytes", "own_xxh3", *(extension.LOCATOR.names or ())):
        assert f"`{name}`" in PAGE
    for key in extension.Extension.__dataclass_fields__:
        assert f"`{key}`" in PAGE
