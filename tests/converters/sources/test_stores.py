"""Every kind of source from object stores: Google's and Hugging Face's through their own packages, the rest by S3."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from converters import ImagePolicy, Options, convert
from converters.cli import convert as command
from converters.sources import local_copies
from converters.sources.arrays import Arrays
from converters.sources.beton import BetonFiles
from converters.sources.huggingface import HuggingFace
from converters.sources.imagefolder import ImageFolder
from dataloading import ConvertError, Reader
from dataloading.cli import main
from tests.support.buckets import GCSServer
from tests.support.hub import hub_server
from tests.support.servers import HTTPServer, S3Server

from ..making import class_folders

COMMAND = [sys.executable, "-m", "dataloading.cli"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "photos"
    folder.mkdir()
    class_folders(folder, {"a cat": 3, "dög": 2})
    return folder


@pytest.fixture(scope="module")
def parquet(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import datasets

    paths = sorted(images.rglob("*.*"))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": each.read_bytes(), "path": None} for each in paths], "label": [0, 0, 0, 1, 1]}
    folder = tmp_path_factory.mktemp("hf")
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.to_parquet(str(folder / "train-00000-of-00001.parquet"))
    dataset.save_to_disk(str(folder / "saved"))
    return folder


@pytest.fixture
def hub(tmp_path: Path, images: Path, parquet: Path) -> Iterator[HTTPServer]:
    root = tmp_path / "hub" / "datasets" / "me" / "set"
    for path in [*images.rglob("*.*"), *parquet.rglob("*.*")]:
        top = images.parent if images in path.parents else parquet
        place = root / path.relative_to(top)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    with hub_server(tmp_path / "hub") as server:
        yield server


def put_all(store: Any, folder: Path, prefix: str) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(folder)}", path)
    return str(store.url(prefix))


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(command, [*arguments, "-q", "--num-workers", "0"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def content(path: Path) -> list[dict[str, Any]]:
    with Reader(path) as reader:
        return [
            {name: _plain(reader.value(name, index)) for name in reader.fields} for index in range(reader.num_samples)
        ]


def _plain(value: Any) -> Any:
    return bytes(value.data) if hasattr(value, "data") and hasattr(value, "mode") else value


# ---- Google's storage


def test_folders_manifests_and_parquet_on_google_storage_give_the_bytes_of_local_ones(
    gcs: GCSServer, images: Path, parquet: Path, tmp_path: Path
) -> None:
    url = put_all(gcs, images, "photos")
    run("imagefolder", url, str(tmp_path / "far.beton"))
    run("imagefolder", str(images), str(tmp_path / "near.beton"))
    assert (tmp_path / "far.beton").read_bytes() == (tmp_path / "near.beton").read_bytes()
    rows = "".join(f"{each.relative_to(images)},{each.parent.name}\n" for each in sorted(images.rglob("*.*")))
    table = gcs.put("photos/table.csv", f"path,label\n{rows}".encode())
    run("manifest", table, gcs.url("out/table.beton"))
    (tmp_path / "table.beton").write_bytes(gcs.get("out/table.beton"))
    assert content(tmp_path / "table.beton") == content(tmp_path / "near.beton")
    put_all(gcs, parquet, "hf")
    run("huggingface", gcs.url("hf/*.parquet"), str(tmp_path / "rows.beton"))
    assert [each["label"] for each in content(tmp_path / "rows.beton")] == [0, 0, 0, 1, 1]


# ---- Hugging Face's hub


def test_parquet_images_and_saved_datasets_on_the_hub_give_what_local_ones_do(
    hub: HTTPServer, images: Path, parquet: Path, tmp_path: Path
) -> None:
    for name, source in [("rows", "train-00000-of-00001.parquet"), ("saved", "saved")]:
        run("huggingface", f"hf://datasets/me/set/{source}", str(tmp_path / "far.beton"), "--overwrite")
        run("huggingface", str(parquet / source), str(tmp_path / f"{name}.beton"))
        assert (tmp_path / "far.beton").read_bytes() == (tmp_path / f"{name}.beton").read_bytes()
    with Reader(tmp_path / "far.beton") as reader:
        assert reader.extension is not None
        assert list(reader.extension.class_names or ()) == ["cat", "dog"]
    run("imagefolder", "hf://datasets/me/set/photos", str(tmp_path / "far.beton"), "--overwrite")
    run("imagefolder", str(images), str(tmp_path / "near.beton"))
    assert (tmp_path / "far.beton").read_bytes() == (tmp_path / "near.beton").read_bytes()


def test_ranges_of_the_hubs_files_are_read_and_no_more(hub: HTTPServer, tmp_path: Path) -> None:
    from converters.sources.reading import open_stream

    path = tmp_path / "hub" / "datasets" / "me" / "set" / "large.bin"
    path.write_bytes(bytes(range(256)) * 80_000)
    before = hub.fetched_bytes()
    with open_stream("hf://datasets/me/set/large.bin") as file:
        file.seek(15_000_000)
        assert file.read(1000) == path.read_bytes()[15_000_000:15_001_000]
    assert hub.fetched_bytes() - before < 5_000_000


def test_what_is_not_on_the_hub_is_told(hub: HTTPServer, tmp_path: Path) -> None:
    for address in ("hf://datasets/me/set/none.parquet", "hf://datasets/me/none/a.parquet"):
        result = CliRunner().invoke(command, ["huggingface", address, str(tmp_path / "o.beton")])
        assert result.exit_code != 0
        assert address in str(result.exception or result.output)


# ---- sources that are copied first


def arrays_at(store: S3Server, folder: Path) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (6, 20, 30, 3), np.uint8), np.arange(6)
    np.save(folder / "image.npy", pixels)
    np.save(folder / "label.npy", labels)
    np.savez(folder / "plain.npz", image=pixels, label=labels)
    np.savez_compressed(folder / "packed.npz", image=pixels, label=labels)
    names = ["image.npy", "label.npy", "plain.npz", "packed.npz"]
    return [str(folder / name) for name in names], [store.put(f"arrays/{name}", folder / name) for name in names]


def made(source: Any, path: Path, **options: Any) -> bytes:
    convert(source, path, policy=ImagePolicy(mode="raw"), options=Options(overwrite=True, quiet=True, **options))
    return path.read_bytes()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_arrays_behind_urls_give_the_bytes_of_local_ones(s3: S3Server, tmp_path: Path, num_workers: int) -> None:
    near, far = arrays_at(s3, tmp_path)
    for few in (slice(0, 2), slice(2, 3), slice(3, 4)):
        expected = made(Arrays(near[few]), tmp_path / "near.beton")
        assert made(Arrays(far[few]), tmp_path / "far.beton", num_workers=num_workers) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_beton_files_behind_urls_give_the_bytes_of_local_ones(
    s3: S3Server, images: Path, tmp_path: Path, num_workers: int
) -> None:
    made(ImageFolder(str(images)), tmp_path / "in.beton")
    url = s3.put("beton/in.beton", tmp_path / "in.beton")
    expected = made(BetonFiles([str(tmp_path / "in.beton")], indices=np.array([4, 0])), tmp_path / "near.beton")
    source = BetonFiles([url], indices=np.array([4, 0]))
    assert source.name(0) == "in.beton[4]"
    assert made(source, tmp_path / "far.beton", num_workers=num_workers) == expected


def test_saved_datasets_behind_urls_give_the_bytes_of_local_ones(s3: S3Server, parquet: Path, tmp_path: Path) -> None:
    url = put_all(s3, parquet / "saved", "datasets/saved")
    expected = made(HuggingFace([str(parquet / "saved")]), tmp_path / "near.beton")
    assert made(HuggingFace([url]), tmp_path / "far.beton") == expected


def test_a_copy_for_which_there_is_no_room_is_refused_before_it_is_begun(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, far = arrays_at(s3, tmp_path)
    full = os.statvfs_result((4096, 4096, 10, 1, 1, 1, 1, 1, 0, 255))
    monkeypatch.setattr(local_copies.os, "statvfs", lambda path: full)
    with pytest.raises(ConvertError, match=r"image\.npy and 1 more files: .* has 4.* free; set TMPDIR"):
        Arrays(far[:2])


def test_an_object_that_changes_while_it_is_copied_is_refused(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, far = arrays_at(s3, tmp_path)
    real = local_copies.open_stream

    def changed(url: str) -> Any:
        file = real(url)
        data = bytearray(s3.get("arrays/image.npy"))
        data[-1] ^= 1
        s3.put("arrays/image.npy", bytes(data))
        return file

    monkeypatch.setattr(local_copies, "open_stream", changed)
    with pytest.raises(ConvertError, match=r"image\.npy has been changed while it was copied"):
        Arrays(far[:1])


def test_a_copy_is_gone_with_its_process_also_after_kill_9(s3: S3Server, tmp_path: Path) -> None:
    _, far = arrays_at(s3, tmp_path)
    temp = tmp_path / "temp"
    temp.mkdir()
    script = (
        "import sys, time; from converters.sources.arrays import Arrays; a = Arrays(sys.argv[1:]);"
        "print(len(a), flush=True); time.sleep(100)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, far[0]],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "TMPDIR": str(temp)},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().strip() == b"6"
    held = list(Path(f"/proc/{child.pid}/fd").iterdir())
    assert any(str(temp) in str(each.readlink()) for each in held), "the copy lies elsewhere"
    assert list(temp.iterdir()) == []
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)


def test_what_was_added_to_a_store_since_an_earlier_conversion_is_seen(s3: S3Server, images: Path) -> None:
    url = put_all(s3, images, "growing")
    assert len(ImageFolder(url)) == 5
    s3.put("growing/a cat/new.jpg", next(images.rglob("00.jpg")))
    assert len(ImageFolder(url)) == 6


# ---- options of a store


@pytest.mark.parametrize("engine", [["--num-workers", "2"], ["--engine", "ray"]])
def test_workers_and_ray_tasks_see_the_users_configuration_of_a_store(
    s3: S3Server, images: Path, tmp_path: Path, engine: list[str]
) -> None:
    """All that names the server is a configuration file; the variables that do so in other tests are not there."""
    url = put_all(s3, images, "configured")
    out = s3.url(f"configured-out/{engine[-1]}/o.beton")
    (tmp_path / "fsspec").mkdir()
    (tmp_path / "fsspec" / "conf.json").write_text(
        f'{{"s3": {{"endpoint_url": "{s3.endpoint_url}", "key": "testing", "secret": "testing"}}}}'
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))}
    done = subprocess.run(
        [*COMMAND, "convert", "imagefolder", url, out, "--num-shards", "1", "-q", *engine],
        env={**clean, "FSSPEC_CONFIG_DIR": str(tmp_path / "fsspec"), "AWS_EC2_METADATA_DISABLED": "true"},
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run("imagefolder", str(images), str(tmp_path / "configured.beton"))
    shard = s3.get(f"configured-out/{engine[-1]}/o-00000-of-00001.beton")
    assert content_of(shard, tmp_path) == content(tmp_path / "configured.beton")


@pytest.mark.parametrize("verb", ["info", "verify", "diff", "repair", "split", "export", "append", "merge", "upgrade"])
def test_verbs_that_read_files_of_this_machine_say_so_of_urls(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"merge": ["out.beton", "s3://b/a.beton"], "diff": ["s3://b/a.beton"] * 2}
    with pytest.raises(SystemExit, match="2"):
        main([verb, *arguments.get(verb, ["s3://b/a.beton", "out"])])
    assert "s3://b/a.beton lies in a store" in capsys.readouterr().err


def content_of(data: bytes, folder: Path) -> list[dict[str, Any]]:
    (folder / "fetched.beton").write_bytes(data)
    return content(folder / "fetched.beton")
