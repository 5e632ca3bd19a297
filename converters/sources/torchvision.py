"""Any dataset of ``torchvision.datasets`` that is already on this machine; nothing is downloaded.

Every worker constructs the dataset and indexes it. The first sample determines the type of targets: an integer is the
label, an image a mask; other numbers, arrays and texts keep their type. Datasets of image files return the files'
bytes, so that JPEGs are not encoded again: some accept a ``loader``; for the others ``images/opened_files.py`` finds
the file of the returned pixels.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image

from converters.images.opened_files import file_of, watched
from converters.source import SampleFault
from converters.sources.dataset_attributes import class_names_of
from dataloading import (
    ConvertError,
    Field,
    FloatField,
    ImageField,
    IntField,
    MaskField,
    NDArrayField,
    TextField,
    UsageError,
)
from dataloading.messages import counted

from .reading import read_file

__all__ = ["TorchvisionDataset"]

# The argument that selects a dataset's split, in torchvision's classes.
_PARTS = ("split", "image_set", "train")


class TorchvisionDataset:
    """A dataset of torchvision, by name.

    Parameters
    ----------
    name : str
        Such as ``CIFAR10``.
    root : str
        Folder where torchvision expects the dataset.
    split : str, optional
        ``train``, ``test`` and so on, as the dataset names it; by default the dataset's own default.
    options : mapping, optional
        Further arguments of the dataset's class.

    Raises
    ------
    UsageError
        If torchvision is not installed, has no such dataset, or it does not accept the arguments.
    ConvertError
        If the dataset is not on this machine.
    UsageError
        If its samples are not images with a target.

    Attributes
    ----------
    has_files : bool
        Whether the first image is a file whose bytes can be stored.
    """

    def __init__(
        self, name: str, root: str, *, split: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        kind = _class_of(name)
        known = inspect.signature(kind).parameters
        arguments: dict[str, Any] = dict(options or {})
        is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        unknown = [option for option in arguments if option not in known and not is_open]
        if unknown:
            raise UsageError(f"torchvision's {name} has no argument '{unknown[0]}'; it has {', '.join(known)}")
        if split is not None:
            arguments |= _part(name, known, split)
        if "download" in known:
            arguments["download"] = False
        if any("loader" in inspect.signature(each.__init__).parameters for each in kind.__mro__[: 2 if is_open else 1]):
            arguments.setdefault("loader", read_file)
        self.has_files = False
        self._name = name
        self._root = root
        self.load = _Load(name, root, arguments)
        try:
            self._dataset = self.load.dataset()
            self._length = len(self._dataset)
        except Exception as error:  # each dataset raises its own exceptions
            reason = str(error).replace("You can use download=True to download it", "").strip(" .\n")
            raise ConvertError(
                f"torchvision's {name} cannot be opened in {root}: {reason or type(error).__name__}. Nothing is "
                "downloaded here: put the dataset there first, as its documentation says"
            ) from error
        self.provenance = {
            "source": "torchvision", "source_name": name, "source_split": split, "source_samples": self._length
        }  # fmt: skip
        self.fields: Mapping[str, Field] = self._find_fields() if self._length else {"image": ImageField()}
        self.class_names = class_names_of(self._dataset) if "label" in self.fields else None

    @property
    def files(self) -> Iterator[tuple[str, str]]:
        """The dataset's files, see `converters.source.files_of`."""
        return dataset_files(self._dataset, self._root, self.load.arguments.values())

    def __len__(self) -> int:
        return self._length

    def task(self, index: int) -> int:
        """Return the index itself."""
        return index

    def name(self, index: int) -> str:
        """Return the dataset's name and the index."""
        return f"{self._name}[{index}]"

    def _find_fields(self) -> dict[str, Field]:
        with watched() as opened:
            sample = self._dataset[0]
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            got = counted(len(sample), "value") if isinstance(sample, (tuple, list)) else type(sample).__name__
            raise UsageError(
                f"a sample of torchvision's {self._name} is {got}, expected an image and a target; converters.write "
                "takes any dataset with fields that you name"
            )
        target = _as_numpy(sample[1])
        name, field = _field_of(target)
        if field is None:
            raise UsageError(
                f"a target of torchvision's {self._name} is a {type(sample[1]).__name__}, which makes no field; choose "
                "another by --option (such as target_types=category), or use converters.write"
            )
        kinds = getattr(self._dataset, "target_type", None)
        if name == "target" and kinds in (["bbox"], ["landmarks"]):  # CelebA's targets, which are recognised, since
            name = kinds[0]  # coordinates must change when an image is resized
        self.load.target = name
        self.has_files = isinstance(sample[0], bytes) or file_of(sample[0], opened) is not None
        return {"image": ImageField(), name: field}


