"""What a method is, and those that compare every item: exhaustive search over vectors, over codes, and over vectors that an
encoder fused. Methods that write IDs are `genius.evaluate.generative`.

Given a pool, a method answers queries with ranked rows; everything else is the harness's business. Exhaustive search is the
ceiling, on a CPU and on a GPU, as `Flat` compares. Both give the same answer: each proposes a few more than k, the proposals are
scored again in double precision, and equal scores are ordered by row. Vectors are made when they are compared, so memory does not
grow with N.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.features import as_numpy
from genius.model.genius import Genius
from genius.model.quantizer import score_fusion
from genius.search import rerank
from genius.search.arrays import HOST, Array, Arrays, Floats
from genius.search.flat import compare_all
from genius.search.tensors import tensor_arrays

Ints = npt.NDArray[np.int64]
HELD = 4 << 30  # bytes of a pool's vectors that are kept on the device
EMBEDDED = 4096  # items of a pool that are embedded at a time
TakeRows = Callable[[Ints], Tensor]
"""Rows (n,) of the pool -> (n, D) float32."""

SPARE = 32  # proposals beyond k: what rounding may have pushed over the edge
QUERIES = 1_024  # compared with a block of the pool at a time
SETTLED = 128  # whose proposals are scored again at a time


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
class MethodResult:
    """Ranked rows *of the pool* (0 .. len(pool) - 1) for every query, and what they cost."""

    rows: Ints  # (Q, k), -1 where the list ends
    scores: npt.NDArray[np.float64]  # (Q, k)
    touched: Ints  # (Q,) items compared with the query one by one
    seconds: float  # of the search alone, features given
    bytes_per_item: float  # what the method keeps for an item while it searches
    # (Q,) 1 if some positive was among the candidates, else 0; NaN: not in the sample. None: all items are candidates
    reached: npt.NDArray[np.float64] | None = None

    def take(self, part: slice) -> MethodResult:
        """The same of some of the queries; the time is shared out evenly."""
        reached = self.reached
        if reached is not None:
            reached = reached[part]
        rows = self.rows[part]
        seconds = self.seconds * len(rows) / max(len(self.rows), 1)
        return MethodResult(rows, self.scores[part], self.touched[part], seconds, self.bytes_per_item, reached)

    @property
    def queries_per_second(self) -> float:
        """Infinite where it took no time that can be measured."""
        if self.seconds <= 0:
            return float("inf")
        return len(self.rows) / self.seconds

    @property
    def candidate_recall(self) -> float | None:
        """Share of the queries of the sample with a positive among the candidates; None without a sample."""
        if self.reached is None or np.isnan(self.reached).all():
            return None
        return float(np.nanmean(self.reached))


class Method(Protocol):
    """One way to search. `label` is the row or column of the tables."""

    label: str

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        """Search `pool` for the given query rows."""
        ...


class Space:
    """A model's view of a feature set, computed once and shared by all methods: vectors, codes, positives."""

    def __init__(self, model: Genius, data: FeatureSet, *, target: str = "unknown") -> None:
        self.model = model
        self.data = data
        self.device = model.device
        self.positives: list[list[int]] = data.positives()
        self.query_z, self.query_dense = model.embed(data.queries)
        # vectors of a large pool are kept in fp16, as the published index does, and a very large pool's in host memory
        size = len(data.pool) * model.config.width
        self.dtype = torch.float32
        if size > 2**28:
            self.dtype = torch.float16
        self.place = self.device
        if size * self.dtype.itemsize > HELD:
            self.place = torch.device("cpu")
        self.codes, self.dense = self._embed_pool()
        self.modality = data.pool.modality
        self.target: Tensor | None = None
        if target == "given":
            self.target = self.wanted().to(self.device)

    def _embed_pool(self) -> tuple[Ints, Tensor]:
        n = len(self.data.pool)
        codes = np.empty((n, self.model.config.quantizer.levels), np.int64)
        dense = torch.empty(n, self.model.config.width, dtype=self.dtype, device=self.place)
        for i in range(0, n, EMBEDDED):
            part = self.data.pool[slice(i, i + EMBEDDED)]
            z, ranked = self.model.embed(part)
            codes[i : i + EMBEDDED] = self.model.quantizer.encode(z, part.modality.to(self.device)).cpu().numpy()
            dense[i : i + EMBEDDED] = ranked.to(self.dtype)
        return codes, dense

    def stored(self, pool: Pool) -> Tensor:
        """(n, D) the same of a whole pool, where they lie: on the device, or in host memory where there are many."""
        if len(pool) == len(self.dense):
            return self.dense
        return self.dense[torch.from_numpy(pool.rows).to(self.place)]

    def vectors(self, rows: Ints) -> Tensor:
        """(n, D) what the model re-ranks with, of these rows of the pool, on its device."""
        return self.dense[torch.from_numpy(rows).to(self.place)].to(self.device)

    def wanted(self) -> Tensor:
        """(Q,) the modality that each query's positives have; -1 where they differ or there are none."""
        out = torch.full((len(self.data.queries),), -1, dtype=torch.long)
        for query, rows in enumerate(self.positives):
            modalities = set(self.modality[rows].tolist())
            if len(modalities) == 1:
                out[query] = modalities.pop()
        return out

    def local_positives(self, pool: Pool, queries: Ints) -> list[list[int]]:
        """Positives as rows of the pool. Some may lie in another task's pool (OVEN's and InfoSeek's queries name each
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


def exhaustive(queries: Tensor, take: TakeRows, size: int, k: int) -> tuple[Ints, Floats]:
    """Exact search in a pool.

    Args:
        queries: (Q, D).
        take: Rows of the pool -> their vectors.
        size: Rows of the pool.
        k: How many.

    Returns:
        Rows and inner products, (Q, k) each, best first and equal ones by row; -1 where the pool has fewer.
    """
    arrays: Arrays = HOST
    if queries.device.type != "cpu":
        arrays = tensor_arrays(queries.device)

    def placed(rows: Ints) -> Array:
        return arrays.put(take(rows))

    found = []
    for part in queries.float().split(QUERIES):
        proposed = compare_all(placed, arrays, np.arange(size), as_numpy(part), k + SPARE)[1]
        proposed = np.sort(proposed, axis=1)
        settled = np.split(proposed, range(SETTLED, len(proposed), SETTLED))
        scores = [_in_double(own, take, rows) for own, rows in zip(part.split(SETTLED), settled, strict=True)]
        found.append(rerank.top_k(proposed, np.concatenate(scores), k))
    return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found])


def _in_double(queries: Tensor, take: TakeRows, rows: Ints) -> npt.NDArray[np.float64]:
    """(Q, C) inner products of queries (Q, D) with rows (Q, C): sums of equal vectors are equal, wherever they are."""
    vectors = take(rows.ravel()).to(queries.device).view(*rows.shape, queries.shape[1])
    return as_numpy((vectors.double() * queries.double()[:, None]).sum(2))


def _search(queries: Tensor, take: TakeRows, pool: Pool, k: int, bytes_per_item: float) -> MethodResult:
    if queries.device.type == "cuda":
        exhaustive(queries[:1], take, len(pool), k)  # a GPU's first products are slow
    start = time.perf_counter()
    rows, scores = exhaustive(queries, take, len(pool), k)
    seconds = time.perf_counter() - start
    touched = np.full(len(rows), len(pool), np.int64)
    return MethodResult(rows, scores.astype(np.float64), touched, seconds, bytes_per_item)


class Dense:
    """Exhaustive over the vectors that the model re-ranks with: the ceiling of its re-ranking."""

    label = "dense"

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        chosen = space.query_dense[torch.from_numpy(queries).to(space.device)]
        size = space.dense.shape[1] * space.dense.element_size()
        return _search(chosen, lambda rows: space.vectors(pool.rows[rows]).float(), pool, k, size)


class DenseGivenTarget:
    """The same among the items of the target modality alone: dense search that is given the target, as by a filter."""

    label = "dense-given"

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf)
        touched = np.zeros(len(queries), np.int64)
        seconds = 0.0
        bytes_per_item = 0.0
        targets = space.wanted()[torch.from_numpy(queries)].numpy()
        for target in np.unique(targets):
            target_queries = np.flatnonzero(targets == target)
            pool_rows = np.arange(len(pool))
            if target >= 0:  # -1: positives of several modalities
                pool_rows = np.flatnonzero(space.modality[pool.rows].numpy() == target)
            target_pool = Pool(pool.name, pool.rows[pool_rows])
            part = Dense().answer(space, target_pool, queries[target_queries], min(k, len(pool_rows)))
            real = part.rows >= 0
            rows[target_queries, : part.rows.shape[1]] = np.where(real, pool_rows[part.rows.clip(min=0)], -1)
            scores[target_queries, : part.rows.shape[1]] = part.scores
            touched[target_queries] = len(pool_rows)
            seconds += part.seconds
            bytes_per_item = part.bytes_per_item
        return MethodResult(rows, scores, touched, seconds, bytes_per_item)


class OtherEncoder:
    """Score fusion (Eq. 2) of features: the encoder's own embedding, CLIP-SF and BLIP-SF of the tables with their encoders."""

    def __init__(self, features: FeatureSet, label: str) -> None:
        self.features = features
        self.label = label

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        if self.features.query_ids != space.data.query_ids or self.features.pool_ids != space.data.pool_ids:
            raise GeniusError(f"the features of {self.label} belong to other queries or candidates than this evaluation")
        chosen = self.features.queries[torch.from_numpy(queries)].to(space.device, torch.float32)

        def take(rows: Ints) -> Tensor:
            return score_fusion(self.features.pool[torch.from_numpy(pool.rows[rows])].to(space.device, torch.float32))

        return _search(score_fusion(chosen), take, pool, k, self.features.pool.width * 4)


class CodesExhaustive:
    """Every item by its codes' reconstruction: no vector is stored, nothing is decoded. The ceiling of the codes."""

    label = "codes"

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        quantizer = space.model.quantizer
        codes = space.codes[pool.rows]

        def take(rows: Ints) -> Tensor:
            return F.normalize(quantizer.decode(torch.from_numpy(codes[rows]).to(space.device)).float(), dim=1)

        chosen = space.query_z[torch.from_numpy(queries).to(space.device)]
        return _search(chosen, take, pool, k, code_bits(space.model.config.quantizer.level_sizes) / 8)


def code_bits(level_sizes: tuple[int, ...]) -> int:
    """Bits of one ID: 2 + 8 x 12 = 98 in the paper (supplement, Table 2)."""
    return sum(max(1, (size - 1).bit_length()) for size in level_sizes)
