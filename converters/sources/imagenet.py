"""ImageNet as distributed: the training tar of 1,000 tars, and the flat validation set with separate labels.

Classes are the sorted WordNet ids (``n01440764``, ...), so labels are those of torchvision's ``ImageFolder`` over an
unpacked training set, for both splits. Nothing is unpacked unless a tar file is compressed: members are found in one
pass and read by offset. Images of a class are ordered by folder and name, whatever their order in the tar, and links
are followed, so tar and folders give the same samples.
"""

from __future__ import annotations

import dataclasses
import posixpath
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from converters.source import printable
from dataloading import ConvertError, Field, ImageField, IntField, UsageError
from dataloading.messages import counted

from .imagefolder import IMAGE_EXTENSIONS, ImageFolder
from .listing import list_folder
from .packed_texts import PackedTexts
from .reading import Identity, Ranges, absolute, child, identity, is_folder, normalised, read_file
from .row_values import labelled
from .tar_index import TAR_ENDINGS, Member, TarRange, Tars, Unused, is_hidden, members

__all__ = ["ImageNetTrain", "ImageNetVal"]


class _Images:
    """Base of both splits: images with labels, in tar files or separate files.

    ``class_names`` are sorted WordNet ids, or None if only numbers are known; ``unused`` counts unused members.
    """

    split = ""

    def __init__(self) -> None:
        self.class_names: list[str] | None = None
        self.unused = Unused()
        self.fields: Mapping[str, Field] = {"image": ImageField(), "label": IntField()}
        self._tars = Tars()
        self._paths: list[str] = []  # tar files, or the folder that holds the images
        self._read_from: list[str | None] = []  # the paths that are read: tar files may have been uncompressed
        self._identities: list[Identity | None] = []
        self._path_of = array("I")
        self._labels = array("I")
        self._names = PackedTexts()
        self._starts, self._sizes = array("Q"), array("Q")

    @property
    def provenance(self) -> Mapping[str, object]:
        """Kind, split and size; not whether ImageNet was unpacked."""
        return {"source": "imagenet", "source_name": self.split, "source_samples": len(self)}

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        readable = zip(self._read_from, self._identities, strict=True)
        return _Load([None if path is None else (path, known or identity(path)) for path, known in readable])

    def __len__(self) -> int:
        return len(self._labels)

    def task(self, index: int) -> tuple[str, int, int, int, int]:
        """Return the file, its number, the range in it if it is a tar file, and the label."""
        number = self._path_of[index]
        path = self._paths[number]
        if self._read_from[number] is None:
            path = child(path, self._names[index])
        return path, number, self._starts[index], self._sizes[index], self._labels[index]

    def name(self, index: int) -> str:
        """Return the image's file name."""
        return printable(self._names[index])

    def _add_path(self, path: str, tar: TarRange | None) -> int:
        """Add a folder, or a tar file that is read from ``tar``."""
        self._paths.append(absolute(path))
        self._read_from.append(None if tar is None else absolute(tar.path))
        # The temporary file of uncompressed tar files grows until all are indexed.
        self._identities.append(identity(path) if tar is not None and tar.path == path else None)
        return len(self._paths) - 1

    def _add(self, path: int, member: Member, label: int) -> None:
        self._path_of.append(path)
        self._labels.append(label)
        self._names.append(member.name)
        self._starts.append(member.start)
        self._sizes.append(member.size)


@dataclasses.dataclass(frozen=True)
class _Load:
    """Reads an image from a tar file or a separate file; sent to the workers."""

    files: list[tuple[str, Identity] | None]
    ranges: Ranges = dataclasses.field(default_factory=Ranges)

    def __call__(self, task: tuple[str, int, int, int, int]) -> dict[str, object]:
        path, number, start, size, label = task
        source = self.files[number]
        if source is None:
            return labelled(lambda: read_file(path), label)
        return labelled(lambda: self.ranges.read(source[0], start, size, source[1]), label)


