"""probe, decode, encode and transcode, one JPEG at a time."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import dataloading._native.jpeg as jpeg_module
import dataloading._native.library as library_module
import dataloading._native.regions as regions_module
from dataloading import _native as native
from dataloading.errors import DecodeError, UsageError

from .reference import photo, pillow_jpeg, pillow_pixels

KINDS = [
    {"quality": 90},
    {"quality": 75, "subsampling": 0},
    {"subsampling": 1},
    {"progressive": True},
    {"keep_rgb": True},
    {"restart_marker_blocks": 3},
    {"optimize": True, "comment": b"hello"},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (33, 17), (120, 201)])
def test_decode_is_pillows_and_transcode_changes_no_pixel(options: dict[str, object], size: tuple[int, int]) -> None:
    data = pillow_jpeg(photo(*size), **options)
    pixels = pillow_pixels(data)
    np.testing.assert_array_equal(native.decode_jpeg(data), pixels)
    for restart in ("auto", "none"):
        again = native.transcode_jpeg(data, restart=restart)
        np.testing.assert_array_equal(pillow_pixels(again), pixels)
        info = native.probe_jpeg(again)
        assert info.baseline
        assert restart == "auto" or info.restart_interval == 0


def luma(data: bytes) -> np.ndarray:
    """Brightness as libjpeg gives it: the first component, or a weighted sum of red, green and blue."""
    with Image.open(io.BytesIO(data)) as image:
        if native.probe_jpeg(data).colour_space == "rgb":
            red, green, blue = (pillow_pixels(data)[..., k].astype(np.int64) for k in range(3))
            return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
        image.draft("L", image.size)
        return np.asarray(image)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (33, 17), (120, 201)])
def test_planes_and_luma_are_those_of_libjpeg(options: dict[str, object], size: tuple[int, int], kernels: str) -> None:
    data = pillow_jpeg(photo(*size), **options)
    np.testing.assert_array_equal(native.decode_jpeg(data, layout="CHW"), pillow_pixels(data).transpose(2, 0, 1))
    np.testing.assert_array_equal(native.decode_jpeg(data, layout="HW"), luma(data))


def test_gray_images_come_in_every_layout() -> None:
    stream = io.BytesIO()
    Image.fromarray(photo(21, 34)[..., 1]).save(stream, "JPEG")
    gray = np.asarray(Image.open(stream))
    np.testing.assert_array_equal(native.decode_jpeg(stream.getvalue(), layout="HW"), gray)
    np.testing.assert_array_equal(native.decode_jpeg(stream.getvalue(), layout="CHW"), np.stack([gray] * 3))
    np.testing.assert_array_equal(native.decode_jpeg(stream.getvalue()), np.stack([gray] * 3, axis=-1))


def test_pixels_go_into_memory_of_the_caller() -> None:
    data = pillow_jpeg(photo(20, 30))
    for layout, shape in (("HWC", (20, 30, 3)), ("CHW", (3, 20, 30)), ("HW", (20, 30))):
        out = np.zeros(shape, np.uint8)
        assert native.decode_jpeg(data, layout=layout, out=out) is out
        np.testing.assert_array_equal(out, native.decode_jpeg(data, layout=layout))
    locked = np.zeros((20, 30, 3), np.uint8)
    locked.flags.writeable = False
    for wrong in (np.zeros((20, 30), np.uint8), np.zeros((20, 30, 3), np.int8), np.zeros((20, 60, 3), np.uint8)[:, ::2],
                  locked, bytearray(1800)):  # fmt: skip
        with pytest.raises(UsageError, match=r"out must be a contiguous, writable uint8 array of shape \(20, 30, 3\)"):
            native.decode_jpeg(data, out=wrong)
    with pytest.raises(UsageError, match="layout='WHC' is not one of 'HWC', 'CHW', 'HW'"):
        native.decode_jpeg(data, layout="WHC")


SIZES = [(1, 1), (8, 8), (9, 16), (16, 9), (33, 17), (63, 130), (120, 201)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("quality", [5, 75, 100])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_encode_gives_libjpegs_coefficients(
    size: tuple[int, int], quality: int, subsampling: str, kernels: str
) -> None:
    """Optimised tables follow from the coefficients, so equal bytes after the same recoding mean equal coefficients."""
    rng = np.random.default_rng(quality)
    pixels = photo(*size, quality, low=0, high=255) if quality < 100 else rng.integers(0, 256, (*size, 3), np.uint8)
    theirs = pillow_jpeg(pixels, quality=quality, subsampling=subsampling)
    assert native.encode_jpeg(
        pixels, quality=quality, subsampling=subsampling, restart="none"
    ) == native.transcode_jpeg(theirs, restart="none")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"keep_rgb": True}, {}])
def test_own_transcoding_gives_the_bytes_of_libjpegs(
    size: tuple[int, int], kind: dict[str, object], kernels: str
) -> None:
    """A progressive file goes through libjpeg, a baseline file of the same coefficients through our own code."""
    pixels = photo(*size, 3)
    if not kind:
        pixels = pixels[:, :, 0]
    profile = bytes(range(200))
    baseline = pillow_jpeg(pixels, icc_profile=profile, dpi=(72, 96), **kind)
    progressive = pillow_jpeg(pixels, icc_profile=profile, dpi=(72, 96), progressive=True, **kind)
    for keep_icc in (False, True):
        own = native.transcode_jpeg(baseline, restart="none", keep_icc=keep_icc)
        assert own == native.transcode_jpeg(progressive, restart="none", keep_icc=keep_icc)
        assert (profile in own) == keep_icc


@pytest.mark.parametrize("size", SIZES)
def test_restart_markers_come_and_go_without_loss(size: tuple[int, int], kernels: str) -> None:
    """Whatever interval a file has, taking the markers out gives the bytes of one that never had any."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    plain = native.encode_jpeg(pixels, restart="none")
    assert native.transcode_jpeg(native.encode_jpeg(pixels), restart="none") == plain
    for interval in (1, 2, 5, 8):
        marked = pillow_jpeg(pixels, subsampling=2, restart_marker_blocks=interval)
        assert native.transcode_jpeg(marked, restart="none") == plain
        again = native.transcode_jpeg(marked)
        assert native.transcode_jpeg(again, restart="none") == plain
        np.testing.assert_array_equal(native.decode_jpeg(again), pillow_pixels(marked))


