"""What a method is: given a pool, it answers queries with ranked rows. Everything else is the harness's business."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.model.fusion import score_fusion
from genius.model.genius import Genius

Ints = npt.NDArray[np.int64]
HELD = 4 << 30  # bytes of a pool's vectors that are kept on the device


@dataclass(frozen=True, slots=True)
class Pool:
    """The candidates of one search, bound to their name: a result can always say which pool it came from."""

    name: str  # "universal", or a task's key
    rows: Ints  # ascending rows of the whole pool

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.rows.tobytes()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class Answer:
    """Ranked rows *of the pool* (0 .. len(pool) - 1) for every query, and what they cost."""

    rows: Ints  # (Q, k), -1 where the list ends
    scores: npt.NDArray[np.float64]  # (Q, k)
    touched: Ints  # (Q,) items compared with the query one by one
    seconds: float  # of the search alone, features given
    bytes_per_item: float  # what the method keeps for an item while it searches
    # (Q,) 1 if some positive was among the candidates, else 0; NaN: not looked at. None: all items are candidates
    reached: npt.NDArray[np.float64] | None = None
    note: str = ""
    survival: list[float] = field(default_factory=list)  # per level, on a sample


class Method(Protocol):
    """One way to search. `label` is the row or column of the tables."""

    label: str

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> Answer:
        """Search `pool` for the given query rows."""
        ...


class Space:
    """A model's view of a feature set, computed once and shared by all methods: vectors, codes, positives."""

    def __init__(
        self, model: Genius, data: FeatureSet, *, half: bool | None = None, target: str = "unknown", chunk: int = 4096
    ) -> None:
        self.model, self.data = model, data
        self.device = model.device
        self.positives: list[list[int]] = data.positives()
        self.query_z, self.query_dense = model.embed(data.queries)
        self.query_plain: Tensor | None = None  # the encoder's own embedding, made when a method asks
        # vectors of a large pool are kept in fp16, as the published index does, and a very large pool's beside the device
        size = len(data.pool) * model.config.width
        self.dtype = torch.float16 if (size > 2**28 if half is None else half) else torch.float32
        self.place = self.device if size * self.dtype.itemsize <= HELD else torch.device("cpu")
        self.codes, self.dense = self._embed_pool()
        self.modality = data.pool.modality
        self.target: Tensor | None = self.wanted().to(self.device) if target == "given" else None

    def _embed_pool(self, chunk: int = 4096) -> tuple[Ints, Tensor]:
        width, n = self.model.config.width, len(self.data.pool)
        codes = np.empty((n, self.model.config.quantizer.levels), np.int64)
        dense = torch.empty(n, width, dtype=self.dtype, device=self.place)
        for i in range(0, n, chunk):
            part = self.data.pool[slice(i, i + chunk)]
            z, ranked = self.model.embed(part)
            codes[i : i + chunk] = self.model.quantizer.encode(z, part.modality.to(self.device)).cpu().numpy()
            dense[i : i + chunk] = ranked.to(self.dtype)
        return codes, dense

    def stored(self, pool: Pool) -> Tensor:
        """(n, D) the same of a whole pool, where they lie: on the device, or beside it where there are many."""
        return self.dense if len(pool) == len(self.dense) else self.dense[torch.from_numpy(pool.rows).to(self.place)]

    def vectors(self, rows: Ints) -> Tensor:
        """(n, D) what the model re-ranks with, of these rows of the pool, on its device."""
        return self.dense[torch.from_numpy(rows).to(self.place)].to(self.device)

    def wanted(self) -> Tensor:
        """(Q,) the modality that each query's positives have; -1 where they differ or there are none."""
        out = torch.full((len(self.data.queries),), -1, dtype=torch.long)
        for query, rows in enumerate(self.positives):
            kinds = set(self.modality[rows].tolist())
            if len(kinds) == 1:
                out[query] = kinds.pop()
        return out

    def plain_queries(self) -> Tensor:
        """(Q, D) the encoder's own unit vectors (score fusion, Eq. 2)."""
        if self.query_plain is None:
            self.query_plain = score_fusion(self.data.queries.to(self.device, torch.float32))
        return self.query_plain

    def local_positives(self, pool: Pool, queries: Ints) -> list[list[int]]:
        """Positives as rows of the pool. Some may lie in another task's pool (OVEN's and InfoSeek's questions name each
        other's candidates); a query with none in this one is an error: the pool is not its task's."""
        place = np.full(len(self.data.pool), -1, np.int64)
        place[pool.rows] = np.arange(len(pool))
        out = []
        for query in queries:
            rows = place[np.array(self.positives[query], dtype=np.int64)]
            inside = rows[rows >= 0]
            if len(rows) and not len(inside):
                name = self.data.query_ids[query]
                raise GeniusError(f"query {name} has no positive in the pool {pool.name!r}: that is another task's pool")
            out.append(inside.tolist())
        return out
