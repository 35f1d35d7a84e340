"""How an index changes: batches of items become commits, one writer at a time.

Reading pictures and running the model happen outside the locks; a commit is short. A commit is on disk before its caller hears of
it, whole or not at all. Metadata fields that no item has any more are free again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from genius.errors import GeniusError
from genius.features import Features
from genius.index import metadata as meta
from genius.index.metadata import FieldType
from genius.index.opened import CommittedRows
from genius.index.prepare import AT_ONCE, MAX_HELD, Prepared, Stamped, held_bytes, prepare
from genius.index.reader import Reader
from genius.index.results import AddReport
from genius.index.store import MAX_BATCH

if TYPE_CHECKING:
    from genius.index import Index
    from genius.model.genius import Genius

OnError = Literal["raise", "skip"]  # also of ids that are not there
COMPACT_EVERY, COMPACT_AT = 64, 128  # commits between looks at the table; fragments at which they are merged
KEEP = timedelta(days=7)  # how long old versions can be opened


def write(
    state: Index,
    items: Iterable[Stamped],
    replace: bool,
    batch_size: int,
    on_error: OnError,
    on_progress: Callable[[AddReport], None] | None = None,
    features: Features | None = None,
) -> AddReport:
    """Add items, or upsert them with `replace`. Each batch is one commit; one of large pictures given as bytes is cut short.

    Args:
        state: The index.
        items: Items, and what each was read from.
        replace: Put items in the place of those with their ids.
        batch_size: Items of one commit; fewer where they are large.
        on_error: "raise" at the first item that cannot be read, or "skip" it.
        on_progress: Called with the report of each commit.
        features: The encoder's output for all items; None: it is run.
    """
    state.check_writable()
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= MAX_BATCH:
        raise GeniusError(f"batch_size must be a whole number from 1 to {MAX_BATCH:,}, got {batch_size!r}")
    total = AddReport()
    at = 0
    model = state.model  # features are of its encoder, and of no other: they are refused once the index is of another model
    for batch in item_batches(items, batch_size):
        write_batch = partial(_write_batch, state, batch, replace, on_error)
        if features is None:  # again, with the new encoder, if another index takes the place of this one meanwhile
            report = state.following(write_batch)
        else:
            part = features[slice(at, at + len(batch))]
            if len(part) != len(batch):
                raise GeniusError(f"features end at row {at + len(part)}, but there are more items")
            at += len(batch)
            report = write_batch(part, model)
        total.merge(report)
        if on_progress is not None:
            on_progress(report)
    return total


def item_batches(items: Iterable[Stamped], size: int) -> Iterator[list[Stamped]]:
    """At most `size` items a batch, fewer where they are large, and where a batch would end within one pass of the encoder.

    Args:
        items: Items, and what each was read from.
        size: Items of a batch, at most.
    """
    batch: list[Stamped] = []
    held = 0
    window = None
    count = 0  # items of the window that we are in
    for pair in items:
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
            end = len(batch)
            begun = count % AT_ONCE  # items of a pass that is not full
            if here is not None and begun < len(batch):
                end -= begun
            yield batch[:end]
            batch = batch[end:]
            held = sum(held_bytes(item) for item, _ in batch)
    if batch:
        yield batch


def _write_batch(
    state: Index,
    batch: list[Stamped],
    replace: bool,
    on_error: OnError,
    features: Features | None = None,
    model: Genius | None = None,
) -> AddReport:
    """Write a batch with the encoder of the index, or features of the `model`."""
    if model is None:
        model = state.model
    report = AddReport()
    chosen: dict[str, int] = {}  # id -> position in the batch
    for position, (item, _) in enumerate(batch):
        if item.id in chosen and not replace:
            report.existing += 1
        if replace or item.id not in chosen:  # add: the first wins; upsert: the last
            chosen[item.id] = position
    if not replace:  # do not read pictures of what is there already
        there = state.consistent(lambda: state.find(list(chosen)))  # without the write lock: others may clean up meanwhile
        report.existing += len(there)
        chosen = {item_id: position for item_id, position in chosen.items() if item_id not in there}
    if not chosen:
        return report
    positions = list(chosen.values())
    part = None
    if features is not None:
        part = features[positions]
    ready = prepare(model, [batch[p] for p in positions], state.thumbnails, on_error, part)
    commit(state, ready, model, replace, on_error, report)
    return report


def commit(state: Index, ready: Prepared, model: Genius, replace: bool, on_error: OnError, report: AddReport) -> None:
    """Write items that `model` has prepared; counts go to `report`. Nothing is written if the index is of another by now."""
    report.problems += ready.problems
    gone: list[int] = []
    with state.write_lock.hold():
        with state.change():
            with state.lock:
                live = state.sure(ready.ids, model)
                columns = live.reader.columns
                there = live.find(ready.ids)
            if not replace and there:  # another writer was quicker
                report.existing += len(there)
                ready = ready.without(there)
            fresh, conflicts = _new_columns(columns, ready)
            if conflicts:  # with a field that perhaps no item has any more
                replaced = [int(live.seqs[row]) for row in there.values()]
                columns, fresh, conflicts = _without_unused(state, live.reader, ready, replaced)
            if conflicts:
                if on_error == "raise":
                    raise GeniusError(next(iter(conflicts.values())))
                report.problems += conflicts.values()
                ready = ready.without(conflicts)
            if not ready.rows:
                return
            gone = [there[item_id] for item_id in ready.ids if item_id in there]
            first = state.store.next_seq()
            if fresh:
                state.store.add_columns(fresh)
            table = state.store.table(ready.columns(first, {**columns, **fresh}))
            seqs = np.arange(first, first + len(ready.rows))
            committed = CommittedRows(seqs, ready.ids, ready.codes, ready.embeddings)
            if gone:
                state.store.replace(table)
            else:
                state.store.append(table)
        follow(state, gone, committed)
        report.added += len(ready.rows) - len(gone)
        report.replaced += len(gone)
        state.commits += 1
        if state.commits % COMPACT_EVERY == 0:
            _tidy(state)


def _new_columns(columns: meta.Columns, ready: Prepared) -> tuple[dict[str, meta.FieldType], dict[str, str]]:
    return meta.new_columns(columns, ((row.item.id, row.metadata) for row in ready.rows))


def _without_unused(
    state: Index, reader: Reader, ready: Prepared, replaced: list[int]
) -> tuple[meta.Columns, dict[str, meta.FieldType], dict[str, str]]:
    """Columns of the table, those to be added, and what still does not fit, once fields that nobody has are dropped.

    Items that this change replaces do not count, unless some of its items cannot be written: theirs would stay.
    """
    for leaving in (replaced, []):
        free = unused_fields(reader, leaving)
        columns = {name: field_type for name, field_type in reader.columns.items() if name not in free}
        fresh, conflicts = _new_columns(columns, ready)
        if not conflicts:
            break
    if free:
        state.store.drop_columns(free)
    return columns, fresh, conflicts


def follow(state: Index, gone: list[int], committed: CommittedRows | None = None) -> None:
    """Bring the search side up to date. The commit is safe already: trouble here is the next reader's to report."""
    with contextlib.suppress(GeniusError, OSError), state.lock:
        state.current(gone, committed)


