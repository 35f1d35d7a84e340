"""The truth on disk: one LanceDB table, a row an item. Knows arrow and SQL; knows nothing of models or search.

Every row has a `_seq` that is never used twice: the version it was written on top of plus one (27 bits), a random
number of the commit (16), the position in the commit (20). So "rows newer than version V" is a range, and (`_seq` ->
codes, embedding) never changes once written: whatever was computed from a row stays true of it, even if the table
was put back from a copy and took another turn. Writers hold the index's lock; readers look at one version each.
"""

from __future__ import annotations

import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.errors import GeniusError
from genius.index.metadata import BUILT_IN, Columns, Kind

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "items"
POSITION_BITS, SEQ_SHIFT = 20, 36
MAX_BATCH = 1 << POSITION_BITS
INDEX_FROM = 10_000  # rows; a smaller table is scanned as quickly
PAYLOAD = ("_seq", "id", "text", "modality", "_image", "_metadata")
"""What a hit shows; pictures are fetched only where asked for."""


class Vanished(GeniusError):
    """The files of a version were cleaned away while it was read."""


@contextmanager
def database_errors(doing: str) -> Iterator[None]:
    """Turn what LanceDB raises into one clear line; say plainly when it is the disk."""
    try:
        yield
    except GeniusError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        known = {
            "No space left": "the disk is full",
            "StorageFull": "the disk is full",
            "File too large": "the disk is full (file too large)",
            "FileTooLarge": "the disk is full (file too large)",
            "os error 28": "the disk is full",
            "os error 27": "the disk is full (file too large)",
            "Read-only file system": "the folder is read-only",
            "os error 30": "the folder is read-only",
            "Permission denied": "no permission",
            "PermissionDenied": "no permission",
            "os error 13": "no permission",
        }
        for sign, plain in known.items():
            if sign in text:
                raise GeniusError(f"cannot {doing}: {plain}; nothing that was there is lost") from None
        if re.search(r"not ?found|no such file", text, re.IGNORECASE):
            raise Vanished(f"cannot {doing}: a file of this version is gone") from None
        short = re.sub(r",? ?/\S+\.rs:\d+(:\d+)?", "", text)
        raise GeniusError(f"cannot {doing}: {short[:300]}") from None


