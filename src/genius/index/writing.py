"""How an index changes: batches of items become commits, one writer at a time; metadata fields are listed, dropped, renamed and
retyped.

Reading pictures and running the model happen outside the locks; a commit is short. A commit is on disk before its caller hears of
it, whole or not at all. A field is a column for filters and a key in each item's stored metadata: both change together, in one
change of the index, and codes and vectors are not touched. Fields that no item has any more are free again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from genius.errors import GeniusError, counted
from genius.features import Features
from genius.index import metadata as meta
from genius.index.ledger import ROW, SUM, VECTORS, row_sums
from genius.index.metadata import FieldType
from genius.index.opened import CommittedRows, OpenIndex
from genius.index.prepare import AT_ONCE, MAX_HELD, Prepared, Stamped, held_bytes, prepare
from genius.index.reader import Reader
from genius.index.results import AddReport
from genius.index.store import MAX_BATCH
from genius.types import Item

if TYPE_CHECKING:
    from genius.model.genius import Genius

OnError = Literal["raise", "skip"]  # also of ids that are not there
COMPACT_EVERY, COMPACT_AT = 64, 128  # commits between looks at the table; fragments at which they are merged
KEEP = timedelta(days=7)  # how long old versions can be opened


def write(
    state: OpenIndex,
    items: Iterable[Stamped],
    *,
    replace: bool,
    batch_size: int,
    on_error: OnError,
    on_progress: Callable[[AddReport], None] | None = None,
    features: Features | None = None,
) -> AddReport:
    """Add items, or upsert them with `replace`. Each batch is one commit; one of large pictures given as bytes is cut short."""
    state.check_writable()
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= MAX_BATCH:
        raise GeniusError(f"batch_size must be a whole number from 1 to {MAX_BATCH:,}, got {batch_size!r}")
    total = AddReport()
    at = 0
    model = None
    if features is not None:  # they are of this model's encoder, and of no other
        model = state.model
    for batch in item_batches(items, batch_size):
        part = None
        if features is not None:
            part = features[slice(at, at + len(batch))]
        if part is not None and len(part) != len(batch):
            raise GeniusError(f"features end at row {at + len(part)}, but there are more items")
        at += len(batch)
        report = _write_one(state, batch, replace, on_error, part, model)
        total.merge(report)
        if on_progress is not None:
            on_progress(report)
    return total


def item_batches(items: Iterable[Stamped], size: int) -> Iterator[list[Stamped]]:
    """At most `size` items a batch, fewer where they are large, and where a batch would end within one pass of the encoder."""
    batch: list[Stamped] = []
    held = 0
    window = None
    count = 0  # items of the window that we are in
    for pair in items:
        if not isinstance(pair[0], Item):
            raise GeniusError(f"expected an Item, got {type(pair[0]).__name__}")
        here = None
        if pair[1] is not None:
            here = pair[1].window
        if here != window:
            window = here
            count = 0
        count += 1
        batch.append(pair)
        held += held_bytes(pair[0])
        while len(batch) == size or held > MAX_HELD:
            # items of a pass that is not full
            begun = 0
            if here is not None:
                begun = count % AT_ONCE
            if begun < len(batch):
                end = len(batch) - begun
            else:
                end = len(batch)
            yield batch[:end]
            batch = batch[end:]
            held = sum(held_bytes(item) for item, _ in batch)
    if batch:
        yield batch


def _write_one(
    state: OpenIndex,
    batch: list[Stamped],
    replace: bool,
    on_error: OnError,
    features: Features | None,
    model: Genius | None,
) -> AddReport:
    """Write a batch; again, with its encoder, if another index took the place of this one meanwhile.

    Features cannot be made again: they are refused by an index that is no longer of their `model`.
    """
    if model is not None:
        return _write_batch(state, batch, replace, on_error, features, model)
    return state.following(lambda: _write_batch(state, batch, replace, on_error, None, state.model))


def _write_batch(
    state: OpenIndex,
    batch: list[Stamped],
    replace: bool,
    on_error: OnError,
    features: Features | None,
    model: Genius,
) -> AddReport:
    report = AddReport()
    chosen: dict[str, int] = {}  # id -> position in the batch
    for position, (item, _) in enumerate(batch):
        if item.id in chosen and not replace:
            report.existing += 1
        if replace or item.id not in chosen:  # add: the first wins; upsert: the last
            chosen[item.id] = position
    if not replace:  # do not read pictures of what is there already
        stored = state.consistent(lambda: state.find(list(chosen)))  # without the write lock: others may clean up meanwhile
        report.existing += len(stored)
        chosen = {item_id: position for item_id, position in chosen.items() if item_id not in stored}
    if not chosen:
        return report
    positions = list(chosen.values())
    part = None
    if features is not None:
        part = features[positions]
    ready = prepare(model, [batch[p] for p in positions], state.thumbnails, on_error, part)
    commit(state, ready, model, replace, on_error, report)
    return report


def commit(state: OpenIndex, ready: Prepared, model: Genius, replace: bool, on_error: OnError, report: AddReport) -> None:
    """Write items that `model` has prepared; counts go to `report`. Nothing is written if the index is of another by now."""
    report.problems += ready.problems
    replaced_seqs: list[int] = []
    with state.write_lock.hold():
        with state.change():
            with state.lock:
                live = state.sure([item.id for item in ready.items], model)
                columns = live.reader.columns
                stored = live.find([item.id for item in ready.items])
            if not replace and stored:  # another writer was quicker
                report.existing += len(stored)
                ready = ready.without(stored)
            new_types, conflicts = _new_columns(columns, ready)
            if conflicts:  # with a field that perhaps no item has any more
                replaced = [int(live.seqs[row]) for row in stored.values()]
                columns, new_types, conflicts = _without_unused(state, live.reader, ready, replaced)
            if conflicts:
                if on_error == "raise":
                    raise GeniusError(next(iter(conflicts.values())))
                report.problems += conflicts.values()
                ready = ready.without(conflicts)
            if not ready.items:
                return
            replaced_seqs = [stored[item.id] for item in ready.items if item.id in stored]
            first = state.store.next_seq()
            if new_types:
                state.store.add_columns(new_types)
            table = state.store.table(ready.columns(first, {**columns, **new_types}))
            seqs = np.arange(first, first + len(ready.items))
            committed = CommittedRows(seqs, [item.id for item in ready.items], ready.codes, ready.embeddings)
            if replaced_seqs:
                state.store.replace(table)
            else:
                state.store.append(table)
        follow(state, replaced_seqs, committed)
        report.added += len(ready.items) - len(replaced_seqs)
        report.replaced += len(replaced_seqs)
        state.commits += 1
        if state.commits % COMPACT_EVERY == 0:
            _tidy(state)


def _new_columns(columns: meta.Columns, ready: Prepared) -> tuple[dict[str, meta.FieldType], dict[str, str]]:
    return meta.new_columns(columns, ((item.id, row) for item, row in zip(ready.items, ready.metadata, strict=True)))


def _without_unused(
    state: OpenIndex, reader: Reader, ready: Prepared, replaced: list[int]
) -> tuple[meta.Columns, dict[str, meta.FieldType], dict[str, str]]:
    """Columns of the table, those to be added, and what still does not fit, once fields that nobody has are dropped.

    Items that this change replaces do not count, unless some of its items cannot be written: theirs would stay.
    """
    for leaving in (replaced, []):
        free = unused_fields(reader, leaving)
        columns = {name: field_type for name, field_type in reader.columns.items() if name not in free}
        new_types, conflicts = _new_columns(columns, ready)
        if not conflicts:
            break
    if free:
        state.store.drop_columns(free)
    return columns, new_types, conflicts


def follow(state: OpenIndex, gone: list[int], committed: CommittedRows | None = None) -> None:
    """Bring the search side up to date. The commit is safe already: trouble here is the next reader's to report."""
    with contextlib.suppress(GeniusError, OSError), state.lock:
        state.current(gone, committed)


