"""The collection on a plane: a sample of items at the two directions in which their vectors differ most. For looking at.

What a plane can show of many directions is little: near here is a hint, not an answer. Kinds are centred one by one, since they
lie apart in every model and would otherwise fill the plane with that alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from genius.index.reader import PAYLOAD
from genius.index.searching import display
from genius.types import Item, Modality

if TYPE_CHECKING:
    from genius.index.index import Index

MOST = 400  # items that a person can look at


@dataclass(frozen=True, slots=True)
class Placed:
    """An item with its place; both coordinates are from 0 to 1."""

    item: Item
    codes: tuple[int, ...]
    x: float
    y: float


def plane(index: Index, most: int = MOST) -> list[Placed]:
    """At most `most` items, evenly from all that are there."""
    state = index._state
    with state.lock:
        live = state.current()
        alive, reader = live.seqs[~live.dead], live.reader
    if not len(alive):
        return []
    picked = alive[np.unique(np.linspace(0, len(alive) - 1, min(most, len(alive))).astype(np.int64))]
    rows = list(reader.rows(picked, [*PAYLOAD, "_embedding", "_codes"]).values())
    vectors = torch.from_numpy(np.array([row["_embedding"] for row in rows], np.float32))
    kinds = torch.tensor([int(Modality.parse(row["modality"])) for row in rows])
    places = _flat(vectors, kinds).tolist()
    items = display(reader, rows)
    return [Placed(item, tuple(row["_codes"]), x, y) for item, row, (x, y) in zip(items, rows, places, strict=True)]


def _flat(vectors: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    """(n, D) -> (n, 2) ranks on the first two principal directions, spread evenly, so that crowds can be told apart."""
    centred = vectors.clone()
    for kind in kinds.unique():
        centred[kinds == kind] -= vectors[kinds == kind].mean(0)
    if len(vectors) < 3:
        return torch.full((len(vectors), 2), 0.5)
    _, _, directions = torch.linalg.svd(centred.T @ centred)
    flat = centred @ directions[:2].T
    ranks = flat.argsort(0).argsort(0).float() / (len(flat) - 1)
    size = flat.abs().amax(0).clamp(min=1e-9)
    spread: torch.Tensor = (0.5 * ranks + 0.5 * (0.5 + flat / (2 * size))).clamp(0, 1)
    return spread
