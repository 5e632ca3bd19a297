"""A folder of classes: ``SRC/class/.../image.jpg``, read exactly as torchvision's ``ImageFolder`` reads it.

Classes are the sorted names of SRC's folders. A class's files are those with an image's extension anywhere below it,
ordered by folder and then by name; links are followed. Differences from torchvision are reported: a folder that cannot
be listed and a loop of links are errors; ignored files are counted; hidden folders (`.ipynb_checkpoints`), classes in
torchvision, are skipped and named. Paths are kept as bytes in one block, some 100 bytes per file for 10 million files.
A root may be a URL (``s3://``, ...): same classes, same order, files read in the workers.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from converters.source import printable
from dataloading import ConvertError, Field, ImageField, IntField, UsageError
from dataloading.messages import counted
from dataloading.tools import is_url

from .class_lists import ClassOrder, are_numbers, in_order
from .listing import is_fork, list_folder, walk
from .packed_texts import PackedTexts
from .reading import child, name_of, normalised, read_file
from .row_values import labelled

__all__ = ["IMAGE_EXTENSIONS", "ImageFolder"]

# torchvision.datasets.folder.IMG_EXTENSIONS
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_NAMED_AT_MOST = 20


class ImageFolder:
    """The images below a folder, labelled by their class folder.

    Parameters
    ----------
    root : str or path
        Folder with one folder per class, or its URL.
    extensions : sequence of str
        Extensions of image files, lower case; by default torchvision's.
    allow_empty : bool
        Accept a class without images.
    class_names : sequence of str, optional
        Class names by label; by default the folders' names. A class may have no folder.
    class_order : {"name", "number"}
        Order of the folders' names without ``class_names``: as text, as in torchvision, or as numbers.

    Raises
    ------
    UsageError
        If there are no class folders, a class has no images, or a folder is not one of the classes.
    ConvertError
        If a folder cannot be listed.

    Attributes
    ----------
    num_ignored, ignored : int, list of str
        Number of files below the root with other extensions, and the first of them.
    hidden : list of str
        Skipped hidden folders and macOS's ``._`` files.
    without_images : list of str
        Classes without images, if these are accepted.
    numbers_as_text : bool
        Whether all classes are numbers whose order as texts differs from their order as numbers.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        extensions: Sequence[str] = IMAGE_EXTENSIONS,
        allow_empty: bool = False,
        class_names: Sequence[str] | None = None,
        class_order: ClassOrder = "name",
    ) -> None:
        self.root = normalised(root)
        self.extensions = tuple(extension.lower() for extension in extensions)
        self.num_ignored = 0
        self.ignored: list[str] = []
        self._folders: list[str] = []  # relative to the root
        self._folder_of = array("I")
        self._labels = array("I")
        self._names = PackedTexts()
        self.hidden: list[str] = []
        self.fields: Mapping[str, Field] = {"image": ImageField(), "label": IntField()}
        self.load = _load
        folders = in_order(self._classes(), class_order)
        self.numbers_as_text = class_names is None and are_numbers(folders) and folders != in_order(folders, "number")
        self.class_names: list[str] = folders if class_names is None else _checked(self.root, folders, class_names)
        there = set(folders)
        empty = [
            name
            for label, name in enumerate(self.class_names)
            if name not in there or not self._take_class(label, name)
        ]
        self.without_images = empty
        source = {"source": "imagefolder", "source_name": printable(name_of(self.root))}
        self.provenance: Mapping[str, object] = {**source, "source_samples": len(self)}
        if class_names is not None and not len(self):
            raise UsageError(f"{printable(self.root)}: no images in any of the {counted(len(class_names), 'class')}")
        if empty and not allow_empty and class_names is None:
            shown = ", ".join(map(printable, empty[:_NAMED_AT_MOST]))
            raise UsageError(
                f"{printable(self.root)}: no images in {len(empty)} of {len(self.class_names)} classes ({shown}). "
                f"Files with these endings are images: {', '.join(self.extensions)}; --extensions changes that, "
                "--allow-empty accepts empty classes"
            )

    def __len__(self) -> int:
        return len(self._labels)

    def task(self, index: int) -> tuple[str, int]:
        """Return path and label."""
        return child(self.root, self.relative(index)), self._labels[index]

    def name(self, index: int) -> str:
        """Return the file's path below the root."""
        return printable(self.relative(index))

    def relative(self, index: int) -> str:
        """Return the file's path below the root, including undecodable bytes."""
        return f"{self._folders[self._folder_of[index]]}/{self._names[index]}"

    def label(self, index: int) -> int:
        """Return the sample's label."""
        return self._labels[index]

    def _classes(self) -> list[str]:
        classes, files = list_folder(self.root, self.hidden)
        for name in files:
            self._ignore(name)
        loose = sum(map(self._is_image, files))
        if not classes:
            found = f"{counted(loose, 'image')} directly in it" if loose else "it holds no images either"
            raise UsageError(
                f"{printable(self.root)} has no class folders ({found}). Expected SRC/class/image.jpg: one folder per "
                "class, whose name is the class's name"
            )
        return classes

    def _take_class(self, label: int, name: str) -> int:
        before = len(self)
        # torchvision sorts os.walk's triples, which equals the order of the folders' paths as strings.
        for folder, files in sorted(self._walk(name)):
            number = len(self._folders)
            self._folders.append(folder)
            for file in sorted(files):
                if not self._is_image(file):
                    self._ignore(f"{folder}/{file}")
                    continue
                self._names.append(file)
                self._folder_of.append(number)
                self._labels.append(label)
        return len(self) - before

    def _walk(self, name: str) -> Iterator[tuple[str, list[str]]]:
        if is_url(self.root):
            yield from walk(self.root, name, self.hidden)
            return

        def refuse(error: OSError) -> None:
            raise ConvertError(f"cannot list {printable(os.fsdecode(error.filename))}: {error.strerror}") from error

        top = os.path.join(self.root, name)
        above: dict[str, frozenset[tuple[int, int]]] = {top: frozenset()}
        for path, folders, files in os.walk(top, followlinks=True, onerror=refuse):
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            ancestors = above.pop(path)
            if identity in ancestors:
                link = path  # the repeated folder may be the real one, reached by a link further up
                while not os.path.islink(link):
                    link = os.path.dirname(link)
                raise ConvertError(f"the link {printable(link)} leads to a folder above itself; remove the link")
            below = os.path.relpath(path, self.root)
            passed_over = [each for each in folders if each.startswith(".")] + [each for each in files if is_fork(each)]
            self.hidden += [f"{below}/{each}" for each in sorted(passed_over)]
            folders[:] = [each for each in folders if each not in passed_over]  # os.walk follows this list
            for folder in folders:
                above[os.path.join(path, folder)] = ancestors | {identity}
            yield below, [each for each in files if not is_fork(each)]

    def _is_image(self, name: str) -> bool:
        return name.lower().endswith(self.extensions)

    def _ignore(self, name: str) -> None:
        self.num_ignored += 1
        if len(self.ignored) < _NAMED_AT_MOST:
            self.ignored.append(printable(name))


def _checked(root: str, folders: Sequence[str], class_names: Sequence[str]) -> list[str]:
    known = set(class_names)
    strange = [name for name in folders if name not in known]
    if strange:
        shown = ", ".join(map(repr, map(printable, strange[:_NAMED_AT_MOST])))
        raise UsageError(
            f"{printable(root)}: of its class folders {len(strange):,} not among the {len(class_names):,} classes that "
            f"are given (--classes): {shown}"
        )
    return list(class_names)


def _load(task: tuple[str, int]) -> dict[str, object]:
    path, label = task
    return labelled(lambda: read_file(path), label)
