"""`ItemBias`: one number per item and query modality that is taken off every score, learned from a sample of queries.

Items that are similar to every query are found too often; the bias of an item says by how much (`QueryBank.item_bias`). It is
computed once per item, kept as float16, and centred for each direction (query modality -> target modality), so that scores of
different modalities stay comparable and keep their scale. Knows vectors and rows; nothing of plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from genius.files import write_whole
from genius.model.query_bank import MODALITIES, QueryBank
from genius.search.collection import Collection

FILE = "item_bias.safetensors"
FORMAT = "genius-item-bias-1"
BLOCK = 16_384  # items compared with queries at a time


@dataclass(frozen=True)
class ItemBias:
    """Biases of the rows of one collection.

    Args:
        values: (3, N) float16, by query modality and item row; centred.
        centres: (3, 3) float32, by query modality and target: the mean that was taken off when the bias was first computed.
    """

    values: Tensor
    centres: Tensor

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
        centres = torch.zeros(MODALITIES, MODALITIES)
        for target in range(MODALITIES):
            own = raw[:, collection.modality == target]
            if own.shape[1]:
                centres[:, target] = own.mean(1).cpu()
        return cls(_centred(raw, collection.modality, centres), centres)

    def extended(self, bank: QueryBank, collection: Collection) -> ItemBias:
        """These and those of the rows that the collection has beyond them; these stay as they are."""
        first = len(self)
        if first >= len(collection) or collection.modality is None:
            return self
        raw = _computed(bank, collection, first)
        added = _centred(raw, collection.modality[first:], self.centres)
        return ItemBias(torch.cat([self.values, added], 1), self.centres)

    def take(self, query_modality: Tensor, rows: Tensor | slice) -> Tensor:
        """What is taken off the scores of rows.

        Args:
            query_modality: (Q,) int64, what each query consists of; -1: unknown, no correction.
            rows: (n,) or a slice, the same for all queries, or (Q, C) of each query.

        Returns:
            (Q, n) or (Q, C) float32.
        """
        known = (query_modality >= 0)[:, None]
        place = query_modality.clamp(min=0)
        if isinstance(rows, Tensor) and rows.ndim == 2:
            chosen = self.values[place[:, None], rows.clamp(min=0)]
        else:
            chosen = self.values[:, rows][place]
        return chosen.float() * known

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path, identity: str) -> None:
        """Write into a folder of caches; `load` asks for the same identity."""
        arrays: dict[str, NDArray[Any]] = {"values": self.values.cpu().numpy(), "centres": self.centres.numpy()}
        metadata = {"format": FORMAT, "identity": identity}
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, lambda path: save_file(arrays, path, metadata))

    @classmethod
    def load(cls, folder: Path, identity: str, device: torch.device) -> ItemBias | None:
        """Read what `save` wrote; None if it is of something else or damaged."""
        try:
            with safe_open(folder / FILE, "np") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT or metadata.get("identity") != identity:
                    return None
                values = file.get_tensor("values")
                centres = file.get_tensor("centres")
        except (OSError, SafetensorError):
            return None
        right = values.ndim == 2 and len(values) == MODALITIES and values.dtype == np.float16
        right = right and centres.shape == (MODALITIES, MODALITIES) and centres.dtype == np.float32
        if not right or not np.isfinite(values).all() or not np.isfinite(centres).all():
            return None
        return cls(torch.from_numpy(values).to(device), torch.from_numpy(centres))


def _computed(bank: QueryBank, collection: Collection, first: int) -> Tensor:
    """(3, n) float32 biases of the rows from `first` on, not centred."""
    vectors = collection.vectors
    modality = collection.modality
    assert vectors is not None and modality is not None
    out = torch.zeros(MODALITIES, len(collection) - first, device=collection.device)
    for target in range(MODALITIES):
        rows = (modality[first:] == target).nonzero()[:, 0]
        queries = [query for query in range(MODALITIES) if bank.bias_weight(query, target)]
        for part in rows.split(BLOCK) if queries else ():
            own = vectors.take(part + first)
            for query in queries:
                out[query, part] = bank.item_bias(own, query, target)
    return out


def _centred(raw: Tensor, modality: Tensor, centres: Tensor) -> Tensor:
    """(3, n) float16 relative to the centre of each item's direction."""
    return (raw - centres.to(raw.device)[:, modality.clamp(min=0)]).half()
