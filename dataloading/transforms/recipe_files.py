"""Recipes as YAML: a mapping of fields to lists of transforms, written and read back with the place of each fault.

    image:
      - RandomResizedCrop: {size: 224}
      - RandomHorizontalFlip
      - RandomApply: {transforms: [ColorJitter: {brightness: 0.4}], p: 0.8}
    local:
      View: {field: image, transforms: [RandomResizedCrop: 96], repeat: 8}

A transform is its name, with its options behind a colon; a value that is not a mapping is its first option.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import dataloading.transforms as package
from dataloading.errors import UsageError
from dataloading.messages import did_you_mean
from dataloading.transforms.base import BatchOp

__all__ = ["dump", "load"]

_DEEPEST = 20
_WITH_FUNCTIONS = {"Custom": "a function", "PerSample": "a function", "Poison": "arrays"}


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a recipe from a YAML file.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    dict
        What `Loader` takes as ``transforms=``.

    Raises
    ------
    UsageError
        The file cannot be read, or is no recipe; names the line.
    """
    name = os.fspath(path)
    try:
        return _RecipeReader(Path(path).read_text(encoding="utf-8"), name).recipe()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the recipe {name}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(f"{name}{place}: this is no YAML that a recipe may hold: {problem}") from error


def dump(recipe: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> str:
    """Write a recipe as YAML, so that `load` gives an equal one.

    Parameters
    ----------
    recipe : mapping
        Of fields to lists of transforms, or of names to views.
    path : str or os.PathLike, optional
        File to write.

    Returns
    -------
    str
        The YAML.

    Raises
    ------
    UsageError
        The recipe holds a function, which YAML cannot.

    Examples
    --------
    >>> from dataloading import transforms as T
    >>> print(dump({"image": [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]}), end="")
    image:
    - RandomResizedCrop: {size: 224}
    - RandomHorizontalFlip
    """
    plain = {name: _described(value, name) for name, value in recipe.items()}
    text: str = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


class _RecipeReader(yaml.SafeLoader):  # type: ignore[misc]  # yaml carries no types
    """Goes through the nodes of a file, which know their lines."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self._name = name

    def recipe(self) -> dict[str, Any]:
        """Return the recipe that the file holds."""
        root = self.get_single_node()
        if not isinstance(root, yaml.MappingNode) or not root.value:
            raise UsageError(f"{self._name}: a recipe is a mapping such as `image: [RandomHorizontalFlip]`")
        return {field: self._field(node) for field, node in self._pairs(root, "field").items()}

    def _fail(self, node: yaml.Node, problem: str) -> UsageError:
        return UsageError(f"{self._name}, line {node.start_mark.line + 1}: {problem}")

    def _pairs(self, node: yaml.MappingNode, what: str) -> dict[str, yaml.Node]:
        if node.tag != "tag:yaml.org,2002:map":
            raise self._fail(node, f"the tag {node.tag} has no meaning in a recipe")
        pairs: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str):
                raise self._fail(key, f"the name of a {what} must be a word, got {name!r}")
            if name in pairs:
                raise self._fail(key, f"{name!r} is given twice")
            pairs[name] = value
        return pairs

    def _field(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._transform(node, 0)
        return self._list(node, 0)

    def _list(self, node: yaml.Node, depth: int) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._fail(node, "expected a list of transforms, each behind a dash")
        if depth > _DEEPEST:
            raise self._fail(node, f"transforms inside transforms, more than {_DEEPEST} deep")
        return [self._transform(each, depth) for each in node.value]

    def _transform(self, node: yaml.Node, depth: int) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._made(node, self.construct_object(node), {}, depth)
        if not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
            raise self._fail(node, "expected one transform: its name, or `Name: {option: value}`")
        [(name, options)] = self._pairs(node, "transform").items()
        kind = self._class(node, name)
        if isinstance(options, yaml.MappingNode):
            return self._made(node, name, self._pairs(options, "option"), depth)
        if isinstance(options, yaml.ScalarNode) and options.value == "":
            return self._made(node, name, {}, depth)
        first = next(iter(inspect.signature(kind).parameters), None)
        if first is None:
            raise self._fail(options, f"{name} has no options")
        return self._made(node, name, {first: options}, depth)

    def _class(self, node: yaml.Node, name: Any) -> type:
        if name in _WITH_FUNCTIONS:
            takes = _WITH_FUNCTIONS[name]
            raise self._fail(node, f"{name} takes {takes}, which YAML cannot hold. Write the recipe in Python")
        found = getattr(package, name, None) if isinstance(name, str) and name in package.__all__ else None
        if not isinstance(found, type):
            raise self._fail(node, f"{name!r} is no transform{package._instead(str(name))}")
        return found

    def _made(self, node: yaml.Node, name: Any, options: dict[str, yaml.Node], depth: int) -> Any:
        kind = self._class(node, name)
        known = inspect.signature(kind).parameters
        values: dict[str, Any] = {}
        for option, value in options.items():
            if option not in known:
                guess = did_you_mean(option, known) or f"It has {', '.join(known) or 'none'}."
                raise self._fail(value, f"{name} has no option {option!r}. {guess}")
            if option == "transforms":
                values[option] = self._list(value, depth + 1)
            else:
                values[option] = _tuples(self.construct_object(value, deep=True))
        missing = [each for each, about in known.items() if about.default is about.empty and each not in values]
        if missing:
            raise self._fail(node, f"{name} needs {' and '.join(missing)}")
        try:
            return kind(**values)
        except UsageError as error:
            raise self._fail(node, str(error)) from error


def _tuples(value: Any) -> Any:
    """Return a value with its lists as tuples, as transforms have them in Python."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _described(value: Any, place: str) -> Any:
    """Return a value as what YAML has: lists, words, numbers; a transform as its name and options."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_described(each, f"{place}[{number}]") for number, each in enumerate(value)]
    if isinstance(value, Mapping):
        return {key: _described(each, f"{place}[{key!r}]") for key, each in value.items()}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    name = type(value).__name__
    if name not in package.__all__ and isinstance(value, BatchOp):
        name = value.name  # what the user wrote: RandomChoice of MixUp and CutMix is another class
    if not dataclasses.is_dataclass(value) or not isinstance(getattr(package, name, None), type):
        raise UsageError(f"{place}: a recipe file holds transforms of dataloading.transforms only, got {value!r}")
    if name in _WITH_FUNCTIONS:
        raise UsageError(
            f"{place}: {name} holds {_WITH_FUNCTIONS[name]}, which YAML cannot. Keep this recipe in Python"
        )
    kind: Any = getattr(package, name)
    options = {}
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        if field.init and given != field.default:
            options[field.name] = given
    for option, given in options.items():  # a square is written as one number where that means the same
        if isinstance(given, tuple) and len(given) == 2 and given[0] == given[1]:
            shorter = {**options, option: given[0]}
            try:
                options = shorter if kind(**shorter) == value else options
            except UsageError:
                continue
    written = {option: _described(given, f"{place}: {name}: {option}") for option, given in options.items()}
    return {name: written} if written else name
