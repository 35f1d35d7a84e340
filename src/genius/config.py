"""Convert dataclasses to and from dicts, TOML and JSON, with a one-line error for an unknown field or a wrong type."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from genius.errors import GeniusError

C = TypeVar("C")


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as JSON-ready values."""
    return cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(config), default=str)))


def changed(config: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, nested ones included, as JSON-ready values."""
    out: dict[str, Any] = {}
    values = to_dict(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            inner = changed(value)
            if inner:
                out[field.name] = inner
        elif field.default_factory is not dataclasses.MISSING:
            if value != field.default_factory():
                out[field.name] = values[field.name]
        elif value != field.default:
            out[field.name] = values[field.name]
    return out


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, table by table."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        merged[name] = value
    return merged


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted names: {"a": {"b": 1}} -> {"a.b": 1}."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{before}{name}.")
        else:
            out[before + name] = value
    return out


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `flat`.

    Raises:
        GeniusError: If a name is a value and a table.
    """
    out: dict[str, Any] = {}
    for dotted, value in sorted(values.items()):
        *tables, name = dotted.split(".")
        inner = out
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise GeniusError(f"{table} is not a table")
        inner[name] = value
    return out


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)  # cached: evaluating string annotations is slow


def from_dict(cls: type[C], values: Any, where: str = "config") -> C:
    """Build a dataclass from a mapping, nested dataclasses and tuples included.

    Args:
        cls: The dataclass.
        values: Its fields.
        where: Begins the error.

    Raises:
        GeniusError: For an unknown field, a missing one, or a value of a wrong type.
    """
    if not isinstance(values, dict):
        raise GeniusError(f"{where}: expected a table of {cls.__name__} fields, got {type(values).__name__}")
    hints = _hints(cast(Any, cls))
    known = {f.name for f in dataclasses.fields(cast(Any, cls)) if f.init}
    unknown = sorted(set(values) - known)
    if unknown:
        raise GeniusError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}")
    converted = {name: _convert(hints[name], value, f"{where}: {name}") for name, value in values.items()}
    try:
        return cls(**converted)
    except (TypeError, GeniusError) as error:  # a field is missing, or values do not go together
        raise GeniusError(f"{where}: {error}") from None


def read_config(cls: type[C], path: str | Path) -> C:
    """Read a TOML or JSON file of the fields of `cls`."""
    return from_dict(cls, read_values(path), where=str(path))


def read_values(path: str | Path) -> Any:
    """Parse a TOML or JSON file."""
    import tomllib

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return json.loads(text)
        return tomllib.loads(text)
    except FileNotFoundError:
        raise GeniusError(f"no such config: {path}") from None
    except (OSError, ValueError) as error:
        raise GeniusError(f"cannot read {path}: {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        for option in (o for o in options if o is not type(None)):
            try:
                return _convert(option, value, where)
            except GeniusError as error:
                failure = error
        raise failure
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise GeniusError(f"{where} must be one of {', '.join(map(repr, typing.get_args(hint)))}, got {value!r}")
        return value
    if dataclasses.is_dataclass(hint):
        if isinstance(value, cast(type, hint)):
            return value
        return from_dict(cast(type, hint), value, where)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise GeniusError(f"{where} must be a list, got {value!r}")
        inner = typing.get_args(hint)[0]
        return origin(_convert(inner, v, where) for v in value)
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise GeniusError(f"{where} must be a table, got {value!r}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise GeniusError(f"{where} must be {hint.__name__}, got {value!r}")
    return value
