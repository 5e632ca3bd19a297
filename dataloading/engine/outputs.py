"""What a batch holds: its names, in order, and of which field and by which transforms each is made.

An output is a name in the batch, a field a column of the files. Most outputs have the name of their field; a `View` has
a name of its own, and one field may have many. Knows no decoders and no memory.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from dataloading.dataset.files import FileSet
from dataloading.engine.annotations import declared_coordinates
from dataloading.errors import UsageError
from dataloading.format import Field, ImageField, MaskField, NDArrayField, image_of
from dataloading.transforms.base import BatchOp, FieldOp, Placeholder, Transform
from dataloading.transforms.compose import Compose, written_out
from dataloading.transforms.crops import one_list_per_crop
from dataloading.transforms.custom import AsList
from dataloading.transforms.foreign import check_callable
from dataloading.transforms.view import View

__all__ = ["Output", "choose_outputs", "named"]


@dataclass(frozen=True, kw_only=True)
class Output:
    """One name in a batch.

    Parameters
    ----------
    name : str
    field : str
        What it is made of.
    transforms : tuple
        The user's, or those that a mask takes over from its image.
    partner : str, optional
        The field with the images that a mask belongs to.
    views : tuple of int
        The numbers that random keys of its images are made with, once for each crop of a FiveCrop or TenCrop; a list of
        tensors if there is more than one.
    seed : int, optional
        Of these keys, instead of the loader's.
    follows : str, optional
        The output whose geometry a mask, boxes or points take over.
    """

    name: str
    field: str
    transforms: tuple[Any, ...] = ()
    partner: str | None = None
    views: tuple[int, ...] = (0,)
    seed: int | None = None
    follows: str | None = None

    @property
    def as_list(self) -> bool:
        """Whether images are delivered as they are stored."""
        return len(self.transforms) == 1 and isinstance(self.transforms[0], AsList)

    def view_text(self, place: int) -> str | None:
        """Say which view of the field number `place` of this output is, for messages; None if there is only one."""
        if len(self.views) > 1:
            return f"{self.name}[{place}]"
        return None if self.name == self.field else self.name


def choose_outputs(
    files: FileSet, transforms: Mapping[str, Sequence[Any] | View], fields: Sequence[str] | None
) -> dict[str, Output]:
    """Make the outputs of a loader, in order; the arguments are the Loader's.

    Raises
    ------
    UsageError
        There is no such field or view, or something cannot be had together.
    """
    if not isinstance(transforms, Mapping):
        raise UsageError(
            f"transforms= must say whose they are, as in transforms={{'image': [...]}}, got {type(transforms).__name__}"
        )
    views = {name: given for name, given in transforms.items() if isinstance(given, View)}
    for name, given in views.items():
        with named(name):
            _check_view(files, views, name, given)
    names = _choose_names(files, transforms, views, fields)
    _check_transforms(files, transforms, names)
    partner = image_of({each: files.fields[each] for each in _fields_of(names, views)})
    numbers = _number_views(views)
    outputs: dict[str, Output] = {}
    for name in names:
        view = views.get(name)
        field = name if view is None else view.field
        is_mask = isinstance(files.fields[field], MaskField)
        source = name
        is_places = declared_coordinates(files.fields[field]) is not None
        if (is_mask or is_places) and name not in transforms and partner is not None:
            source = _followed(name, partner, transforms, views, is_mask=is_mask)
        elif view is not None and view.like is not None and view.transforms is None:
            source = view.like
        if is_places and source != name:
            _check_single(name, partner, source, _numbers_of(source, transforms, views, numbers))
        ops = () if is_places else _list_of(transforms.get(source, ()))
        if is_mask and source != name and not _is_mask(files, source, views):
            # Positions in the list stay the same, as random numbers depend on them.
            ops = tuple(op.for_mask() if isinstance(op, Transform) else Placeholder() for op in ops)
        _check_as_list(name, ops, is_image=isinstance(files.fields[field], ImageField), is_view=view is not None)
        outputs[name] = Output(
            name=name,
            field=field,
            transforms=ops,
            partner=partner if is_mask else None,
            views=(0,) if is_places else _numbers_of(name if view else source, transforms, views, numbers),
            seed=None if view is None else views[view.like or name].seed,
            follows=None if source == name else source,
        )
    return outputs


def _fields_of(names: Iterable[str], views: Mapping[str, View]) -> list[str]:
    return [views[name].field if name in views else name for name in names]


def _is_mask(files: FileSet, name: str, views: Mapping[str, View]) -> bool:
    return isinstance(files.fields[views[name].field if name in views else name], MaskField)


def _list_of(given: Sequence[Any] | Compose | View) -> tuple[Any, ...]:
    given = (given.transforms or ()) if isinstance(given, View) else given
    return tuple(written_out([given] if isinstance(given, Compose) else given))


def _number_views(views: Mapping[str, View]) -> dict[str, tuple[int, ...]]:
    """Give all views numbers, from 1: a field that is delivered without a view has number 0.

    Those of a view with a seed of its own count from 0.
    """
    numbers: dict[str, tuple[int, ...]] = {}
    first = 1
    for name, view in views.items():
        if view.seed is not None:
            numbers[name] = tuple(range(view.repeat))
        elif view.like is None:
            numbers[name] = tuple(range(first, first + view.repeat))
            first += view.repeat
    return {name: numbers[view.like or name] for name, view in views.items()}


def _numbers_of(
    name: str, transforms: Mapping[str, Any], views: Mapping[str, View], numbers: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the numbers of an output's images: those of its views, each as often as its list makes crops."""
    view, given = views.get(name), transforms.get(name, ())
    if view is not None and view.transforms is None and view.like is not None:
        given = transforms[view.like]
    with named(name):
        num_crops = len(one_list_per_crop(_list_of(given)))
    return tuple(number for number in numbers.get(name, (0,)) for _ in range(num_crops))