def _tidy(state: OpenIndex) -> None:
    """Many small commits leave many small files, and every scan opens them all."""
    with contextlib.suppress(GeniusError):  # a courtesy: the items are safe, a later commit tries again
        if state.store.fragments() > COMPACT_AT:
            state.store.compact(KEEP)


def delete(state: OpenIndex, ids: str | Iterable[str], missing: OnError) -> int:
    state.check_writable()
    item_ids = check_ids([ids] if isinstance(ids, str) else ids)
    with state.write_lock.hold():
        with state.change():
            with state.lock:
                live = state.sure(item_ids)
                rows = live.find(item_ids)
                check_missing(item_ids, rows, missing)
                seqs = [int(live.seqs[row]) for row in rows.values()]
            if seqs:
                state.store.delete(seqs)
        if seqs:
            follow(state, list(rows.values()))
        return len(seqs)


def optimize(state: OpenIndex, keep: timedelta) -> None:
    state.check_writable()
    with state.write_lock.hold():
        with state.change():  # brings an index of an earlier format up to date
            pass
        state.store.compact(keep)
        with state.lock:
            state.live = state.rebuild(state.store.at(state.store.latest()))


def check_ids(ids: Iterable[str]) -> list[str]:
    """Distinct ids in their order, or one clear line."""
    if not isinstance(ids, Iterable):
        raise GeniusError(f"ids are strings, got {type(ids).__name__}")
    checked_ids = list(ids)
    wrong = next((value for value in checked_ids if not isinstance(value, str)), None)
    if wrong is not None:
        raise GeniusError(f"ids are strings, got {wrong!r}")
    return list(dict.fromkeys(checked_ids))


