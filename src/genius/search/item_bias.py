"""`ItemBias`: one number per item and query modality that is taken off every score, learned from a sample of queries.

Items that are similar to every query are found too often; the bias of an item says by how much (`QueryBank.item_bias`). It is
computed once per item, kept as float16, and centred for each direction (query modality -> target modality), so that scores of
different modalities stay comparable and keep their scale. Knows vectors and rows; nothing of plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from genius.files import write_whole
from genius.search.arrays import HOST, Array, Arrays, Floats, Ints
from genius.search.collection import Collection
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model.query_bank import QueryBank

FILE = "item_bias.safetensors"
FORMAT = "genius-item-bias-1"
BLOCK = 16_384  # items compared with queries at a time
MODALITIES = len(Modality)


@dataclass(frozen=True)
class ItemBias:
    """Biases of the rows of one collection.

    Args:
        values: (3, N) float16, by query modality and item row; centred.
        centres: (3, 3) float32, by query modality and target: the mean that was taken off when the bias was first computed.
    """

    values: NDArray[np.float16]
    centres: Floats

    def __len__(self) -> int:
        """Rows that it covers."""
        return int(self.values.shape[1])

    @classmethod
    def build(cls, bank: QueryBank, collection: Collection) -> ItemBias | None:
        """Biases of all rows; None where the bank knows no direction well enough, or the collection stores no vectors.

        Args:
            bank: Of queries in the space of the collection's vectors.
            collection: Whose items it is for.
        """
        directions = [bank.bias_weight(query, target) for query in range(MODALITIES) for target in range(MODALITIES)]
        if collection.vectors is None or collection.modality is None or not any(directions):
            return None
        raw = _computed(bank, collection, 0)
        centres = np.zeros((MODALITIES, MODALITIES), np.float32)
        for target in range(MODALITIES):
            own = raw[:, collection.modality == target]
            if own.shape[1]:
                centres[:, target] = own.mean(1)
        return cls(_centred(raw, collection.modality, centres), centres)

    def extended(self, bank: QueryBank, collection: Collection) -> ItemBias:
        """These and those of the rows that the collection has beyond them; these stay as they are."""
        first = len(self)
        if first >= len(collection) or collection.modality is None:
            return self
        raw = _computed(bank, collection, first)
        added = _centred(raw, collection.modality[first:], self.centres)
        return ItemBias(np.concatenate([self.values, added], 1), self.centres)

    def take(self, query_modality: Ints, rows: Any, arrays: Arrays = HOST) -> Array:
        """What is taken off the scores of rows.

        Args:
            query_modality: (Q,) int64, what each query consists of; -1: unknown, no correction.
            rows: (n,) or a slice, the same for all queries, or (Q, C) of each query; -1 is padding.
            arrays: Operations of the device on which it is wanted; rows are there.

        Returns:
            (Q, n) or (Q, C) float32; (1, n) where all queries consist of the same.
        """
        one_for_all = isinstance(rows, slice) or rows.ndim == 1
        if one_for_all and len(query_modality) and (query_modality == query_modality[0]).all():
            query_modality = query_modality[:1]
        known = arrays.put((query_modality >= 0)[:, None])
        of_query = arrays.put(query_modality)
        values = arrays.resident(self.values)
        if not isinstance(rows, slice) and rows.ndim == 2:
            chosen = values[of_query[:, None], rows]
        else:
            chosen = values[:, rows][of_query]
        return arrays.float32(chosen) * known

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path, identity: str) -> None:
        """Write into a folder of caches; `load` asks for the same identity."""
        arrays: dict[str, NDArray[Any]] = {"values": self.values, "centres": self.centres}
        metadata = {"format": FORMAT, "identity": identity}
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, lambda path: save_file(arrays, path, metadata))

    @classmethod
    def load(cls, folder: Path, identity: str) -> ItemBias | None:
        """Read what `save` wrote; None if it is of something else or damaged."""
        try:
            with safe_open(folder / FILE, "np") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT or metadata.get("identity") != identity:
                    return None
                values = file.get_tensor("values")
                centres = file.get_tensor("centres")
        except (OSError, MemoryError, SafetensorError):
            return None
        right = values.ndim == 2 and len(values) == MODALITIES and values.dtype == np.float16
        right = right and centres.shape == (MODALITIES, MODALITIES) and centres.dtype == np.float32
        if not right or not np.isfinite(values).all() or not np.isfinite(centres).all():
            return None
        return cls(values, centres)


def _computed(bank: QueryBank, collection: Collection, first: int) -> Floats:
    """(3, n) float32 biases of the rows from `first` on, not centred."""
    vectors = collection.vectors
    modality = collection.modality
    assert vectors is not None and modality is not None
    out = np.zeros((MODALITIES, len(collection) - first), np.float32)
    for target in range(MODALITIES):
        rows = np.flatnonzero(modality[first:] == target)
        queries = [query for query in range(MODALITIES) if bank.bias_weight(query, target)]
        if not queries:
            continue
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            own = vectors.arrays.host(vectors.take(part + first))
            for query in queries:
                out[query, part] = bank.item_bias(own, query, target)
    return out


def _centred(raw: Floats, modality: Ints, centres: Floats) -> NDArray[np.float16]:
    """(3, n) float16 relative to the centre of each item's direction."""
    return (raw - centres[:, np.maximum(modality, 0)]).astype(np.float16)