def _check_single(name: str, partner: str | None, source: str, numbers: Sequence[int]) -> None:
    """Refuse boxes and points that would follow several images of one sample."""
    if len(numbers) > 1:
        raise UsageError(
            f"field '{name}' would follow its image '{partner}', of which there are {len(numbers)} views '{source}': "
            f"{_as_stored(name)}, or leave it out with fields=[...]"
        )


def _check_view(files: FileSet, views: Mapping[str, View], name: str, view: View) -> None:
    field = files.fields.get(view.field)
    if field is None:
        raise UsageError(_unknown_field(view.field, tuple(files.fields), files.path))
    if not isinstance(field, ImageField):
        raise UsageError(
            f"a View is made of images, but '{view.field}' is of kind {type(field).__name__}, and is delivered under "
            f"its own name"
        )
    if not isinstance(name, str) or (name in files.fields and name != view.field):
        raise UsageError(f"a View of '{view.field}' cannot be called {name!r}, as another field is: choose a new name")
    if view.like is None:
        return
    other = views.get(view.like)
    if other is None or view.like == name or other.like is not None:
        choices = [each for each, candidate in views.items() if each != name and candidate.like is None]
        raise UsageError(
            f"like={view.like!r} must name another view of this dictionary that has no like= itself: "
            f"{', '.join(map(repr, choices)) or 'there is none'}"
        )
    if view.repeat not in (1, other.repeat):
        raise UsageError(f"repeat={view.repeat}, but view '{view.like}' has repeat={other.repeat}: leave repeat= out")


