"""`ItemBias`: one number per item and query modality that is taken off every score, learned from a sample of queries.

Items that are similar to every query are found too often; the bias of an item says by how much (`QueryBank.item_bias`). It is
computed once per item, kept in one byte for each query modality that the bank knows (text and image queries: two bytes per item),
and centred for each direction (query modality -> target modality), so that scores of different modalities stay comparable and
keep their scale. Knows vectors and rows; nothing of plans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
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
FORMAT = "genius-item-bias-3"
BLOCK = 16_384  # items compared with queries at a time
MODALITIES = len(Modality)
CODES = 256  # values of a byte
LEVELS = CODES - 1
MARGIN = 0.25  # of the range of biases, on both sides: items that are added later may be outside of it
LEAST_RANGE = 1e-3
TABLES = ("first", "step", "centres")


@dataclass(frozen=True)
class ItemBias:
    """Biases of the rows of one collection.

    A bias is `first + step * code`, by the query's modality.

    Args:
        codes: (S, N) uint8, a row for each query modality that the bank knows, by item row.
        slots: (3,) int64, the row in `codes` of each query modality; -1: no correction.
        first: (3, 3) float32, by query modality and target, the same for all targets: the centred bias of code 0.
        step: (3, 3) float32: what a step of the code adds; 0: no correction of queries of this modality.
        centres: (3, 3) float32: the mean that was taken off when the bias was first computed.
        modality: (N,) of the items, -1 of rows without a code.
    """

    codes: NDArray[np.uint8]
    slots: Ints
    first: Floats
    step: Floats
    centres: Floats
    modality: Ints

    def __len__(self) -> int:
        """Rows that it covers."""
        return int(self.codes.shape[1])

    @property
    def bytes_per_item(self) -> int:
        """Of memory and of the cache on disk."""
        return len(self.codes)

    @classmethod
    def build(cls, bank: QueryBank, collection: Collection) -> ItemBias | None:
        """Biases of all rows; None where the bank knows no direction well enough, or the collection stores no vectors.

        Args:
            bank: Of queries in the space of the collection's vectors.
            collection: Whose items it is for.
        """
        modality = collection.modality
        known = [query for query in range(MODALITIES) if any(bank.bias_weight(query, target) for target in range(MODALITIES))]
        if collection.vectors is None or modality is None or not known:
            return None
        slots = np.full(MODALITIES, -1, np.int64)
        slots[known] = np.arange(len(known))
        raw = _computed(bank, collection, 0, known)
        first, step, centres = (np.zeros((MODALITIES, MODALITIES), np.float32) for _ in TABLES)
        for slot, query in enumerate(known):
            low = 0.0
            high = LEAST_RANGE
            for target in range(MODALITIES):
                own = raw[slot, modality == target]
                if len(own) and bank.bias_weight(query, target):
                    centres[query, target] = own.mean()
                    low = min(low, float(own.min() - centres[query, target]))
                    high = max(high, float(own.max() - centres[query, target]))
            span = high - low
            one = np.float32((1 + 2 * MARGIN) * span / LEVELS)
            step[query] = one
            first[query] = -one * np.float32(round((MARGIN * span - low) / float(one)))  # some code is exactly no correction
        empty = cls(np.zeros((len(known), 0), np.uint8), slots, first, step, centres, modality)
        return replace(empty, codes=empty._coded(raw, modality))

    def extended(self, bank: QueryBank, collection: Collection) -> ItemBias:
        """These and those of the rows that the collection has beyond them; these stay as they are."""
        first = len(self)
        modality = collection.modality
        if first >= len(collection) or modality is None:
            return self
        known = np.flatnonzero(self.slots >= 0).tolist()
        added = self._coded(_computed(bank, collection, first, known), modality[first:])
        return replace(self, codes=np.concatenate([self.codes, added], 1), modality=modality)

    def for_codes(self, bank: QueryBank) -> ItemBias | None:
        """What is taken off scores made of codes, a share of each direction (`QueryBank.code_share`); None: nothing.

        Args:
            bank: That these biases follow from.
        """
        shares = np.zeros((MODALITIES, MODALITIES), np.float32)
        for query in np.flatnonzero(self.slots >= 0).tolist():
            shares[query] = [bank.code_share(query, target) for target in range(MODALITIES)]
        if not shares.any():
            return None
        targets = np.maximum(self.modality[: len(self)], 0)
        codes = np.empty_like(self.codes)
        for query in np.flatnonzero(self.slots >= 0).tolist():
            slot = int(self.slots[query])
            none = round(float(-self.first[query, 0] / max(self.step[query, 0], np.float32(1e-9))))  # the code of no correction
            codes[slot] = none + np.round(shares[query][targets] * (self.codes[slot].astype(np.float32) - none))
        return replace(self, codes=codes)

    def _coded(self, raw: Floats, modality: Ints) -> NDArray[np.uint8]:
        """(S, n) codes of biases (S, n) that are not centred; those out of range become the least or the largest."""
        known = self.slots >= 0
        target = np.maximum(modality, 0)
        step = np.maximum(self.step[known][:, target], np.float32(1e-9))
        codes = (raw - (self.centres + self.first)[known][:, target]) / step
        codes = np.where(self.step[known][:, target] > 0, codes, 0)
        return np.clip(np.round(codes), 0, LEVELS).astype(np.uint8)

    def take(self, query_modality: Ints, rows: Ints) -> Floats:
        """What is taken off the scores of rows.

        Args:
            query_modality: (Q,) int64, what each query consists of; -1: unknown, no correction.
            rows: (Q, C) of each query; what is returned for padding (-1) is without meaning.

        Returns:
            (Q, C) float32.
        """
        if len(query_modality) == 1:  # the usual search, in which every call of numpy counts
            own = int(query_modality[0])
            single: Floats = self._values[own].take(self._code_rows[own].take(rows, mode="wrap"))
            return single
        codes = self.codes.ravel().take(rows + (np.maximum(self.slots[query_modality], 0) * len(self))[:, None], mode="wrap")
        values: Floats = self._values.ravel().take(codes + CODES * query_modality[:, None], mode="wrap")
        return values

    @cached_property
    def _code_rows(self) -> list[NDArray[np.uint8]]:
        """(N,) codes by query modality; the last, -1: of an unknown one."""
        return [self.codes[max(slot, 0)] for slot in [*self.slots.tolist(), 0]]

    @cached_property
    def _values(self) -> Floats:
        """(4, 256) bias of every code by query modality; zeros for the last, -1: an unknown one."""
        values = np.zeros((MODALITIES + 1, CODES), np.float32)
        values[:MODALITIES] = self.first[:, :1] + self.step[:, :1] * np.arange(CODES, dtype=np.float32)
        return values

    def columns(self, rows: Any, arrays: Arrays = HOST) -> Array:
        """(n, 3) float32 biases of rows, by query modality: what one more dimension of their vectors would hold.

        Args:
            rows: (n,) or a slice, on the device of `arrays`.
            arrays: Operations of the device on which it is wanted.
        """
        target = arrays.resident(self.modality)[rows]
        target = target * (target >= 0)
        first = arrays.put(np.ascontiguousarray(self.first.T))[target]  # (n, 3)
        step = arrays.put(np.ascontiguousarray(self.step.T))[target]
        codes = arrays.resident(self.codes)[:, rows][arrays.put(np.maximum(self.slots, 0))]  # (3, n)
        return first + step * arrays.float32(codes).T

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path, identity: str) -> None:
        """Write into a folder of caches; `load` asks for the same identity."""
        arrays: dict[str, NDArray[Any]] = {"codes": self.codes, "slots": self.slots}
        arrays |= {name: getattr(self, name) for name in TABLES}
        metadata = {"format": FORMAT, "identity": identity}
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, lambda path: save_file(arrays, path, metadata))

    @classmethod
    def load(cls, folder: Path, identity: str, modality: Ints | None) -> ItemBias | None:
        """Read what `save` wrote; None if it is of something else or damaged.

        Args:
            folder: Of caches.
            identity: Of the collection and the bank.
            modality: (N,) of the items of the collection.
        """
        try:
            with safe_open(folder / FILE, "np") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT or metadata.get("identity") != identity:
                    return None
                arrays = {name: file.get_tensor(name) for name in ("codes", "slots", *TABLES)}
        except (OSError, MemoryError, SafetensorError):
            return None
        if modality is None or not _fits(arrays, len(modality)):
            return None
        return cls(**arrays, modality=modality)


def _fits(arrays: dict[str, NDArray[Any]], rows: int) -> bool:
    """Whether arrays of a file, which may be damaged, are biases of so many rows."""
    codes = arrays["codes"]
    slots = arrays["slots"]
    if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != rows:
        return False
    if slots.dtype != np.int64 or slots.shape != (MODALITIES,):
        return False
    if sorted(slots[slots >= 0].tolist()) != list(range(len(codes))) or int(slots.min()) < -1:
        return False
    tables = [arrays[name] for name in TABLES]
    return all(t.shape == (MODALITIES, MODALITIES) and t.dtype == np.float32 and np.isfinite(t).all() for t in tables)


def _computed(bank: QueryBank, collection: Collection, first: int, known: list[int]) -> Floats:
    """(S, n) float32 biases of the rows from `first` on for the query modalities `known`, not centred."""
    vectors = collection.vectors
    modality = collection.modality
    assert vectors is not None and modality is not None
    out = np.zeros((len(known), len(collection) - first), np.float32)
    for target in range(MODALITIES):
        rows = np.flatnonzero(modality[first:] == target)
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            own = vectors.arrays.host(vectors.take(part + first))
            for slot, query in enumerate(known):
                out[slot, part] = bank.item_bias(own, query, target)
    return out