def test_zero_runs_that_leave_their_block_are_damage() -> None:
    """libjpeg lets them pass; no encoder makes them."""
    data = bytearray(pillow_jpeg(np.full((8, 8), 128, np.uint8)))
    scan = data.index(b"\xff\xda")
    data = data[: scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")]
    # Standard luma tables: DC 0 is 00; three runs of 16 zeros (11111111001), then 15 zeros (1111111111110101) and a 1.
    bits = "00" + 3 * "11111111001" + "1111111111110101" + "1"
    bits += (-len(bits) % 8) * "1"
    scan_bytes = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    broken = bytes(data) + scan_bytes + b"\xff\xd9"
    for function in (native.decode_jpeg, native.transcode_jpeg):
        with pytest.raises(DecodeError, match="invalid entropy code"):
            function(broken)


def test_probe_reads_what_pillow_wrote() -> None:
    info = native.probe_jpeg(pillow_jpeg(photo(45, 70), progressive=True, subsampling=1))
    assert (info.width, info.height, info.num_components) == (70, 45, 3)
    assert (info.subsampling, info.progressive, info.arithmetic, info.colour_space) == ("4:2:2", True, False, "ycbcr")
    assert (info.mcu_width, info.mcu_height, info.mcus_per_row, info.mcu_rows) == (16, 8, 5, 6)
    assert native.probe_jpeg(pillow_jpeg(photo(9, 9)[:, :, 0])).subsampling == "4:0:0"
    assert native.probe_jpeg(pillow_jpeg(photo(9, 9), keep_rgb=True)).colour_space == "rgb"
    stream = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(stream, "JPEG")
    assert native.probe_jpeg(stream.getvalue()).colour_space in ("cmyk", "ycck")


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0", "4:1:0"])
def test_encode_round_trips_its_subsampling(subsampling: str) -> None:
    pixels = photo(64, 96, 1)
    data = native.encode_jpeg(pixels, quality=95, subsampling=subsampling)
    assert native.probe_jpeg(data).subsampling == subsampling
    assert np.abs(pillow_pixels(data).astype(int) - pixels).mean() < 8


def test_encode_is_deterministic_and_never_larger_than_standard_tables() -> None:
    """FFCV's writer (OpenCV) uses the standard Huffman tables; our markers must fit in what better tables save."""
    for i, (height, width) in enumerate([(8, 8), (32, 32), (120, 90), (375, 500), (500, 333), (64, 2000), (2000, 40)]):
        pixels = photo(height, width, i)
        for quality in (50, 90):
            ours = native.encode_jpeg(pixels, quality=quality)
            assert ours == native.encode_jpeg(pixels.copy(), quality=quality)
            assert len(ours) <= len(pillow_jpeg(pixels, quality=quality, subsampling=2))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_reencode_is_nearer_to_its_source_than_a_way_through_rgb(
    size: tuple[int, int], subsampling: str, kernels: str
) -> None:
    data = pillow_jpeg(photo(*size), quality=90, subsampling=subsampling)
    source = native.decode_jpeg(data).astype(int)

    def error(stored: bytes) -> float:
        assert native.probe_jpeg(stored).subsampling == subsampling
        return float(((native.decode_jpeg(stored) - source) ** 2).mean())

    for quality in (50, 90):
        again = native.reencode_jpeg(data, quality=quality, subsampling=subsampling)
        assert again is not None
        through_rgb = native.encode_jpeg(source.astype(np.uint8), quality=quality, subsampling=subsampling)
        assert error(again) <= (max(error(through_rgb), 0.05) if quality == 90 else 1.1 * error(through_rgb) + 1)
        # The same tables: the quality is what was asked for.
        tables = [np.asarray(table) for table in Image.open(io.BytesIO(again)).quantization.values()]
        expected = Image.open(io.BytesIO(through_rgb)).quantization.values()
        assert all((one == np.asarray(other)).all() for one, other in zip(tables, expected, strict=True))
        native.use_kernels("portable")
        assert native.reencode_jpeg(data, quality=quality, subsampling=subsampling) == again
        native.use_kernels(kernels)


def test_reencode_leaves_other_kinds_and_damage_to_the_way_through_pixels() -> None:
    data = pillow_jpeg(photo(64, 96))
    for options in ({"subsampling": 0}, {"progressive": True}, {"keep_rgb": True}):
        assert native.reencode_jpeg(pillow_jpeg(photo(64, 96), **options)) is None
    buffer = io.BytesIO()
    Image.fromarray(photo(64, 96)[:, :, 0]).save(buffer, "JPEG")
    assert native.reencode_jpeg(buffer.getvalue()) is None
    assert native.reencode_jpeg(data[: len(data) // 2]) is None
    notes: list[str] = []
    assert native.reencode_jpeg(data[:-2] + b"\0\0\0" + data[-2:], notes=notes) is not None
    assert len(notes) == 1
    with pytest.raises(DecodeError):
        native.reencode_jpeg(b"\xff\xd8 no header")


def test_images_with_next_to_no_data_get_few_markers_or_none() -> None:
    flat = np.full((400, 600, 3), 90, np.uint8)
    assert len(native.encode_jpeg(flat)) <= 1.03 * len(native.encode_jpeg(flat, restart="none"))


def test_photographs_are_cut_into_about_four_segments_a_row() -> None:
    rng = np.random.default_rng(0)
    for width in (300, 333, 375, 480, 496, 500):
        textured = photo(160, width) // 2 + rng.integers(0, 100, (160, width, 3), dtype=np.uint8)
        info = native.probe_jpeg(native.encode_jpeg(textured))
        segments = info.mcus_per_row / info.restart_interval
        assert 2 < segments <= 6, (width, segments)


def test_encode_takes_strided_rows() -> None:
    pixels = photo(40, 60)
    assert native.encode_jpeg(pixels[:, :33]) == native.encode_jpeg(pixels[:, :33].copy())
    assert native.encode_jpeg(pixels[::-2, ::-1]) == native.encode_jpeg(pixels[::-2, ::-1].copy())


def test_transcode_drops_metadata_and_keeps_the_profile_on_request() -> None:
    profile = bytes(range(256)) * 40
    exif = Image.Exif()
    exif[0x0112] = 6
    data = pillow_jpeg(photo(30, 30), icc_profile=profile, exif=exif, comment=b"note")
    plain = Image.open(io.BytesIO(native.transcode_jpeg(data)))
    assert "icc_profile" not in plain.info
    assert "exif" not in plain.info
    assert "comment" not in plain.info
    assert Image.open(io.BytesIO(native.transcode_jpeg(data, keep_icc=True))).info["icc_profile"] == profile


def test_trailing_bytes_are_ignored_and_stray_bytes_inside_are_reported() -> None:
    data = native.encode_jpeg(photo(30, 30))
    for changed, told in ((data + b"\0garbage" * 100, 0), (data[:-2] + bytes(64) + data[-2:], 1)):
        notes: list[str] = []
        np.testing.assert_array_equal(native.decode_jpeg(changed, notes=notes), native.decode_jpeg(data))
        assert len(notes) == told


def test_all_bytes_like_inputs_are_taken() -> None:
    data = native.encode_jpeg(photo(20, 20))
    for given in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert native.probe_jpeg(given).width == 20
        assert native.decode_jpeg(given).shape == (20, 20, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pixels_HWC": np.zeros((4, 4), np.uint8)}, "shape"),
        ({"pixels_HWC": np.zeros((4, 4, 3), np.float32)}, "uint8"),
        ({"pixels_HWC": np.zeros((0, 4, 3), np.uint8)}, "shape"),
        ({"quality": 0}, "quality"),
        ({"quality": 101}, "quality"),
        ({"subsampling": "4:3:2"}, "subsampling"),
        ({"restart": "often"}, "restart"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        native.encode_jpeg(**{"pixels_HWC": np.zeros((4, 4, 3), np.uint8), **arguments})


def test_requests_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="REQUEST"):
        native.decode_regions(np.zeros(3, np.uint8))
    with pytest.raises(TypeError, match="contiguous"):
        native.decode_regions(np.zeros(4, native.REQUEST)[::2])


def test_a_missing_library_says_how_to_build_it(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BETON_NATIVE_LIBRARY", raising=False)
    monkeypatch.setattr(native, "__path__", [str(tmp_path)])
    with pytest.raises(ImportError, match="cmake --build"):
        library_module.library_path()


@pytest.mark.parametrize("module", [jpeg_module, regions_module, library_module])
def test_examples_in_docstrings_run(module) -> None:
    import doctest

    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
    native.use_kernels("auto")


@pytest.mark.parametrize("options", [{"quality": 0}, {"quality": 101}, {"subsampling": "4:2:1"}], ids=str)
def test_reencode_refuses_the_options_that_encode_refuses(options: dict[str, object]) -> None:
    for call in (lambda: native.encode_jpeg(photo(8, 8), **options),
                 lambda: native.reencode_jpeg(pillow_jpeg(photo(8, 8)), **options)):  # fmt: skip
        with pytest.raises(UsageError, match=r"quality must be from 1 to 100|subsampling must be one of"):
            call()
