"""Checks of the fields and class names given to a writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from dataloading.errors import UsageError

from .fields import CustomField, Field
from .layout import MAX_FIELDS, check_name

__all__ = ["check_class_names", "check_fields"]


def check_fields(fields: Mapping[str, Field] | Iterable[tuple[str, Field]]) -> dict[str, Field]:
    """Return the fields by name.

    Raises
    ------
    UsageError
        If there are no fields, a name is invalid or used twice, or a value is not a writable field.
    """
    result: dict[str, Field] = {}
    for name, field in fields.items() if isinstance(fields, Mapping) else fields:
        check_name(name)
        if name in result:
            raise UsageError(f"two fields are named {name!r}")
        if not isinstance(field, Field) or isinstance(field, CustomField):
            raise UsageError(f"field {name!r}: expected one of this library's field objects, got {field!r}")
        result[name] = field
    if not 1 <= len(result) <= MAX_FIELDS:
        raise UsageError(f"a sample needs 1 to {MAX_FIELDS} fields, got {len(result)}")
    return result


def check_class_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the classes.

    Raises
    ------
    UsageError
        If they are not strings, or one occurs twice.
    """
    result = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in result):
        raise UsageError(f"class_names must be a sequence of strings, got {names!r}")
    repeated = [name for name, count in Counter(result).items() if count > 1]
    if repeated:
        raise UsageError(f"class_names holds {repeated[0]!r} more than once; each label needs a name of its own")
    return result
