"""The engine: the same bytes from any number of workers, and a whole file or none."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters import ImageFolder, ImagePolicy, Options, convert
from converters.engine.convert import estimate, sample_order
from converters.python_dataset import DatasetSource
from dataloading import ConvertError, ImageField, IntField, Reader, UsageError, verify_file
from dataloading.tools import decode_jpeg
from tests.converters.making import class_folders, encoded, photo, pillow_pixels
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def source(tmp_path: Path) -> ImageFolder:
    root = class_folders(tmp_path / "src", {"ant": 5, "bee": 3, "cat": 4})
    (root / "bee" / "x.png").write_bytes(encoded(photo(50, 20, seed=77), "PNG"))
    return ImageFolder(root)


def run(source: Any, path: Path, policy: ImagePolicy | None = None, **options: Any) -> Any:
    # However slowly the workers start, there is no checkpoint that would be kept.
    options = {"checkpoint_seconds": 300.0} | options
    return convert(source, path, policy=policy or ImagePolicy(), options=Options(**options))


def leftovers(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if "beton" in entry.name)


def test_file_holds_every_image_label_and_class(source: ImageFolder, tmp_path: Path) -> None:
    report = run(source, tmp_path / "o.beton")
    assert (report.num_samples, report.images) == (13, {"transcoded": 12, "encoded": 1})
    assert verify_file(tmp_path / "o.beton", decode=decode_jpeg, decode_all=True, num_workers=1).ok
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.column("label").tolist() == [0] * 5 + [1] * 4 + [2] * 4
        assert reader.extension is not None
        assert reader.extension.class_names == ("ant", "bee", "cat")
        assert reader.extension.provenance["source_name"] == "src"
        for index in range(8):
            path, _ = source.task(index)
            got = decode_jpeg(reader.value("image", index).data)
            np.testing.assert_array_equal(got, pillow_pixels(Path(path).read_bytes()))
        assert str(tmp_path) not in str(dict(reader.extension.provenance))


@pytest.mark.parametrize("mode", ["jpg", "raw", "mix", "smart"])
def test_bytes_do_not_depend_on_the_number_of_workers(source: ImageFolder, tmp_path: Path, mode: Any) -> None:
    policy = ImagePolicy(mode=mode, max_resolution=36, seed=3)
    files = set()
    for num_workers in (0, 1, 2, 7) if mode == "mix" else (0, 3):
        path = tmp_path / f"{num_workers}.beton"
        run(source, path, policy, num_workers=num_workers, shuffle=True, seed=3)
        files.add(path.read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_few_samples_with_many_workers(tmp_path: Path, count: int) -> None:
    source = ImageFolder(class_folders(tmp_path / "src", {"a": count}))
    assert run(source, tmp_path / "o.beton", num_workers=16).num_samples == count


def test_nothing_to_write_is_an_error_and_leaves_nothing(source: ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to write"):
        run(source, tmp_path / "o.beton", limit=0)
    assert leftovers(tmp_path) == []


def test_order_is_a_permutation_that_depends_on_the_seed_and_limit_takes_its_beginning() -> None:
    plain = sample_order(100, Options(limit=7))
    assert plain.tolist() == list(range(7))
    shuffled = sample_order(100, Options(shuffle=True, seed=1))
    assert sorted(shuffled.tolist()) == list(range(100))
    assert shuffled.tolist() != list(range(100))
    assert sample_order(100, Options(shuffle=True, seed=1, limit=9)).tolist() == shuffled[:9].tolist()
    assert sample_order(100, Options(shuffle=True, seed=2)).tolist() != shuffled.tolist()


def damage(source: ImageFolder, *indices: int) -> list[str]:
    for index in indices:
        path = Path(source.task(index)[0])
        path.write_bytes(path.read_bytes()[:400])
    return [source.name(index) for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_image_stops_the_conversion_and_is_named(source: ImageFolder, tmp_path: Path, num_workers: int) -> None:
    first, _ = damage(source, 3, 6)
    with pytest.raises(ConvertError, match=rf"sample 3 \({first}\): JPEG.*early.*--on-error skip"):
        run(source, tmp_path / "o.beton", num_workers=num_workers)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_images_can_be_skipped_and_are_listed(source: ImageFolder, tmp_path: Path, num_workers: int) -> None:
    names = damage(source, 3, 6)
    Path(source.task(8)[0]).unlink()
    report = run(source, tmp_path / "o.beton", num_workers=num_workers, on_error="skip")
    assert [(item.index, item.name) for item in report.skipped] == [(3, names[0]), (6, names[1]), (8, source.name(8))]
    assert "No such file" in report.skipped[2].reason
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.column("label").tolist() == [0] * 4 + [1] * 2 + [2] * 4
    assert report.as_dict()["num_skipped"] == 3


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("policy", "size"), [(ImagePolicy(), (256, 256)), (ImagePolicy(max_resolution=50), (50, 50))])
def test_bad_images_can_be_replaced_by_gray_ones_that_keep_the_label(
    source: ImageFolder, tmp_path: Path, num_workers: int, policy: ImagePolicy, size: tuple[int, int]
) -> None:
    names = damage(source, 3, 6)
    Path(source.task(8)[0]).unlink()
    log = tmp_path / "log.json"
    report = run(
        source, tmp_path / "o.beton", policy, num_workers=num_workers, on_error="placeholder", error_log=str(log)
    )
    assert (report.num_samples, report.skipped) == (13, [])
    assert [item.name for item in report.replaced] == [*names, source.name(8)]
    with Reader(tmp_path / "o.beton") as reader:
        assert reader.column("label").tolist() == [0] * 5 + [1] * 4 + [2] * 4
        for index in (3, 6, 8):
            image = reader.value("image", index)
            assert (image.width, image.height) == size
            assert np.abs(decode_jpeg(image.data).astype(int) - 128).max() <= 1
    listed = json.loads(log.read_text())
    assert (listed["num_replaced"], listed["replaced"][2]["name"]) == (3, source.name(8))
    assert "No such file" in listed["replaced"][2]["reason"]


class Huge:
    """One image of four is larger than a page."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.full((1000, 1000 if index % 4 == 2 else 10, 3), index, np.uint8), index


