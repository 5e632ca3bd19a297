"""WebDataset's tar shards: files of the same basename are one sample, and a map assigns them to fields.

Files are grouped as WebDataset does: a member's key is its path up to the first dot of the basename, and neighbours
with one key are one sample. The shards are indexed once and read by offset, so any order and number of workers is
possible; URLs are read by ranges. Members that no field uses are counted (``unused``). Text labels become classes; for
that the parent reads all labels, but from URLs only if the first label is text.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from converters.fields import FieldSpec, fields_of, parse_field
from converters.source import SampleFault, printable
from dataloading import ConvertError, Field, UsageError
from dataloading.tools import is_url, label_field

from .labels import Labels, class_label, label_numbers
from .listing import expand
from .packed_texts import PackedTexts
from .reading import Identity, Ranges, absolute, identity, name_of, open_stream
from .row_values import gathered
from .tar_index import TAR_ENDINGS, Member, TarRange, Tars, Unused, is_hidden, members

__all__ = ["IMAGE_ENDINGS", "WebDataset", "parse_map"]

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "ppm", "pgm", "bmp", "gif", "tif", "tiff")
_DEFAULT_MAP = {"image": IMAGE_ENDINGS, "label": ("cls",)}
# Extension -> kind of field; others are bytes, unless --field declares them.
_KINDS = (
    dict.fromkeys(IMAGE_ENDINGS, "image")
    | dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "int")
    | dict.fromkeys(("txt", "text", "transcript"), "text")
    | dict.fromkeys(("json", "jsn"), "json")
    | {"npy": "array"}
)
_KEY = re.compile(r"^((?:.*/|)[^./]+)[.]([^/]*)$", re.DOTALL)
_LABEL_ENDINGS = {"cls", "cls2", "class"}
_ABSENT = 255
_SEEN_SHOWN = 1000


def parse_map(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse the extensions of each field from words such as ``image=jpg,png``.

    Raises
    ------
    UsageError
        If a word has another form, or names a field twice.

    Examples
    --------
    >>> parse_map(["image=jpg,.PNG", "label=cls"])
    {'image': ('jpg', 'png'), 'label': ('cls',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, right = text.partition("=")
        endings = tuple(word.strip().lower().lstrip(".") for word in right.split(",") if word.strip(" ."))
        if not name.strip() or not endings or len(endings) >= _ABSENT:
            raise UsageError(f"{text!r} maps nothing; write FIELD=ENDING[,ENDING...], such as image=jpg,png label=cls")
        if name.strip() in found:
            raise UsageError(f"the field '{name.strip()}' is mapped twice")
        found[name.strip()] = endings
    return found


class WebDataset:
    """The samples of tar shards.

    Parameters
    ----------
    patterns : sequence of str
        Tar files, folders of them, globs or brace patterns; paths or URLs.
    mapping : mapping of str to sequence of str, optional
        Field -> extensions; the first extension present among a sample's files wins. By default ``image`` from any
        image extension and ``label`` from ``cls``.
    specs : mapping of str to FieldSpec, optional
        Kinds of mapped fields that differ from those of their extensions.
    class_names : sequence of str, optional
        Names of the labels.
    fill : mapping of str to str, optional
        Values, as text, for samples without a file for a field; by field, or by extension.

    Raises
    ------
    ConvertError
        If a shard cannot be indexed, holds a sample's file twice, or labels mix names and numbers.
    UsageError
        If the patterns, the map or the fill values are invalid.

    Attributes
    ----------
    unused : Unused
        Members of the shards that no field uses.
    fill : dict of str to str
        The fill values, by field.
    has_words : bool
        Whether labels are text; labels are then positions among the sorted texts.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        mapping: Mapping[str, Sequence[str]] | None = None,
        specs: Mapping[str, FieldSpec] | None = None,
        class_names: Sequence[str] | None = None,
        fill: Mapping[str, str] | None = None,
    ) -> None:
        self.paths = expand(patterns, TAR_ENDINGS)
        self.unused = Unused()
        self.class_names = None if class_names is None else list(class_names)
        self._mapping = {name: tuple(endings) for name, endings in (mapping or _DEFAULT_MAP).items()}
        self._keys = PackedTexts()
        self._shard_of = array("I")
        width = len(self._mapping)
        self._starts, self._sizes, self._endings = array("Q"), array("Q"), array("B")
        self._width = width
        self._seen: dict[int, str] = {}
        self._tars = Tars()
        # The path to read each from, and its identity before it was indexed.
        self._read_from = [absolute(path) for path in self.paths]
        self._identities = [identity(path) for path in self.paths]
        unpacked = []
        for number, path in enumerate(self.paths):
            with self._tars.open(path) as tar:
                for sample in self._samples(tar, printable(path)):
                    self._take(number, sample)
            if tar.path != path:
                self._read_from[number] = tar.path
                unpacked.append(number)
        for number in unpacked:  # the temporary file is final only now
            self._identities[number] = identity(self._read_from[number])
        if not len(self):
            raise UsageError(f"{printable(self.paths[0])}: no samples; expected members such as 0001.jpg and 0001.cls")
        self._specs = self._find_specs(specs or {})
        self.fill = {self._filled_field(key): text for key, text in (fill or {}).items()}
        self._label = self._label_of_words(specs or {})
        self.has_words = self._label is not None and class_names is None
        self.provenance = {
            "source": "webdataset",
            "source_name": printable(name_of(self.paths[0])),
            "source_shards": len(self.paths),
            "source_samples": len(self),
            **({"source_fill": dict(self.fill)} if self.fill else {}),
        }
        self._filled = {name: self._filled_value(name, text) for name, text in self.fill.items()}

    @property
    def num_filled(self) -> dict[str, int]:
        """Number of samples in which a field is filled in."""
        names = list(self._mapping)
        return {name: self._endings[names.index(name) :: self._width].count(_ABSENT) for name in self.fill}

    @property
    def fields(self) -> Mapping[str, Field]:
        """The mapped fields in the order of the map."""
        return fields_of(self._specs)

    @property
    def load(self) -> Callable[[Any], Mapping[str, Any]]:
        """See `converters.source.Source`."""
        specs, labels = tuple(self._specs.values()), label_numbers(self.class_names)
        return _Load(specs, self._read_from, self._identities, self._filled, self._label, labels)

    def __len__(self) -> int:
        return len(self._shard_of)

    def task(self, index: int) -> tuple[int, str, list[tuple[int, int]], dict[str, str]]:
        """Return the shard's number and path, the location of each field's bytes, and why some are missing."""
        first = index * self._width
        ranges = []
        missing = {}
        for column, (name, endings) in enumerate(self._mapping.items()):
            if self._endings[first + column] == _ABSENT and name not in self.fill:
                wanted = " or ".join(f".{ending}" for ending in endings)
                seen = f", only {self._seen[index]}" if index in self._seen else ""
                advice = "" if self._specs[name].is_file else f"; --fill {name}=VALUE gives such samples a value"
                advice += "; a sample's files must be neighbours (tar --sort=name)"
                missing[name] = f"it has no {wanted}{seen}{advice}"
            ranges.append((self._starts[first + column], self._sizes[first + column]))
        shard = self._shard_of[index]
        return shard, absolute(self.paths[shard]), ranges, missing

    def name(self, index: int) -> str:
        """Return shard and key."""
        return f"{printable(name_of(self.paths[self._shard_of[index]]))}: {printable(self._keys[index])}"

    def _samples(self, tar: TarRange, label: str) -> Iterator[_Sample]:
        current: _Sample | None = None
        for member in members(tar.file, label, start=tar.start, stop=tar.stop, unused=self.unused):
            match = None if is_hidden(member.name) else _KEY.match(member.name)
            if match is None or (member.name.startswith("__") and member.name.endswith("__")):
                self.unused.add(_kind_of_keyless(member.name), member.name)
                continue
            key, ending = match[1], match[2].lower()
            if current is None or current.key != key:
                if current is not None:
                    yield current
                current = _Sample(key, {})
            if ending in current.files:
                raise ConvertError(f"{label} holds {printable(key)}.{printable(ending)} twice")
            current.files[ending] = member
        if current is not None:
            yield current

    def _take(self, shard: int, sample: _Sample) -> None:
        complete = True
        taken = set()
        for endings in self._mapping.values():
            position = next((number for number, ending in enumerate(endings) if ending in sample.files), _ABSENT)
            found = sample.files[endings[position]] if position != _ABSENT else Member("", 0, 0)
            taken.add(endings[position] if position != _ABSENT else "")
            complete = complete and position != _ABSENT
            self._starts.append(found.start)
            self._sizes.append(found.size)
            self._endings.append(position)
        for ending, member in sample.files.items():
            if ending not in taken:
                self.unused.add(f".{printable(ending.rpartition('.')[2])} files", member.name)
        if not complete and len(self._seen) < _SEEN_SHOWN:
            self._seen[len(self)] = ", ".join(f".{printable(ending)}" for ending in sample.files)
        self._keys.append(sample.key)
        self._shard_of.append(shard)

    def _find_specs(self, given: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
        unknown = [name for name in given if name not in self._mapping]
        if unknown:
            raise UsageError(f"--field {unknown[0]}: the map has no such field; it has {', '.join(self._mapping)}")
        specs: dict[str, FieldSpec] = {}
        for column, (name, endings) in enumerate(self._mapping.items()):
            kinds = {_KINDS.get(ending.rpartition(".")[2], "bytes") for ending in endings}
            if name in given:
                specs[name] = given[name]
            elif len(kinds) > 1:
                raise UsageError(
                    f"--map {name}={','.join(endings)} mixes {' and '.join(sorted(kinds))}; --field {name}=KIND says "
                    "which it is"
                )
            elif kinds == {"array"}:
                specs[name] = parse_field(f"{name}=array:{self._first_array(column, name)}")
            else:
                specs[name] = parse_field(f"{name}={kinds.pop()}")
        return specs

    def _first_array(self, column: int, name: str) -> str:
        """Return dtype and shape of the first .npy, which all must have."""
        index, data = self._first(column)
        if index is None:
            raise UsageError(f"no sample has the .npy that the field '{name}' is mapped to")
        return _described(data, self.name(index))

    def _first(self, column: int) -> tuple[int | None, bytes]:
        """Return the first sample with a file for a field, and that file's bytes."""
        for index in range(len(self)):
            entry = index * self._width + column
            if self._endings[entry] != _ABSENT:
                shard = self._shard_of[index]
                start, size = self._starts[entry], self._sizes[entry]
                try:
                    return index, Ranges().read(self._read_from[shard], start, size, self._identities[shard])
                except SampleFault as error:
                    raise ConvertError(f"{self.name(index)}: {error}") from error
        return None, b""

    def _label_of_words(self, given: Mapping[str, FieldSpec]) -> str | None:
        """Find the field with text labels, and the class names; None if labels are numbers."""
        name = label_field(self.fields)
        if name is None or name in given or not set(self._mapping[name]) <= _LABEL_ENDINGS:
            return None
        column = list(self._mapping).index(name)
        texts: Iterable[str] = [_text(self._first(column)[1])]
        if not any(map(is_url, self._read_from)) or not _is_number(next(iter(texts))):
            texts = self._texts(column)
        labels = Labels(itertools.chain(texts, [self.fill.get(name, "")]))
        if self.class_names is not None:
            return name if labels.has_words else None
        self.class_names = labels.names()
        return None if self.class_names is None else name

    def _texts(self, column: int) -> Iterator[str]:
        """Read the small files of a field in sequence."""
        for shard, indices in itertools.groupby(range(len(self)), self._shard_of.__getitem__):
            with open_stream(self._read_from[shard]) as file:
                for index in indices:
                    entry = index * self._width + column
                    if self._endings[entry] != _ABSENT:
                        file.seek(self._starts[entry])
                        yield _text(file.read(self._sizes[entry]))

    def _filled_field(self, key: str) -> str:
        names = [name for name, endings in self._mapping.items() if key.lstrip(".").lower() in endings]
        if key in self._mapping:
            names = [key]
        if len(names) != 1:
            raise UsageError(f"--fill {key}: the map has no such field; it has {', '.join(self._mapping)}")
        if self._specs[names[0]].is_file:
            raise UsageError(
                f"--fill {key}: an image cannot be typed; --on-error placeholder puts a gray one in its place, skip "
                "leaves the sample out"
            )
        return names[0]

    def _filled_value(self, name: str, text: str) -> object:
        try:
            if name == self._label:
                return class_label(text, label_numbers(self.class_names), "--fill")
            return self._specs[name].from_text(text)
        except SampleFault as error:
            raise UsageError(f"--fill {name}={text}: {error}") from error


def _kind_of_keyless(name: str) -> str:
    if name.startswith("__") and name.endswith("__"):
        return "of WebDataset's own"
    return "hidden files" if is_hidden(name) or name.rpartition("/")[2].startswith(".") else "files without an ending"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape").strip()


def _is_number(text: str) -> bool:
    return not text or text.lstrip("-").isdecimal()


def _described(data: bytes, name: str) -> str:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ConvertError(f"{name}: its .npy cannot be read: {error}") from error
    return f"{array.dtype.name}:{'x'.join(map(str, array.shape or (1,)))}"


class _Sample(NamedTuple):
    """A key and its files by extension."""

    key: str
    files: dict[str, Member]


@dataclasses.dataclass
class _Load:
    """Reads a sample's files by offset; sent to the workers."""

    specs: tuple[FieldSpec, ...]
    paths: list[str]
    identities: list[Identity]
    filled: Mapping[str, object]
    label: str | None
    labels: Mapping[str, int] | None
    ranges: Ranges = dataclasses.field(default_factory=Ranges)

    def __call__(self, task: tuple[int, str, list[tuple[int, int]], dict[str, str]]) -> dict[str, object]:
        shard, _, ranges, missing = task

        def read(spec: FieldSpec, start: int, size: int) -> object:
            if spec.name in missing:
                raise SampleFault(f"field '{spec.name}': {missing[spec.name]}")
            if start == 0:  # an offset that no member can have
                return self.filled[spec.name]
            data = self.ranges.read(self.paths[shard], start, size, self.identities[shard])
            if spec.name == self.label:
                return class_label(_text(data), self.labels, "its file")
            return spec.from_bytes(data)

        return gathered(
            (spec.name, partial(read, spec, *range_)) for spec, range_ in zip(self.specs, ranges, strict=True)
        )
