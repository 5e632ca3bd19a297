"""Reads labels of ImageNet's validation images from the development kit or a text file.

The kit numbers classes in its own order (ILSVRC2012_ID, 1 to 1,000). Here labels are positions among the sorted WordNet
ids, as in all training scripts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence

from converters.source import printable
from dataloading import ConvertError, UsageError

from .reading import child, is_folder, normalised, open_stream
from .tar_index import Tars, members

__all__ = ["labels_from_devkit", "labels_from_text"]

_META = "data/meta.mat"
_TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"
_WNID = re.compile(r"n\d{8}$")
_NUM_LEAVES = 1000


def labels_from_devkit(path: str, *, synsets: str | None = None) -> tuple[dict[str, int], list[str]]:
    """Return label by file name, and the class names, from ``ILSVRC2012_devkit_t12.tar.gz`` or its folder.

    Parameters
    ----------
    path : str
        The development kit.
    synsets : str, optional
        A text file of lines ``ID WNID ...`` (or ``WNID ID ...``) to read instead of the kit's MATLAB file, for which
        SciPy is needed.

    Raises
    ------
    UsageError
        If the kit lacks the files.
    ConvertError
        If its files contradict each other.
    """
    read = _opened(normalised(path))
    wnid_of = _synsets_from_text(synsets) if synsets is not None else _synsets_from_mat(read(_META), path)
    wnids = sorted(wnid_of.values())
    if len(set(wnids)) != len(wnids):
        raise ConvertError(f"{synsets or path}: a WordNet id stands for two classes")
    label_of = {number: wnids.index(wnid) for number, wnid in wnid_of.items()}
    labels = {}
    for line, word in enumerate(read(_TRUTH).decode("ascii", "replace").split(), 1):
        if not word.isdecimal() or int(word) not in label_of:
            raise ConvertError(f"{path}: line {line} of {_TRUTH} is {word!r}, which is not a class of the kit")
        labels[f"ILSVRC2012_val_{line:08d}.JPEG"] = label_of[int(word)]
    return labels, wnids


def _opened(path: str) -> Callable[[str], bytes]:
    """Return a function that reads one of the kit's files."""

    def from_folder(name: str) -> bytes:
        with open_stream(child(path, name)) as file:
            return file.read()

    if is_folder(path):
        return from_folder

    def from_tar(name: str) -> bytes:
        with Tars().open(path) as tar:
            for member in members(tar.file, printable(path), start=tar.start, stop=tar.stop):
                if f"/{member.name}".endswith(f"/{name}"):
                    tar.file.seek(member.start)
                    return tar.file.read(member.size)
        raise UsageError(f"{printable(path)} has no {name}; expected ILSVRC2012_devkit_t12.tar.gz or its folder")

    return from_tar


def _synsets_from_mat(data: bytes, path: str) -> dict[int, str]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise UsageError(
            f"{printable(path)}: its class list is a MATLAB file, which needs SciPy: pip install scipy, or give "
            "--synsets FILE with lines such as `449 n01440764`"
        ) from error
    try:
        table = loadmat(io.BytesIO(data), squeeze_me=True)["synsets"]
        rows = zip(table["ILSVRC2012_ID"], table["WNID"], table["num_children"], strict=True)
        # Inner nodes of the tree have numbers too; images belong to leaves.
        return {int(number): str(wnid) for number, wnid, children in rows if int(children) == 0}
    except Exception as error:  # a damaged MATLAB file raises any exception
        raise ConvertError(f"{printable(path)}: {_META} cannot be read: {type(error).__name__}: {error}") from error


def _synsets_from_text(path: str) -> dict[int, str]:
    found = {}
    for number, line in _lines(path):
        words = line.replace(",", " ").split()
        wnid = next((word for word in words[:2] if _WNID.match(word)), None)
        identifier = next((word for word in words[:2] if word.isdecimal()), None)
        if wnid is None or identifier is None:
            raise ConvertError(f"{printable(path)}, line {number}: expected an ID and a WordNet id, got {line!r}")
        found[int(identifier)] = wnid
    return found


def labels_from_text(path: str, *, class_names: Sequence[str] | None = None) -> tuple[dict[str, int], list[str]]:
    """Return label by file name, and the class names, from lines ``NAME LABEL`` or ``NAME WNID``.

    Parameters
    ----------
    path : str
        The text file; a folder before the name is ignored, as are empty lines.
    class_names : sequence of str, optional
        All classes in the order of their labels; by default the sorted WordNet ids that occur.

    Raises
    ------
    ConvertError
        If a line has another form.
    UsageError
        If the numbers are the kit's, not labels.
    """
    names: dict[str, str] = {}
    for number, line in _lines(path):
        name, _, word = line.replace("\t", " ").replace(",", " ").rpartition(" ")
        name = name.strip().rpartition("/")[2]
        if not name or not word:
            raise ConvertError(f"{printable(path)}, line {number}: expected a file name and a label, got {line!r}")
        if names.setdefault(name, word) != word:
            raise ConvertError(f"{printable(path)}, line {number}: {name} is labelled {names[name]} and {word}")
    if all(word.isdecimal() for word in names.values()):
        return _numbers(path, names), list(class_names or ())
    known = list(class_names) if class_names is not None else sorted(set(names.values()))
    label_of = {name: label for label, name in enumerate(known)}
    for name, word in names.items():
        if word not in label_of:
            raise ConvertError(f"{printable(path)}: {name} is labelled {word}, which is not one of the classes")
    return {name: label_of[word] for name, word in names.items()}, known


def _numbers(path: str, names: Mapping[str, str]) -> dict[str, int]:
    labels = {name: int(word) for name, word in names.items()}
    if labels and min(labels.values()) == 1 and max(labels.values()) == _NUM_LEAVES:
        raise UsageError(
            f"{printable(path)}: labels run from 1 to 1,000, so they are the development kit's numbers, whose order is "
            "another one; give the kit itself with --devkit, or labels from 0 to 999, or WordNet ids"
        )
    return labels


def _lines(path: str) -> list[tuple[int, str]]:
    with open_stream(normalised(path)) as file:
        text = file.read().decode("utf-8-sig", "surrogateescape")
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