@pytest.mark.parametrize(("on_error", "labels"), [("skip", [0, 1, 3, 4, 5, 7]), ("placeholder", list(range(8)))])
def test_a_sample_larger_than_the_page_is_treated_like_other_bad_samples(
    tmp_path: Path, on_error: Any, labels: list[int]
) -> None:
    source = DatasetSource(Huge(), {"image": ImageField(), "label": IntField()})
    policy = ImagePolicy(mode="raw")
    path = tmp_path / "o.beton"
    with pytest.raises(ConvertError, match=r"sample 2 \(Huge\[2\]\).*more than a page of 2097152"):
        run(source, path, policy, page_size=2 << 20)
    report = run(source, path, policy, page_size=2 << 20, on_error=on_error)
    faults = report.skipped + report.replaced
    assert [item.index for item in faults] == [2, 6]
    assert all("more than a page" in item.reason for item in faults)
    with Reader(path) as reader:
        assert reader.column("label").tolist() == labels
    assert verify_file(path).ok


def test_a_sample_whose_other_values_are_not_known_is_left_out_instead_of_replaced(tmp_path: Path) -> None:
    class Lost:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            if index == 1:
                raise OSError("gone")
            return np.zeros((4, 4, 3), np.uint8), index

    source = DatasetSource(Lost(), {"image": ImageField(), "label": IntField()})
    report = run(source, tmp_path / "o.beton", on_error="placeholder")
    assert ([item.index for item in report.skipped], report.replaced) == ([1], [])


def test_a_disk_that_is_clearly_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ImageFolder(class_folders(tmp_path / "src", {"ant": 130}))
    free = 1 << 20
    real = os.statvfs

    def statvfs(path: Any) -> Any:
        status = list(real(path))
        status[1], status[4] = 1, free
        return os.statvfs_result(status)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(
        ConvertError, match=r"about 16.* MiB will be written, and .* has 1.0 MiB free.*--no-space-check"
    ):
        run(source, tmp_path / "o.beton")
    assert leftovers(tmp_path) == []
    run(source, tmp_path / "o.beton", check_space=False)
    free = 16 << 20
    run(source, tmp_path / "p.beton")
    assert "may be too little" in capsys.readouterr().err


def test_a_pipe_among_the_images_is_refused_instead_of_waited_for(source: ImageFolder, tmp_path: Path) -> None:
    path = Path(source.task(0)[0])
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConvertError, match="not a regular file"):
        run(source, tmp_path / "o.beton")


def test_nothing_but_bad_images_is_an_error_even_when_skipping(source: ImageFolder, tmp_path: Path) -> None:
    damage(source, *range(12))
    with pytest.raises(ConvertError, match="none of the 12 samples"):
        run(source, tmp_path / "o.beton", on_error="skip", limit=12)
    assert leftovers(tmp_path) == []


