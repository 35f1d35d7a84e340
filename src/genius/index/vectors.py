"""Vectors of the user's own in place of an encoder's: what enters the fusion of a model.

A vector counts by its direction only. One vector of an item is its embedding; of an image vector and a text vector the embedding
is the unit sum. Knows items, queries and arrays; nothing of tables or searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.features import Features
from genius.types import Item, Modality, Query

Vector = NDArray[np.float32] | Mapping[str, NDArray[np.float32]]


def features_of_items(items: Sequence[Item], width: int) -> Features:
    """What enters the fusion for items that all have vectors.

    Args:
        items: Each with a `vector`.
        width: Of the index, which `check_width` has compared.
    """
    return _features([item.vector for item in items], [item.modality for item in items], width)


def check_width(item: Item, width: int) -> None:
    """Refuse an item with a vector of another width than the index has."""
    _check(item.vector, width, f"item {item.id!r}: its vector")


def _check(vector: Vector, width: int, what: str) -> None:
    parts = vector
    if not isinstance(parts, Mapping):
        parts = {"": parts}
    for part in parts.values():
        if len(part) != width:
            raise GeniusError(f"{what} is {len(part)} wide; vectors of this index are {width} wide")


def features_of_queries(queries: Sequence[Query], width: int) -> Features:
    """The same for queries that all have vectors.

    Args:
        queries: Each with a `vector`.
        width: Of the index.

    Raises:
        GeniusError: If a vector has another width.
    """
    for query in queries:
        _check(query.vector, width, "the query's vector")
    return _features([query.vector for query in queries], [query.modality for query in queries], width)


def _features(vectors: Sequence[Vector], modalities: Sequence[Modality], width: int) -> Features:
    image: Any = np.zeros((len(vectors), width), np.float32)
    text: Any = np.zeros((len(vectors), width), np.float32)
    image_mask: Any = np.zeros(len(vectors), bool)
    text_mask: Any = np.zeros(len(vectors), bool)
    for row, (vector, modality) in enumerate(zip(vectors, modalities, strict=True)):
        parts = vector
        if not isinstance(parts, Mapping):
            parts = dict.fromkeys(_names(modality), parts)
        for name, part in parts.items():
            unit = unit_vector(part)
            if name == "image":
                image[row] = unit
                image_mask[row] = True
            else:
                text[row] = unit
                text_mask[row] = True
    return Features(image, text, image_mask, text_mask)


def _names(modality: Modality) -> tuple[str, ...]:
    """Where the one vector of an item enters: for a pair in both places, so that the sum has its direction."""
    return {Modality.IMAGE: ("image",), Modality.TEXT: ("text",), Modality.PAIR: ("image", "text")}[modality]


def unit_vector(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """A vector (D,) at unit length; in double precision, in which the square of no float32 overflows or vanishes."""
    found = np.asarray(vector, np.float64)
    unit: NDArray[np.float32] = (found / np.linalg.norm(found)).astype(np.float32)
    return unit
