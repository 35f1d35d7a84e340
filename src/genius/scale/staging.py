"""Rows on their way into an index: data files that workers wrote, and a small record of each part that is done.

They lie in `staging/` inside the index's folder, out of sight of readers and other writers, until one commit takes all of them
in. A record appears whole, after its data files are on the disk, under its part's name: which records are there is all that a
second run needs to know. Files without a record are what killed workers left.

    staging/job.json            which row numbers belong to this job, and to which part
    staging/data/*.lance        data files
    staging/records/NAME.json   a part that is done;  NAME.npy: hashes of its ids
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.files import read_json, sync_directory, sync_file, write_whole
from genius.index.folder import STAGING
from genius.index.metadata import Kind
from genius.index.store import POSITION_BITS, SEQ_SHIFT, Store
from genius.scale.parts import MAX_PARTS, Part

if TYPE_CHECKING:
    import pyarrow as pa

JOB, RECORDS, DATA = "job.json", "records", "data"


@dataclass(frozen=True, slots=True)
class Record:
    """A part that is done."""

    name: str
    first: int  # `_seq` of its first row
    rows: int
    fragments: Sequence[Mapping[str, Any]] = ()  # Lance's notes of the data files, each with the names of its columns
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # metadata columns of these rows
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

    # -- the job -----------------------------------------------------------------------------------------------

    def begin(self, parts: Sequence[Part], store: Store) -> dict[str, int]:
        """First `_seq` of each part. Those that an earlier run gave out stay; the caller holds the writer's lock in a change."""
        job = self._job()
        if job is None:
            job = {"first": store.reserve(), "start": secrets.randbelow(MAX_PARTS), "numbers": {}}
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
        return None if job is None else (job["first"], job["first"] + (1 << SEQ_SHIFT))

    def _job(self) -> dict[str, Any] | None:
        try:
            job: dict[str, Any] = read_json(self.folder / JOB)
        except FileNotFoundError:
            return None
        return job

    def clear(self) -> None:
        """After a commit. The job goes first: what is left of a removal that was killed belongs to nobody."""
        (self.folder / JOB).unlink(missing_ok=True)
        sync_directory(self.folder)
        for name in (RECORDS, DATA):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    # -- parts -------------------------------------------------------------------------------------------------

    def record(self, part: Part, first: int) -> Record | None:
        """The record of a part, of this job (its rows begin with `first`), whose files are all there, whole."""
        try:
            body = read_json(self.folder / RECORDS / f"{part.name}.json")
            record = Record(**body)
            whole = all((self.folder / DATA / name).stat().st_size == size for name, size in record.files())
            return record if whole and record.first == first and len(self.hashes(record)) == record.rows else None
        except (FileNotFoundError, TypeError, ValueError):  # GeniusError is a ValueError
            return None

    def hashes(self, record: Record) -> NDArray[np.uint64]:
        """(rows,) of the ids."""
        found: NDArray[np.uint64] = np.load(self.folder / RECORDS / f"{record.name}.npy")
        return found

    def write_rows(self, rows: pa.Table, storage_version: str) -> list[dict[str, Any]]:
        """Data files of these rows, on the disk."""
        from lance.fragment import write_fragments

        written = write_fragments(rows, str(self.folder), data_storage_version=storage_version)
        fragments = [{"fragment": fragment.to_json(), "names": rows.schema.names} for fragment in written]
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