class ImageNetTrain(_Images):
    """The training set: one tar of tars, a folder of tars, or a folder of folders.

    Parameters
    ----------
    src : str
        ``ILSVRC2012_img_train.tar``, a folder of ``n01440764.tar`` and so on, or a folder with one folder per class.

    Raises
    ------
    UsageError
        If there are neither tar files nor class folders.
    ConvertError
        If a tar file is damaged or holds no images.
    """

    split = "train"

    def __init__(self, src: str) -> None:
        super().__init__()
        src = normalised(src)
        if not is_folder(src):
            self._take_tar_of_tars(src)
            return
        hidden: list[str] = []
        folders, files = list_folder(src, hidden)
        tars = [name for name in files if name.endswith(TAR_ENDINGS)]
        if tars:
            for name in sorted(tars, key=_stem):  # without the extension, whose dot sorts after some characters
                self._take_class_tar(child(src, name))
            for name in (*hidden, *(name for name in files if name not in tars)):
                self.unused.add(_kind(name), name)
            for name in folders:
                self.unused.add("folders beside the tar files", name)
        elif folders:
            self._take_folders(src)
        else:
            raise UsageError(f"{printable(src)} has neither tar files such as n01440764.tar nor class folders")

    def _take_tar_of_tars(self, src: str) -> None:
        label = printable(src)
        with self._tars.open(src) as outer:
            inner = []
            for member in members(outer.file, label, start=outer.start, stop=outer.stop, unused=self.unused):
                if member.name.endswith(TAR_ENDINGS) and not is_hidden(member.name):
                    inner.append(member)
                else:
                    self.unused.add(_kind(member.name), member.name)
            if not inner:
                raise UsageError(f"{label} holds no tar files; expected one per class, such as n01440764.tar")
            path = self._add_path(src, outer)
            for member in sorted(inner, key=lambda member: _stem(member.name)):
                name = f"{label}: {printable(member.name)}"
                nested = TarRange(outer.file, outer.path, member.start, member.start + member.size)
                tar = self._tars.unpacked(nested, name)
                self._take_class(path if tar is nested else self._add_path(src, tar), _stem(member.name), tar, name)

    def _take_class_tar(self, src: str) -> None:
        with self._tars.open(src) as tar:
            self._take_class(self._add_path(src, tar), _stem(src), tar, printable(src))

    def _take_class(self, path: int, wnid: str, opened: TarRange, label: str) -> None:
        found = members(opened.file, label, start=opened.start, stop=opened.stop, unused=self.unused)
        images = _images(found, self.unused)
        if not images:
            raise ConvertError(f"{label} holds no images")
        self.class_names = self.class_names or []
        if wnid in self.class_names:
            raise ConvertError(f"{label}: the class {wnid} occurs twice")
        self.class_names.append(wnid)
        for image in images:
            self._add(path, image, len(self.class_names) - 1)

    def _take_folders(self, src: str) -> None:
        folders = ImageFolder(src)
        path = self._add_path(src, None)
        self.class_names = folders.class_names
        for name in folders.ignored:
            self.unused.add(_kind(name), name)
        self.unused.add_unnamed(folders.num_ignored - len(folders.ignored))
        for name in folders.hidden:
            self.unused.add("hidden files", name)
        for index in range(len(folders)):
            self._add(path, Member(folders.relative(index), 0, 0), folders.label(index))


class ImageNetVal(_Images):
    """The validation set: a tar or folder of images, with separate labels.

    Parameters
    ----------
    src : str
        ``ILSVRC2012_img_val.tar`` or a folder with its images.
    labels : mapping of str to int
        File name -> label.
    class_names : sequence of str
        Names of the labels.

    Raises
    ------
    UsageError
        If there are no images, or they are in sub-folders.
    ConvertError
        If a tar file is damaged, or an image has no label.
    """

    split = "val"

    def __init__(self, src: str, *, labels: Mapping[str, int], class_names: Sequence[str]) -> None:
        super().__init__()
        src = normalised(src)
        self.class_names = list(class_names) or None
        if is_folder(src):
            hidden: list[str] = []
            folders, files = list_folder(src, hidden)
            for name in hidden:
                self.unused.add("hidden files", name)
            found = [Member(name, 0, 0) for name in files]
            if folders and not any(map(_is_image, found)):
                raise UsageError(
                    f"{printable(src)} has folders and no images beside them; where val is in class folders already, "
                    "--split train converts it as it is, with the same labels"
                )
            path = self._add_path(src, None)
        else:
            with self._tars.open(src) as tar:
                label = printable(src)
                found = list(members(tar.file, label, start=tar.start, stop=tar.stop, unused=self.unused))
                path = self._add_path(src, tar)
        images = sorted(_images(found, self.unused), key=lambda member: _base(member.name))
        if not images:
            raise UsageError(f"{printable(src)} holds no images")
        without = [member.name for member in images if _base(member.name) not in labels]
        if without:
            raise ConvertError(
                f"{len(without):,} of {counted(len(images), 'image')} of {printable(src)} have no label; the first: "
                f"{printable(without[0])}"
            )
        wrong = [name for name, label in labels.items() if class_names and not 0 <= label < len(class_names)]
        if wrong:
            raise UsageError(
                f"{wrong[0]} has the label {labels[wrong[0]]}; the number of classes is {len(class_names)}"
            )
        for member in images:
            self._add(path, member, labels[_base(member.name)])


def _is_image(member: Member) -> bool:
    return member.name.lower().endswith(IMAGE_EXTENSIONS)


def _images(found: Iterable[Member], unused: Unused) -> list[Member]:
    """Return the images by folder and name; of duplicates the last, as after unpacking."""
    images: dict[tuple[str, str], Member] = {}
    for member in found:
        if is_hidden(member.name) or not _is_image(member):
            unused.add(_kind(member.name), member.name)
            continue
        path = posixpath.split(posixpath.normpath(member.name))
        if path in images:
            unused.add("replaced by a later member of the same name", member.name)
        images[path] = member
    return [images[path] for path in sorted(images)]


def _kind(name: str) -> str:
    """Return the description of an unused file for `Unused`."""
    base = _base(name)
    if base.startswith(".") or is_hidden(name):
        return "hidden files"
    return f".{printable(base.rpartition('.')[2])} files" if "." in base else "files without an ending"


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _stem(name: str) -> str:
    base = _base(name)
    return base.removesuffix(next((ending for ending in reversed(TAR_ENDINGS) if base.endswith(ending)), ""))
