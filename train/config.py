"""Training options in YAML files: reading them, the ones that come with the package, and writing them.

A file maps options to values, under the names of the command line with underscores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dataloading import UsageError
from dataloading.messages import did_you_mean

from .options import GROUPS, option_fields

_SHIPPED = Path(__file__).parent / "configs"


def shipped_configs() -> list[str]:
    """Return the names of the files that come with the package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def read_config(name: str) -> dict[str, Any]:
    """Read a file of options.

    Parameters
    ----------
    name : str
        A path, or one of `shipped_configs`.

    Returns
    -------
    dict
        Option values by name. A recipe file beside the config is given with its full path.

    Raises
    ------
    UsageError
        There is no such file, it is not YAML, or an option is unknown or has a value of another type.
    """
    import yaml

    path = Path(name)
    if not path.is_file():
        if name not in shipped_configs():
            hint = did_you_mean(name, shipped_configs())
            raise UsageError(
                f"--config {name}: no such file, nor one of {', '.join(shipped_configs())}. {hint}".rstrip()
            )
        path = _SHIPPED / f"{name}.yaml"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not a YAML file: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--config {path} holds {type(values).__name__}, expected a mapping of options to values")
    defaults = {item.name: item.default for item in option_fields()}
    for key, value in values.items():
        if key not in defaults:
            hint = did_you_mean(str(key), defaults) or "beton train --help lists them."
            raise UsageError(f"--config {path}: there is no option {str(key)!r}. {hint}")
        values[key] = _typed(path, key, value, type(defaults[key]))
    if values.get("recipe") and (beside := path.parent / values["recipe"]).is_file():
        values["recipe"] = str(beside)
    return values


def _typed(path: Path, key: str, value: Any, kind: type) -> Any:
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-4, without a point, as a string
        except (TypeError, ValueError):
            pass
    if type(value) is not kind:
        what = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}[kind]
        raise UsageError(f"--config {path}: {key} is {value!r}, expected {what}")
    return value


def config_text(values: Mapping[str, Any]) -> str:
    """Return option values as the text of a file that `read_config` reads."""
    import yaml

    parts = []
    for name, group in GROUPS.items():
        chosen = {item.name: values[item.name] for item in fields(group) if item.name in values}
        if chosen:
            parts.append(f"# {name}\n{yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True)}")
    return "\n".join(parts)
