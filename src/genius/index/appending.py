"""Data files that others wrote become rows of an index, without being read or written again.

The commit (`take_in`) is inside one change of the table (`Store.change`), so that it counts as a whole or not at all: files are
linked into the table's folder, missing metadata columns are added, the files are appended, and then those rows go that must not
stay: the former rows of ids that are replaced, the later ones of ids that came twice, and those whose metadata contradicts an
earlier file's. Knows the table and the live view; nothing of who wrote the files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError, Problems
from genius.files import write_whole
from genius.index import metadata as meta
from genius.index.commit import table_folder
from genius.index.opened import Live
from genius.index.reader import Reader, database_errors, good_rows
from genius.index.writing import follow

if TYPE_CHECKING:
    from genius.index import Index

DATA = "data"  # the folder of data files, in a table and where they are staged
AT_ONCE = 10_000  # rows named in one condition


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Rows that were written outside of the table, with consecutive `_seq` numbers."""

    name: str
    folder: Path  # of the files
    first: int  # `_seq` of the first row
    rows: int
    fragments: Sequence[Mapping[str, Any]]  # Lance's notes of the data files, each with the names of its columns
    field_types: Mapping[str, meta.FieldType]  # metadata columns of these rows
    files: Sequence[tuple[str, int]]  # names and sizes
    hashes: NDArray[np.uint64]  # (rows,) of the ids


@contextmanager
def numbering(state: Index) -> Iterator[Callable[[], int]]:
    """Inside the block, a function that reserves numbers for rows that are written long before they are committed.

    Args:
        state: The index.
    """
    with state.change():
        yield state.store.reserve


def holds_rows(state: Index, first: int, last: int) -> bool:
    """Whether rows with numbers from `first` to below `last` were committed.

    Args:
        state: The index.
        first: The first number.
        last: The number after the last.
    """
    return state.reader().count(f"_seq >= {first} AND _seq < {last}") > 0


@dataclass(slots=True)
class Taken:
    """What a commit did."""

    added: int = 0
    replaced: int = 0
    problems: Problems = field(default_factory=Problems)


def take_in(state: Index, records: Sequence[DataFiles]) -> Taken:
    """Append data files to the table, in one change. Call it again after any crash: `holds_rows` says whether it happened.

    Args:
        state: The index.
        records: What was prepared, in any order.

    Returns:
        How many items were added and replaced, and what was left out.
    """
    taken = Taken()
    gone = [0][:0]
    filled = sorted((record for record in records if record.rows), key=lambda record: record.first)
    if not filled:
        return taken
    with state.write_lock.hold():
        with state.change():
            with state.lock:
                live = state.current()
            fresh, contradicted = _columns(live.reader.columns, filled)
            _move_in(state, filled)
            if fresh:
                state.store.add_columns(fresh)
            state.store.append_files([fragment for record in filled for fragment in _fragments(record, contradicted)])
            _read_back(state, filled)
            reader = state.store.peek(state.store.newest())
            unfit = _unfit(reader, filled, contradicted, taken.problems)
            doubtful = _doubtful(live, filled)
            found = {seq: row["id"] for seq, row in reader.rows(doubtful, ["id"]).items() if seq not in unfit}
            twice = _twice(found, taken.problems)
            with state.lock:
                there = state.sure(list(found.values())).find(found.values())
                former = [int(state.live.seqs[row]) for row in there.values()]
            gone = list(there.values())
            leaving = [*former, *twice, *unfit]
            for i in range(0, len(leaving), AT_ONCE):
                state.store.delete(leaving[i : i + AT_ONCE])
        follow(state, gone)
    taken.replaced = len(former)
    taken.added = sum(record.rows for record in filled) - len(twice) - len(unfit) - taken.replaced
    return taken


def _columns(known: meta.Columns, records: Sequence[DataFiles]) -> tuple[dict[str, meta.FieldType], dict[str, set[str]]]:
    """Metadata columns that the table lacks; and of each record those that contradict the table or an earlier one."""
    columns = dict(known)
    spelling = {name.lower(): name for name in columns}
    fresh: dict[str, meta.FieldType] = {}
    contradicted: dict[str, set[str]] = {}
    for record in records:
        for name, field_type in record.field_types.items():
            if name not in columns and name.lower() not in spelling and len(columns) < meta.MAX_KEYS:
                columns[name] = fresh[name] = field_type
                spelling[name.lower()] = name
            elif columns.get(name) != field_type:
                contradicted.setdefault(record.name, set()).add(name)
    return fresh, contradicted


def _fragments(record: DataFiles, contradicted: Mapping[str, set[str]]) -> list[Mapping[str, object]]:
    unfit = contradicted.get(record.name, set())
    return [{**body, "names": ["" if name in unfit else name for name in body["names"]]} for body in record.fragments]


def _move_in(state: Index, records: Sequence[DataFiles]) -> None:
    """The same files under a second name, in the table's folder; where a file system has no links, copies."""
    target = table_folder(state.path) / DATA
    with database_errors("add items"):
        target.mkdir(exist_ok=True)
        for folder, name, size in ((record.folder, *file) for record in records for file in record.files):
            source = folder / name
            place = target / name
            if place.exists() and place.stat().st_size == size:
                continue  # of an attempt that was killed here
            try:
                os.link(source, place)
            except OSError:
                write_whole(place, lambda path, source=source: shutil.copyfile(source, path))  # type: ignore[misc]


def _read_back(state: Index, records: Sequence[DataFiles]) -> None:
    """Every row of the records, by its checksum, before the change counts; one line if any is missing or another."""
    for record in records:
        found = 0
        last = record.first + record.rows
        for batch in good_rows(state.store.peek(state.store.newest()), f"_seq >= {record.first} AND _seq < {last}"):
            found += batch.num_rows
        if found != record.rows:
            raise GeniusError(f"{record.rows - found} rows of a part cannot be read back; the index is unchanged")


def _unfit(reader: Reader, records: Sequence[DataFiles], contradicted: Mapping[str, set[str]], problems: Problems) -> set[int]:
    """Rows whose metadata is of another type than the column has by now."""
    unfit: set[int] = set()
    for record in records:
        wrong = contradicted.get(record.name)
        if not wrong:
            continue
        for seq, row in reader.rows(range(record.first, record.first + record.rows), ["id", "_metadata"]).items():
            _, conflicts = meta.new_columns(reader.columns, [(row["id"], meta.load(row["_metadata"]))])
            if conflicts:
                unfit.add(seq)
                problems += conflicts.values()
    return unfit


def _doubtful(live: Live, records: Sequence[DataFiles]) -> NDArray[np.int64]:
    """Rows whose id, by its hash, may be in the index already, or come twice."""
    hashes = np.concatenate([record.hashes for record in records])
    seqs = np.concatenate([np.arange(record.first, record.first + record.rows) for record in records])
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    doubt = np.zeros(len(hashes), bool)
    doubt[order[1:][same]] = doubt[order[:-1][same]] = True
    doubt |= live.may_hold(hashes)
    return seqs[doubt]


def _twice(found: Mapping[int, str], problems: Problems) -> list[int]:
    """The later rows of ids that came more than once."""
    seen: set[str] = set()
    later = []
    for seq in sorted(found):
        if found[seq] in seen:
            later.append(seq)
            problems.append(f"{found[seq]}: this id came before, from another file or row")
        seen.add(found[seq])
    return later
