"""Rows of one table version, on their way into another table: verified one by one, renumbered if need be.

What a snapshot, a restored index and a repaired one have in common. Knows arrow and checksums, nothing of folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.errors import GeniusError
from genius.index.checksums import SUM, row_sums
from genius.index.reader import Reader

if TYPE_CHECKING:
    import pyarrow as pa


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
