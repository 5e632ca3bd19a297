"""`--keep files` stores JPEGs and PNGs byte for byte, everything else without loss, and every verb takes the result."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import converters
from dataloading import ConvertError, ImageField, IntField, Loader, RasterField, Reader, UsageError, decode_image
from dataloading import transforms as T
from tests.converters.making import encoded, photo
from tests.converters.sources.test_beton import beton

PHOTO = photo(40, 30)
EXIF = Image.Exif()
EXIF[0x0112] = 6
KEPT = {
    "a.jpg": encoded(PHOTO, "JPEG", progressive=True, comment=b"hello"),
    "b.png": encoded(PHOTO, "PNG", pnginfo=None),
    "c.jpg": encoded(PHOTO.convert("L"), "JPEG"),
}
CHANGED = {
    "d.png": encoded(PHOTO.convert("P"), "PNG"),
    "e.png": encoded(PHOTO.convert("RGBA"), "PNG"),
    "f.webp": encoded(PHOTO, "WEBP", lossless=True),
    "g.png": encoded(PHOTO, "PNG", exif=EXIF),
    "h.png": encoded(PHOTO.convert("L"), "PNG"),
}


FIELDS = {"image": ImageField(), "label": IntField()}


def folder(root: Path) -> Path:
    (root / "x").mkdir(parents=True)
    for name, data in (KEPT | CHANGED).items():
        (root / "x" / name).write_bytes(data)
    return root


def test_jpegs_and_pngs_stay_byte_for_byte_and_others_keep_every_pixel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = folder(tmp_path / "in"), tmp_path / "o.beton"
    assert beton("convert", "imagefolder", str(source), str(out), "--keep", "files", "--num-workers", "0") == 0
    told = capsys.readouterr()
    assert "3 kept, 5 png" in told.out
    assert "5 images could not stay as the file is" in told.err
    with Reader(out) as reader:
        assert reader.fields["image"] == RasterField(3)
        for index, data in enumerate(KEPT.values()):
            assert bytes(reader.value("image", index).data) == data  # type: ignore[attr-defined]
        for index, data in enumerate((KEPT | CHANGED).values()):
            shown = Image.open(io.BytesIO(data)).convert("RGB")
            shown = shown.transpose(Image.Transpose.ROTATE_270) if index == 6 else shown
            np.testing.assert_array_equal(decode_image(reader.value("image", index)), np.asarray(shown))  # type: ignore[arg-type]
    batch = next(iter(Loader(out, batch_size=8, num_workers=1, transforms={"image": [T.CenterCrop(24)]})))
    expected = torch.from_numpy(np.asarray(PHOTO)[3:27, 8:32].transpose(2, 0, 1).copy())
    assert torch.equal(batch["image"][1], expected)
    again, back = tmp_path / "again.beton", tmp_path / "back"
    assert beton("verify", str(out)) == 0
    assert beton("info", str(out)) == 0
    assert "2 JPEG, 0 raw, 6 PNG" in capsys.readouterr().out
    assert beton("export", str(out), str(back)) == 0
    assert (back / "x" / "00000001.png").read_bytes() == KEPT["b.png"]
    quick = ["--keep", "files", "--num-workers", "0", "-q"]
    assert beton("convert", "imagefolder", str(back), str(again), *quick) == 0
    assert beton("diff", str(out), str(again)) == 0


def test_gray_and_kept_channels_keep_their_pngs_too(tmp_path: Path) -> None:
    gray, alpha = KEPT["c.jpg"], CHANGED["e.png"]
    for channels, data, field in (
        ("gray", CHANGED["h.png"], RasterField(1)), ("gray", gray, RasterField(1)), ("keep", alpha, RasterField(4)),
        ("keep", KEPT["b.png"], RasterField(3)),
    ):  # fmt: skip
        options = {"overwrite": True, "keep": "files", "channels": channels}
        report = converters.write([(data, 0)], tmp_path / "o.beton", FIELDS, num_workers=0, quiet=True, **options)
        assert report.images == {"kept": 1}
        with Reader(tmp_path / "o.beton") as reader:
            assert reader.fields["image"] == field
            assert bytes(reader.value("image", 0).data) == data  # type: ignore[attr-defined]


def test_what_must_change_is_resized_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    fields = {"image": ImageField()}
    both = [(KEPT["a.jpg"],), (KEPT["b.png"],)]
    report = converters.write(
        both, tmp_path / "o.beton", fields, num_workers=0, quiet=True, keep="files", max_resolution=20
    )
    assert report.images == {"encoded": 1, "png": 1}
    damaged = bytearray(KEPT["b.png"])
    damaged[-40] ^= 1
    with pytest.raises(ConvertError, match=r"sample 0 .*PNG"):
        converters.write([(bytes(damaged),)], tmp_path / "p.beton", fields, num_workers=0, quiet=True, keep="files")
    with pytest.raises(UsageError, match="keep 'files' stores each file as it is, and mode 'raw' does not"):
        converters.ImagePolicy(keep="files", mode="raw")
