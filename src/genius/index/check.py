"""Is an index as it was written? Reads everything, changes nothing, names what is wrong. No model is loaded.

`fast` compares sizes, and the checksums of what is small: the ledger, `genius.json`, the files that define versions.
The whole check also compares every file of the table and of caches with its checksum, and every row with its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.errors import GeniusError, Problems, counted
from genius.index import cache, commit
from genius.index import metadata as meta
from genius.index.commit import table_folder, versions_on_disk
from genius.index.folder import About, about_of
from genius.index.ledger import ROW, SUM, VECTORS, Ledger, LedgerState, size_in
from genius.index.paths import ABOUT, ASIDE, CACHE, LEDGER, refuse_foreign
from genius.index.reader import Reader, sound
from genius.index.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS = 5  # at an index that others are changing
FAST_LIMIT = 16 << 20  # bytes of a cache's file whose checksum a fast check compares


@dataclass(slots=True)
class CheckReport:
    """What a check found. `problems`: damage, one line each; `notes`: what is odd but right."""

    path: Path
    fast: bool
    version: int = 0
    files: int = 0
    bytes: int = 0
    items: int = 0  # rows that were read and compared
    problems: Problems = field(default_factory=Problems)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ledger: tuple[int, int, int] | None = None  # inode, size and time of the ledger when the look began

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "ok": self.ok,
            "fast": self.fast,
            "version": self.version,
            "files": self.files,
            "bytes": self.bytes,
            "items": self.items,
            "problems": list(self.problems),
            "problems_left_out": self.problems.left_out,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
        }


def check(folder: str | Path, fast: bool = False) -> CheckReport:
    """Compare an index with its checksums. An index that is not there is an error; damage is a line of the report.

    If others change the index meanwhile, what looks like damage may be a file that is being cleaned away: it is read again.

    Args:
        folder: Of the index.
        fast: Compare sizes, and the checksums of what is small only.
    """
    folder = Path(folder)
    started = time.monotonic()
    for _ in range(ATTEMPTS):
        report = _look(folder, fast)
        before = time.monotonic()
        if report.ok or _mark(folder) == report.ledger:
            break
    report.seconds = before - started
    return report


def _look(folder: Path, fast: bool) -> CheckReport:
    report = CheckReport(folder, fast, ledger=_mark(folder))
    try:
        refuse_foreign(folder)
    except GeniusError as error:
        report.problems.append(str(error))
        return report
    about, state = _describe(folder, report)
    if state is not None:
        _files(folder, state, report)
    if about is not None and not report.problems:
        _table(folder, about, state, report)
    return report


def _mark(folder: Path) -> tuple[int, int, int] | None:
    try:
        about = (folder / LEDGER).stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _describe(folder: Path, report: CheckReport) -> tuple[About | None, LedgerState | None]:
    """`genius.json` and the ledger, each against itself and against the other."""
    about = None
    state = None
    if not table_folder(folder).exists():
        about_of(folder)  # "no index at ..."
        report.problems.append("items.lance is missing: the items are gone")
    try:
        about = about_of(folder)
    except GeniusError as error:
        report.problems.append(str(error))
    try:
        state = Ledger(folder).read()
    except GeniusError as error:
        report.problems.append(str(error))
        return about, None
    if state is None:
        report.problems.append("ledger.jsonl is missing")
    elif about is not None and json.dumps(state.about) != json.dumps(about.to_dict()):
        report.problems.append("genius.json and ledger.jsonl are not of the same index")
    return about, state


def _files(folder: Path, state: LedgerState, report: CheckReport) -> None:
    report.version = state.head
    report.files = len(state.files)
    report.bytes = sum(size_in(noted) for noted in state.files.values())
    report.problems += commit.differences(folder, state.files, deep=not report.fast, tolerate_missing=state.cleaning)
    if state.head not in versions_on_disk(folder):
        report.problems.append(commit.missing_head(folder, state))
    stray = [version for version in versions_on_disk(folder) if version > state.head]
    if stray:
        report.notes.append(f"version {stray[-1]} was never acknowledged: a writer died; the next one sets it aside")
    if state.cleaning:
        report.notes.append("a clean-up was broken off; the next writer finishes it")
    if (folder / ASIDE).is_dir():
        report.notes.append(f"{ASIDE}/ holds what writers left that died before their change was acknowledged")


def _table(folder: Path, about: About, state: LedgerState | None, report: CheckReport) -> None:
    try:
        store = Store(folder)
        reader = store.at(store.latest())
        report.version = reader.version
        count = reader.count()
        if state is not None and count != state.items:
            report.problems.append(f"the table holds {counted(count, 'item')}, not the {state.items} that were acknowledged")
        _caches(folder, about, report)
        if not report.fast:
            _rows(reader, about, report)
    except GeniusError as error:
        report.problems.append(str(error))


def _caches(folder: Path, about: About, report: CheckReport) -> None:
    """A line for each cache that is not as it was written, or is not used."""
    for path in sorted((folder / CACHE).glob("[0-9]*")):
        name = f"{CACHE}/{path.name}"
        if not (path / cache.BASE).exists():  # it is being written or removed: nothing uses it
            continue
        try:
            noted = cache.read_base(path)
            wrong = cache.damage(path, noted["files"], FAST_LIMIT if report.fast else 2**63)
            report.problems += [f"{name}/{file} is not as it was written (it is built anew when needed)" for file in wrong]
            if not wrong and cache.load(path, about) is None:
                report.notes.append(f"{name} is of another index, model or format; it is built anew when needed")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            report.problems.append(f"{name}/{cache.BASE}: {error} (it is built anew when needed)")


# -- rows --------------------------------------------------------------------------------------------------------


def _rows(reader: Reader, about: About, report: CheckReport) -> None:
    """Every row: its checksum, its codes and vectors, and its metadata against the columns."""
    stored = [name for name in VECTORS if name in reader.schema.names]
    sizes = {name: reader.schema.field(name).type.list_size for name in stored}
    described = {"_codes": len(about.levels)}
    if about.stored_width is not None:
        described["_embedding"] = about.stored_width
    if sizes != described:
        report.problems.append(f"the table holds lists of {sizes}, where {ABOUT} says {described}")
        return
    names = [*ROW, *stored, SUM, *reader.columns]
    seqs = []
    hashes = []
    for batch in reader.batches(names):
        ids = batch.column("id").to_pylist()
        report.items += batch.num_rows
        seqs.append(batch.column("_seq").to_numpy())
        hashes.append(np.array([cache.hash_id(i) for i in ids], np.uint64))
        for i, line in _bad_rows(batch, about, reader.columns):
            report.problems.append(f"item {ids[i]!r}: {line}")
    for what, parts in (("rows have the same number", seqs), ("items have the same id", hashes)):
        if parts:
            values = np.concatenate(parts)
        else:
            values = np.empty(0)
        if len(np.unique(values)) < len(values):
            report.problems.append(f"{len(values) - len(np.unique(values))} {what} as another")


def _bad_rows(batch: pa.RecordBatch, about: About, columns: meta.Columns) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    codes = np.asarray(batch.column("_codes").flatten()).reshape(batch.num_rows, -1)
    changed = np.flatnonzero(~sound(batch)).tolist()
    found += [(row, "the row has another checksum than when it was written") for row in changed]
    impossible = (codes >= np.asarray(about.levels)).any(axis=1)
    for name in VECTORS:
        if name in batch.schema.names and batch.column(name).flatten().null_count:
            nulls = np.asarray(batch.column(name).flatten().is_null().to_numpy(zero_copy_only=False))
            impossible |= nulls.reshape(batch.num_rows, -1).any(axis=1)
    if about.vectors:
        vectors = np.asarray(batch.column("_embedding").flatten()).reshape(batch.num_rows, -1)
        impossible |= ~np.isfinite(vectors).all(axis=1)
    found += [(int(i), "its codes or vector are impossible") for i in np.flatnonzero(impossible)]
    values = {name: batch.column(name).to_pylist() for name in columns}
    for i, text in enumerate(batch.column("_metadata").to_pylist()):
        try:
            stored = meta.load(text)
        except (ValueError, TypeError):
            found.append((i, "its metadata cannot be read"))
            continue
        for name, field_type in columns.items():
            if not _is_value(values[name][i], stored, name, field_type):
                found.append((i, f"the column {name!r} and its metadata differ"))
    return found


def _is_value(value: object, stored: Mapping[str, Any], name: str, field_type: meta.FieldType) -> bool:
    """Whether a column holds what the metadata of its row says."""
    try:
        return bool(value == meta.column_values([stored], name, field_type)[0])
    except (ValueError, TypeError):  # the metadata holds another type
        return False
