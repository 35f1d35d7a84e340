"""What the adapters share: filters as `where` conditions, and metadata that an index cannot hold as fields.

Fields of an index are flat: texts, numbers and booleans under names of letters, digits and underscores. Other metadata is kept
whole, as JSON in one field, so that a document comes back as it was; filters see the flat part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from genius.errors import GeniusError
from genius.index.metadata import EXACT, check_key

WHOLE = "document_json"
"""Field with the whole metadata of a document, where it does not fit into fields."""

COMPARISONS = {"==": "=", "=": "=", "!=": "!=", ">": ">", ">=": ">=", "<": "<", "<=": "<="}
MONGO = {"$eq": "==", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<=", "$in": "in", "$nin": "nin"}
"""Operators of dictionaries such as {"price": {"$lt": 5}}."""


def document_fields(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a document as fields of an item.

    Args:
        metadata: Any values that JSON can hold.

    Raises:
        GeniusError: If a value cannot be written as JSON.
    """
    fields = {name: value for name, value in metadata.items() if _is_field(name, value)}
    if len(fields) < len(metadata):
        try:
            fields[WHOLE] = json.dumps(dict(metadata))
        except (TypeError, ValueError) as error:
            raise GeniusError(f"metadata cannot be stored as JSON: {error}") from None
    return fields


def metadata_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that `document_fields` was given."""
    if WHOLE in fields:
        return dict(json.loads(fields[WHOLE]))
    return dict(fields)


def _is_field(name: object, value: object) -> bool:
    try:
        check_key(name)
    except GeniusError:
        return False
    if isinstance(value, bool | str):
        return True
    return isinstance(value, int | float) and abs(value) <= EXACT and value == value


# -- filters -----------------------------------------------------------------------------------------------------


def where_of(given: str | Mapping[str, Any] | None) -> str | None:
    """A filter as an SQL condition.

    Args:
        given: SQL, or a mapping: {"colour": "red"}, {"price": {"$lt": 5}}, {"$or": [{...}, {...}]}, {"$and": [...]}.

    Raises:
        GeniusError: If an operator is not known.
    """
    if given is None or isinstance(given, str):
        return given
    parts = []
    for name, value in given.items():
        if name in ("$and", "$or"):
            parts.append(joined([where_of(part) for part in value], name[1:]))
        elif isinstance(value, Mapping):
            for operator, operand in value.items():
                if operator not in MONGO:
                    raise GeniusError(f"unknown operator {operator!r} in a filter; known: {', '.join(MONGO)}, $and, $or")
                parts.append(condition(name, MONGO[operator], operand))
        else:
            parts.append(condition(name, "==", value))
    return joined(parts, "and")


def joined(parts: Sequence[str | None], word: str) -> str | None:
    """Conditions joined by `and` or `or`; None if there is none."""
    given = [part for part in parts if part]
    if not given:
        return None
    return f" {word.upper()} ".join(f"({part})" for part in given)


def condition(field: str, operator: str, value: Any) -> str:
    """One comparison as SQL.

    Args:
        field: A metadata field, `id` or `text`.
        operator: ==, !=, >, >=, <, <=, in, nin, contains or is_empty.
        value: A scalar; a list for in and nin; ignored for is_empty.

    Raises:
        GeniusError: If the operator or the value is not one that an index can compare.
    """
    name = f'"{checked_field(field)}"'
    if operator in COMPARISONS:
        return f"{name} {COMPARISONS[operator]} {_literal(value)}"
    if operator in ("in", "nin"):
        values = ", ".join(_literal(one) for one in value)
        if not values:
            return str(operator == "nin").upper()
        negation = ""
        if operator == "nin":
            negation = "NOT "
        return f"{name} {negation}IN ({values})"
    if operator == "contains":
        return f"contains({name}, {_literal(value)})"
    if operator == "is_empty":
        return f"{name} IS NULL"
    raise GeniusError(f"an index cannot filter by {operator!r}; known: {', '.join(COMPARISONS)}, in, nin, contains, is_empty")


def checked_field(field: str) -> str:
    """A name that can stand in quotes."""
    if not isinstance(field, str) or '"' in field:
        raise GeniusError(f"{field!r} is no field name")
    return field


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("'", "''")
        return f"'{escaped}'"
    raise GeniusError(f"a filter compares with texts, numbers and booleans, not with a {type(value).__name__}")
