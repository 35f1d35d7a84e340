"""Vectors of the user's own in place of an encoder's: a model for an index that has none, and what enters its fusion.

A vector counts by its direction only. One vector of an item is its embedding; of an image vector and a text vector the embedding
is the unit sum. Knows models and arrays; nothing of tables, files or searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.features import Features
from genius.model.config import SIZES, FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.query_bank import QueryBank
from genius.optional import import_torch
from genius.types import Item, Modality, Query

if TYPE_CHECKING:
    from genius.model.genius import Genius

MAX_WIDTH = 16_384
UNFITTED_LEVELS = (3,) + (16,) * 8  # codes of a model that saw no item yet; a refit chooses others

Vector = NDArray[np.float32] | Mapping[str, NDArray[np.float32]]


def model_for_vectors(width: int, seed: int = 0) -> Genius:
    """A model without encoder for vectors of this width. Its codes are random until they are fitted to items.

    Flat search and the scan do not depend on these codes: only beam search, code prefixes and `diverse` do.

    Args:
        width: Of the vectors.
        seed: Of the codebooks.

    Raises:
        GeniusError: If the width is not a whole number from 1 to 16,384.
    """
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= MAX_WIDTH:
        raise GeniusError(f"dim must be a whole number from 1 to {MAX_WIDTH:,}, got {width!r}")
    import_torch("an index of your own vectors")
    import torch
    from torch import nn

    from genius.model.genius import Genius

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Genius(
            GeniusConfig(
                fusion=FusionConfig(width, 1, 1),
                quantizer=QuantizerConfig(width, UNFITTED_LEVELS),
                generator=GeneratorConfig(
                    width,
                    UNFITTED_LEVELS,
                    prefix_tokens=2,
                    normalizer="level",
                    head="codebooks",
                    **SIZES["nano"],  # type: ignore[arg-type]
                ),
                instructions=False,
            )
        )
        sample = nn.functional.normalize(torch.randn(64, width), dim=1)
        model.quantizer.initialise(sample, torch.arange(64) % 3, 1, seed)
    for parameter in model.fusion.parameters():
        nn.init.zeros_(parameter)  # z is the unit sum of the two vectors
    model.queries = neutral_queries(width)
    return model


def neutral_queries(width: int) -> QueryBank:
    """Stands for queries of which nothing is known: every modality is equally likely, no item has a bias."""
    none = np.empty(0, np.int64)
    vectors = np.empty((0, width), np.float32)
    return QueryBank(vectors, none, none, np.zeros((3, width), np.float32), np.zeros(3, np.float32), real=False)


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
            unit = _unit(part)
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


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    found = np.asarray(vector, np.float64)
    unit: NDArray[np.float32] = (found / np.linalg.norm(found)).astype(np.float32)
    return unit
