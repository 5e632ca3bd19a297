"""ImageNet as it is handed out: the training tar of 1,000 tars, and the flat validation set with labels beside it.

Classes are the sorted WordNet ids (``n01440764``, ...), so labels are those of torchvision's ``ImageFolder`` over an
unpacked training set, for both splits. Nothing is unpacked: members are found in one pass and read by offset. Images
of a class are ordered by name, whatever their order in the tar, so tar and folders give the same samples.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dataloading import ConvertError, Field, ImageField, IntField, UsageError, counted

from .base import SampleFault, printable
from .blocks import Texts
from .imagefolder import IMAGE_EXTENSIONS, ImageFolder
from .listing import list_folder
from .opening import Identity, Ranges, absolute, child, identity, is_folder, normalised, open_stream, read_file
from .tarindex import Member, members

__all__ = ["ImageNetTrain", "ImageNetVal"]


class _Images:
    """Images with labels that lie in tar files or are files themselves; the part both splits share.

    Attributes
    ----------
    class_names : list of str or None
        Sorted WordNet ids; None where only numbers are known.
    """

    split = ""

    def __init__(self) -> None:
        self.class_names: list[str] | None = None
        self._paths: list[str] = []  # tar files, or the folder that holds the images
        self._identities: list[Identity | None] = []
        self._path_of = array("I")
        self._labels = array("I")
        self._names = Texts()
        self._starts, self._sizes = array("Q"), array("Q")

    @property
    def fields(self) -> Mapping[str, Field]:
        """``image`` and ``label``."""
        return {"image": ImageField(), "label": IntField()}

    @property
    def provenance(self) -> Mapping[str, object]:
        """Kind, split and size; not in which form ImageNet lay there."""
        return {"source": "imagenet", "source_name": self.split, "source_samples": len(self)}

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.sources.base.Source`."""
        return _Load()

    def __len__(self) -> int:
        return len(self._labels)

    def task(self, index: int) -> tuple[str, int, int, Identity | None, int]:
        """Return the file, the place in it where it is a tar file, and the label."""
        number = self._path_of[index]
        known = self._identities[number]
        path = self._paths[number] if known is not None else child(self._paths[number], self._names[index])
        return path, self._starts[index], self._sizes[index], known, self._labels[index]

    def name(self, index: int) -> str:
        """Return the image's file name."""
        return printable(self._names[index])

    def _add_path(self, path: str, known: Identity | None) -> int:
        self._paths.append(absolute(path))
        self._identities.append(known)
        return len(self._paths) - 1

    def _add(self, path: int, member: Member, label: int) -> None:
        self._path_of.append(path)
        self._labels.append(label)
        self._names.append(member.name)
        self._starts.append(member.start)
        self._sizes.append(member.size)


class _Load:
    """Reads an image from a tar file or a file of its own; what travels to the workers."""

    def __init__(self) -> None:
        self._ranges = Ranges()

    def __call__(self, task: tuple[str, int, int, Identity | None, int]) -> dict[str, object]:
        path, start, size, known, label = task
        try:
            data = read_file(path) if known is None else self._ranges.read(path, start, size, known)
        except OSError as error:
            raise SampleFault(f"cannot be read: {error.strerror or error}", values={"label": label}) from error
        except SampleFault as error:
            raise SampleFault(str(error), values={"label": label}) from error
        return {"image": data, "label": label}


class ImageNetTrain(_Images):
    """The training set: one tar of tars, a folder of tars, or a folder of folders.

    Parameters
    ----------
    src : str
        ``ILSVRC2012_img_train.tar``, a folder of ``n01440764.tar`` and so on, or a folder with a folder a class.

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
        folders, files = list_folder(src)
        tars = [name for name in files if name.endswith(".tar")]
        if tars:
            for name in tars:
                self._take_class_tar(child(src, name), name.removesuffix(".tar"))
        elif folders:
            self._take_folders(src)
        else:
            raise UsageError(f"{printable(src)} has neither tar files such as n01440764.tar nor class folders")

    def _take_tar_of_tars(self, src: str) -> None:
        label = printable(src)
        known = identity(src)
        with open_stream(src) as file:
            inner = [member for member in members(file, label) if member.name.endswith(".tar")]
            if not inner:
                raise UsageError(f"{label} holds no tar files; expected one a class, such as n01440764.tar")
            path = self._add_path(src, known)
            for tar in sorted(inner, key=lambda member: _stem(member.name)):
                place = f"{label}: {printable(tar.name)}"
                found = members(file, place, start=tar.start, stop=tar.start + tar.size)
                self._take_class(path, _stem(tar.name), found, place)

    def _take_class_tar(self, src: str, wnid: str) -> None:
        with open_stream(src) as file:
            self._take_class(self._add_path(src, identity(src)), wnid, members(file, printable(src)), printable(src))

    def _take_class(self, path: int, wnid: str, found: Iterator[Member], place: str) -> None:
        images = sorted(member for member in found if member.name.lower().endswith(IMAGE_EXTENSIONS))
        if not images:
            raise ConvertError(f"{place} holds no images")
        self.class_names = self.class_names or []
        if wnid in self.class_names:
            raise ConvertError(f"{place}: the class {wnid} occurs twice")
        self.class_names.append(wnid)
        for image in images:
            self._add(path, image, len(self.class_names) - 1)

    def _take_folders(self, src: str) -> None:
        folders = ImageFolder(src)
        path = self._add_path(src, None)
        self.class_names = folders.class_names
        for index in range(len(folders)):
            self._add(path, Member(folders.relative(index), 0, 0), folders.label(index))


class ImageNetVal(_Images):
    """The validation set: a tar or folder of flat images, whose labels come from elsewhere.

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
        If there are no images, or they lie in folders.
    ConvertError
        If a tar file is damaged, or an image has no label.
    """

    split = "val"

    def __init__(self, src: str, *, labels: Mapping[str, int], class_names: Sequence[str]) -> None:
        super().__init__()
        src = normalised(src)
        self.class_names = list(class_names) or None
        if is_folder(src):
            folders, files = list_folder(src)
            found = [Member(name, 0, 0) for name in files]
            if folders and not any(map(_is_image, found)):
                raise UsageError(
                    f"{printable(src)} has folders and no images beside them; where val is in class folders already, "
                    "--split train converts it as it is, with the same labels"
                )
            path = self._add_path(src, None)
        else:
            with open_stream(src) as file:
                found = list(members(file, printable(src)))
            path = self._add_path(src, identity(src))
        images = sorted(filter(_is_image, found), key=lambda member: _base(member.name))
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


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _stem(name: str) -> str:
    return _base(name).removesuffix(".tar")
