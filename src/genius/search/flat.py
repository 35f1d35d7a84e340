"""`Flat`: exact search. Compares queries with every vector that they may find, in blocks, on any device.

The reference of every approximate plan, and the cheapest one for small collections and narrow filters. Knows vectors, modalities
and masks over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from genius.search.arrays import Array, Arrays, Best, Floats, Ints
from genius.search.collection import Collection
from genius.search.item_bias import ItemBias
from genius.search.params import SearchParams
from genius.search.rerank import BUILT_IN
from genius.search.types import MODALITIES, Candidates, QueryBatch
from genius.search.vectors import BLOCK, Vectors

COMPARED = 16_384  # rows that `compare_all` compares together
QUERIES = 256  # compared with a block at a time
QUERIES_ON_DEVICE = 512  # likewise, on a GPU
SPARE = 16  # more candidates where similarities are of halves: re-ranking settles the order of those that are nearly equal
RESIDENT = 128 << 20  # bytes of float32 vectors that stay in memory between searches
SCATTERED = 4  # vectors read in sequence in the time of one that is read out of order
MILLISECONDS = {"cpu": 4e-8, "cuda": 2e-11}  # per product of one pair of numbers, roughly
IN_ONE_PASS = 6e-12  # likewise, where one kernel of a GPU compares all vectors: an H200, batches of 512
START = 0.05  # milliseconds of a call, roughly


class Flat:
    """All vectors of a collection: the stored ones, or, re-ranked by codes, those that IDs stand for.

    Args:
        collection: With vectors or a quantizer.
    """

    name = "flat"

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._resident: _Resident | None = None

    def suits(self, batch: QueryBatch, k: int, params: SearchParams) -> bool:
        """Whether there are vectors to compare."""
        return self._vectors(params) is not None

    def cost(self, batch: QueryBatch, k: int, params: SearchParams) -> float:
        """Rough milliseconds: one product per number of every vector."""
        vectors = self._vectors(params)
        if vectors is None:
            return float("inf")
        per_product = MILLISECONDS.get(self.collection.device, MILLISECONDS["cuda"])
        if self._in_one_pass(batch, vectors):
            per_product = IN_ONE_PASS
        return START + len(batch) * len(vectors) * vectors.width * per_product

    def _vectors(self, params: SearchParams) -> Vectors | None:
        if params.reranker == "codes":
            return self.collection.reconstructed
        return self.collection.vectors

    def run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        """The k best rows by similarity; for a re-ranker that is not built in the best `params.rerank`."""
        vectors = self._vectors(params)
        assert vectors is not None
        if params.reranker not in BUILT_IN:
            k = max(k, params.rerank)
        at_once = QUERIES
        if self.collection.device != "cpu":
            k += SPARE
            at_once = QUERIES_ON_DEVICE
        if len(batch) <= at_once:
            return self._run(batch, vectors, k, params)
        parts = []
        for first in range(0, len(batch), at_once):
            queries = np.arange(first, min(first + at_once, len(batch)))
            parts.append(self._run(batch.select(queries), vectors, k, params))
        return Candidates.cat(parts)

    def _run(self, batch: QueryBatch, vectors: Vectors, k: int, params: SearchParams) -> Candidates:
        arrays = vectors.arrays
        compared = batch.dense
        if params.reranker == "codes":
            compared = batch.z
        queries = arrays.put(compared)
        if self._in_one_pass(batch, vectors):
            return self._nearest(batch, queries, vectors, k)
        considered = np.zeros(len(batch), np.int64)
        best = Best(len(batch), k, arrays)
        for rows, block in self._blocks(batch, vectors):
            scores = self._scores(batch, queries, rows, block, arrays)  # (Q, n)
            visible = self._visible(batch, rows, arrays)
            if visible is None:
                considered += scores.shape[1]
            else:
                scores = arrays.where(visible, scores, -np.inf)
                considered += arrays.host(visible.sum(1))
            best.add(_row_numbers(rows, arrays), scores)
        found = arrays.host(best.scores)
        rows_found = np.where(np.isneginf(found), -1, arrays.host(best.rows))
        return Candidates(rows_found, found, considered)

    def _in_one_pass(self, batch: QueryBatch, vectors: Vectors) -> bool:
        """Whether one kernel compares all: halves on a GPU, a large part of which all queries may find, and no prior."""
        if not getattr(vectors, "in_one_pass", False) or batch.has_prior or 4 * len(vectors) * vectors.width <= RESIDENT:
            return False
        mask = batch.allowed
        if mask is not None and (mask.ndim == 2 or SCATTERED * np.count_nonzero(mask) < len(vectors)):
            return False
        if self.collection.modality is None:
            return True
        targets = np.unique(batch.target)
        if len(targets) != 1:
            return False
        if targets[0] < 0:  # with several modalities log p of each will be added
            return not self.collection.has_several_modalities
        return SCATTERED * int(self.collection.modality_counts[targets[0]]) >= len(vectors)

    def _nearest(self, batch: QueryBatch, queries: Array, vectors: Any, k: int) -> Candidates:
        """The k best by one kernel that compares all vectors."""
        arrays = vectors.arrays
        visible = self._visible(batch, slice(0, len(vectors)), arrays)
        considered = np.full(len(batch), len(vectors))
        if visible is not None:
            visible = visible[0]
        scores, rows = vectors.nearest(queries, k, visible)
        found = arrays.host(scores)
        rows_found = np.where(np.isneginf(found), -1, arrays.host(rows))
        if visible is not None:
            considered[:] = int(visible.sum())
        return Candidates(rows_found, found, considered)

    def _scores(self, batch: QueryBatch, queries: Array, rows: Any, block: Array, arrays: Arrays) -> Array:
        """(Q, n) similarities plus what is added to them: log p(modality) of an unknown target, less the item bias."""
        width = queries.shape[1]
        if not batch.has_prior:
            return arrays.products(queries, block[:, :width])
        added = arrays.put(batch.prior_dimensions())
        if block.shape[1] > width:  # both have these dimensions: one product
            return arrays.concatenate([queries, added], 1) @ block.T
        scores = arrays.products(queries, block)
        scores += added @ self._prior_dimensions(batch.item_bias, rows, arrays).T
        return scores

    def _prior_dimensions(self, item_bias: ItemBias | None, rows: Any, arrays: Arrays) -> Array:
        """(n, 6) what items have in the dimensions of `QueryBatch.prior_dimensions`: one at their modality, their biases."""
        modality = self.collection.modality
        if modality is None:
            modality = np.zeros(len(self.collection), np.int64)
        one_at_modality = np.eye(MODALITIES, dtype=np.float32)
        one_at_modality = np.concatenate([one_at_modality, np.zeros((1, MODALITIES), np.float32)])  # the last: of no modality
        of_item = arrays.put(one_at_modality)[arrays.resident(modality)[rows]]
        biases = of_item * 0
        if item_bias is not None:
            biases = item_bias.columns(rows, arrays)
        return arrays.concatenate([of_item, biases], 1)

    def _blocks(self, batch: QueryBatch, vectors: Vectors) -> Iterator[tuple[Any, Array]]:
        """Rows that any query may find and their vectors (n, D); those that are kept have the dimensions of priors too."""
        rows = self._rows_of_any(batch)
        if rows is not None and SCATTERED * len(rows) < len(self.collection):
            for first in range(0, len(rows), BLOCK):
                part = rows[first : first + BLOCK]
                yield vectors.arrays.put(part), vectors.take(part)
        elif 4 * len(vectors) * vectors.width <= RESIDENT:
            yield slice(0, len(vectors)), self._held(vectors, batch.item_bias)
        else:
            for first, block in vectors.blocks():
                yield slice(first, first + len(block)), block

    def _rows_of_any(self, batch: QueryBatch) -> Ints | None:
        """Rows that at least one query may find; None: all."""
        mask = batch.allowed
        if mask is not None and mask.ndim == 2:
            mask = np.logical_or.reduce(mask)
        modality = self.collection.modality
        if modality is not None and bool((batch.target >= 0).all()):
            counts = self.collection.modality_counts
            wanted = np.unique(batch.target)
            if int(counts[wanted].sum()) < self.collection.items or mask is not None:
                of_target = np.isin(modality, wanted)
                mask = of_target if mask is None else mask & of_target
        if mask is None:
            return None
        return np.flatnonzero(mask)

    def _held(self, vectors: Vectors, item_bias: ItemBias | None) -> Array:
        """(N, D + 6) float32 of a small collection, kept between searches: vectors, and the dimensions of priors."""
        held = self._resident
        if held is not None and held.vectors is vectors and (item_bias is None or held.item_bias is item_bias):
            return held.whole
        arrays = vectors.arrays
        whole = arrays.concatenate([arrays.float32(block) for _, block in vectors.blocks()])
        added = self._prior_dimensions(item_bias, slice(0, len(vectors)), arrays)
        self._resident = _Resident(vectors, item_bias, arrays.concatenate([whole, added], 1))
        return self._resident.whole

    def _visible(self, batch: QueryBatch, rows: Any, arrays: Arrays) -> Array | None:
        """(Q, n) or (1, n) rows of a block that each query may find; None: all."""
        visible = None
        if batch.allowed is not None:
            visible = arrays.resident(batch.allowed)[..., rows]
            if visible.ndim == 1:
                visible = visible[None]
        modality = self.collection.modality
        targets = np.unique(batch.target)
        if modality is None or (targets < 0).all():
            return visible
        if len(targets) == 1 and int(self.collection.modality_counts[targets[0]]) == len(self.collection):
            return visible
        wanted = batch.target
        if len(targets) == 1:
            wanted = targets
        target = arrays.put(wanted)[:, None]
        of_target = (target < 0) | (arrays.resident(modality)[rows][None] == target)
        if visible is None:
            return of_target
        return visible & of_target


class _Resident(NamedTuple):
    """Vectors that stay in memory between searches."""

    vectors: Vectors
    item_bias: ItemBias | None
    whole: Array  # (N, D + 6)


def _row_numbers(rows: Any, arrays: Arrays) -> Array:
    """(n,) item rows of a block."""
    if isinstance(rows, slice):
        return arrays.arange(rows.stop - rows.start) + rows.start
    return rows


def compare_all(take: Callable[[Ints], Array], arrays: Arrays, rows: Ints, queries: Floats, count: int) -> tuple[Floats, Ints]:
    """Exhaustive search among some rows, block by block.

    Args:
        take: Rows (n,) -> their vectors (n, D), as `Vectors.take`.
        arrays: Operations on them.
        rows: (n,) that are compared.
        queries: (Q, D).
        count: Candidates per query.

    Returns:
        Inner products and rows, (Q, min(count, n)) each, best first.
    """
    on_device = arrays.put(queries)
    best = Best(len(queries), count, arrays)
    for first in range(0, len(rows), COMPARED):
        part = rows[first : first + COMPARED]
        best.add(arrays.put(part), on_device @ take(part).T)
    return arrays.host(best.scores), arrays.host(best.rows)