class Reader:
    """One version of the table. Safe to use while others write."""

    def __init__(self, table: Any, version: int, mark: tuple[int, int] | None) -> None:
        self._table = table
        self.version = version
        self.mark = mark  # of the file that defines this version
        kinds: dict[str, Kind] = {"string": "text", "double": "number", "bool": "boolean"}
        own = [field for field in table.schema if field.name not in BUILT_IN and not field.name.startswith("_")]
        self.columns: Columns = {field.name: kinds[str(field.type)] for field in own}

    def count(self, where: str | None = None) -> int:
        with database_errors("count"):
            return int(self._table.count_rows(where))

    def seqs(self, where: str | None = None) -> np.ndarray:
        """(n,) int64 `_seq` of the matching rows, ascending."""
        parts = [batch.column("_seq").to_numpy() for batch in self._scan(["_seq"], where)]
        found = np.concatenate(parts) if parts else np.empty(0, np.int64)
        found.sort()
        return found

    def rows(self, seqs: Sequence[int] | np.ndarray, columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        """`_seq` -> row, of those that exist."""
        wanted = sorted({int(seq) for seq in seqs})
        found: dict[int, dict[str, Any]] = {}
        for i in range(0, len(wanted), 4096):
            where = f"_seq IN ({', '.join(map(str, wanted[i : i + 4096]))})"
            for batch in self._scan(["_seq", *(c for c in columns if c != "_seq")], where):
                found.update((row["_seq"], row) for row in batch.to_pylist())
        return found

    def codes(self, where: str | None = None) -> Iterator[tuple[np.ndarray, list[str], np.ndarray]]:
        """Batches of (seqs, ids, codes (n, M) uint16), in no promised order."""
        for batch in self._scan(["_seq", "id", "_codes"], where):
            if batch.num_rows:
                yield batch.column("_seq").to_numpy(), batch.column("id").to_pylist(), _matrix(batch.column("_codes"))

    def embeddings(self, where: str | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of (seqs, embeddings (n, D) float16), in no promised order."""
        for batch in self._scan(["_seq", "_embedding"], where):
            if batch.num_rows:
                yield batch.column("_seq").to_numpy(), _matrix(batch.column("_embedding"))

    def stream(self, columns: Sequence[str], where: str | None = None) -> Iterator[dict[str, Any]]:
        for batch in self._scan(columns, where):
            yield from batch.to_pylist()

    def _scan(self, columns: Sequence[str], where: str | None) -> Iterator[pa.RecordBatch]:
        with database_errors("read the index"):
            query = self._table.search().select(list(columns)).limit(None)
            if where is not None:
                query = query.where(where)
            yield from query.to_batches(batch_size=65_536)


def _matrix(column: Any) -> np.ndarray:
    """A fixed-size list column as (n, size)."""
    return np.asarray(column.flatten().to_numpy()).reshape(len(column), -1)


class Store:
    """The table of one index folder, for its writer; `at(version)` gives readers."""

    def __init__(self, folder: Path, table: Any, database: Any) -> None:
        self.folder = folder
        self._table = table  # for the writer
        self._watch = database.open_table(TABLE)  # for seeing what is newest, by any thread
        self._database = database

    @classmethod
    def create(cls, folder: Path, levels: int, width: int) -> Store:
        """A new empty table; a half-made one of a crashed attempt is overwritten."""
        import lancedb
        import pyarrow as pa

        schema = pa.schema(
            [
                pa.field("id", pa.string(), nullable=False),
                pa.field("text", pa.string()),
                pa.field("modality", pa.string(), nullable=False),
                pa.field("_seq", pa.int64(), nullable=False),
                pa.field("_codes", pa.list_(pa.uint16(), levels), nullable=False),
                pa.field("_embedding", pa.list_(pa.float16(), width), nullable=False),
                pa.field("_metadata", pa.string()),
                pa.field("_image", pa.string()),
                pa.field("_image_bytes", pa.binary()),
                pa.field("_thumbnail", pa.binary()),
                pa.field("_source", pa.string()),  # the file it was read from
                pa.field("_stamp", pa.string()),  # changes when that file, or its row in it, does
            ]
        )
        with database_errors(f"create an index at {folder}"):
            database = lancedb.connect(folder)
            mode = "overwrite" if (folder / f"{TABLE}.lance").exists() else "create"
            return cls(folder, database.create_table(TABLE, schema=schema, mode=mode), database)

    @classmethod
    def open(cls, folder: Path) -> Store:
        import lancedb

        with database_errors(f"open the index {folder}"):
            database = lancedb.connect(folder)
            return cls(folder, database.open_table(TABLE), database)

    # -- versions ----------------------------------------------------------------------------------------------

    def latest(self) -> int:
        """The newest version on disk; under a millisecond."""
        with database_errors("read the index"):
            self._watch.checkout_latest()
            return int(self._watch.version)

    def _newest(self) -> int:
        with database_errors("read the index"):
            self._table.checkout_latest()
            return int(self._table.version)

    def at(self, version: int) -> Reader:
        with database_errors(f"open version {version} of {self.folder}"):
            table = self._database.open_table(TABLE)
            table.checkout(version)
            return Reader(table, version, self._mark(version))

    def _mark(self, version: int) -> tuple[int, int] | None:
        """Time and size of the file that defines a version; None if it is gone or named in another way."""
        try:
            about = (self.folder / f"{TABLE}.lance" / "_versions" / f"{2**64 - 1 - version}.manifest").stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size

    def continues(self, reader: Reader) -> bool:
        """Whether what is on disk still contains the version that `reader` shows; False if that cannot be known."""
        return reader.mark is not None and reader.mark == self._mark(reader.version)

    def versions(self) -> list[dict[str, Any]]:
        with database_errors("list versions"):
            return [
                {
                    "version": int(v["version"]),
                    "time": v["timestamp"].isoformat(),
                    "items": int(v["metadata"].get("total_rows", -1)),
                }
                for v in self._table.list_versions()
            ]

    # -- writing (the caller holds the writer's lock) -------------------------------------------

    def next_seq(self) -> int:
        """First `_seq` of a commit on top of the newest version."""
        nonce = secrets.randbits(SEQ_SHIFT - POSITION_BITS)
        return ((self._newest() + 1) << SEQ_SHIFT) | (nonce << POSITION_BITS)

    def add_columns(self, columns: Mapping[str, Kind]) -> None:
        import pyarrow as pa

        types = {"text": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}
        with database_errors("add metadata columns"):
            self._table.checkout_latest()
            self._table.add_columns(pa.schema([pa.field(name, types[kind]) for name, kind in columns.items()]))

    def table(self, columns: Mapping[str, Any]) -> pa.Table:
        """Columns of values -> an arrow table of this table's schema; absent columns are null."""
        import pyarrow as pa

        schema = self._table.schema
        n = len(columns["id"])
        arrays = []
        for field in schema:
            if field.name not in columns:
                arrays.append(pa.nulls(n, field.type))
            elif field.name in ("_codes", "_embedding"):
                flat = pa.array(np.ascontiguousarray(columns[field.name]).reshape(-1))
                arrays.append(pa.FixedSizeListArray.from_arrays(flat, field.type.list_size).cast(field.type))
            else:
                arrays.append(pa.array(columns[field.name], field.type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def append(self, rows: pa.Table) -> None:
        """All rows or none."""
        with database_errors("add items"):
            self._table.checkout_latest()
            self._table.add(rows)

    def replace(self, rows: pa.Table) -> None:
        """Insert rows, each in place of the one with its id if there is one. One commit: all or none."""
        with database_errors("write items"):
            self._table.checkout_latest()
            self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def delete(self, seqs: Sequence[int]) -> None:
        with database_errors("delete items"):
            self._table.checkout_latest()
            self._table.delete(f"_seq IN ({', '.join(str(int(seq)) for seq in seqs)})")

    def fragments(self) -> int:
        with database_errors("read the index"):
            return int(self._table.stats()["fragment_stats"]["num_fragments"])

    def compact(self, keep: timedelta) -> None:
        """Merge small files, drop versions older than `keep`; give a large table an index by `_seq`, for fetching hits."""
        from lancedb.index import BTree

        with database_errors("optimize the index"):
            self._table.checkout_latest()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # readers of a version that is cleaned away try again
                if self._table.count_rows() >= INDEX_FROM and not self._table.list_indices():
                    self._table.create_index("_seq", config=BTree())
                self._table.optimize(cleanup_older_than=keep)
