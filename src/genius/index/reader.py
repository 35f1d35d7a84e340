"""One version of the table, for reading: rows, codes and vectors by `_seq` or by condition. Safe while others write.

Rows on their way into another table are verified one by one here, and renumbered if need be. Knows arrow and SQL, and how LanceDB
fails; knows nothing of writing, models or search.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.files import disk_problem
from genius.index.ledger import SUM, row_sums
from genius.index.metadata import BUILT_IN, Columns, FieldType, item_schema
from genius.types import is_unicode

if TYPE_CHECKING:
    import pyarrow as pa

FEW_BYTES = 16 << 20
HIT_COLUMNS = ("_seq", "id", "text", "modality", "_image", "_metadata")
"""What a hit shows; pictures are fetched on demand."""


SHOWN = "shown.bin"
SHOWN_STARTS = "shown_starts.npy"
SHOWN_PLACES = "shown_places.npy"
SHOWN_ROWS = 32  # of a block


class Vanished(GeniusError):
    """The files of a version were cleaned away while it was read."""


@contextmanager
def database_errors(doing: str) -> Iterator[None]:
    """Turn what LanceDB raises into one clear line; say plainly when it is the disk.

    Args:
        doing: What is tried, for the error.
    """
    try:
        yield
    except GeniusError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic inside of LanceDB is no Exception
        text = " ".join(str(error).split())
        problem = disk_problem(error)
        if problem is not None:
            raise GeniusError(f"cannot {doing}: {problem}; nothing that was there is lost") from None
        # the last of them is ours, wrapped by LanceDB where it reads rows that we copy
        if re.search(r"not ?found|no such file|no longer exists|a file of this version is gone", text, re.IGNORECASE):
            raise Vanished(f"cannot {doing}: a file of this version is gone") from None
        short = re.sub(r",? ?/\S+\.rs:\d+(:\d+)?", "", text)
        raise GeniusError(f"cannot {doing}: {short[:300]}") from None


class HitColumns:
    """What hits show of every row of one version, in files next to the table: found without LanceDB, whose import alone takes
    longer than a search. Rows lie in compressed blocks, in the order of the table."""

    def __init__(
        self, seqs: NDArray[np.int64], places: NDArray[np.uint32] | None, starts: NDArray[np.int64], body: NDArray[np.uint8]
    ) -> None:
        """
        Args:
            seqs: (N,) ascending.
            places: (N,) where each row lies among all rows; None: in order.
            starts: (B + 1,) where each block begins in `body`; a block is a JSON list of `SHOWN_ROWS` lists of values.
            body: the blocks.
        """
        self.seqs = seqs
        self.places = places
        self.starts = starts
        self.body = body

    def rows(self, wanted: Sequence[int]) -> dict[int, dict[str, Any]]:
        """`_seq` -> what is shown, of those that exist; `wanted` ascending."""
        found = {}
        blocks: dict[int, list[list[Any]]] = {}
        for seq, row in zip(wanted, np.searchsorted(self.seqs, np.array(wanted, np.int64)).tolist(), strict=True):
            if row == len(self.seqs) or self.seqs[row] != seq:
                continue
            place = row
            if self.places is not None:
                place = int(self.places[row])
            number, position = divmod(place, SHOWN_ROWS)
            if number not in blocks:
                begin, end = self.starts[number : number + 2].tolist()
                blocks[number] = json.loads(zlib.decompress(self.body[begin:end].tobytes()))
            found[seq] = {"_seq": seq, **dict(zip(HIT_COLUMNS[1:], blocks[number][position], strict=True))}
        return found

    @classmethod
    def open(cls, seqs: NDArray[np.int64], folder: Path) -> HitColumns:
        """What `write` left in a folder."""
        starts = np.load(folder / SHOWN_STARTS)
        places = None
        if (folder / SHOWN_PLACES).exists():
            places = np.load(folder / SHOWN_PLACES)
        if len(seqs):
            body = np.memmap(folder / SHOWN, np.uint8, mode="r").view(np.ndarray)
        else:
            body = np.empty(0, np.uint8)
        return cls(seqs, places, starts, body)

    @staticmethod
    def write(reader: Reader, seqs: NDArray[np.int64], folder: Path) -> None:
        """Write what hits show of every row of a version, which has these `seqs` (N,)."""
        places = np.zeros(len(seqs), np.uint32)
        starts = [0]
        block: list[list[Any]] = []
        with (folder / SHOWN).open("wb") as file:

            def flush() -> None:
                text = json.dumps(block, ensure_ascii=False, separators=(",", ":"))
                starts.append(starts[-1] + file.write(zlib.compress(text.encode())))
                block.clear()

            for place, row in enumerate(reader.stream(HIT_COLUMNS)):
                places[np.searchsorted(seqs, row["_seq"])] = place
                block.append([row[name] for name in HIT_COLUMNS[1:]])
                if len(block) == SHOWN_ROWS:
                    flush()
            if block:
                flush()
        np.save(folder / SHOWN_STARTS, np.array(starts, np.int64))
        if not np.array_equal(places, np.arange(len(seqs))):
            np.save(folder / SHOWN_PLACES, places)


class Reader:
    """One version of the table, opened when it is first read from. Safe to use while others write."""

    def __init__(self, opening: Callable[[], tuple[Any, object]], version: int, noted: str | None = None) -> None:
        """`opening` gives the table, and a temporary folder that is to stay for as long as it is read from."""
        self._opening = opening
        self.version = version
        self.noted = noted  # checksum of the file that defines this version, in the ledger; None: it is not acknowledged
        self.shown: HitColumns | None = None

    @cached_property
    def _opened(self) -> tuple[Any, Columns, object]:
        table, folder = self._opening()
        field_types: dict[str, FieldType] = {
            "string": "text",
            "double": "number",
            "bool": "boolean",
            "list<item: string>": "texts",
        }
        refuse_other_columns(table.schema)
        own = [field for field in table.schema if field.name not in BUILT_IN and not field.name.startswith("_")]
        strange = next((field for field in own if str(field.type) not in field_types), None)
        if strange is not None:
            raise GeniusError(f"the column {strange.name!r} holds {strange.type}, which this version does not know")
        return table, {field.name: field_types[str(field.type)] for field in own}, folder

    @property
    def _table(self) -> Any:
        return self._opened[0]

    @property
    def columns(self) -> Columns:
        return self._opened[1]

    def count(self, where: str | None = None) -> int:
        """The number of rows.

        Args:
            where: Only rows that match this condition.
        """
        with database_errors("count"):
            return int(self._table.count_rows(where))

    def seqs(self, where: str | None = None) -> np.ndarray:
        """(n,) int64 `_seq` of the matching rows, ascending.

        Args:
            where: Only rows that match this condition.
        """
        parts = [batch.column("_seq").to_numpy() for batch in self._scan(["_seq"], where)]
        if parts:
            found = np.concatenate(parts)
        else:
            found = np.empty(0, np.int64)
        found.sort()
        return found

    def rows(self, seqs: Sequence[int] | np.ndarray, columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        """`_seq` -> row, of those that exist.

        Args:
            seqs: Of the rows.
            columns: That are read; `_seq` always is.
        """
        wanted = sorted({int(seq) for seq in seqs})
        if self.shown is not None and set(columns) <= set(HIT_COLUMNS):
            return self.shown.rows(wanted)
        found: dict[int, dict[str, Any]] = {}
        for i in range(0, len(wanted), 4096):
            where = f"_seq IN ({', '.join(map(str, wanted[i : i + 4096]))})"
            for batch in self._scan(["_seq", *(c for c in columns if c != "_seq")], where):
                found.update((row["_seq"], row) for row in batch.to_pylist())
        return found

    def codes(self, where: str | None = None) -> Iterator[tuple[np.ndarray, list[str], np.ndarray]]:
        """Batches of (seqs, ids, codes (n, M) uint16), in no promised order.

        Args:
            where: Only rows that match this condition.
        """
        for batch in self._scan(["_seq", "id", "_codes"], where):
            if batch.num_rows:
                yield batch.column("_seq").to_numpy(), batch.column("id").to_pylist(), _matrix(batch.column("_codes"))

    def embeddings(self, where: str | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of (seqs, embeddings (n, D) float16), in no promised order."""
        for batch in self._scan(["_seq", "_embedding"], where):
            if batch.num_rows:
                yield batch.column("_seq").to_numpy(), _matrix(batch.column("_embedding"))

    def present(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that the table itself has."""
        found: set[str] = set()
        ids = [item_id for item_id in ids if is_unicode(item_id)]  # others cannot be stored
        for i in range(0, len(ids), 1024):
            listed = ", ".join("'" + item_id.replace("'", "''") + "'" for item_id in ids[i : i + 1024])
            for batch in self._scan(["id"], f"id IN ({listed})"):
                found.update(batch.column("id").to_pylist())
        return found

    def words_columns(self) -> list[str]:
        """Columns that have a full-text index in this version."""
        with database_errors("read the index"):
            indices = [index for index in self._table.list_indices() if index.index_type == "FTS"]
        return sorted(index.columns[0] for index in indices)

    def words(self, text: str, columns: Sequence[str], where: str | None, limit: int) -> dict[int, float]:
        """`_seq` -> BM25 score of the best rows for a text, best first; rows that the index does not know yet are compared, too.

        Args:
            text: Words.
            columns: With a full-text index.
            where: Only rows that match this condition.
            limit: Rows at most.
        """
        from lancedb.query import MultiMatchQuery

        with database_errors("search by words"):
            query = self._table.search(MultiMatchQuery(text, list(columns)), query_type="fts")
            if where is not None:
                query = query.where(where, prefilter=True)
            rows = query.select(["_seq", "_score"]).limit(limit).to_list()
        return {row["_seq"]: row["_score"] for row in rows if row["_score"] > 0}

    def few(self) -> int:
        """How many whole rows to hold in memory at a time: one may have a picture of some megabytes."""
        try:
            with database_errors("read the index"):
                about = self._table.stats()
        except GeniusError:  # damaged: what follows will say so, or read around it
            return 64
        rows = max(int(about["num_rows"]), 1)
        return max(8, min(4096, FEW_BYTES * rows // max(int(about["total_bytes"]), 1)))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Whole rows, a few at a time; all columns by default.

        Args:
            columns: That are read; None: all.
        """
        yield from self._scan(self._table.schema.names if columns is None else columns, None, self.few())

    def offsets(self, first: int, count: int) -> pa.Table:
        """Whole rows by position: for reading around damage."""
        with database_errors("read the index"):
            return self._table.take_offsets(list(range(first, first + count))).to_arrow()

    @property
    def schema(self) -> Any:
        return self._table.schema

    def stream(self, columns: Sequence[str], where: str | None = None) -> Iterator[dict[str, Any]]:
        """Rows one by one, in no promised order.

        Args:
            columns: That are read.
            where: Only rows that match this condition.
        """
        for batch in self._scan(columns, where):
            yield from batch.to_pylist()

    def _scan(self, columns: Sequence[str], where: str | None, size: int = 65_536) -> Iterator[pa.RecordBatch]:
        with database_errors("read the index"):
            if "_embedding" in columns and "_embedding" not in self._table.schema.names:
                raise GeniusError(
                    "this index stores no vectors, only codes (it was made with --codes-only), and this needs vectors"
                )
            query = self._table.search().select(list(columns)).limit(None)
            if where is not None:
                query = query.where(where)
            yield from query.to_batches(batch_size=size)


def refuse_other_columns(schema: Any) -> None:
    """One line if a table's own columns are not those that `item_schema` makes, of any number of levels and width."""
    found = {field.name: field.type for field in schema}
    for field in item_schema(1, 1):
        there = found.get(field.name)
        if there is None and field.name in ("id", "_seq", "_codes", SUM):
            raise GeniusError(f"the table has no column {field.name!r}: it is not one of an index")
        wanted: Any = field.type
        same = there == wanted
        if field.name in ("_codes", "_embedding"):
            same = there is not None and str(there).startswith("fixed_size_list") and there.value_type == wanted.value_type
        if there is not None and not same:
            raise GeniusError(f"the column {field.name!r} holds {there}: it is not the table of an index")


def _matrix(column: Any) -> np.ndarray:
    """A fixed-size list column as (n, size)."""
    if column.flatten().null_count:
        raise GeniusError("the index holds items without a vector or codes: genius check names them")
    return np.asarray(column.flatten().to_numpy()).reshape(len(column), -1)


# -- rows on their way into another table: a copy, what a repair brings back, a collection that is fitted anew ------------------


@dataclass(slots=True)
class Tally:
    """How many rows passed by, and the sum of their checksums: whether what was read is what was written."""

    rows: int = 0
    total: int = 0

    def counting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted as they pass.

        Args:
            batches: With checksums.
        """
        for batch in batches:
            self.rows += batch.num_rows
            self.total += sum(batch.column(SUM).to_pylist())
            yield batch


def good_rows(reader: Reader) -> Iterator[pa.RecordBatch]:
    """Every row, or one line that names the first whose checksum differs.

    Args:
        reader: The version.
    """
    for batch in reader.batches():
        right = sound(batch)
        if not right.all():
            name = batch.column("id")[int(np.flatnonzero(~right)[0])].as_py()
            raise GeniusError(f"item {name!r} is not as it was written; genius check names all such items")
        yield batch


def sound(batch: pa.RecordBatch) -> np.ndarray:
    """(n,) which rows have their own checksum.

    Args:
        batch: Whole rows.
    """
    noted = batch.column(SUM).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(row_sums(batch) == noted)


def resealed(batches: Iterator[pa.RecordBatch], schema: Any, first_seq: int | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of `schema` with checksums; with `first_seq` also with new numbers, counted up from it.

    Args:
        batches: Whole rows.
        schema: That they will have.
        first_seq: Of the first row; None: they keep their numbers.
    """
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
    total = reader.count()
    few = reader.few()
    for first in range(0, total, few):
        yield from _readable(reader, first, min(few, total - first), lost)


def _readable(reader: Reader, first: int, count: int, lost: Callable[[str], object]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

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
            yield batch.filter(pa.array(right))
