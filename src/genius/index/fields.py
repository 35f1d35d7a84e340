"""The life of metadata fields: list, drop, rename and retype them; fields that no item has any more are free again.

A field is a column for filters and a key in each item's stored metadata: both change together, in one change of the index.
Codes and vectors are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genius.errors import GeniusError
from genius.index import metadata as meta
from genius.index.ledger import ROW, SUM, VECTORS, row_sums
from genius.index.metadata import Kind
from genius.index.opened import OpenIndex
from genius.index.reader import Reader

KINDS: tuple[Kind, ...] = ("text", "number", "boolean")
AT_ONCE = 200_000  # rows whose new metadata is written together
SHOWN = 3  # ids of items that stand in the way


@dataclass(frozen=True, slots=True)
class Field:
    """A metadata field: what it holds, and how many items have it."""

    name: str
    kind: Kind
    items: int

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "items": self.items}


def fields(reader: Reader) -> list[Field]:
    return [Field(name, kind, reader.count(f"`{name}` IS NOT NULL")) for name, kind in reader.columns.items()]


def unused(reader: Reader, replaced: Sequence[int] = ()) -> list[str]:
    """Fields that no item has, other than those (by `_seq`) that are about to be replaced."""
    rest = f" AND _seq NOT IN ({', '.join(map(str, replaced))})" if replaced else ""
    return [name for name in reader.columns if not reader.count(f"`{name}` IS NOT NULL{rest}")]


def drop(state: OpenIndex, name: str) -> int:
    """Take a field away, from the index and from every item; how many items had it."""
    with state.change():
        reader = _reader(state)
        _known(reader, name)
        changed = _rewrite(state, reader, name, lambda row: row.pop(name), {name: None})
        state.store.drop_columns([name])
    return changed


def rename(state: OpenIndex, old: str, new: str) -> int:
    """Give a field another name; how many items have it."""
    meta.check_key(new)
    with state.change():
        reader = _reader(state)
        kind = _known(reader, old)
        taken = next((name for name in reader.columns if name.lower() == new.lower() and name != old), None)
        if taken is not None:
            raise GeniusError(f"there is a field {taken!r} already: drop it first, or choose another name")
        if new == old:
            return 0
        state.store.drop_columns([old])
        state.store.add_columns({new: kind})
        return _rewrite(state, reader, old, lambda row: row.update({new: row.pop(old)}), {new: kind})


def retype(state: OpenIndex, name: str, kind: str, *, lossy: bool = False) -> int:
    """Make a field hold another kind; how many items have it then.

    Values that cannot become that kind are an error which counts them, or are dropped with `lossy`.
    """
    target = next((k for k in KINDS if k == kind), None)
    if target is None:
        raise GeniusError(f"unknown kind {kind!r}: a field holds text, number or boolean")
    with state.change():
        reader = _reader(state)
        if _known(reader, name) == target:
            return reader.count(f"`{name}` IS NOT NULL")
        bad = [row["id"] for row, value in _values(reader, name) if convert(value, target) is None]
        if bad and not lossy:
            raise GeniusError(
                f"{len(bad)} items have a value of {name!r} that is no {target} (first: {', '.join(map(repr, bad[:SHOWN]))}): "
                "change them, or drop those values (--lossy)"
            )
        state.store.drop_columns([name])
        state.store.add_columns({name: target})

        def change(row: dict[str, Any]) -> None:
            value = convert(row.pop(name), target)
            if value is not None:
                row[name] = value

        return _rewrite(state, reader, name, change, {name: target}) - len(bad)


def convert(value: Any, kind: Kind) -> str | int | float | bool | None:
    """A metadata value as another kind; None if it has none."""
    if kind == "text":
        return ("true" if value else "false") if isinstance(value, bool) else str(value)
    if kind == "boolean":
        spelled = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
        return spelled.get(str(value).strip().lower())
    if isinstance(value, bool):
        return int(value)
    try:
        number = float(value)
        whole = int(value) if isinstance(value, str) and value.strip().lstrip("+-").isdecimal() else None
    except (ValueError, OverflowError):
        return None
    if number != number or abs(number) == float("inf") or (whole is not None and abs(whole) > meta.EXACT):
        return None
    return number if whole is None else whole


# -- rows --------------------------------------------------------------------------------------------------------


def _reader(state: OpenIndex) -> Reader:
    with state.lock:
        return state.current().reader


def _known(reader: Reader, name: str) -> Kind:
    kind = reader.columns.get(name)
    if kind is None:
        raise GeniusError(f"no field {name!r}; there are: {', '.join(sorted(reader.columns)) or 'none'}")
    return kind


def _values(reader: Reader, name: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """(row, value) of every item that has the field."""
    for row in reader.stream(["id", "_metadata"], f"`{name}` IS NOT NULL"):
        yield row, meta.load(row["_metadata"])[name]


def _rewrite(
    state: OpenIndex, reader: Reader, name: str, change: Callable[[dict[str, Any]], object], columns: Mapping[str, Kind | None]
) -> int:
    """Change the stored metadata of every item that has the field, with its checksum and the column made from it."""
    import pyarrow as pa

    made = [key for key, kind in columns.items() if kind is not None]
    done, waiting = 0, _Changes(made)
    for batch in reader.matching([*ROW, *VECTORS], f"`{name}` IS NOT NULL"):
        stored = [meta.load(text) for text in batch.column("_metadata").to_pylist()]
        for row in stored:
            change(row)
        texts = [meta.dump(row) for row in stored]
        renewed = batch.set_column(batch.schema.get_field_index("_metadata"), "_metadata", pa.array(texts, pa.string()))
        waiting.columns["_seq"] += batch.column("_seq").to_pylist()
        waiting.columns["_metadata"] += texts
        waiting.columns[SUM] += row_sums(renewed).tolist()
        for key in made:
            waiting.columns[key] += meta.column_values(stored, key, columns[key] or "text")
        done += batch.num_rows
        if len(waiting.columns["_seq"]) >= AT_ONCE:
            state.store.update(waiting.columns)
            waiting = _Changes(made)
    if waiting.columns["_seq"]:
        state.store.update(waiting.columns)
    return done


class _Changes:
    """What is to be written of rows, until there is enough of it: every write looks for its rows in the whole table."""

    def __init__(self, made: list[str]) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in ("_seq", "_metadata", SUM, *made)}
