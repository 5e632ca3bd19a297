"""Image files as no encoder should write them: read as Pillow reads them, told of, or refused; what is done then."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path

import click.testing
import numpy as np
import pytest
from PIL import Image, ImageFile

from converters.cli import convert as convert_command
from converters.engine.convert import Options, convert
from converters.images.pillow_files import open_pillow
from converters.images.policy import ImagePolicy
from converters.images.store import store_image
from converters.report import Report
from converters.source import SampleFault
from converters.sources.imagefolder import ImageFolder
from dataloading import (
    ConvertError,
    DecodeError,
    EncodedImage,
    Loader,
    MaskField,
    RasterField,
    UsageError,
    Writer,
    decode_image,
    verify_file,
)
from dataloading import transforms as T
from dataloading.tools import decode_jpeg as decode
from tests.converters.making import encoded, photo, pillow_pixels
from tests.native.odd_files import damaged, readable

READABLE, DAMAGED = readable(), damaged()
PLAIN = [name for name in READABLE if name.startswith(("plain", "markers")) and "first marker" not in name]


def folder(root: Path, files: dict[str, bytes]) -> Path:
    (root / "a").mkdir(parents=True)
    for name, data in files.items():
        (root / "a" / name).write_bytes(data)
    return root


def write(root: Path, out: Path, *, policy: ImagePolicy | None = None, **options: object) -> Report:
    return convert(ImageFolder(root), out, policy=policy or ImagePolicy(), options=Options(**options))  # type: ignore[arg-type]


def loaded(path: Path) -> list[np.ndarray]:
    """Every image of a file whole, through the path that cuts regions out."""
    loader = Loader(path, batch_size=1, transforms={"image": [T.AsList()]}, num_workers=1)
    return [np.asarray(batch["image"][0]).transpose(1, 2, 0) for batch in loader]


@pytest.mark.parametrize("keep", ["pixels", "bytes", "never"])
def test_odd_jpegs_convert_verify_and_load_with_pillows_pixels(tmp_path: Path, keep: str) -> None:
    files = {f"{number:02}.jpg": READABLE[name][0] for number, name in enumerate(PLAIN)}
    source, out = folder(tmp_path / "src", files), tmp_path / "o.beton"
    report = write(source, out, policy=ImagePolicy(keep=keep, mode="raw" if keep == "never" else "jpg"))  # type: ignore[arg-type]
    assert report.num_samples == len(files)
    assert verify_file(out, decode=decode, decode_all=True).ok
    for pixels, data in zip(loaded(out), files.values(), strict=True):
        np.testing.assert_array_equal(pixels, pillow_pixels(data))
    strayed = {item.name for item in report.tidied}
    expected = {f"a/{number:02}.jpg" for number, name in enumerate(PLAIN) if "stray" in name or "junk" in name}
    expected |= {f"a/{number:02}.jpg" for number, name in enumerate(PLAIN) if "zeros" in name}
    expected -= {f"a/{number:02}.jpg" for number, name in enumerate(PLAIN) if "stray restart" in name}
    assert strayed == expected
    assert all("stray byte" in item.reason for item in report.tidied)
    assert all(("kept" in item.reason) == (keep == "bytes") for item in report.tidied)


def test_what_was_tidied_is_counted_listed_and_kept_over_an_interruption(tmp_path: Path) -> None:
    stray = READABLE["plain: stray bytes before the end"][0]
    bad = DAMAGED["cut"]
    source = folder(tmp_path / "src", {"0.jpg": stray, "1.jpg": READABLE["plain: empty DHT"][1], "2.jpg": bad})
    out, log = tmp_path / "o.beton", tmp_path / "log.json"
    with pytest.raises(ConvertError, match=r"sample 2 .*2\.jpg.*premature end.*keep stores what Pillow shows"):
        write(source, out, checkpoint_seconds=1e-9)
    report = write(source, out, on_error="skip", resume=True, error_log=str(log))
    assert report.num_resumed > 0
    facts = json.loads(log.read_text())
    listed = [{"index": 0, "name": "a/0.jpg", "reason": "3 stray bytes between the segments"}]
    assert (facts["num_tidied"], facts["tidied"]) == (1, listed)
    assert report.as_dict()["tidied"] == listed
    assert (facts["num_skipped"], facts["num_damaged"]) == (1, 0)
    assert "tidied (JPEGs with stray bytes; no pixel suffers): 1" in str(report)


def test_damage_stays_an_error_unless_it_is_kept_as_pillow_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    png = encoded(photo(60, 50, 3), "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(photo(80, 60, 4), "JPEG", exif=exif)
    files = {
        "0.jpg": DAMAGED["cut"],
        "1.jpg": DAMAGED["no end"],
        "2.jpg": DAMAGED["a lost restart marker"],
        "3.png": png[: len(png) * 2 // 3],
        "4.jpg": turned[: len(turned) // 2],
        "5.jpg": b"<html>not found</html>",
        "6.jpg": encoded(photo(30, 40), "JPEG"),
    }
    source, out = folder(tmp_path / "src", files), tmp_path / "o.beton"
    for number in range(5):
        with pytest.raises(SampleFault):
            store_image(ImagePolicy(), files[sorted(files)[number]], 0)
    report = write(source, out, policy=ImagePolicy(mode="raw"), on_error="keep")
    assert [item.index for item in report.damaged] == [0, 1, 2, 3, 4]
    assert [(item.index, item.name) for item in report.skipped] == [(5, "a/5.jpg")]
    assert report.num_samples == 6
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    assert "damaged, stored as Pillow shows them: 5" in str(report)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    stored = loaded(out)
    for number in (0, 1, 2, 3):
        np.testing.assert_array_equal(stored[number], pillow_pixels(files[sorted(files)[number]]))
    np.testing.assert_array_equal(stored[4], np.rot90(pillow_pixels(files["4.jpg"]), -1))


def test_a_damaged_gray_image_is_kept_in_its_field(tmp_path: Path) -> None:
    data = encoded(photo(64, 64).convert("L"), "JPEG")
    source = folder(tmp_path / "src", {"0.jpg": data, "1.jpg": data[: len(data) // 2]})
    report = write(source, tmp_path / "o.beton", policy=ImagePolicy(channels="keep"), on_error="keep")
    assert (report.num_samples, len(report.damaged)) == (2, 1)


@pytest.mark.parametrize("extra", [b"\0junk", b"\xff\0junk"])
def test_orientation_is_found_behind_junk(extra: bytes) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo(40, 30), "JPEG", exif=exif)
    odd = data[:20] + extra + data[20:]
    stored, _ = store_image(ImagePolicy(mode="raw"), odd, 0)
    assert (stored.width, stored.height) == (30, 40)
    np.testing.assert_array_equal(decode_image(stored), np.rot90(pillow_pixels(data), -1))


def test_files_that_would_start_another_program_are_refused_at_once(tmp_path: Path) -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n{} loop\n%%EOF\n"
    with pytest.raises(SampleFault, match="not an image that can be read"):
        store_image(ImagePolicy(), eps, 0)
    with pytest.raises(SampleFault, match="not an image that can be read"):
        store_image(ImagePolicy(channels="keep"), eps, 0, RasterField())
    with pytest.raises(SampleFault, match="not an image that can be read"):
        store_image(ImagePolicy(), eps, 0, MaskField())


def chunks(data: bytes) -> list[tuple[int, int, bytes]]:
    found, at = [], 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((at, size, data[at + 4 : at + 8]))
        at += 12 + size
    return found


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1", "I;16"])
def test_every_flipped_bit_of_a_png_is_refused(mode: str) -> None:
    image = photo(40, 30).convert("RGB" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray((np.arange(1200, dtype=np.uint16) * 50).reshape(30, 40))
    data = encoded(image, "PNG", dpi=(72, 72))
    policy, rng = ImagePolicy(), np.random.default_rng(0)
    store_image(policy, data, 0)
    for at in rng.integers(8, len(data), 60):
        broken = bytearray(data)
        broken[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(SampleFault):
            store_image(policy, bytes(broken), 0)
    for kind in (b"IDAT", b"IEND", b"pHYs"):
        place, size, _ = next(each for each in chunks(data) if each[2] == kind)
        broken = bytearray(data)
        broken[place + 8 + size] ^= 1
        with pytest.raises(SampleFault, match=f"chunk b'{kind.decode()}' at byte {place} is damaged"):
            store_image(policy, bytes(broken), 0)
    for length in (len(data) - 1, len(data) - 12, len(data) - 20):
        with pytest.raises(SampleFault, match="ends early"):
            store_image(policy, data[:length], 0)
    np.testing.assert_array_equal(
        decode_image(store_image(ImagePolicy(mode="raw"), data + b"garbage", 0)[0]),
        decode_image(store_image(ImagePolicy(mode="raw"), data, 0)[0]),
    )


def test_a_stored_png_with_a_flipped_bit_is_refused_by_the_decoder() -> None:
    stored, _ = store_image(ImagePolicy(channels="keep", mode="png"), encoded(photo(40, 30), "PNG"), 0, RasterField(3))
    assert stored.mode == 2
    broken = bytearray(bytes(stored.data))
    place, size, _ = next(each for each in chunks(bytes(broken)) if each[2] == b"IDAT")
    body = bytearray(zlib.decompress(bytes(broken[place + 8 : place + 8 + size])))
    assert body
    broken[place + 8 + size - 6] ^= 4
    with pytest.raises(Exception, match=r"IDAT.*damaged"):
        decode_image(type(stored)(stored.mode, stored.width, stored.height, bytes(broken), 3))


def test_premultiplied_gray_shows_what_gray_with_alpha_shows() -> None:
    rgba = photo(40, 30).convert("RGBA")
    rgba.putalpha(Image.fromarray((np.arange(1200) % 256).astype(np.uint8).reshape(30, 40)))
    data = encoded(rgba.convert("LA"), "TIFF").replace(
        b"\x52\x01\x03\0\x01\0\0\0\x02\0", b"\x52\x01\x03\0\x01\0\0\0\x01\0"
    )
    image = open_pillow(data)
    assert image.mode == "La"
    expected = Image.new("RGBA", image.size, (255, 255, 255, 255))
    expected.alpha_composite(image.convert("LA").convert("RGBA"))
    for value in (data, image):
        stored, _ = store_image(ImagePolicy(mode="raw"), value, 0)
        np.testing.assert_array_equal(decode_image(stored), np.asarray(expected.convert("RGB")))
    gray, _ = store_image(ImagePolicy(mode="raw", channels="gray"), data, 0, RasterField(1))
    np.testing.assert_array_equal(decode_image(gray), np.asarray(expected.convert("RGB").convert("L")))
    kept, _ = store_image(ImagePolicy(mode="raw", channels="keep"), data, 0, RasterField(2))
    np.testing.assert_array_equal(decode_image(kept), np.asarray(image.convert("LA")))


def test_damaged_tiffs_are_refused_with_what_libtiff_says_and_stderr_stays_empty(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Pillow delivers faxes with wrong rows; libtiff says so on stderr only."""
    bits = Image.fromarray(((np.indices((60, 80)).prod(axis=0) % 7 < 3) * 255).astype(np.uint8)).convert("1")
    fax, lzw = encoded(bits, "TIFF", compression="group4"), encoded(photo(60, 40), "TIFF", compression="tiff_lzw")
    for data, words in ((fax, "Fax4Decode"), (lzw, "LZW|code not yet")):
        place = data.index(data[8:40]) + 40
        broken = bytearray(data)
        for at in range(place, place + 12):
            broken[at] ^= 0x5A
        with pytest.raises(SampleFault, match=words):
            store_image(ImagePolicy(), bytes(broken), 0)
        store_image(ImagePolicy(), data, 0)
    assert capfd.readouterr().err == ""


