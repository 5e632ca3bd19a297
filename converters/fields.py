"""The grammar ``NAME=KIND[:...][@COLUMN]`` of declared fields, and the conversion of a source's values to fields.

    label=int    weight=float    caption=text    meta=json    raw=bytes    image=image
    emb=array:float32:512        pose=array:float64:8x3       title=text@"the title"
    image=image:gray             depth=image:uint16:1         mask=mask    mask=mask:uint16
    boxes=boxes                  boxes=boxes:int32:xywh       boxes=boxes:cxcywh:relative
    tokens=vararray:int64:?      points=vararray:float32:?x2:points

A value may be typed (from parquet, JSON, Python), text (a cell of a CSV file) or a file's bytes (a member of a tar
file); each kind defines how to read the three. Nothing is cast: a value that a field cannot hold exactly is a
`SampleFault` that says expected and got. A new kind is one more entry of `KINDS`.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import json
import shlex
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.source import SampleFault
from dataloading import (
    BytesField,
    Field,
    FloatField,
    ImageField,
    IntField,
    JSONField,
    MaskField,
    NDArrayField,
    RasterField,
    TextField,
    UsageError,
    VarArrayField,
)
from dataloading.tools import check_name

__all__ = [
    "KINDS", "FieldSpec", "Kind", "fields_of", "name_fault", "parse_field", "parse_fields", "plain_spec", "short_name",
]  # fmt: skip

_NAME_CHARACTERS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of field in the grammar.

    Parameters
    ----------
    example : str
        An example of its syntax, for messages.
    make : callable
        The parts between colons -> the field; raises `UsageError` if they are invalid.
    from_value : callable
        (field, typed value) -> the field's value; raises ValueError or TypeError with the reason.
    from_text : callable, optional
        (field, text) -> the same; by default the text is JSON of a typed value.
    from_bytes : callable, optional
        (field, a file's bytes) -> the same; by default the bytes are UTF-8 text.
    is_file : bool
        Whether text in a table is the path of a file with the value.
    """

    example: str
    make: Callable[[Sequence[str]], Field]
    from_value: Callable[[Any, Any], object]
    from_text: Callable[[Any, str], object] | None = None
    from_bytes: Callable[[Any, bytes], object] | None = None
    is_file: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """A declared field: its name in the file, a key of `KINDS`, and the source's column."""

    name: str
    kind: str
    field: Field
    column: str

    @property
    def is_file(self) -> bool:
        """Whether text stands for the path of a file."""
        return KINDS[self.kind].is_file

    def from_value(self, value: object) -> object:
        """Convert a typed value to the field's; raises `SampleFault` if it does not fit."""
        if value is None:
            raise SampleFault(f"field '{self.name}': expected {self._expected()}, got nothing (null)")
        return self._tried(KINDS[self.kind].from_value, value)

    def from_text(self, text: str) -> object:
        """Convert text, such as a cell of a CSV file."""
        return self._tried(KINDS[self.kind].from_text or self._from_json, text)

    def from_bytes(self, data: bytes) -> object:
        """Convert the bytes of a file that holds the value."""
        if (read := KINDS[self.kind].from_bytes) is not None:
            return self._tried(read, data)
        try:
            return self.from_text(data.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            raise SampleFault(f"field '{self.name}': expected {self.kind} as UTF-8 text, got {_shown(data)}") from error

    def _from_json(self, field: Field, text: str) -> object:
        return KINDS[self.kind].from_value(field, json.loads(text))

    def _tried(self, read: Callable[[Any, Any], object], value: object) -> object:
        try:
            return read(self.field, value)
        except (ValueError, TypeError, OverflowError) as error:
            text = f"field '{self.name}': expected {self._expected()}, got {_shown(value)}"
            raise SampleFault(f"{text}: {error}" if str(error) else text) from error

    def _expected(self) -> str:
        field = self.field
        if isinstance(field, (NDArrayField, VarArrayField)):
            return f"{self.kind} {field.dtype} of shape {field.shape}"
        return self.kind


def parse_field(text: str) -> FieldSpec:
    """Parse ``NAME=KIND[:...][@COLUMN]``.

    Raises
    ------
    UsageError
        If the syntax is wrong; the message has an example.

    Examples
    --------
    >>> parse_field("emb=array:float32:8x64").field
    NDArrayField('float32', (8, 64))
    >>> parse_field("caption=text@alt text").column
    'alt text'
    """
    name, equals, right = text.partition("=")
    kind_text, at, column = right.partition("@")
    kind, *words = kind_text.split(":")
    name, kind, column = name.strip(), kind.strip(), column if at else name.strip()
    if not equals or not name or not kind or not column:
        examples = ", ".join(each.example for each in KINDS.values())
        raise UsageError(f"{text!r} declares no field; write NAME=KIND or NAME=KIND@COLUMN, such as {examples}")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"{text!r}: there is no kind {kind!r}; {guess}There are: {', '.join(KINDS)}")
    try:
        field = KINDS[kind].make(words)
    except UsageError as error:
        raise UsageError(f"{text!r}: {error}; write it as {KINDS[kind].example}") from error
    if fault := name_fault(name):
        typed = shlex.quote(f"{short_name(name)}={kind_text}@{column}")
        raise UsageError(f"{fault}; --field {typed} calls the field otherwise")
    return FieldSpec(name=name, kind=kind, field=field, column=column)


