"""Sources cut into parts, each of which one worker does alone, and rows on their way into an index.

A part is some files, or a stretch of rows of a table. Its name is made of what is in it (files, their size and time, rows) and
of what is done to it (settings, the model): a second run finds the same names for the same work, and only those. Ray's own
blocks differ from run to run. A worker (`PartIndexer`) reads a part, encodes and quantizes what is new in it, and leaves rows and
a record in `staging/` inside the index's folder, out of sight of readers and other writers, until one commit takes all of them
in. A record appears whole, after its data files are on the disk, under its part's name: which records are there is all that a
second run needs to know. Files without a record are what killed workers left. Knows nothing of Ray: the same objects work in a
worker's process and in a test.

    staging/job.json            which row numbers belong to this job, and to which part
    staging/data/*.lance        data files
    staging/records/NAME.json   a part that is done;  NAME.npy: hashes of its ids
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.readers import cut_rows
from genius.errors import GeniusError
from genius.files import read_json, sync_directory, sync_file, write_whole
from genius.index import Index
from genius.index import metadata as meta
from genius.index.appending import DATA, DataFiles
from genius.index.cache import hash_id
from genius.index.commit import table_folder
from genius.index.ingest import (
    IngestConfig,
    IngestReport,
    SourceFile,
    changed_items,
    file_mark,
    file_type,
    find_files,
    read_items,
)
from genius.index.metadata import FieldType, arrow_rows, metadata_schema
from genius.index.paths import STAGING, remove
from genius.index.prepare import prepare
from genius.index.reader import database_errors
from genius.index.store import POSITION_BITS, SEQ_SHIFT
from genius.index.writing import item_batches

if TYPE_CHECKING:
    import pyarrow as pa


MAX_PARTS = 1 << 15  # of one job: each part has its own range of row numbers
MAX_ROWS = 1 << 20
JOB = "job.json"
LOCK = ".lock"
RECORDS = "records"

HELD = 128 << 20  # bytes of finished rows, after which they go to a file


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker does in one go."""

    name: str
    files: tuple[SourceFile, ...]
    items: int  # about how many, for the time left; 0: unknown

    def __str__(self) -> str:
        first = self.files[0]
        last = self.files[-1]
        if first.rows is not None and len(self.files) == 1:
            return f"{first.name}, rows from {first.rows.first + 1:,} on"
        if first is last:
            return first.name
        return f"{first.name} to {last.name}"


