"""Checksums (128 or 64 bits of XXH3): of files, of rows of the table, and of small JSON files that seal themselves.

They notice damage, not malice: who can write the folder can write its checksums. Knows nothing of what is in a file.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from genius.files import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

SUM = "_sum"
"""The column of row sums."""

ROW = ("id", "text", "modality", "_seq", "_metadata", "_image", "_image_bytes", "_thumbnail", "_source", "_stamp")
VECTORS = ("_codes", "_embedding")
MAPPED_FROM = 1 << 20  # bytes; smaller files are quicker read than mapped


def file_sum(path: Path) -> str:
    """ "SIZE:CHECKSUM" of a file."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size < MAPPED_FROM:
            return f"{size}:{xxhash.xxh3_128_hexdigest(file.read())}"
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
            return f"{size}:{xxhash.xxh3_128_hexdigest(body)}"


def size_in(file_sum: str) -> int:
    return int(file_sum.partition(":")[0])


def text_sum(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


# -- rows --------------------------------------------------------------------------------------------------------


def row_sums(rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
    """(n,) one checksum a row, over everything that is stored of an item but the columns made from its metadata."""
    batches = [rows] if not hasattr(rows, "to_batches") else rows.to_batches()
    parts = [_batch_sums(batch) for batch in batches if batch.num_rows]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _batch_sums(batch: pa.RecordBatch) -> NDArray[np.int64]:
    plain = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in ROW]
    vectors = [_bytes(batch.column(batch.schema.get_field_index(name))) for name in VECTORS]
    out = np.empty(batch.num_rows, np.uint64)
    for i in range(batch.num_rows):
        digest = xxhash.xxh3_64()
        for column in plain:
            value = column[i]
            body = b"" if value is None else value if isinstance(value, bytes) else str(value).encode()
            digest.update(f"{-1 if value is None else len(body)}:".encode())  # so that nothing moves from column to column
            digest.update(body)
        for matrix in vectors:
            digest.update(matrix[i])
        out[i] = digest.intdigest()
    return out.view(np.int64)


def _bytes(column: Any) -> NDArray[np.uint8]:
    """A fixed-size list column as (n, bytes)."""
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    return np.ascontiguousarray(values.reshape(len(column), -1)).view(np.uint8)


# -- small JSON files --------------------------------------------------------------------------------------------


def seal(body: Mapping[str, Any]) -> str:
    """JSON text with a checksum of itself in it."""
    return json.dumps({**body, "sum": text_sum(json.dumps(body))}, indent=2) + "\n"


def unseal(text: str) -> dict[str, Any]:
    """What was sealed; a ValueError if a single character is not as it was written."""
    body = parse_json(text)
    if not isinstance(body, dict):
        raise ValueError("no JSON object")
    body.pop("sum", None)
    if seal(body) != text:
        raise ValueError("it is not as it was written (its checksum differs)")
    return body
