"""What an item may carry: which keys and values metadata has, how they become columns that `where` can read, and how a row of
somebody's table becomes an item.

Every key is a column of one type: text, number (64-bit float), boolean or list of texts. The values as given also travel as JSON,
so an item comes back exactly as it was added (dates as ISO 8601 texts); the columns are for filters only. Also here: what the
index table's other columns are, and how columns of values become its rows. Of somebody's table, which columns are the id, the
text, the image and the vector is given or guessed from their names; all others become metadata. Knows nothing of file formats.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from PIL import Image

from genius.errors import GeniusError
from genius.files import parse_json
from genius.index.ledger import SUM, row_sums
from genius.types import ImageInput, Item, is_unicode

if TYPE_CHECKING:
    import pyarrow as pa

FieldType: TypeAlias = Literal["text", "number", "boolean", "texts"]  # texts: a list of them, such as tags
Columns: TypeAlias = Mapping[str, FieldType]
"""Metadata column -> what it holds."""

BUILT_IN: dict[str, FieldType] = {"id": "text", "text": "text", "modality": "text"}
"""Columns of every index that `where` may name besides metadata."""

RESERVED = frozenset({*BUILT_IN, "image"})
MAX_KEYS = 256
MAX_TEXT = 65_536
MAX_TEXTS = 256  # of one list
EXACT = 2**53  # integers up to here are exact as 64-bit floats
_KEY = re.compile(r"[^\W\d_]\w{0,63}")


def check_metadata(metadata: Mapping[str, Any], where: str = "") -> dict[str, str | int | float | bool | list[str]]:
    """The metadata without its None values, dates as ISO texts; or one clear line, which begins with `where`."""
    if not isinstance(metadata, Mapping):
        raise GeniusError(f"{where}metadata must be a mapping, got {type(metadata).__name__}")
    clean: dict[str, str | int | float | bool | list[str]] = {}
    for key, value in metadata.items():
        if value is None:
            continue
        check_key(key, where)
        if isinstance(value, datetime | date | time):
            value = value.isoformat()
        if field_type_of(value) is None:
            raise GeniusError(
                f"{where}metadata {key!r} must be a string, number, boolean, date or a list of strings, "
                f"got {type(value).__name__}"
            )
        if isinstance(value, list | tuple):
            value = _check_texts(value, f"{where}metadata {key!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise GeniusError(f"{where}metadata {key!r} is {value}; use a finite number or leave it out")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
            raise GeniusError(f"{where}metadata {key!r} is beyond 2^53; store it as a string")
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise GeniusError(f"{where}metadata {key!r} has {len(value):,} characters, more than {MAX_TEXT:,}")
            check_unicode(value, f"{where}metadata {key!r}")
        clean[key] = value
    return clean


def _check_texts(values: Sequence[str], what: str) -> list[str]:
    if len(values) > MAX_TEXTS:
        raise GeniusError(f"{what} has {len(values):,} entries, more than {MAX_TEXTS}")
    for value in values:
        if len(value) > MAX_TEXT:
            raise GeniusError(f"{what} has an entry of {len(value):,} characters, more than {MAX_TEXT:,}")
        check_unicode(value, what)
    return list(values)


def check_key(key: object, where: str = "") -> str:
    """A metadata key as it is; one clear line if it cannot be one.

    Args:
        key: The key.
        where: What it belongs to, for the error.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise GeniusError(f"{where}metadata key {key!r}: use a letter, then letters, digits or underscores, at most 64")
    if key.lower() in RESERVED:
        raise GeniusError(f"{where}metadata key {key!r} is reserved")
    return key


def check_unicode(text: str, what: str) -> None:
    if not is_unicode(text):
        raise GeniusError(f"{what} is not valid Unicode text")


def spelled(value: Any) -> Any:
    """A number, boolean or list as text; other values as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return value


def type_name(field_type: FieldType) -> str:
    """A type as a message names it."""
    if field_type == "texts":
        return "list of texts"
    return field_type


def field_type_of(value: object) -> FieldType | None:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
        return "texts"
    return None


def new_columns(known: Columns, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[dict[str, FieldType], dict[str, str]]:
    """Columns that the metadata of (item id, metadata) rows adds to `known`; one line for each id that does not fit."""
    columns = dict(known)
    spelling = {name.lower(): name for name in columns}
    new_types: dict[str, FieldType] = {}
    conflicts: dict[str, str] = {}
    for item_id, metadata in rows:
        field_types = {key: field_type_of(value) for key, value in metadata.items()}
        for key, field_type in field_types.items():
            same = spelling.get(key.lower(), key)
            if same != key:  # SQL does not tell them apart
                conflicts[item_id] = f"item {item_id!r}: metadata {key!r} differs only in case from {same!r}"
            elif columns.get(key, field_type) != field_type:
                conflicts[item_id] = (
                    f"item {item_id!r}: metadata {key!r} is a {type_name(columns[key])} in this index, not {metadata[key]!r}"
                )
        added = [key for key in field_types if key not in columns]
        if added and len(columns) + len(added) > MAX_KEYS:
            conflicts[item_id] = f"item {item_id!r}: an index may have {MAX_KEYS} metadata keys, {added[0]!r} would be one more"
        if item_id not in conflicts:
            for key in added:
                field_type = field_types[key]
                assert field_type is not None  # check_metadata ran
                columns[key] = new_types[key] = field_type
                spelling[key.lower()] = key
    return new_types, conflicts


def column_values(metadata: Sequence[Mapping[str, Any]], key: str, field_type: FieldType) -> list[Any]:
    """One column's values over a batch of items, None where absent."""
    values = [row.get(key) for row in metadata]
    if field_type == "number":
        return [None if v is None else float(v) for v in values]
    return values


