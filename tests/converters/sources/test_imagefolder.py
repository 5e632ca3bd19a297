"""Classes, labels and the order of files are torchvision's; what torchvision passes over in silence is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import converters
from converters.sources.class_lists import class_list
from converters.sources.imagefolder import IMAGE_EXTENSIONS, ImageFolder
from dataloading import ConvertError, Reader, UsageError
from tests.support.servers import s3_server

from ..making import class_folders
from .making import jpeg, samples
from .test_beton import beton


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


def test_hidden_folders_are_passed_over_wherever_they_lie_and_named(tmp_path: Path) -> None:
    for name in ("cat/a.jpg", "dog/b.jpg", ".ipynb_checkpoints/x.jpg", "cat/.ipynb_checkpoints/a-checkpoint.jpg",
                 "dog/deep/.cache/c.jpg", "dog/._b.jpg"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(jpeg(0))
    source = ImageFolder(tmp_path)
    assert source.class_names == ["cat", "dog"]
    assert [source.name(index) for index in range(len(source))] == ["cat/a.jpg", "dog/b.jpg"]
    assert sorted(source.hidden) == [
        ".ipynb_checkpoints", "cat/.ipynb_checkpoints", "dog/._b.jpg", "dog/deep/.cache"
    ]  # fmt: skip


def labels_of(source: ImageFolder) -> dict[str, int]:
    return {source.name(index): source.label(index) for index in range(len(source))}


def test_folders_that_are_numbers_are_sorted_as_texts_unless_asked_otherwise(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a.jpg").write_bytes(jpeg(number))
    as_text, as_number = ImageFolder(tmp_path), ImageFolder(tmp_path, class_order="number")
    assert labels_of(as_text)["2/a.jpg"] == 4 and as_text.numbers_as_text
    assert labels_of(as_number) == {f"{number}/a.jpg": number for number in range(12)}
    assert not as_number.numbers_as_text
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match="class folder 'x' is not a whole number"):
        ImageFolder(tmp_path, class_order="number")


def test_given_classes_fix_the_labels_and_a_strange_folder_is_named(tmp_path: Path) -> None:
    for name in ("dog", "fox"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_bytes(jpeg(0))
    (tmp_path / "eel").mkdir()
    source = ImageFolder(tmp_path, class_names=["fox", "cat", "dog", "eel"])
    assert labels_of(source) == {"fox/a.jpg": 0, "dog/a.jpg": 2}
    assert (source.class_names, source.without_images) == (["fox", "cat", "dog", "eel"], ["cat", "eel"])
    with pytest.raises(UsageError, match=r"1 not among the 2 classes that are given \(--classes\): 'eel'"):
        ImageFolder(tmp_path, class_names=["dog", "fox"])


def test_the_list_of_classes_may_be_text_json_a_folder_or_a_beton_file(tmp_path: Path) -> None:
    train, val = tmp_path / "train", tmp_path / "val"
    for folder, names in ((train, ("cat", "dog", "fox")), (val, ("dog", "fox"))):
        for name in names:
            (folder / name).mkdir(parents=True)
            (folder / name / "a.jpg").write_bytes(jpeg(len(name)))
    (train / ".hidden").mkdir()
    (tmp_path / "c.txt").write_text("cat\ndog\nfox\n")
    (tmp_path / "list.json").write_text('["cat", "dog", "fox"]')
    (tmp_path / "map.json").write_text('{"fox": 2, "cat": 0, "dog": 1}')
    quick = ["--num-workers", "0", "-q"]
    assert beton("convert", "imagefolder", str(train), str(tmp_path / "train.beton"), *quick) == 0
    for given in ("c.txt", "list.json", "map.json", "train", "train.beton"):
        out = tmp_path / "val.beton"
        command = ["convert", "imagefolder", str(val), str(out), "--classes", str(tmp_path / given), "--overwrite"]
        assert beton(*command, *quick) == 0
        with Reader(out) as reader:
            assert reader.class_names == ("cat", "dog", "fox")
            assert reader.column("label").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.txt", "a\na\n", "the class 'a' twice"),
        ("c.txt", "", "has no lines"),
        ("c.json", '{"a": 0, "b": 2}', "each label from 0 to 1 once"),
        ("c.json", '{"a": "0"}', "expected a list of names or an object"),
        ("c.json", "[1, 2]", "expected a list of names or an object"),
        ("c.json", "[", "it is not JSON"),
    ],
)
def test_a_list_of_classes_that_says_nothing_clear_is_refused(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=words):
        class_list(str(tmp_path / name))


def test_the_command_says_what_it_passes_over_and_how_numbers_are_sorted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("1", "2", "10", ".ipynb_checkpoints"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "a.jpg").write_bytes(jpeg(1))
    assert beton("convert", "imagefolder", str(tmp_path / "in"), str(tmp_path / "o.beton"), "--num-workers", "0") == 0
    told = capsys.readouterr().err
    assert "hidden, not taken: 1 (.ipynb_checkpoints)" in told
    assert "the folder 1 has the label 0; --class-order number sorts them as numbers" in told
    (tmp_path / "names").write_text("1\n2\n3\n10\n")
    command = ["convert", "imagefolder", str(tmp_path / "in"), str(tmp_path / "p.beton"), "--num-workers", "0"]
    assert beton(*command, "--classes", str(tmp_path / "names")) == 0
    assert "classes without images: 1 (3)" in capsys.readouterr().err