def cut(
    paths: Sequence[str | Path],
    config: IngestConfig,
    rows: int,
    salt: str,
    report: IngestReport,
    root: Path | None = None,
) -> list[Part]:
    """Everything under `paths` in parts of at most `rows` items, in the order in which one process would read it.

    `salt`: what else decides the outcome (the model). `root`: that ids are relative to; None: that of a new index. Files that
    cannot be cut are left to a worker, who says why.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise GeniusError(f"rows of a part must be 1 to {MAX_ROWS:,}, got {rows}")
    about = f"{salt}|{json.dumps(asdict(config), sort_keys=True)}"
    parts = [_part(files, items, about, config) for files, items in _groups(find_files(paths, config, report, root), rows)]
    if len(parts) > MAX_PARTS:
        raise GeniusError(f"{len(parts):,} parts, more than {MAX_PARTS:,}: let each hold more than {rows:,} items (--part-rows)")
    return parts


def _groups(found: Iterator[SourceFile], rows: int) -> Iterator[tuple[list[SourceFile], int]]:
    single: list[SourceFile] = []
    for file in found:
        if file_type(file.path) == "table":
            if single:
                yield single, len(single)
                single = []
            yield from _row_ranges(file, rows)
            continue
        single.append(file)
        if len(single) == rows:
            yield single, len(single)
            single = []
    if single:
        yield single, len(single)


def _row_ranges(file: SourceFile, rows: int) -> Iterator[tuple[list[SourceFile], int]]:
    try:
        row_ranges = cut_rows(file.path, rows)
    except (GeniusError, OSError):
        yield [file], 0
        return
    for row_range in row_ranges:
        yield [replace(file, rows=row_range)], row_range.count if row_range.count <= rows else 0


def _part(files: Sequence[SourceFile], items: int, about: str, config: IngestConfig) -> Part:
    digest = hashlib.blake2b(about.encode(), digest_size=12)
    for file in files:
        marks = [_mark(path, config) for path in (file.path, file.caption) if path is not None]
        row_range = None
        if file.rows is not None:
            row_range = asdict(file.rows)
        digest.update(repr((str(file.path), file.name, marks, row_range)).encode("utf-8", "backslashreplace"))
    return Part(digest.hexdigest(), tuple(files), items)


def _mark(path: Path, config: IngestConfig) -> str:
    try:
        return file_mark(path, config.by_content)
    except OSError:
        return "gone"  # the worker will say so


@dataclass(frozen=True, slots=True)
class Record:
    """A part that is done."""

    name: str
    first: int  # `_seq` of its first row
    rows: int
    fragments: Sequence[Mapping[str, Any]] = ()  # Lance's notes of the data files, each with the names of its columns
    field_types: Mapping[str, FieldType] = field(default_factory=dict)  # metadata columns of these rows
    unchanged: int = 0  # items that the index holds already as they are
    problems: Sequence[str] = ()
    problems_total: int = 0

    def files(self) -> list[tuple[str, int]]:
        """Data files and their sizes."""
        return [(file["path"], file["file_size_bytes"]) for part in self.fragments for file in part["fragment"]["files"]]


class Staging:
    """The staging folder of an index; workers on other machines open the same one."""

    def __init__(self, index: Path) -> None:
        self.folder = index / STAGING

    def create(self) -> None:
        with database_errors(f"write to {self.folder}"):
            self.folder.mkdir(exist_ok=True)

    # -- the job -----------------------------------------------------------------------------------------------

    def begin(self, parts: Sequence[Part], reserve: Callable[[], int]) -> dict[str, int]:
        """First `_seq` of each part. Those that an earlier run gave out stay; the caller holds the write lock in a change."""
        job = self._job()
        if job is None:
            job = {"first": reserve(), "start": secrets.randbelow(MAX_PARTS), "numbers": {}}
        numbers: dict[str, int] = job["numbers"]
        for part in parts:
            numbers.setdefault(part.name, len(numbers))
        if len(numbers) > MAX_PARTS:  # the sources changed again and again under a job that was never finished
            raise GeniusError(f"{self.folder} holds the remains of too many runs: delete it and run again")
        write_whole(self.folder / JOB, lambda path: path.write_text(json.dumps(job)), durable=True)
        return {part.name: job["first"] + ((job["start"] + numbers[part.name]) << POSITION_BITS) for part in parts}

    def range(self) -> tuple[int, int] | None:
        """The row numbers that belong to the job that is under way, if there is one."""
        job = self._job()
        if job is None:
            return None
        return (job["first"], job["first"] + (1 << SEQ_SHIFT))

    def _job(self) -> dict[str, Any] | None:
        try:
            job: dict[str, Any] = read_json(self.folder / JOB)
        except FileNotFoundError:
            return None
        return job

    def clear(self) -> None:
        """After a commit. The job goes first: what is left of a removal that was killed belongs to nobody."""
        with database_errors(f"write to {self.folder}"):
            (self.folder / JOB).unlink(missing_ok=True)
            sync_directory(self.folder)
            names = [path.name for path in self.folder.iterdir()]
        for name in names:  # records, data files, and what killed runs left half-written
            if name != LOCK:
                remove(self.folder / name, self.folder.parent)

    # -- parts -------------------------------------------------------------------------------------------------

    def record(self, part: Part, first: int) -> Record | None:
        """The record of a part, of this job (its rows begin with `first`), whose files are all there, whole."""
        try:
            body = read_json(self.folder / RECORDS / f"{part.name}.json")
            record = Record(**body)
            whole = all((self.folder / DATA / name).stat().st_size == size for name, size in record.files())
            if whole and record.first == first and len(self.hashes(record)) == record.rows:
                return record
            return None
        except (OSError, TypeError, ValueError):  # GeniusError is a ValueError
            return None

    def hashes(self, record: Record) -> NDArray[np.uint64]:
        """(rows,) of the ids."""
        with database_errors(f"read {self.folder}"):
            id_hashes: NDArray[np.uint64] = np.load(self.folder / RECORDS / f"{record.name}.npy")
        return id_hashes

    def data_files(self, record: Record) -> DataFiles:
        """A record as the index takes it in."""
        return DataFiles(
            record.name,
            self.folder / DATA,
            record.first,
            record.rows,
            record.fragments,
            record.field_types,
            record.files(),
            self.hashes(record),
        )

    def write_rows(self, rows: pa.Table, storage_version: str) -> list[dict[str, Any]]:
        """Data files of these rows, on the disk."""
        from lance.fragment import write_fragments

        with database_errors(f"write to {self.folder}"):
            files = write_fragments(rows, str(self.folder), data_storage_version=storage_version)
            fragments = [{"fragment": fragment.to_json(), "names": rows.schema.names} for fragment in files]
            for fragment in fragments:
                for file in fragment["fragment"]["files"]:
                    sync_file(self.folder / DATA / file["path"])
            sync_directory(self.folder / DATA)
        return fragments

    def write_record(self, record: Record, hashes: NDArray[np.uint64]) -> None:
        place = self.folder / RECORDS

        def save(path: Path) -> None:
            with path.open("wb") as file:  # numpy would give the name an ending of its own
                np.save(file, hashes)

        write_whole(place / f"{record.name}.npy", save, durable=True)
        body = {name: getattr(record, name) for name in Record.__dataclass_fields__}
        write_whole(place / f"{record.name}.json", lambda path: path.write_text(json.dumps(body)), durable=True)


class PartIndexer:
    """Opens the index once, with its model, and does one part after the other."""

    def __init__(self, index: Path, config: IngestConfig, thumbnails: int, device: str) -> None:
        import lance

        self.index = Index.open(index, read_only=True)
        self.index.model.to(device)
        self.config = config
        self.thumbnails = thumbnails
        self.staging = Staging(index)
        with database_errors("read the index"):
            self.storage_version: str = lance.dataset(str(table_folder(index))).data_storage_version

    def ready(self) -> str:
        """Answers once the model is loaded: where it runs."""
        return str(self.index.model.device)

    def write(self, part: Part, first: int) -> tuple[int, float]:
        """Do a part whose rows have the numbers from `first` on. Items done, and seconds of processor time that it took."""
        started = time.process_time()
        report = IngestReport()
        reader = self.index.reader()
        known = reader.columns
        schema = reader.schema
        own = [schema.field(name) for name in schema.names if name in meta.BUILT_IN or name.startswith("_")]
        field_types: dict[str, meta.FieldType] = {}
        tables: list[pa.Table] = []
        fragments: list[dict[str, Any]] = []
        hashes: list[int] = []
        read = read_items(part.files, self.config, report, _ignore, known)
        items = changed_items(self.index, read, set(), report, _ignore)
        for batch in item_batches(items, self.config.batch_size):
            ready = prepare(self.index.model, batch, self.thumbnails, "skip")
            report.problems += ready.problems
            fresh, conflicts = meta.new_columns(
                {**known, **field_types}, ((item.id, row) for item, row in zip(ready.items, ready.metadata, strict=True))
            )
            report.problems += conflicts.values()
            ready = ready.without(conflicts)
            field_types.update(fresh)
            field_types.update({key: known[key] for row in ready.metadata for key in row if key in known})
            if len(hashes) + len(ready.items) > MAX_ROWS:
                report.problems.append(f"{part}: more than {MAX_ROWS:,} rows in one part; split the file")
                break
            columns = ready.columns(first + len(hashes), field_types)
            tables.append(arrow_rows(_with(own, field_types), columns))
            hashes += [hash_id(item.id) for item in ready.items]
            if sum(table.nbytes for table in tables) > HELD:
                fragments += self._flush(tables)
        fragments += self._flush(tables)
        problems = report.problems
        record = Record(
            part.name, first, len(hashes), fragments, field_types, report.unchanged, list(problems), problems.total
        )  # fmt: skip
        self.staging.write_record(record, np.array(hashes, np.uint64))
        return len(hashes) + report.unchanged + problems.total, time.process_time() - started

    def _flush(self, tables: list[pa.Table]) -> list[dict[str, Any]]:
        import pyarrow as pa

        rows = None
        if tables:
            rows = pa.concat_tables(tables, promote_options="default")
        tables.clear()
        if rows is None or not rows.num_rows:
            return []
        return self.staging.write_rows(rows, self.storage_version)


def _with(own: list[pa.Field], field_types: dict[str, meta.FieldType]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([*own, *metadata_schema(field_types)])


def _ignore(_: int) -> None:
    pass