def dump(metadata: Mapping[str, Any]) -> str:
    return json.dumps(dict(metadata), ensure_ascii=False, separators=(",", ":"))


def load(text: str | None) -> dict[str, Any]:
    """The metadata that was stored; one line if it is not what `dump` writes."""
    try:
        if text:
            return dict(parse_json(text))
        return {}
    except (ValueError, TypeError):
        raise GeniusError("the stored metadata of an item cannot be read; genius check names it") from None


# -- rows of the table ---------------------------------------------------------------------------------------------


def item_schema(levels: int, width: int, vectors: bool = True) -> pa.Schema:
    """The table's own columns: those of an index without metadata; with or without a column of vectors."""
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
            pa.field(SUM, pa.int64()),  # of all of the above
        ]
    )
    if vectors:
        return schema
    return schema.remove(schema.get_field_index("_embedding"))


def metadata_schema(columns: Mapping[str, FieldType]) -> pa.Schema:
    """Metadata columns as the table has them.

    Args:
        columns: Names, and what each holds.
    """
    import pyarrow as pa

    types = {"text": pa.string(), "number": pa.float64(), "boolean": pa.bool_(), "texts": pa.list_(pa.string())}
    return pa.schema([pa.field(name, types[field_type]) for name, field_type in columns.items()])


