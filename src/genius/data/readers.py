"""The one reader of JSONL, CSV, TSV and Parquet: rows, one at a time, of untrusted files.

A bad row costs one row: in its place comes a text that says why, and reading continues after it. Only a few rows are held
in memory. Knows nothing of what the columns mean.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from genius.errors import GeniusError, said
from genius.files import open_regular, parse_json, reading
from genius.types import is_unicode

MAX_LINE = 64 << 20  # bytes
MAX_COLUMNS = 2048
# a Parquet row group that is larger than both when decoded is a decompression bomb
MAX_UNFOLDED = 256 << 20  # bytes
MAX_RATIO = 100  # times the file
FOLDED = 20  # times the file: from here on one value may be repeated in many rows
# decoded at once:
BATCH_ROWS = 64
BATCH_BYTES = 32 << 20  # as a rule
LARGEST_BATCH = 256 << 20  # bytes at worst
TABLE_SUFFIXES = frozenset({".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"})

Row = dict[str, Any]


def read_rows(path: Path, types: Mapping[str, str] | None = None) -> Iterator[tuple[int, Row | str]]:
    """Rows of a table file.

    Args:
        path: A JSONL, CSV, TSV or Parquet file.
        types: Of CSV: which columns hold a "number" or a "boolean"; a cell that is none stays text. None: those columns in
            which every cell is one.

    Yields:
        (row number from 1, row). A text in place of a row says why it could not be read; reading continues after it.

    Raises:
        GeniusError: If the file cannot be read any further.
    """
    with reading(path, csv.Error):
        if is_csv(path):
            yield from _read_csv(path, types)
        elif path.suffix.lower() == ".parquet":
            yield from _read_parquet(path)
        else:
            yield from read_jsonl_rows(path)


def is_csv(path: Path) -> bool:
    """Whether a table has cells of text alone, whose types are guessed."""
    return path.suffix.lower() in (".csv", ".tsv")


def read_jsonl_rows(path: Path) -> Iterator[tuple[int, Row | str]]:
    """`read_rows` of lines of JSON objects."""
    with open_regular(path) as file:
        for number, line in enumerate(_lines(file), 1):
            if isinstance(line, str):
                yield number, line
                continue
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except ValueError as error:  # what is no UTF-8 is a ValueError, too
                yield number, f"not JSON: {error}"
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                yield number, "not a JSON object"


def _lines(file: BinaryIO) -> Iterator[bytes | str]:
    """Lines; in place of one that is too long, a text that says so."""
    while line := file.readline(MAX_LINE):
        if len(line) < MAX_LINE or line.endswith(b"\n"):
            yield line
            continue
        while (more := file.readline(MAX_LINE)) and not more.endswith(b"\n"):
            pass
        yield f"a line of more than {MAX_LINE:,} bytes"


def _read_csv(path: Path, types: Mapping[str, str] | None) -> Iterator[tuple[int, Row | str]]:
    if types is None:
        types = _types_of_all(path)
    for number, row in csv_rows(path):
        if isinstance(row, str):
            yield number, row
        else:
            named = {name: value for name, value in row.items() if name is not None}  # not those beyond the header
            yield number, {name: _cell(value, types.get(name)) for name, value in named.items()}


def _types_of_all(path: Path) -> dict[str, str]:
    """Columns of which every value is a number, or a boolean."""
    seen_types: dict[str, set[str]] = {}
    for _, row in csv_rows(path):
        if not isinstance(row, str):
            for name, value in row.items():
                if value and name is not None:
                    seen_types.setdefault(name, set()).add(csv_type(value))
    return {name: next(iter(types)) for name, types in seen_types.items() if len(types) == 1}


def _cell(value: str, wanted: str | None) -> str | int | float | bool | None:
    if not value:
        return None
    if wanted in ("number", "boolean") and csv_type(value) == wanted:
        if wanted == "boolean":
            return value.lower() == "true"
        return _number(value)
    return value


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Rows of texts; values beyond the header have the name None."""
    csv.field_size_limit(10_000_000)
    delimiter = ","
    if path.suffix.lower() == ".tsv":
        delimiter = "\t"
    # bytes that are not UTF-8 become lone surrogates, which are found below: a bad byte costs one row, not the file
    with open_regular(path), path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(_text_lines(file), delimiter=delimiter, restval="")
        if not all(map(is_unicode, reader.fieldnames or [])):
            raise GeniusError("the first line, which names the columns, is not UTF-8 text")
        number = 0
        while True:
            number += 1
            try:
                row: dict[str, Any] = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, f"not CSV: {error}"
                continue
            if all(is_unicode(value) for name, value in row.items() if name is not None):
                yield number, row
            else:
                yield number, "not UTF-8 text"


