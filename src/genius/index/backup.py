"""Snapshots: a copy of an index as it is at one moment, taken while others write, and brought back while others search.

A snapshot is an index folder like any other: it can be opened, searched, checked, and restored from. Pictures that were
indexed by path are not in it, nor is the model: both are named. A model that was fitted to the index goes along. Rows on
their way into another table are verified one by one and renumbered if need be; repairing and fitting anew use the same.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.errors import GeniusError
from genius.files import sync_directory
from genius.index.folder import (
    FORMAT,
    INSIDE,
    MODEL,
    About,
    WriterLock,
    about_of,
    make_folder,
    open_store,
    read_about,
    upgrade,
    write_about,
)
from genius.index.ledger import SUM, row_sums
from genius.index.reader import Reader, Vanished
from genius.index.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS = 5  # of a copy whose version is cleaned away meanwhile


def whole_schema(reader: Reader) -> Any:
    """The table's schema, with a column for checksums also where the table is too old to have one."""
    import pyarrow as pa

    schema = reader.schema
    return schema if SUM in schema.names else schema.append(pa.field(SUM, pa.int64()))


def good_rows(reader: Reader) -> Iterator[pa.RecordBatch]:
    """Every row, or one line that names the first whose checksum differs."""
    for batch in reader.batches():
        right = sound(batch)
        if not right.all():
            name = batch.column("id")[int(np.flatnonzero(~right)[0])].as_py()
            raise GeniusError(f"item {name!r} is not as it was written; genius check names all such items")
        yield batch


def sound(batch: pa.RecordBatch) -> np.ndarray:
    """(n,) which rows have their own checksum. Rows of before there were checksums are taken as they are."""
    if SUM not in batch.schema.names:
        return np.ones(batch.num_rows, bool)
    noted = batch.column(SUM)
    same = row_sums(batch) == noted.fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(same | noted.is_null().to_numpy(zero_copy_only=False))


def resealed(batches: Iterator[pa.RecordBatch], schema: Any, first_seq: int | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of `schema` with checksums; with `first_seq` also with new numbers, counted up from it."""
    import pyarrow as pa

    for batch in batches:
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        if first_seq is not None:
            columns["_seq"] = pa.array(np.arange(first_seq, first_seq + batch.num_rows))
            first_seq += batch.num_rows
        columns[SUM] = pa.nulls(batch.num_rows, pa.int64())
        renewed = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        columns[SUM] = pa.array(row_sums(renewed), pa.int64())
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def readable_rows(reader: Reader, lost: Callable[[str], object]) -> Iterator[pa.RecordBatch]:
    """All rows that can be read and have their checksum; `lost` hears of the others. Reads around damage by halving."""
    total, few = reader.count(), reader.few()
    for first in range(0, total, few):
        yield from _readable(reader, first, min(few, total - first), lost)


def _readable(reader: Reader, first: int, count: int, lost: Callable[[str], object]) -> Iterator[pa.RecordBatch]:
    try:
        table = reader.offsets(first, count)
    except GeniusError as error:
        if count == 1:
            lost(f"row {first + 1} cannot be read ({error})")
            return
        half = count // 2
        yield from _readable(reader, first, half, lost)
        yield from _readable(reader, first + half, count - half, lost)
        return
    if table.num_rows != count:
        lost(f"{count - table.num_rows} of the rows from {first + 1} on are not there")
    for batch in table.to_batches():
        right = sound(batch)
        for i in np.flatnonzero(~right):
            lost(f"item {batch.column('id')[int(i)].as_py()!r} is not as it was written")
        if right.any():
            yield batch if right.all() else batch.filter(_mask(right))


def _mask(values: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.array(values)


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied where."""

    source: Path
    target: Path
    version: int  # of the source
    items: int

    def to_dict(self) -> dict[str, Any]:
        return {"from": str(self.source), "to": str(self.target), "version": self.version, "items": self.items}


def snapshot(source: str | Path, target: str | Path, version: int | None = None) -> Copied:
    """Copy an index, at its newest version or an older one, into a new folder. It appears whole or not at all."""
    source, target = Path(source), Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GeniusError(f"{target} is there already: choose another path for the copy")
    about = about_of(source)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        return _retried(source, about, version, lambda reader: _copy(source, about, reader, temporary, target))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _retried(source: Path, about: About, version: int | None, copy: Any) -> Copied:
    """Copy; again, from what is newest then, if another process cleans the version away meanwhile."""
    for attempt in range(ATTEMPTS):
        store = open_store(source, about)
        try:
            result: Copied = copy(store.at(store.latest() if version is None else version))
            return result
        except Vanished:
            if version is not None:
                raise GeniusError(f"version {version} of {source} is not there (genius info {source} --versions)") from None
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _copy(source: Path, about: About, reader: Reader, temporary: Path, target: Path) -> Copied:
    shutil.rmtree(temporary, ignore_errors=True)
    make_folder(temporary)
    copied = {"id": about.id, "version": reader.version, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    described = replace(about, id=uuid.uuid4().hex, format=FORMAT, copied=copied)
    schema = whole_schema(reader)
    rows = good_rows(reader)
    store = Store.fill(temporary, schema, rows if schema is reader.schema else resealed(rows, schema))
    book = store.begin_ledger(described.to_dict())
    write_about(temporary, described)
    try:
        if about.source == INSIDE:
            shutil.copytree(source / MODEL, temporary / MODEL)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rmdir()  # empty, or this fails
        temporary.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        raise GeniusError(f"cannot write {target}: {error.strerror or error}") from None
    return Copied(source, target, reader.version, book.items)


def restore(source: str | Path, target: str | Path, version: int | None = None, *, replace_items: bool = False) -> Copied:
    """Bring a snapshot, or an older version of an index, back.

    A new folder becomes a copy. An index that exists gets the snapshot's items in place of all of its own, in one change
    that processes which search it follow by themselves; what it held stays an older version for as long as those are kept.
    """
    source, target = Path(source), Path(target)
    there = read_about(target)
    if there is None:
        return snapshot(source, target, version)
    if not replace_items:
        raise GeniusError(f"{target} is an index with items of its own: --replace puts those of {source} in their place")
    about = about_of(source)
    if about.fingerprint != there.fingerprint:
        raise GeniusError(f"{source} and {target} belong to different models ({about.fingerprint[:8]}, {there.fingerprint[:8]})")
    return _retried(source, about, version, lambda reader: _replace(source, reader, target))


def _replace(source: Path, reader: Reader, target: Path) -> Copied:
    with WriterLock(target / ".lock", 30.0).hold():
        there = about_of(target)
        store = open_store(target, there)
        if there.format < FORMAT:
            upgrade(target, there, store)
        with store.change():
            rows: Iterator[pa.RecordBatch] = resealed(good_rows(reader), whole_schema(reader), store.next_seq(long=True))
            store.overwrite(whole_schema(reader), rows)
        return Copied(source, target, reader.version, store.at(store.latest()).count())
