"""The one commit that makes staged rows part of an index: data files move in as they are, no row is read or written again.

Inside one change of the table (`Store.change`), so that it counts as a whole or not at all: files are linked into the table's
folder, missing metadata columns are added, the files are appended, and then those rows go that must not stay: the former rows of
ids that are replaced, the later ones of ids that came twice, and those whose metadata contradicts an earlier part's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from genius.errors import Problems
from genius.files import write_whole
from genius.index import metadata as meta
from genius.index.cache import hash_id
from genius.index.commit import table_folder
from genius.index.live import Live
from genius.index.opened import OpenIndex
from genius.index.reader import Reader
from genius.index.writing import follow
from genius.scale.staging import DATA, Record, Staging

AT_ONCE = 10_000  # rows named in one condition


@dataclass(slots=True)
class Taken:
    """What a commit did."""

    added: int = 0
    replaced: int = 0
    problems: Problems = field(default_factory=Problems)


def was_taken_in(state: OpenIndex, staging: Staging) -> bool:
    """Whether the job that lies here was committed, and only its removal is missing: its row numbers are nobody else's."""
    numbers = staging.range()
    return numbers is not None and state.reader().count(f"_seq >= {numbers[0]} AND _seq < {numbers[1]}") > 0


def take_in(state: OpenIndex, staging: Staging, records: Sequence[Record]) -> Taken:
    """Commit records. Call it again after any crash: it happens once (`was_taken_in`)."""
    taken, gone = Taken(), [0][:0]
    filled = sorted((record for record in records if record.rows), key=lambda record: record.first)
    if not filled:
        return taken
    with state.writer.hold():
        with state.change():
            with state.lock:
                live = state.current()
            fresh, contradicted = _columns(live.reader.columns, filled)
            _move_in(state, staging, filled)
            if fresh:
                state.store.add_columns(fresh)
            state.store.append_files([fragment for record in filled for fragment in _fragments(record, contradicted)])
            reader = state.store.peek(state.store.newest())
            unfit = _unfit(reader, filled, contradicted, taken.problems)
            doubtful = _doubtful(live, staging, filled)
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


def _columns(known: meta.Columns, records: Sequence[Record]) -> tuple[dict[str, meta.Kind], dict[str, set[str]]]:
    """Metadata columns that the table lacks; and of each record those that contradict the table or an earlier one."""
    columns = dict(known)
    spelling = {name.lower(): name for name in columns}
    fresh: dict[str, meta.Kind] = {}
    contradicted: dict[str, set[str]] = {}
    for record in records:
        for name, kind in record.kinds.items():
            if name not in columns and name.lower() not in spelling and len(columns) < meta.MAX_KEYS:
                columns[name] = fresh[name] = kind
                spelling[name.lower()] = name
            elif columns.get(name) != kind:
                contradicted.setdefault(record.name, set()).add(name)
    return fresh, contradicted


def _fragments(record: Record, contradicted: Mapping[str, set[str]]) -> list[Mapping[str, object]]:
    unfit = contradicted.get(record.name, set())
    return [{**body, "names": ["" if name in unfit else name for name in body["names"]]} for body in record.fragments]


def _move_in(state: OpenIndex, staging: Staging, records: Sequence[Record]) -> None:
    """The same files under a second name, in the table's folder; where a file system has no links, copies."""
    target = table_folder(state.path) / DATA
    target.mkdir(exist_ok=True)
    for name, size in (file for record in records for file in record.files()):
        source, place = staging.folder / DATA / name, target / name
        if place.exists() and place.stat().st_size == size:
            continue  # of an attempt that was killed here
        try:
            os.link(source, place)
        except OSError:
            write_whole(place, lambda path, source=source: shutil.copyfile(source, path))  # type: ignore[misc]


def _unfit(reader: Reader, records: Sequence[Record], contradicted: Mapping[str, set[str]], problems: Problems) -> set[int]:
    """Rows whose metadata is of another kind than the column has by now."""
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


def _doubtful(live: Live, staging: Staging, records: Sequence[Record]) -> NDArray[np.int64]:
    """Rows whose id, by its hash, may be in the index already, or come twice."""
    hashes = np.concatenate([staging.hashes(record) for record in records])
    seqs = np.concatenate([np.arange(record.first, record.first + record.rows) for record in records])
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    doubt = np.zeros(len(hashes), bool)
    doubt[order[1:][same]] = doubt[order[:-1][same]] = True
    doubt |= np.isin(hashes, np.asarray(live.base.hashes))
    if live.delta_ids:
        doubt |= np.isin(hashes, np.array([hash_id(item_id) for item_id in live.delta_ids], np.uint64))
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
