"""Use an installed wheel; run outside the source tree, by wheel.sh and by the workflow that builds the wheels."""

from pathlib import Path

import numpy as np

import dataloading
from dataloading import EncodedImage, ImageField, IntField, Writer, _native
from dataloading.tools import decode_jpeg, encode_jpeg

library = Path(_native.library_path())
assert "site-packages" in str(library), library
bundled = [path.name for path in library.parents[2].glob("beton.libs/libjpeg*")]
assert bundled, "libjpeg is not in the wheel"
assert any("beton.libs" in line for line in Path("/proc/self/maps").read_text().splitlines())
assert _native.kernels_in_use() != "portable", "no vector kernels"
pixels = np.random.default_rng(0).integers(100, 156, (37, 149, 3), np.uint8)
jpeg = encode_jpeg(pixels, quality=100, subsampling="4:4:4")
with Writer("one.beton", {"image": ImageField(), "label": IntField()}, num_samples=1) as writer:
    writer.append({"image": EncodedImage(0, 149, 37, jpeg), "label": 0})
with dataloading.Reader("one.beton") as reader:
    decoded = decode_jpeg(bytes(reader.view("image", 0)))
assert np.abs(decoded.astype(int) - pixels).max() <= 4
_native.use_kernels("portable")
assert encode_jpeg(pixels, quality=100, subsampling="4:4:4") == jpeg
assert np.array_equal(decode_jpeg(jpeg), decoded)
