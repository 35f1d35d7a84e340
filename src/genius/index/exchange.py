"""Items and hits as tables of other libraries: Arrow, pandas, Hugging Face `datasets`. Those are imported when they are used.

Knows items, hits and the names of columns; nothing of searching or storage.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.index.metadata import Columns, TableColumns, item_of_table_row
from genius.types import Item

OWN = ("id", "score", "probability", "modality", "text", "image", "codes", "ranks", "vector")  # columns that are no metadata


def imported(name: str, purpose: str) -> Any:
    """A library that is not always installed.

    Args:
        name: Of the library, also for pip.
        purpose: What needs it, for the error.

    Raises:
        GeniusError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise GeniusError(f"{purpose} needs {name}: pip install {name}") from None


def flat(row: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A row with metadata as columns of its own; a field with the name of a column gets `metadata_` before it.

    Args:
        row: Columns.
        metadata: Of the same item.
    """
    out = dict(row)
    for name, value in metadata.items():
        if name in OWN:
            name = f"metadata_{name}"
        out[name] = value
    return out


def items_of_dataset(
    dataset: Iterable[Mapping[str, Any]],
    *,
    id: str | None = None,
    text: str | None = None,
    image: str | None = None,
    vector: str | None = None,
) -> Iterator[Item]:
    """Items of a Hugging Face dataset, or of any rows: columns that are neither id, text, image nor vector become metadata.

    Args:
        dataset: One split; rows are mappings.
        id: Column of ids. Default: id, item_id, uid, ..., else the row number.
        text: Column of texts. Default: text, caption, description, title, ...
        image: Column of images: decoded, bytes or paths. Default: image, image_path, ...
        vector: Column of vectors of your own; None: there are none.

    Raises:
        GeniusError: If a column does not exist, or a row is no item.

    >>> rows = [{"caption": "a red boat", "year": 2020}]
    >>> next(items_of_dataset(rows))
    Item('0', text='a red boat', metadata={'year': 2020})
    """
    columns = TableColumns(id, text, image, vector)
    for number, row in enumerate(dataset):
        if not isinstance(row, Mapping):
            raise GeniusError(f"row {number} is a {type(row).__name__}, not a mapping: name a split, such as dataset['train']")
        try:
            yield item_of_table_row(row, columns, Path(), str(number))
        except GeniusError as error:
            raise GeniusError(f"row {number}: {error}") from None


def dataset_of(items: Iterable[Item], fields: Columns, vectors: Mapping[str, Sequence[float]] | None = None) -> Any:
    """A Hugging Face dataset of items: id, modality, text, image, metadata fields.

    Args:
        items: Of an index.
        fields: Its metadata fields and their types.
        vectors: The vector of each id, which becomes a column; None: no such column.

    Returns:
        A `datasets.Dataset`; `image` is decoded when it is read.

    Raises:
        GeniusError: If `datasets` is not installed.
    """
    datasets = imported("datasets", "to_dataset")
    types = {"text": "string", "number": "float64", "boolean": "bool"}
    schema: dict[str, Any] = {name: datasets.Value("string") for name in ("id", "modality", "text")}
    schema["image"] = datasets.Image()
    for name, field_type in fields.items():
        column = next(iter(flat({}, {name: None})))
        if field_type == "texts":
            schema[column] = datasets.List(datasets.Value("string"))
        else:
            schema[column] = datasets.Value(types[field_type])
    if vectors is not None:
        schema["vector"] = datasets.List(datasets.Value("float32"))
    columns: dict[str, list[Any]] = {name: [] for name in schema}
    for item in items:
        row: dict[str, Any] = {"id": item.id, "modality": item.modality.label, "text": item.text, "image": _picture(item)}
        if vectors is not None:
            row["vector"] = vectors[item.id]
        row = flat(row, {name: item.metadata.get(name) for name in fields})
        for name, column_values in columns.items():
            column_values.append(row[name])
    return datasets.Dataset.from_dict(columns, features=datasets.Features(schema))


def _picture(item: Item) -> dict[str, Any] | None:
    """An image as `datasets` stores it."""
    if item.image is None:
        return None
    if isinstance(item.image, bytes):
        return {"bytes": item.image, "path": None}
    return {"bytes": None, "path": str(item.image)}