def test_existing_file_is_kept_unless_overwritten_and_replaced_only_when_complete(
    source: ImageFolder, tmp_path: Path
) -> None:
    path = tmp_path / "o.beton"
    path.write_bytes(b"precious")
    with pytest.raises(UsageError, match="overwrite"):
        run(source, path)
    damage(source, 5)
    with pytest.raises(ConvertError):
        run(source, path, overwrite=True)
    assert path.read_bytes() == b"precious"
    run(source, path, overwrite=True, on_error="skip")
    assert verify_file(path).ok


@pytest.mark.parametrize(
    ("path", "message"),
    [("no/such/folder/o.beton", "does not exist"), (".", "is a folder")],
)
def test_targets_that_cannot_be_are_refused_before_any_work(
    source: ImageFolder, tmp_path: Path, path: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(source, tmp_path / path)


def test_a_full_disk_ends_with_a_message_and_no_file(
    source: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConvertError, match=r"cannot write .*No space left on device"):
        run(source, tmp_path / "o.beton")
    assert leftovers(tmp_path) == []


def test_estimate_is_near_the_truth_and_lists_what_would_fail(source: ImageFolder, tmp_path: Path) -> None:
    truth = run(source, tmp_path / "o.beton")
    guess = estimate(source, tmp_path / "o.beton", policy=ImagePolicy(), options=Options())
    assert guess["estimated_bytes"] == pytest.approx(truth.num_bytes, rel=0.02)
    assert guess["images"] == dict(truth.images)
    name = damage(source, 2)[0]
    assert [
        item["name"] for item in estimate(source, "o.beton", policy=ImagePolicy(), options=Options())["skipped"]
    ] == [name]


SLOW = """
import os, pathlib, sys, time
sys.path.insert(0, {root!r})
import converters
from dataloading import IntField

class Slow:
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        with pathlib.Path(sys.argv[2], str(os.getpid())).open("a") as samples:
            samples.write(".")
        time.sleep(0.01)
        return (index,)

if __name__ == "__main__":
    converters.write(Slow(), sys.argv[1], {{"label": IntField()}}, num_workers=2, quiet=True)
"""


def slow_conversion(tmp_path: Path, **options: Any) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a conversion that would take minutes; return it and its two workers once they work."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW.format(root=str(ROOT)))
    (seen := tmp_path / "seen").mkdir()
    command = [sys.executable, str(script), str(tmp_path / "o.beton"), str(seen)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)

    # The parent does the first samples itself, and a worker may have nothing to do before the file is begun.
    wait_for(lambda: any(tmp_path.glob(".o.beton*")) and len(workers_of(process.pid)) == 2)
    counts = [seen / str(worker) for worker in workers_of(process.pid)]
    before = [path.stat().st_size if path.exists() else 0 for path in counts]
    wait_for(lambda: all(path.exists() and path.stat().st_size > old for path, old in zip(counts, before, strict=True)))
    return process, workers_of(process.pid)


def workers_of(pid: int) -> list[int]:
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_worker_ends_the_conversion_with_the_sample_it_was_on(tmp_path: Path) -> None:
    process, workers = slow_conversion(tmp_path)
    os.kill(workers[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "ConvertError: a worker process" in errors
    assert "SIGKILL" in errors
    assert "on sample " in errors
    assert "(Slow[" in errors
    assert leftovers(tmp_path) == []
    wait_for(lambda: not any(map(is_alive, workers)))


def test_workers_end_when_the_parent_is_killed_and_no_finished_file_is_left(tmp_path: Path) -> None:
    process, workers = slow_conversion(tmp_path)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, workers)))
    assert "o.beton" not in leftovers(tmp_path)


def test_ctrl_c_to_the_whole_group_cleans_up_quietly(tmp_path: Path) -> None:
    process, workers = slow_conversion(tmp_path, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=200)
    assert process.returncode != 0
    assert errors.count("Traceback") == 1  # the parent's own KeyboardInterrupt, none from a worker
    assert leftovers(tmp_path) == []
    wait_for(lambda: not any(map(is_alive, workers)))


def test_a_file_size_limit_ends_the_command_with_exit_code_1_and_no_file(source: ImageFolder, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [
        sys.executable,
        "-m",
        "dataloading.cli",
        "convert",
        "imagefolder",
        source.root,
        str(tmp_path / "o.beton"),
    ]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert leftovers(tmp_path) == []