def _unknown_field(name: str, known: Sequence[str], path: str) -> str:
    """Say that there is no such field, and which one may have been meant."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no field {name!r} in {path}: it has {', '.join(map(repr, known))}{hint}"


def _choose_names(
    files: FileSet, transforms: Mapping[str, Any], views: Mapping[str, View], fields: Sequence[str] | None
) -> tuple[str, ...]:
    if fields is None:
        chosen: list[str] = []
        for field in files.fields:
            own = [name for name, view in views.items() if view.field == field]
            # A field of which there are views is delivered itself only if it has a list, too.
            has_list = field in transforms and field not in views
            chosen += own if own and not has_list else [field, *own]
        return tuple(chosen)
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r} must be a list of names: write fields=[{fields!r}]")
    if isinstance(fields, Set) or not isinstance(fields, Iterable):
        raise UsageError(f"fields={fields!r} must be a list of names, in the order in which they are wanted")
    names = tuple(fields)
    known = tuple(dict.fromkeys([*files.fields, *views]))
    for name in names:
        if name not in known:
            raise UsageError(_unknown_field(name, known, files.path))
        if names.count(name) > 1:
            raise UsageError(f"fields= has {name!r} more than once: a batch holds each field once")
    return names


def _check_transforms(files: FileSet, transforms: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name, given in transforms.items():
        is_view = isinstance(given, View)
        if (is_view or name in files.fields) and name not in names:
            what = "view" if is_view else "list for"
            raise UsageError(f"transforms= has a {what} {name!r}, which fields={list(names)} leaves out")
        if name not in names:
            raise UsageError(_unknown_field(name, names, files.path))
        if is_view:
            continue
        if isinstance(given, str) or not isinstance(given, (Sequence, Compose)):
            raise UsageError(
                f"transforms[{name!r}] must be a list, got {type(given).__name__}: write transforms={{{name!r}: [...]}}"
            )
        if not isinstance(files.fields[name], ImageField):
            _check_callables(files.fields[name], name, [given] if isinstance(given, Compose) else given)


def _check_callables(field: Field, name: str, given: Sequence[Any]) -> None:
    """Refuse what cannot work on the batched values of a field that holds no images."""
    for position, op in enumerate(given):
        # Arrays may be images, (channels, height, width). AsList and FieldOp have checks of their own.
        if isinstance(op, (AsList, FieldOp)) or (isinstance(op, BatchOp) and isinstance(field, NDArrayField)):
            continue
        if isinstance(op, Transform):
            raise UsageError(
                f"transforms[{name!r}]: transform {position} ({op.name}) works on images, but '{name}' is of kind "
                f"{type(field).__name__}. Put it into the list of an image field; this one takes callables on the batch"
            )
        with named(name):
            check_callable(op, position)


def _followed(
    name: str, partner: str, transforms: Mapping[str, Any], views: Mapping[str, View], *, is_mask: bool
) -> str:
    """Return the output that a field without a list follows: that of its image, else the image's only view."""
    own = [name for name, view in views.items() if view.field == partner]
    if not own or (partner in transforms and partner not in views):
        return partner
    if len(own) > 1:
        example = f"'{own[0]}_{name}': T.View({name!r}, like={own[0]!r})"
        fix = f"say which one, as in transforms={{{example}}}" if is_mask else _as_stored(name)
        raise UsageError(
            f"field '{name}' would follow its image '{partner}', of which there are {len(own)} views "
            f"({', '.join(own)}): {fix}, or leave it out with fields=[...]"
        )
    return own[0]


def _as_stored(name: str) -> str:
    return f"get it as it is stored, with an empty list of its own, transforms={{'{name}': []}}"


def _check_as_list(name: str, given: Sequence[Any], *, is_image: bool, is_view: bool) -> None:
    if not any(isinstance(op, AsList) for op in given):
        return
    if is_view and len(given) == 1:
        raise UsageError(
            f"transforms[{name!r}]: AsList() delivers images as they are stored, which are the same in every view; put "
            f"it alone into a list, transforms={{'image': [AsList()]}}"
        )
    if not is_image:
        raise UsageError(f"transforms[{name!r}]: AsList() is for images, which this field does not hold: leave it out")


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Say whose list of transforms an error is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"transforms[{name!r}]: {error}") from None