def arrow_rows(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    """Columns of values -> an arrow table with a checksum for each row; absent columns are null.

    Args:
        schema: Of the table.
        columns: Values of some of its columns; "id" is one of them.
    """
    import pyarrow as pa

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
    rows = pa.Table.from_arrays(arrays, schema=schema)
    return rows.set_column(schema.get_field_index(SUM), schema.field(SUM), pa.array(row_sums(rows), pa.int64()))


ID_NAMES = ("id", "item_id", "uid", "key", "did")
TEXT_NAMES = ("text", "caption", "txt", "description", "title", "content", "body", "sentence")
NEARLY_ALL = 0.95  # of the cells of a CSV column: they decide its type, and rows of the others are skipped
FEW = 5  # cells from which on a single one that differs does not change the type of its column
IMAGE_NAMES = ("image", "image_path", "img_path", "img", "picture", "photo", "file_name", "filename", "image_file", "path")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Which column is what; None: guess from the names above."""

    id: str | None = None
    text: str | None = None
    image: str | None = None
    vector: str | None = None  # the items' own vectors; None: there are none


def item_of_table_row(row: Mapping[str, Any], columns: TableColumns, folder: Path, fallback_id: str) -> Item:
    """One row -> an item; image paths are relative to the table's folder. One clear line if it cannot be."""
    from genius.data.readers import MAX_COLUMNS  # loaded late: a search reads no tables

    if len(row) > MAX_COLUMNS:
        raise GeniusError(f"{len(row):,} columns; at most {MAX_COLUMNS}")
    names = role_columns(row, columns)
    if columns.vector is None and names["text"] is None and names["image"] is None:
        shown = ", ".join(map(repr, sorted(row)[:12]))
        raise GeniusError(f"no text or image column among {shown}: name one (--text-column, --image-column)")
    taken = {name for name in names.values() if name is not None}
    value = None
    if names["id"] is not None:
        value = row.get(names["id"])
    text = None
    if names["text"] is not None:
        text = row.get(names["text"])
    if columns.vector is not None and row.get(columns.vector) is None:
        raise GeniusError(f"no vector in the column {columns.vector!r}")
    metadata = {}
    for name, entry in row.items():
        if name not in taken:
            simple = _metadata_value(entry)
            if simple is not None:
                metadata[key_of(name)] = simple
    return Item(
        id=fallback_id if value is None or value == "" else _text(value, "id"),
        image=None if names["image"] is None else _image(row.get(names["image"]), folder),
        text=None if text is None else _text(text, "text"),
        metadata=metadata,
        vector=None if columns.vector is None else row.get(columns.vector),
    )


def role_columns(row: Mapping[str, Any], columns: TableColumns) -> dict[str, str | None]:
    """Which column of a row is the id, the text, the image and the vector; None: there is no such column."""
    names = {
        "id": _column(row, columns.id, ID_NAMES, "id"),
        "text": _column(row, columns.text, TEXT_NAMES, "text"),
        "image": _column(row, columns.image, IMAGE_NAMES, "image"),
    }
    if columns.vector is not None:
        names["vector"] = _column(row, columns.vector, (), "vector")
    return names


class ColumnTypes:
    """The types of a table's columns, from all cells of the rows that can be used.

    A column of CSV is a number (or a boolean) if at least `NEARLY_ALL` of its cells are, or all but one of at least
    `FEW` cells; else it is text. Values of JSONL have types of their own: the type of a column is the most frequent one.

    Args:
        columns: Which column is what.
        csv: Whether the cells are text whose type is guessed.
        known: Types that the index, or a table before this one, has given metadata keys; they come first.
        as_text: Metadata keys that are read as text.
    """

    def __init__(self, columns: TableColumns, csv: bool, known: dict[str, FieldType], as_text: Collection[str]) -> None:
        self._columns = columns
        self._csv = csv
        self._known = known
        self._as_text = as_text
        self._counts: dict[str, Counter[str]] = {}
        self._roles: set[str | None] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count the cells of a row."""
        self._roles.update(role_columns(row, self._columns).values())
        for name, value in row.items():
            value_type = self._type_of(value)
            if value_type is not None:
                self._counts.setdefault(name, Counter())[value_type] += 1

    def _type_of(self, value: Any) -> str | None:
        if self._csv:
            from genius.data.readers import csv_type

            return csv_type(value) if value else None
        if value == []:
            return None  # a list of anything
        return field_type_of(_metadata_value(value))

    def decide(self) -> tuple[dict[str, str], dict[str, FieldType]]:
        """(column -> type, for the reader; metadata key -> type, which all values of this table must have)"""
        by_column: dict[str, str] = {}
        by_key: dict[str, FieldType] = {}
        for name, count in self._counts.items():
            frequent, cells = count.most_common(1)[0]
            if name in self._roles:
                if len(count) == 1:
                    by_column[name] = frequent
                continue
            key = key_of(name)
            if self._csv and not _nearly_all(cells, count.total()):
                frequent = "text"
            if key in self._as_text:
                frequent = "text"
            elif key in self._known:
                frequent = self._known[key]
            by_column[name] = frequent
            by_key[key] = cast("FieldType", frequent)
        for key, field_type in by_key.items():
            self._known.setdefault(key, field_type)
        return by_column, by_key


def _nearly_all(cells: int, total: int) -> bool:
    if cells >= NEARLY_ALL * total:
        return True
    return total >= FEW and cells == total - 1


def check_types(metadata: Mapping[str, Any], types: Mapping[str, FieldType]) -> None:
    """One clear line if a value has not the type of its column."""
    for key, column_type in types.items():
        value = metadata.get(key)
        if value is not None and field_type_of(value) != column_type:
            shown = repr(value)
            if len(shown) > 60:
                shown = f"{shown[:60]}..."
            raise GeniusError(
                f"the column {key!r} is a {type_name(column_type)}, not {shown}: "
                f"correct it, or read the column as text (--as-text {key})"
            )


def _text(value: Any, what: str) -> str:
    """A number or a date may stand for a text; a list or a picture does not."""
    if isinstance(value, str):
        if not is_unicode(value):
            raise GeniusError(f"the {what} {value[:40]!r} is not valid Unicode text")
        return value
    if isinstance(value, bytes | Mapping | list | tuple):
        raise GeniusError(f"the {what} is no text but {type(value).__name__}")
    return str(value)


def _column(row: Mapping[str, Any], given: str | None, guesses: tuple[str, ...], what: str) -> str | None:
    if given is not None:
        if given not in row:
            raise GeniusError(f"no {what} column {given!r}; there are {', '.join(map(repr, sorted(row)[:12]))}")
        return given
    lower = {name.lower(): name for name in reversed(list(row))}
    return next((lower[guess] for guess in guesses if guess in lower), None)


def _image(value: Any, folder: Path) -> ImageInput | None:
    if value is None or value == "":
        return None
    if isinstance(value, Mapping):  # how datasets libraries write pictures into Parquet
        inner = value.get("bytes")
        path = value.get("path")
        if isinstance(inner, bytes) and inner:
            return inner
        if inner or not isinstance(path, str | None):
            raise GeniusError("an image column holds paths or bytes, or both as {bytes, path}")
        return _image(path, folder)
    if isinstance(value, bytes | Image.Image):
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


def _metadata_value(value: Any) -> str | int | float | bool | list[str] | None:
    """A value as metadata takes it; values that it does not take become JSON, raw bytes are left out."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if abs(value) <= EXACT:
            return value
        return str(value)
    if isinstance(value, float | Decimal):
        if math.isfinite(value):
            return float(value)
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return None
    if isinstance(value, list) and field_type_of(value) == "texts":
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):
        raise GeniusError("a value is nested too deep, or has keys that are no texts") from None


def key_of(name: str) -> str:
    """A column name as a metadata key: "Unit price (€)" -> "Unit_price"."""
    key = re.sub(r"\W+", "_", name).strip("_")[:60] or "column"
    if not key[0].isalpha():
        key = f"c_{key}"
    if key.lower() in RESERVED:
        return f"{key}_"
    return key