def _text_lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(MAX_LINE):
        if len(line) >= MAX_LINE:
            raise csv.Error(f"a line of more than {MAX_LINE:,} characters")
        yield line


def csv_type(value: str) -> str:
    """What a cell that is not empty looks like: "boolean", "number" or "text"."""
    if value.lower() in ("true", "false"):
        return "boolean"
    # leading zeros are names, not numbers: article 007
    if re.fullmatch(r"[+-]?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]?\d{1,2})?", value, re.ASCII):
        return "number"
    return "text"


def _number(value: str) -> int | float:
    if re.fullmatch(r"[+-]?\d+", value, re.ASCII):
        return int(value)
    return float(value)


# limits of what a footer may claim; pages are read as they are needed, not whole columns ahead
_LIMITS: dict[str, Any] = {
    "thrift_string_size_limit": 1 << 26,
    "thrift_container_size_limit": 1 << 22,
    "pre_buffer": False,
    "buffer_size": 1 << 20,
}


def _read_parquet(path: Path) -> Iterator[tuple[int, Row | str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path), pq.ParquetFile(path, **_LIMITS) as file:
            if len(file.schema_arrow.names) > MAX_COLUMNS:
                raise GeniusError(f"{len(file.schema_arrow.names):,} columns; at most {MAX_COLUMNS}")
            batches = file.iter_batches(_batch_size(file.metadata, path.stat().st_size))
            yield from enumerate((row for batch in batches for row in _batch_rows(batch)), 1)
    except (pa.ArrowException, UnicodeDecodeError, OverflowError, MemoryError, SystemError) as error:
        raise GeniusError(f"cannot read {path}: {said(error)}") from None


def parquet_lists(path: Path) -> dict[str, bool]:
    """Columns of a Parquet file that hold lists, and whether these are lists of strings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = (pa.ArrowException, UnicodeDecodeError, OverflowError, MemoryError, SystemError)
    with reading(path, *broken), open_regular(path), pq.ParquetFile(path, **_LIMITS) as file:
        schema = file.schema_arrow
    lists = {}
    for column in schema:
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
            entries = column.type.value_type
            lists[column.name] = pa.types.is_string(entries) or pa.types.is_large_string(entries)
    return lists


def _batch_size(about: Any, packed: int) -> int:
    """How many rows of a file of `packed` bytes to decode at once: few where rows are large, or where all of them may
    repeat one large value. (Statistics of single columns are not read: those of a broken file end the process.)"""
    rows = BATCH_ROWS
    for group in map(about.row_group, range(about.num_row_groups)):
        unfolded = max(1, group.total_byte_size)
        if unfolded > MAX_UNFOLDED and unfolded > MAX_RATIO * packed:
            raise GeniusError(f"{packed:,} compressed bytes expand to {unfolded:,}: refused")
        rows = min(rows, BATCH_BYTES * group.num_rows // unfolded)
        if unfolded > FOLDED * packed:
            rows = min(rows, LARGEST_BATCH // unfolded)
    return max(1, rows)


def _batch_rows(batch: Any) -> Iterator[Row | str]:
    """Rows of a batch; if one holds a value that Python cannot represent (the year 10000), the others still come."""
    try:
        yield from batch.to_pylist()
        return
    except (ValueError, OverflowError, ArithmeticError):  # raised before the first row is out
        pass
    for i in range(batch.num_rows):
        try:
            yield batch.slice(i, 1).to_pylist()[0]
        except (ValueError, OverflowError, ArithmeticError) as error:
            yield f"a value cannot be read: {error}"
