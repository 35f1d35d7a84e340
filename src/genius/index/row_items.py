"""Rows of tables -> items. Knows column names; knows nothing of file formats or indexes.

Which columns are the id, the text and the image is told or guessed from their names; all others become metadata.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from genius.data.readers import MAX_COLUMNS
from genius.errors import GeniusError
from genius.index.metadata import EXACT, RESERVED
from genius.types import Item, is_unicode

ID_NAMES = ("id", "item_id", "uid", "key", "did")
TEXT_NAMES = ("text", "caption", "txt", "description", "title", "content", "body", "sentence")
IMAGE_NAMES = ("image", "image_path", "img_path", "img", "picture", "photo", "file_name", "filename", "image_file", "path")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what; None: guess from the names above."""

    id: str | None = None
    text: str | None = None
    image: str | None = None


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
        if not is_unicode(value):
            raise GeniusError(f"the {what} {value[:40]!r} is not valid Unicode text")
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
