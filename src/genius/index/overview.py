"""The collection as a whole: a map of a sample of items in two dimensions.

It shows the first two principal components. Two dimensions keep little of many: distance on the map is a hint, not a similarity.
Modalities are centred separately: they lie apart in every model, and would otherwise be all that the map shows.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from genius.index import Index
from genius.index import metadata as meta
from genius.index.reader import Reader
from genius.top_k import tensor_top_k
from genius.types import Modality

MOST = 1500  # items: enough to zoom into, and quick to draw
TITLE = 120  # letters of an item's words
AMONG = 5  # neighbours between which an item is put that the sample does not hold
COLUMNS = ("_seq", "id", "text", "modality", "_metadata", "_codes")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Placed:
    """What is drawn of an item: both coordinates are from 0 to 1."""

    id: str
    modality: Modality
    title: str
    codes: tuple[int, ...]
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Plane:
    """A sample of one version of an index, and where it lies."""

    version: int
    count: int  # items of that version
    rows: Sequence[Row]
    vectors: torch.Tensor  # (n, D) unit, centred by modality
    centres: torch.Tensor  # (3, D) means of the modalities
    places: torch.Tensor  # (n, 2)

    def placed(self) -> list[Placed]:
        """The sample."""
        return [_placed(row, at) for row, at in zip(self.rows, self.places.tolist(), strict=True)]

    def located(self, rows: Sequence[Row], vectors: torch.Tensor) -> list[Placed]:
        """Any items: in their own place, or amid those of the sample that are nearest to them."""
        modalities = _modalities(rows)
        scores, nearest = tensor_top_k(_centred(vectors, modalities, self.centres) @ self.vectors.T, AMONG)
        amid = (self.places[nearest] * (20.0 * scores).softmax(1)[..., None]).sum(1).tolist()
        place_by_seq = {row["_seq"]: place for row, place in zip(self.rows, self.places.tolist(), strict=True)}
        return [_placed(row, place_by_seq.get(row["_seq"], guess)) for row, guess in zip(rows, amid, strict=True)]


class Planes:
    """The plane of an index as it is now, kept for its version."""

    def __init__(self, index: Index, most: int = MOST) -> None:
        self._index = index
        self._most = most
        self._lock = threading.Lock()
        self._plane: Plane | None = None

    def now(self) -> Plane | None:
        """The plane; None of an empty index."""
        with self._index.lock:
            live = self._index.current()
            alive = live.seqs[~live.dead]
            reader = live.reader
        if not len(alive):
            return None
        with self._lock:
            if self._plane is None or self._plane.version != reader.version:
                self._plane = _sampled(self._index, reader, alive, self._most)
            return self._plane

    def locate(self, plane: Plane, ids: Sequence[str]) -> list[Placed]:
        """Items by id, wherever they belong on the plane; unknown ids are left out.

        Args:
            plane: Of `now`.
            ids: Of the items.
        """
        rows = list(self._index._columns(list(ids), _columns(self._index), "skip").values())
        if not rows:
            return []
        return plane.located(rows, _vectors(self._index, rows))


def _sampled(index: Index, reader: Reader, alive: np.ndarray, most: int) -> Plane:
    """Evenly from all that are there, at the two directions in which they differ most."""
    picked = alive[np.unique(np.linspace(0, len(alive) - 1, min(most, len(alive))).astype(np.int64))]
    rows = list(reader.rows(picked, _columns(index)).values())
    vectors = _vectors(index, rows)
    modalities = _modalities(rows)
    means = []
    for modality in Modality:
        modality_vectors = vectors[modalities == int(modality)]
        means.append(modality_vectors.mean(0) if len(modality_vectors) else vectors.mean(0))
    centres = torch.stack(means)
    centred = _centred(vectors, modalities, centres)
    slim = [{name: value for name, value in row.items() if name != "_embedding"} for row in rows]
    return Plane(reader.version, len(alive), slim, centred, centres, principal(centred))


def _placed(row: Row, at: Sequence[float]) -> Placed:
    facts = meta.load(row["_metadata"])
    title = str(row["text"] or facts.get("title") or facts.get("name") or row["id"])
    return Placed(row["id"], Modality.parse(row["modality"]), title[:TITLE], tuple(row["_codes"]), at[0], at[1])


def _columns(index: Index) -> Sequence[str]:
    if index.about.vectors:
        return (*COLUMNS, "_embedding")
    return COLUMNS


def _vectors(index: Index, rows: Sequence[Row]) -> torch.Tensor:
    """(n, D) stored vectors; of an index without them, what codes stand for."""
    if index.about.vectors:
        return torch.from_numpy(np.array([row["_embedding"] for row in rows], np.float32))
    sums = index.model.reconstruct(np.array([row["_codes"] for row in rows], np.int64))
    return F.normalize(torch.as_tensor(sums).float().cpu(), dim=1)


def _modalities(rows: Sequence[Row]) -> torch.Tensor:
    return torch.tensor([int(Modality.parse(row["modality"])) for row in rows])


def _centred(vectors: torch.Tensor, modalities: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors - centres[modalities], dim=1)


def principal(centred: torch.Tensor) -> torch.Tensor:
    """(n, D) -> (n, 2) by the first two principal directions, half by rank, so that crowds stay apart."""
    if len(centred) < 3:
        return torch.full((len(centred), 2), 0.5)
    _, _, directions = torch.linalg.svd(centred.T @ centred)
    flat = centred @ directions[:2].T
    ranks = flat.argsort(0).argsort(0).float() / (len(flat) - 1)
    size = flat.abs().amax(0).clamp(min=1e-9)
    spread: torch.Tensor = (0.5 * ranks + 0.5 * (0.5 + flat / (2 * size))).clamp(0, 1)
    return spread