def test_unknown_tiff_tags_are_no_damage(capfd: pytest.CaptureFixture[str]) -> None:
    data = encoded(photo(20, 10), "TIFF", compression="tiff_lzw", tiffinfo={65000: "of our own"})
    assert store_image(ImagePolicy(), data, 0)[1] == "encoded"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG", "BMP", "WEBP"])
def test_max_pixels_states_the_limit_the_size_and_the_option(kind: str) -> None:
    data = encoded(photo(40, 30), kind)
    store_image(ImagePolicy(max_pixels=1200), data, 0)
    words = r"40 x 30 = 1,200 pixels, more than the 1,199 allowed.*--max-pixels"
    for field, policy in (
        (None, ImagePolicy(max_pixels=1199)),
        (RasterField(1), ImagePolicy(max_pixels=1199, channels="gray")),
    ):
        with pytest.raises(SampleFault, match=words):
            store_image(policy, data, 0, field)
    with pytest.raises(SampleFault, match=words):
        store_image(ImagePolicy(max_pixels=1199), Image.open(io.BytesIO(data)), 0)


def test_pillows_own_limits_do_not_apply_and_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    data = encoded(Image.new("1", (400, 300)), "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(Image.new("RGB", (400, 300)), "JPEG", exif=exif)
    assert store_image(ImagePolicy(), data, 0)[0].width == 400
    assert store_image(ImagePolicy(), turned, 0)[0].width == 300
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many"])
def test_max_pixels_must_be_a_number_of_pixels(value: object) -> None:
    with pytest.raises(UsageError, match="max_pixels must be a whole number"):
        ImagePolicy(max_pixels=value)  # type: ignore[arg-type]


def test_the_command_takes_the_options(tmp_path: Path) -> None:
    source = folder(tmp_path / "src", {"0.png": encoded(photo(40, 30), "PNG"), "1.jpg": DAMAGED["cut"]})
    run = click.testing.CliRunner().invoke
    words = ["imagefolder", str(source), str(tmp_path / "o.beton"), "--num-workers", "0", "-q"]
    done = run(convert_command, [*words, "--max-pixels", "1000", "--on-error", "keep", "--json"])
    assert isinstance(done.exception, ConvertError)
    assert "1,200 pixels, more than the 1,000 allowed" in str(done.exception)
    done = run(convert_command, [*words, "--on-error", "keep", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout[done.stdout.index("{") :])["num_damaged"] == 1
    assert "damaged a/1.jpg: " in done.output


def test_the_loader_crops_and_resizes_kept_odd_files(tmp_path: Path) -> None:
    names = ["plain: stray bytes before the end", "plain: a stray restart marker before the end", "plain: empty DHT"]
    files = {f"{number}.jpg": READABLE[name][0] for number, name in enumerate(names)}
    files["3.jpg"] = READABLE[names[0]][1]
    out = tmp_path / "o.beton"
    write(folder(tmp_path / "src", files), out, policy=ImagePolicy(keep="bytes"))
    loader = Loader(out, batch_size=4, transforms={"image": [T.Resize((32, 40))]}, num_workers=1)
    images = next(iter(loader))["image"].numpy().astype(int)
    for image in images[:3]:
        np.testing.assert_allclose(image, images[3], atol=5)


def test_verify_refuses_what_the_loader_refuses(tmp_path: Path) -> None:
    """Colours in a gray field; four colours; a file cut short: each stored as it is by whoever wrote the file."""
    gray = encoded(photo(40, 30).convert("L"), "JPEG")
    files = {
        "gray": (gray, True),
        "gray with a stray comment": (gray[:20] + b"\0\xff\0\xff\xfe\0\0" + gray[20:], True),
        "colours": (encoded(photo(40, 30), "JPEG"), False),
        "gray colours": (encoded(Image.new("RGB", (40, 30), (90, 90, 90)), "JPEG"), False),
        "cmyk": (encoded(photo(40, 30).convert("CMYK"), "JPEG"), False),
        "no end": (gray[:-2], False),
    }
    for name, (data, is_sound) in files.items():
        path = tmp_path / f"{name}.beton"
        with Writer(path, {"image": RasterField(1)}, num_samples=1) as writer:
            writer.append({"image": EncodedImage(0, 40, 30, data, 1)})
        assert verify_file(path, decode=decode, decode_all=True).ok == is_sound, name
        loader = Loader(path, batch_size=1, transforms={"image": [T.CenterCrop((30, 40))]}, num_workers=1)
        if is_sound:
            np.testing.assert_array_equal(next(iter(loader))["image"][0, 0].numpy(), pillow_pixels(data)[:, :, 0])
        else:
            with pytest.raises(DecodeError):
                next(iter(loader))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_corrupt_exif_is_silently_no_orientation(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    data = exif.tobytes()
    for length in range(8, len(data), 5):
        stored, _ = store_image(ImagePolicy(), encoded(photo(40, 30), kind, exif=data[:length]), 0)
        assert {stored.width, stored.height} == {40, 30}
    assert not recwarn.list
