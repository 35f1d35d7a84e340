"""Rows of JSONL, CSV, TSV and Parquet files -> items. Knows formats and column names; knows nothing of indexes.

Which columns are the id, the text and the image is told or guessed from their names; all others become metadata.
"""

from __future__ import annotations

import base64
import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from genius.errors import GeniusError
from genius.files import open_plain, parse_json
from genius.index.metadata import EXACT, RESERVED
from genius.types import Item, is_unicode

MAX_LINE = 64 << 20  # bytes
MAX_COLUMNS = 2048
TABLE_SUFFIXES = frozenset({".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"})
ID_NAMES = ("id", "item_id", "uid", "key", "did")
TEXT_NAMES = ("text", "caption", "txt", "description", "title", "content", "body", "sentence")
IMAGE_NAMES = ("image", "image_path", "img_path", "img", "picture", "photo", "file_name", "filename", "image_file", "path")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what; None: guess from the names above."""

    id: str | None = None
    text: str | None = None
    image: str | None = None


def read_rows(path: Path) -> Iterator[tuple[int, Row | str]]:
    """(row number from 1, row) of a table file; a string in place of a row says why it could not be read.

    One bad row costs one row: the reading goes on behind it. A file that cannot be read any further is one clear line.
    """
    readers: dict[str, Callable[[Path], Iterator[tuple[int, Row | str]]]] = {
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".parquet": _read_parquet,
    }
    try:
        yield from readers.get(path.suffix.lower(), _read_jsonl)(path)
    except (OSError, csv.Error) as error:
        raise GeniusError(f"cannot read {path}: {error}") from None


def _read_jsonl(path: Path) -> Iterator[tuple[int, Row | str]]:
    with open_plain(path) as file:
        for number, line in enumerate(_lines(file), start=1):
            if isinstance(line, str):
                yield number, line
                continue
            body = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not body.strip():
                continue
            try:
                row = parse_json(body)
            except ValueError as error:  # what is no UTF-8 is a ValueError, too
                yield number, f"not JSON: {error}"
                continue
            yield number, row if isinstance(row, dict) else "not a JSON object"


def _lines(file: BinaryIO) -> Iterator[bytes | str]:
    """Lines; for one without end, a word in its place."""
    while line := file.readline(MAX_LINE):
        if len(line) < MAX_LINE or line.endswith(b"\n"):
            yield line
            continue
        while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
            pass
        yield f"a line of more than {MAX_LINE:,} bytes"


def _read_csv(path: Path) -> Iterator[tuple[int, Row | str]]:
    """Two passes: a column is numeric or boolean only if all its values are."""
    kinds: dict[str, set[str]] = {}
    for _, row in _csv_rows(path):
        if not isinstance(row, str):
            for name, value in row.items():
                if value:
                    kinds.setdefault(name, set()).add(_csv_kind(value))
    read: dict[str, Callable[[str], Any]] = {"number": _number, "boolean": lambda value: value.lower() == "true"}
    convert = {name: read[next(iter(found))] for name, found in kinds.items() if len(found) == 1 and found != {"text"}}
    for number, row in _csv_rows(path):
        if isinstance(row, str):
            yield number, row
        else:
            yield number, {name: convert.get(name, str)(value) if value else None for name, value in row.items()}


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    csv.field_size_limit(10_000_000)
    # what is no UTF-8 becomes lone surrogates, which are found below: one bad byte is to cost one row, not the file
    with open_plain(path), path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(_text_lines(file), delimiter="\t" if path.suffix.lower() == ".tsv" else ",", restval="")
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
            row.pop(None, None)  # type: ignore[call-overload]  # values beyond the header
            good = all(map(is_unicode, row.values()))
            yield number, row if good else "not UTF-8 text"


def _text_lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(MAX_LINE):
        if len(line) >= MAX_LINE:
            raise csv.Error(f"a line of more than {MAX_LINE:,} characters")
        yield line


def _csv_kind(value: str) -> str:
    if value.lower() in ("true", "false"):
        return "boolean"
    # leading zeros are names, not numbers: article 007
    return "number" if re.fullmatch(r"[+-]?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]?\d{1,2})?", value, re.ASCII) else "text"


def _number(value: str) -> int | float:
    return int(value) if re.fullmatch(r"[+-]?\d+", value, re.ASCII) else float(value)


def _read_parquet(path: Path) -> Iterator[tuple[int, Row | str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with (
            open_plain(path),
            pq.ParquetFile(path, thrift_string_size_limit=1 << 26, thrift_container_size_limit=1 << 22) as file,
        ):
            if len(file.schema_arrow.names) > MAX_COLUMNS:
                raise GeniusError(f"{len(file.schema_arrow.names):,} columns; at most {MAX_COLUMNS}")
            for batch in file.iter_batches(batch_size=64):
                for row in _batch_rows(batch):
                    number += 1
                    yield number, row
    except (pa.ArrowException, UnicodeDecodeError, OverflowError, MemoryError, SystemError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GeniusError(f"cannot read {path}: {reason[:200]}") from None


def _batch_rows(batch: Any) -> Iterator[Row | str]:
    """Rows of a batch; if one holds what Python has no value for (a date beyond the year 9999), the others still come."""
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


def to_item(row: Mapping[str, Any], columns: Columns, folder: Path, fallback_id: str) -> Item:
    """One row -> an item; image paths are relative to the table's folder. One clear line if it cannot be."""
    if len(row) > MAX_COLUMNS:
        raise GeniusError(f"{len(row):,} columns; at most {MAX_COLUMNS}")
    names = {
        "id": _column(row, columns.id, ID_NAMES, "id"),
        "text": _column(row, columns.text, TEXT_NAMES, "text"),
        "image": _column(row, columns.image, IMAGE_NAMES, "image"),
    }
    if names["text"] is None and names["image"] is None:
        shown = ", ".join(map(repr, sorted(row)[:12]))
        raise GeniusError(f"no text or image column among {shown}: name one (--text-column, --image-column)")
    taken = {name for name in names.values() if name is not None}
    value = row.get(names["id"]) if names["id"] is not None else None
    text = row.get(names["text"]) if names["text"] is not None else None
    metadata = {}
    for name, entry in row.items():
        if name not in taken:
            plain = _plain(entry)
            if plain is not None:
                metadata[_key(name)] = plain
    return Item(
        id=fallback_id if value is None or value == "" else _text(value, "id"),
        image=None if names["image"] is None else _image(row.get(names["image"]), folder),
        text=None if text is None else _text(text, "text"),
        metadata=metadata,
    )


