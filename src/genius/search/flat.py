"""`Flat`: exact search. Compares queries with every vector that they may find, in blocks, on any device.

The reference of every approximate plan, and the cheapest one for small collections and narrow filters. Knows vectors, modalities
and masks over rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from genius.search.collection import Collection
from genius.search.params import SearchParams
from genius.search.rerankers import BUILT_IN
from genius.search.types import Candidates, QueryBatch
from genius.search.vectors import BLOCK, Vectors

QUERIES = 256  # compared with a block at a time: 32 MB of scores
RESIDENT = 128 << 20  # bytes of float32 vectors that stay in memory between searches
PICKED = 4  # vectors read in sequence in the time of one that is picked out
MILLISECONDS = {"cpu": 4e-8, "cuda": 2e-11}  # per product of one pair of numbers, roughly
START = 0.05  # milliseconds of a call, roughly


class Flat:
    """All vectors of a collection: the stored ones, or, re-ranked by codes, those that IDs stand for.

    Args:
        collection: With vectors or a quantizer.
    """

    name = "flat"

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._resident: tuple[Vectors, Tensor] | None = None

    def suits(self, batch: QueryBatch, k: int, params: SearchParams) -> bool:
        """Wherever there are vectors to compare."""
        return self._vectors(params) is not None

    def cost(self, batch: QueryBatch, k: int, params: SearchParams) -> float:
        vectors = self._vectors(params)
        if vectors is None:
            return float("inf")
        per_product = MILLISECONDS.get(self.collection.device.type, MILLISECONDS["cuda"])
        return START + len(batch) * len(vectors) * vectors.width * per_product

    def _vectors(self, params: SearchParams) -> Vectors | None:
        return self.collection.reconstructed if params.reranker == "codes" else self.collection.vectors

    def run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        """The k best rows by similarity; for a re-ranker of another kind the best `params.rerank`."""
        if params.reranker not in BUILT_IN:
            k = max(k, params.rerank)
        parts = []
        for first in range(0, len(batch), QUERIES):
            queries = torch.arange(first, min(first + QUERIES, len(batch)), device=batch.z.device)
            parts.append(self._run(batch if len(queries) == len(batch) else batch.select(queries), k, params))
        return Candidates.cat(parts) if parts else Candidates.empty(0, batch.z.device)

    def _run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        device = batch.z.device
        compared = batch.z if params.reranker == "codes" else batch.dense
        source = self._vectors(params)
        assert source is not None
        best_scores = torch.empty(len(batch), 0, device=device)
        best_rows = torch.empty(len(batch), 0, dtype=torch.long, device=device)
        considered = torch.zeros(len(batch), dtype=torch.long, device=device)
        for rows, vectors in self._blocks(batch, source):
            scores = compared @ vectors.T  # (Q, n)
            hidden = self._hidden(batch, rows)
            prior = batch.prior(rows, self.collection.modality)
            if prior is not None:
                scores = scores + prior
            if hidden is None:
                considered += scores.shape[1]
            else:
                scores = scores.masked_fill(hidden, -torch.inf)
                considered += scores.shape[1] - hidden.sum(1)
            top = scores.topk(min(k, scores.shape[1]), dim=1)
            found = rows[top.indices] if isinstance(rows, Tensor) else top.indices + rows.start
            best_scores = torch.cat([best_scores, top.values], 1)
            best_rows = torch.cat([best_rows, found], 1)
            if best_scores.shape[1] > k:
                top = best_scores.topk(k, dim=1)
                best_scores = top.values
                best_rows = best_rows.gather(1, top.indices)
        best_rows = best_rows.masked_fill(best_scores == -torch.inf, -1)
        return Candidates(best_rows, best_scores, considered)

    def _blocks(self, batch: QueryBatch, vectors: Vectors) -> Iterator[tuple[Tensor | slice, Tensor]]:
        """Rows and their vectors (n, D), of all rows that any query may find."""
        rows = self._rows_of_any(batch)
        if rows is not None and PICKED * len(rows) < len(self.collection):
            for part in rows.split(BLOCK):
                yield part, vectors.take(part)
        elif 4 * len(vectors) * vectors.width <= RESIDENT:
            yield slice(0, len(vectors)), self._held(vectors)
        else:
            for first, block in vectors.blocks():
                yield slice(first, first + len(block)), block

    def _rows_of_any(self, batch: QueryBatch) -> Tensor | None:
        """Rows that at least one query may find; None: all."""
        mask = batch.allowed
        if mask is not None and mask.ndim == 2:
            mask = mask.any(0)
        modality = self.collection.modality
        if modality is not None:
            wanted = batch.target.unique()
            if int(wanted[0]) >= 0:  # ascending: every query has a target
                right = torch.isin(modality, wanted)
                mask = right if mask is None else mask & right
        return None if mask is None else mask.nonzero()[:, 0]

    def _held(self, vectors: Vectors) -> Tensor:
        """(N, D) float32 of a small collection, kept between searches."""
        if self._resident is None or self._resident[0] is not vectors:
            self._resident = (vectors, torch.cat([block for _, block in vectors.blocks()]))
        return self._resident[1]

    def _hidden(self, batch: QueryBatch, rows: Tensor | slice) -> Tensor | None:
        """(Q, n) or (1, n) rows of a block that a query may not find; None: it may find all."""
        hidden = None
        if batch.allowed is not None:
            allowed = batch.allowed[..., rows]
            hidden = ~(allowed if allowed.ndim == 2 else allowed[None])
        modality = self.collection.modality
        if modality is not None and bool((batch.target >= 0).any()):
            own = modality[rows]
            wrong = (batch.target[:, None] >= 0) & (own[None] != batch.target[:, None])
            hidden = wrong if hidden is None else hidden | wrong
        return hidden
