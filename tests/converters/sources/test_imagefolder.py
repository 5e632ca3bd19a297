"""Classes, labels and the order of files are torchvision's; what torchvision passes over in silence is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import converters
from converters.sources.imagefolder import IMAGE_EXTENSIONS, ImageFolder
from dataloading import ConvertError, UsageError
from tests.support.servers import s3_server

from ..making import class_folders
from .making import samples


def touch(root: Path, *names: str | bytes) -> None:
    for name in names:
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def listed(source: ImageFolder) -> list[tuple[str, int]]:
    return [source.task(index) for index in range(len(source))]


def test_same_samples_in_the_same_order_as_torchvision(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder as Theirs
    from torchvision.datasets.folder import IMG_EXTENSIONS

    touch(
        tmp_path,
        # Folders and their contents interleave by path string: 'b' < 'b-c' < 'b/c'.
        "dog/b/2.jpg", "dog/b-c/1.JPG", "dog/b/c/0.png", "dog/b.jpg", "dog/a.webp", "dog/Z.JPEG", "dog/notes.txt",
        "cat/é ü 中.jpg", "cat/10.jpg", "cat/9.jpg", "cat/.hidden.png", "cat/archive.jpg.gz", "cat/deep/er/1.tiff",
        "Ärger/1.pgm", "ZEBRA/1.ppm", "0/1.bmp", b"raw\xff/1.jpg", b"raw\xff/\xfe.jpg", "README.jpg",
    )  # fmt: skip
    (tmp_path / "elsewhere").mkdir()
    touch(tmp_path / "elsewhere", "x/linked.jpg")
    (tmp_path / "cat" / "link").symlink_to(tmp_path / "elsewhere" / "x")
    (tmp_path / "linkclass").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cat" / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    theirs, ours = Theirs(str(tmp_path)), ImageFolder(tmp_path)
    assert ours.class_names == theirs.classes
    assert listed(ours) == theirs.samples
    assert IMAGE_EXTENSIONS == IMG_EXTENSIONS
    assert ours.num_ignored == 3
    assert sorted(ours.ignored) == ["README.jpg", "cat/archive.jpg.gz", "dog/notes.txt"]


def test_extensions_can_be_chosen(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.gif", "a/2.GIF", "a/3.jpg")
    assert [name.rpartition("/")[2] for name, _ in listed(ImageFolder(tmp_path, extensions=[".gif"]))] == [
        "1.gif",
        "2.GIF",
    ]


def test_empty_class_is_an_error_unless_allowed_and_keeps_its_label(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/readme.md", "c/1.jpg")
    with pytest.raises(UsageError, match=r"no images in 1 of 3 classes \(b\).*--allow-empty"):
        ImageFolder(tmp_path)
    source = ImageFolder(tmp_path, allow_empty=True)
    assert [label for _, label in listed(source)] == [0, 2]
    assert source.class_names == ["a", "b", "c"]


def test_images_without_class_folders_are_explained(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg", "2.png", "notes.txt")
    with pytest.raises(UsageError, match=r"2 images directly in it.*SRC/class/image.jpg"):
        ImageFolder(tmp_path)


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no class folders"):
        ImageFolder(tmp_path)


def test_a_loop_of_links_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "a/b/1.jpg")
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path / "a")
    with pytest.raises(ConvertError, match=r"the link .*a/b/loop leads to a folder above itself"):
        ImageFolder(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "a/closed/2.jpg")
    (tmp_path / "a" / "closed").chmod(0)
    try:
        with pytest.raises(ConvertError, match=r"cannot list .*closed"):
            ImageFolder(tmp_path)
    finally:
        (tmp_path / "a" / "closed").chmod(0o700)


def test_provenance_names_the_folder_but_not_where_it_lies(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "my photos", {"a": 1, "b": 2})
    provenance = ImageFolder(root).provenance
    assert provenance == {"source": "imagefolder", "source_name": "my photos", "source_samples": 3}


def test_a_folder_behind_a_url_is_read_as_the_folder_is(tmp_path: Path, memory: Callable[[str, bytes], str]) -> None:
    names = ["b/2.jpg", "b/c-d/1.JPG", "b/c/0.png", "b/notes.txt", "a/ü 中.jpg", "loose.jpg"]
    for name in names:
        touch(tmp_path, name)
        (tmp_path / name).write_bytes(name.encode())
        memory(f"memory://photos/{name}", name.encode())
    here, there = ImageFolder(tmp_path), ImageFolder("memory://photos/")
    assert there.class_names == here.class_names
    assert samples(there) == samples(here)
    assert [there.name(index) for index in range(4)] == [here.name(index) for index in range(4)]
    assert sorted(there.ignored) == sorted(here.ignored) == ["b/notes.txt", "loose.jpg"]
    assert there.provenance == {"source": "imagefolder", "source_name": "photos", "source_samples": 4}


def test_a_folder_in_s3_is_converted_by_workers_to_the_same_bytes(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", {"ant": 2, "bee ü": 3})
    policy, options = converters.ImagePolicy(), converters.Options(num_workers=2)
    converters.convert(ImageFolder(root), tmp_path / "here.beton", policy=policy, options=options)
    with s3_server() as store:
        for path in root.rglob("*.jpg"):
            store.put(f"photos/{path.relative_to(root)}", path)
        source = ImageFolder(store.url("photos"))
        converters.convert(source, tmp_path / "there.beton", policy=policy, options=options)
        assert (tmp_path / "here.beton").read_bytes() == (tmp_path / "there.beton").read_bytes()
        store.client.delete_object(Bucket=store.bucket, Key="photos/ant/00.jpg")
        with pytest.raises(ConvertError, match=r"sample 0 \(ant/00.jpg\): s3://.*cannot be read: it does not exist"):
            converters.convert(source, tmp_path / "gone.beton", policy=policy, options=options)


def test_very_long_paths_are_read(tmp_path: Path) -> None:
    deep = tmp_path / "class" / "/".join(["d" * 200] * 5)
    deep.mkdir(parents=True)
    (deep / ("f" * 200 + ".jpg")).write_bytes(b"x")
    assert samples(ImageFolder(tmp_path)) == [{"image": b"x", "label": 0}]


def test_names_that_break_lines_or_steer_terminals_are_escaped_in_messages(tmp_path: Path) -> None:
    touch(tmp_path, "a/one\ntwo\x1b[31m.jpg")
    touch(tmp_path, "a/ü 中%.jpg")
    source = ImageFolder(tmp_path)
    assert [source.name(index) for index in range(2)] == [r"a/one\ntwo\x1b[31m.jpg", "a/ü 中%.jpg"]
    assert source.relative(0) == "a/one\ntwo\x1b[31m.jpg"