def dataset_files(dataset: Any, root: str, arguments: Iterable[Any] = ()) -> Iterator[tuple[str, str]]:
    """Yield name and path of a torchvision dataset's files, as far as its attributes reveal them.

    These are its lists of files, the contents of its folders (of ``root`` if it has none), and files among its other
    ``arguments``. Hidden files and ``.beton`` files are excluded.
    """
    top = os.path.abspath(root)
    usual = [getattr(dataset, name, None) for name in ("base_folder", "raw_folder", "filename")]  # of its class
    files, folders = _files_and_folders([*vars(dataset).values(), *usual], top)
    if not files and not folders:
        folders = [top]
    files += [
        os.path.abspath(value) for value in arguments if isinstance(value, (str, os.PathLike)) and os.path.isfile(value)
    ]
    below = tuple(f"{folder}/" for folder in folders)
    # No file or folder twice if one folder contains another.
    found = [path for path in dict.fromkeys([*files, *sorted(folders)]) if not path.startswith(below)]
    for each in found:
        for path in _walked(each) if each in folders else (each,):
            yield os.path.relpath(path, top), path


def _files_and_folders(values: Iterable[Any], top: str) -> tuple[list[str], list[str]]:
    """Return the files and folders below ``top`` among the paths in ``values``."""
    files: list[str] = []
    folders: list[str] = []
    for value in values:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            text = item[0] if isinstance(item, (list, tuple)) and item else item
            if not isinstance(text, (str, os.PathLike)):
                break  # a list of other values, perhaps a million
            # A dataset with a relative root has paths relative to the same folder or to the root.
            for path in (os.path.abspath(text), os.path.abspath(os.path.join(top, text))):
                if path.startswith(f"{top}/") and os.path.exists(path):
                    (folders if os.path.isdir(path) else files).append(path)
                    break
    return files, folders


def _walked(folder: str) -> Iterator[str]:
    for path, inner, names in os.walk(folder):
        inner.sort()
        for name in sorted(names):
            if not name.startswith(".") and ".beton" not in name:
                yield os.path.join(path, name)


@dataclasses.dataclass
class _Load:
    """Constructs the dataset on first use; sent to the workers."""

    name: str
    root: str
    arguments: dict[str, Any]
    target: str = "label"
    made: Any = None

    def dataset(self) -> Any:
        """Return the dataset, constructing it if necessary."""
        if self.made is None:
            self.made = _class_of(self.name)(self.root, **self.arguments)
        return self.made

    def __call__(self, index: int) -> dict[str, object]:
        dataset = self.dataset()
        with watched() as opened:
            sample = dataset[index]
        if len(sample) != 2:
            raise SampleFault(f"expected an image and a target, got {counted(len(sample), 'value')}")
        image, target = sample[0], _as_numpy(sample[1])
        found = file_of(image, opened)
        if found is not None:
            # As a file; with a mask, which has no EXIF orientation of its own, as the dataset returns it.
            image = found if self.target == "mask" else found.data
        return {"image": image, self.target: target}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "made": None}


def _class_of(name: str) -> Any:
    try:
        from torchvision import datasets
    except ImportError as error:
        raise UsageError(f"{name} needs torchvision: pip install torchvision") from error
    kinds = {
        each: kind
        for each in datasets.__all__
        if inspect.isclass(kind := getattr(datasets, each)) and "root" in inspect.signature(kind).parameters
    }
    if name in kinds:
        return kinds[name]
    exact = {each.lower(): each for each in kinds}.get(name.lower())
    near = [exact] if exact else difflib.get_close_matches(name, kinds, n=2, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(kinds)}"
    raise UsageError(f"torchvision has no dataset {name!r}; {guess}")


def _part(name: str, known: Mapping[str, Any], split: str) -> dict[str, Any]:
    argument = next((each for each in _PARTS if each in known), None)
    if argument is None:
        raise UsageError(f"torchvision's {name} has no parts; leave --split out")
    if argument != "train":
        return {argument: split}
    if split not in {"train", "test", "val"}:
        raise UsageError(f"torchvision's {name} has the parts train and test, got {split!r}")
    return {"train": split == "train"}


def _as_numpy(target: Any) -> Any:
    if hasattr(target, "detach"):
        target = target.detach().cpu().numpy()
    return target.item() if isinstance(target, (np.ndarray, np.generic)) and np.ndim(target) == 0 else target


def _field_of(target: Any) -> tuple[str, Field | None]:
    if isinstance(target, int):
        return "label", IntField()
    if isinstance(target, Image.Image):
        return "mask", MaskField("uint16" if target.mode.startswith("I") else "uint8")
    if isinstance(target, float):
        return "target", FloatField()
    if isinstance(target, str):
        return "target", TextField()
    if isinstance(target, np.ndarray):
        return "target", NDArrayField(target.dtype, target.shape)
    return "target", None