def _tidy(state: Index) -> None:
    """Many small commits leave many small files, and every scan opens them all."""
    with contextlib.suppress(GeniusError):  # a courtesy: the items are safe, a later commit tries again
        if state.store.fragments() > COMPACT_AT:
            state.store.compact(KEEP)


def delete(state: Index, wanted: list[str], missing: OnError) -> int:
    with state.write_lock.hold():
        with state.change():
            with state.lock:
                live = state.sure(wanted)
                rows = live.find(wanted)
                check_missing(wanted, rows, missing)
                seqs = [int(live.seqs[row]) for row in rows.values()]
            if seqs:
                state.store.delete(seqs)
        if seqs:
            follow(state, list(rows.values()))
        return len(seqs)


def optimize(state: Index, keep: timedelta) -> None:
    state.check_writable()
    with state.write_lock.hold():
        with state.change():  # puts away what a killed writer left
            pass
        state.store.compact(keep)
        with state.lock:
            state.live = state.rebuild(state.store.at(state.store.latest()))


def check_ids(ids: Iterable[str]) -> list[str]:
    """Distinct ids in their order, or one clear line."""
    if not isinstance(ids, Iterable):
        raise GeniusError(f"ids are strings, got {type(ids).__name__}")
    wanted = list(ids)
    wrong = next((value for value in wanted if not isinstance(value, str)), None)
    if wrong is not None:
        raise GeniusError(f"ids are strings, got {wrong!r}")
    return list(dict.fromkeys(wanted))


def check_missing(wanted: Iterable[str], found: dict[str, int], missing: OnError) -> None:
    if missing == "raise":
        unknown = [item_id for item_id in wanted if item_id not in found]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise GeniusError(f"no item {unknown[0]!r}{more} in this index")


@dataclass(frozen=True, slots=True)
class Field:
    """A metadata field: what it holds, and how many items have it."""

    name: str
    type: FieldType
    items: int


def list_fields(reader: Reader) -> list[Field]:
    return [Field(name, field_type, reader.count(f"`{name}` IS NOT NULL")) for name, field_type in reader.columns.items()]


def unused_fields(reader: Reader, replaced: Sequence[int] = ()) -> list[str]:
    """Fields that no item has, other than those (by `_seq`) that are about to be replaced."""
    others = ""
    if replaced:
        others = f" AND _seq NOT IN ({', '.join(map(str, replaced))})"
    return [name for name in reader.columns if not reader.count(f"`{name}` IS NOT NULL{others}")]