def _text(value: Any, what: str) -> str:
    """A number or a date may stand for a text; a list or a picture does not."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | Mapping | list | tuple):
        raise GeniusError(f"the {what} is no text but {type(value).__name__}")
    return str(value)


def _column(row: Mapping[str, Any], told: str | None, guesses: tuple[str, ...], what: str) -> str | None:
    if told is not None:
        if told not in row:
            raise GeniusError(f"no {what} column {told!r}; there are {', '.join(map(repr, sorted(row)[:12]))}")
        return told
    lower = {name.lower(): name for name in reversed(list(row))}
    return next((lower[guess] for guess in guesses if guess in lower), None)


def _image(value: Any, folder: Path) -> Path | bytes | None:
    if value is None or value == "":
        return None
    if isinstance(value, Mapping):  # how datasets libraries write pictures into Parquet
        inner, path = value.get("bytes"), value.get("path")
        if isinstance(inner, bytes) and inner:
            return inner
        if inner or not isinstance(path, str | None):
            raise GeniusError("an image column holds paths or bytes, or both as {bytes, path}")
        return _image(path, folder)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise GeniusError(f"an image column holds paths or bytes, not {type(value).__name__}")
    if value.startswith("data:image/") and ";base64," in value[:64]:
        try:
            return base64.b64decode(value.split(",", 1)[1], validate=True)
        except ValueError:
            raise GeniusError("a data: image is not valid base64") from None
    if re.match(r"[a-z][a-z0-9+.-]+://", value, re.IGNORECASE):
        raise GeniusError(f"{value[:80]} is not fetched: download images first")
    return folder / value


def _plain(value: Any) -> str | int | float | bool | None:
    """A value as metadata takes it; what has no plain form is written as JSON, raw bytes are left out."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= EXACT else str(value)
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return None
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):
        raise GeniusError("a value is nested too deep, or has keys that are no texts") from None


def _key(name: str) -> str:
    """A column name as a metadata key: "Unit price (€)" -> "Unit_price"."""
    key = re.sub(r"\W+", "_", name).strip("_")[:60] or "column"
    if not key[0].isalpha():
        key = f"c_{key}"
    return f"{key}_" if key.lower() in RESERVED else key