def plain_spec(name: str, kind: str) -> FieldSpec:
    """Return a field without parameters, from the column of the same name."""
    return FieldSpec(name=name, kind=kind, field=KINDS[kind].make(()), column=name)


def name_fault(name: str) -> str:
    """Return why the format cannot hold a field of that name, or ""."""
    try:
        check_name(name)
    except UsageError as error:
        return str(error)
    return ""


def short_name(name: str, taken: Collection[str] = ()) -> str:
    """Return a similar name that the format can hold and that is not in use.

    Examples
    --------
    >>> short_name("photographer_name"), short_name("größe"), short_name("photographer_name", {"photographer_nam"})
    ('photographer_nam', 'groe', 'photographer_na2')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = "".join(sign if sign.isalnum() else "_" for sign in plain).strip("_")[:_NAME_CHARACTERS] or "field"
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain[: _NAME_CHARACTERS - len(str(number))]}{number}"
    return found


def parse_fields(texts: Sequence[str]) -> dict[str, FieldSpec]:
    """Return the declared fields by name, in order; a `UsageError` if a name is declared twice."""
    specs: dict[str, FieldSpec] = {}
    for text in texts:
        spec = parse_field(text)
        if spec.name in specs:
            raise UsageError(f"the field '{spec.name}' is declared twice")
        specs[spec.name] = spec
    return specs


def _plain(kind: type[Field]) -> Callable[[Sequence[str]], Field]:
    def make(words: Sequence[str]) -> Field:
        if words:
            raise UsageError(f"nothing may follow it, got {':'.join(words)!r}")
        return kind()

    return make


def _checked(field: Field, value: object) -> object:
    field.encode(value)  # raises here, since the engine's error would lack the source's name for it
    return value


def _int_from_value(field: Field, value: object) -> object:
    if isinstance(value, str):
        raise TypeError("text is no number; declare it as text, or take it as the label")
    return _checked(field, value)


def _number_from_text(number: Callable[[str], object]) -> Callable[[Any, str], object]:
    def read(_field: Field, text: str) -> object:
        if "_" in text:  # Python's literals allow underscores; in data 1_000 is more likely a name
            raise ValueError("it is no number")
        return number(text)

    return read


def _text_from_value(field: Field, value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if not isinstance(value, str):
        raise TypeError("it is not text")
    return _checked(field, value)


def _bytes_from_value(_field: Field, value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("it is not bytes")
    return bytes(value)


def _json_from_value(field: Field, value: object) -> object:
    return _checked(field, json.loads(value) if isinstance(value, bytes) else value)


def _coordinates(words: Sequence[str]) -> str | None:
    """Return the coordinate format after dtype and shape."""
    return " ".join(words) or None


def _make_array(words: Sequence[str]) -> Field:
    if len(words) < 2:
        raise UsageError("an array needs dtype and shape")
    try:
        shape = tuple(int(length) for length in words[1].lower().split("x"))
    except ValueError:
        raise UsageError(f"{words[1]!r} is no shape") from None
    return NDArrayField(words[0], shape, coordinates=_coordinates(words[2:]))


def _make_vararray(words: Sequence[str]) -> Field:
    lengths = words[1].lower().split("x") if len(words) >= 2 else []
    if not lengths or lengths[0] != "?":
        raise UsageError("an array of any length needs dtype and shape, whose first length is a question mark")
    try:
        return VarArrayField(words[0], (None, *map(int, lengths[1:])), coordinates=_coordinates(words[2:]))
    except ValueError as error:
        raise UsageError(str(error) if isinstance(error, UsageError) else f"{words[1]!r} is no shape") from None


def _make_boxes(words: Sequence[str]) -> Field:
    known = ("xyxy", "xywh", "cxcywh", "relative", "none")
    dtypes = [word for word in words if word not in known]
    if len(dtypes) > 1:
        raise UsageError(f"only a dtype, {', '.join(known)} may follow it, got {':'.join(words)!r}")
    meaning = [word for word in words if word in known]
    if not set(meaning) - {"relative"}:
        meaning.append("xyxy")
    return VarArrayField(dtypes[0] if dtypes else "float32", (None, 4), coordinates=_coordinates(meaning))


def _make_mask(words: Sequence[str]) -> Field:
    if len(words) > 1:
        raise UsageError(f"only uint8 or uint16 may follow it, got {':'.join(words)!r}")
    return MaskField(*words)


def _make_image(words: Sequence[str]) -> Field:
    if not words:
        return ImageField()
    if list(words) == ["gray"]:
        return RasterField(1, "uint8")
    if len(words) != 2 or not words[1].isdecimal():
        raise UsageError(f"'gray' may follow it, or dtype and channels, got {':'.join(words)!r}")
    return RasterField(int(words[1]), words[0])


def _array_from_value(field: NDArrayField | VarArrayField, value: object) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        array = np.asarray(value)
        if array.dtype.newbyteorder("=") != field.dtype.newbyteorder("="):
            raise TypeError(f"its dtype is {array.dtype}, and nothing is cast")
    else:
        array = _exact_array(value, field.dtype)
    if isinstance(field, VarArrayField):
        if array.size == 0 and array.ndim == 1:  # the length of rows is unknown in a list without rows
            array = array.reshape(0, *(length or 0 for length in field.shape[1:]))
        if array.ndim != len(field.shape) or array.shape[1:] != field.shape[1:]:
            raise ValueError(f"its shape is {array.shape}")
    elif array.shape != field.shape:
        raise ValueError(f"its shape is {array.shape}")
    return np.ascontiguousarray(array)


def _exact_array(value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers without a dtype of their own (lists, JSON) as ``dtype``; only floats may round."""
    natural = np.asarray(value)
    if natural.size == 0:  # an empty list is of no type
        return natural.astype(dtype)
    if natural.dtype.kind not in "biuf" or (natural.dtype.kind == "f" and dtype.kind != "f"):
        raise TypeError(f"its values make a {natural.dtype} array of shape {natural.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        array = natural.astype(dtype)
    lost = np.isinf(array) & ~np.isinf(natural) if dtype.kind == "f" else array != natural
    if np.any(lost):
        raise ValueError(f"{natural[lost].flat[0]} does not fit {dtype}")
    return array


def _array_from_bytes(field: NDArrayField | VarArrayField, data: bytes) -> npt.NDArray[Any]:
    is_npy = data.startswith(b"\x93NUMPY")
    return _array_from_value(
        field, np.load(io.BytesIO(data), allow_pickle=False) if is_npy else json.loads(data.decode())
    )


def _image_from_value(_field: Field, value: object) -> object:
    if isinstance(value, str):
        raise TypeError("text is no image")
    return value  # the image policy checks the value


def _array_kind(example: str, make: Callable[[Sequence[str]], Field]) -> Kind:
    return Kind(example=example, make=make, from_value=_array_from_value, from_bytes=_array_from_bytes)


def _image_kind(example: str, make: Callable[[Sequence[str]], Field]) -> Kind:
    return Kind(
        example=example, make=make, from_value=_image_from_value, from_text=_image_from_value,
        from_bytes=_image_from_value, is_file=True,
    )  # fmt: skip


# Sources and commands accept every kind in this table.
KINDS: dict[str, Kind] = {
    "int": Kind(
        example="label=int", make=_plain(IntField), from_value=_int_from_value,
        from_text=_number_from_text(lambda text: int(text, 10)),
    ),
    "float": Kind(
        example="weight=float", make=_plain(FloatField), from_value=_checked, from_text=_number_from_text(float)
    ),
    "text": Kind(
        example="caption=text", make=_plain(TextField), from_value=_text_from_value, from_text=_text_from_value,
        from_bytes=_text_from_value,
    ),
    "json": Kind(example="meta=json", make=_plain(JSONField), from_value=_json_from_value),
    "bytes": Kind(
        example="raw=bytes", make=_plain(BytesField), from_value=_bytes_from_value,
        from_text=lambda _field, text: text.encode("utf-8"), from_bytes=_bytes_from_value,
    ),
    "array": _array_kind("emb=array:float32:8x64", _make_array),
    "vararray": _array_kind("points=vararray:float32:?x2", _make_vararray),
    "boxes": _array_kind("boxes=boxes", _make_boxes),
    "mask": _image_kind("mask=mask", _make_mask),
    "image": _image_kind("image=image", _make_image),
}  # fmt: skip


def fields_of(specs: Mapping[str, FieldSpec]) -> dict[str, Field]:
    """Return the fields of declared names."""
    return {name: spec.field for name, spec in specs.items()}


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