def check_missing(ids: Iterable[str], found: dict[str, int], missing: OnError) -> None:
    if missing == "raise":
        unknown = [item_id for item_id in ids if item_id not in found]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise GeniusError(f"no item {unknown[0]!r}{more} in this index")


FIELD_TYPES: tuple[FieldType, ...] = ("text", "number", "boolean")
REWRITTEN = 200_000  # rows whose new metadata is written together
SHOWN = 3  # ids of items that stand in the way


@dataclass(frozen=True, slots=True)
class Field:
    """A metadata field: what it holds, and how many items have it."""

    name: str
    type: FieldType
    items: int

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "type": self.type, "kind": self.type, "items": self.items}


def list_fields(reader: Reader) -> list[Field]:
    return [Field(name, field_type, reader.count(f"`{name}` IS NOT NULL")) for name, field_type in reader.columns.items()]


def unused_fields(reader: Reader, replaced: Sequence[int] = ()) -> list[str]:
    """Fields that no item has, other than those (by `_seq`) that are about to be replaced."""
    others = ""
    if replaced:
        others = f" AND _seq NOT IN ({', '.join(map(str, replaced))})"
    return [name for name in reader.columns if not reader.count(f"`{name}` IS NOT NULL{others}")]


def drop_field(state: OpenIndex, name: str) -> int:
    """Take a field away, from the index and from every item; how many items had it."""
    with state.change():
        reader = _reader(state)
        _known(reader, name)
        changed = _rewrite(state, reader, name, lambda row: row.pop(name), {name: None})
        state.store.drop_columns([name])
    return changed


def rename_field(state: OpenIndex, old: str, new: str) -> int:
    """Give a field another name; how many items have it."""
    meta.check_key(new)
    with state.change():
        reader = _reader(state)
        field_type = _known(reader, old)
        taken = next((name for name in reader.columns if name.lower() == new.lower() and name != old), None)
        if taken is not None:
            raise GeniusError(f"there is a field {taken!r} already: drop it first, or choose another name")
        if new == old:
            return 0
        state.store.drop_columns([old])
        state.store.add_columns({new: field_type})
        return _rewrite(state, reader, old, lambda row: row.update({new: row.pop(old)}), {new: field_type})


def retype_field(state: OpenIndex, name: str, field_type: str, *, lossy: bool = False) -> int:
    """Make a field hold values of another type; how many items have it then.

    Values that cannot become that type are an error which counts them, or are dropped with `lossy`.
    """
    target = next((k for k in FIELD_TYPES if k == field_type), None)
    if target is None:
        raise GeniusError(f"unknown field type {field_type!r}: a field holds text, number or boolean")
    with state.change():
        reader = _reader(state)
        if _known(reader, name) == target:
            return reader.count(f"`{name}` IS NOT NULL")
        bad = [row["id"] for row, value in _values(reader, name) if convert(value, target) is None]
        if bad and not lossy:
            raise GeniusError(
                f"{counted(len(bad), 'value')} of {name!r} cannot become {target} (first: {', '.join(map(repr, bad[:SHOWN]))}): "
                "change them, or drop those values (lossy=True)"
            )
        state.store.drop_columns([name])
        state.store.add_columns({name: target})

        def change(row: dict[str, Any]) -> None:
            value = convert(row.pop(name), target)
            if value is not None:
                row[name] = value

        return _rewrite(state, reader, name, change, {name: target}) - len(bad)


def convert(value: Any, field_type: FieldType) -> str | int | float | bool | None:
    """A metadata value as another type; None if it has none, as a list."""
    if isinstance(value, list):
        return None
    if field_type == "text":
        if isinstance(value, bool):
            if value:
                return "true"
            return "false"
        return str(value)
    if field_type == "boolean":
        spelled = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
        return spelled.get(str(value).strip().lower())
    if isinstance(value, bool):
        return int(value)
    try:
        number = float(value)
        whole = None
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
            whole = int(value)
    except (ValueError, OverflowError):
        return None
    if number != number or abs(number) == float("inf") or (whole is not None and abs(whole) > meta.EXACT):
        return None
    if whole is None:
        return number
    return whole


# -- rows --------------------------------------------------------------------------------------------------------


def _reader(state: OpenIndex) -> Reader:
    with state.lock:
        return state.current().reader


def _known(reader: Reader, name: str) -> FieldType:
    field_type = reader.columns.get(name)
    if field_type is None:
        raise GeniusError(f"no field {name!r}; there are: {', '.join(sorted(reader.columns)) or 'none'}")
    return field_type


def _values(reader: Reader, name: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """(row, value) of every item that has the field."""
    for row in reader.stream(["id", "_metadata"], f"`{name}` IS NOT NULL"):
        yield row, meta.load(row["_metadata"])[name]


def _rewrite(
    state: OpenIndex,
    reader: Reader,
    name: str,
    change: Callable[[dict[str, Any]], object],
    columns: Mapping[str, FieldType | None],
) -> int:
    """Change the stored metadata of every item that has the field, with its checksum and the column made from it."""
    import pyarrow as pa

    field_names = [key for key, field_type in columns.items() if field_type is not None]
    done = 0
    waiting = _Changes(field_names)
    for batch in reader.matching([*ROW, *VECTORS], f"`{name}` IS NOT NULL"):
        stored = [meta.load(text) for text in batch.column("_metadata").to_pylist()]
        for row in stored:
            change(row)
        texts = [meta.dump(row) for row in stored]
        renewed = batch.set_column(batch.schema.get_field_index("_metadata"), "_metadata", pa.array(texts, pa.string()))
        waiting.columns["_seq"] += batch.column("_seq").to_pylist()
        waiting.columns["_metadata"] += texts
        waiting.columns[SUM] += row_sums(renewed).tolist()
        for key in field_names:
            waiting.columns[key] += meta.column_values(stored, key, columns[key] or "text")
        done += batch.num_rows
        if len(waiting.columns["_seq"]) >= REWRITTEN:
            state.store.update(waiting.columns)
            waiting = _Changes(field_names)
    if waiting.columns["_seq"]:
        state.store.update(waiting.columns)
    return done


class _Changes:
    """What is to be written of rows, until there is enough of it: every write looks for its rows in the whole table."""

    def __init__(self, made: list[str]) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in ("_seq", "_metadata", SUM, *made)}
