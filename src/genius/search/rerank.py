"""Re-rankers: score the candidates of any plan against their queries. A registry, asked by name in one place, the engine.

A re-ranker is a function of a batch of queries, their candidates and the collection; it returns one score per candidate, and the
engine sorts. Three are built in: "embeddings" (stored vectors), "codes" (what IDs stand for) and "none" (the plan's scores).
Another is added by `register`, or by a package that names it in the entry point group `genius.rerankers`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer
from genius.search.collection import Collection
from genius.search.rerankers import Reranker, check_name, find, names, register
from genius.search.types import Candidates, QueryBatch

__all__ = ["Reconstructions", "Reranker", "check_name", "codes", "embeddings", "find", "names", "none", "register", "top_k"]

NUMBERS = 1 << 22  # of candidate vectors held at a time: 16 MB


def embeddings(batch: QueryBatch, candidates: Candidates, collection: Collection) -> Tensor:
    """Inner products with stored vectors, in float32."""
    vectors = collection.vectors
    if vectors is None:
        raise GeniusError("this collection stores no embeddings: use reranker 'codes' or 'none'")
    return _products(batch.dense, candidates.rows, vectors.take)


def none(batch: QueryBatch, candidates: Candidates, collection: Collection) -> Tensor:
    """The plan's own scores."""
    return candidates.scores


def top_k(rows: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best candidates by score; equal scores keep their order.

    Args:
        rows: (Q, C), -1 for padding.
        scores: (Q, C); those of padding are ignored.
        k: How many.

    Returns:
        Rows (Q, k), -1 beyond the end, and their scores (Q, k), -inf there.
    """
    masked = scores.float().masked_fill(rows < 0, -torch.inf)
    best = masked.sort(dim=1, descending=True, stable=True)
    width = min(k, rows.shape[1])
    top_rows = torch.full((len(rows), k), -1, dtype=torch.long, device=rows.device)
    top_scores = torch.full((len(rows), k), -torch.inf, device=rows.device)
    top_rows[:, :width] = rows.gather(1, best.indices[:, :width])
    top_scores[:, :width] = best.values[:, :width]
    return top_rows, top_scores


def _products(queries: Tensor, rows: Tensor, take: Callable[[Tensor], Tensor]) -> Tensor:
    """queries (Q, D), rows (Q, C) -> (Q, C) inner products with what `take` gives for rows; padding counts as row 0."""
    count, width = rows.shape
    known = rows.clamp(min=0)
    if count == 1:
        return (take(known[0]) @ queries[0])[None]
    out = torch.empty(count, width, device=queries.device)
    at_once = max(1, NUMBERS // max(width * queries.shape[1], 1))
    for first in range(0, count, at_once):
        part = known[first : first + at_once]
        vectors = take(part.flatten()).view(*part.shape, queries.shape[1])
        out[first : first + at_once] = torch.bmm(vectors, queries[first : first + at_once, :, None])[:, :, 0]
    return out


class Reconstructions:
    """Unit vectors that IDs stand for: the sum of their codes, normalized. By codes (n, M) of any rows."""

    def __init__(self, quantizer: ResidualQuantizer, device: torch.device) -> None:
        codebooks = [codebook.detach().to(device, torch.float32) for codebook in quantizer.codebooks]
        self.table = torch.cat(codebooks)  # (sum of K, D): one table, so that a reconstruction is one bag of rows
        sizes = torch.tensor([len(codebook) for codebook in codebooks], device=device)
        self.starts = sizes.cumsum(0) - sizes
        config = quantizer.config
        own = [size * config.has_modality_codebooks(level) for level, size in enumerate(config.level_sizes)]
        self.steps = torch.tensor(own, device=device)  # rows between one modality's codebook and the next one's

    def __call__(self, codes: Tensor) -> Tensor:
        """codes (n, M) -> (n, D) unit vectors."""
        rows = codes + self.starts + codes[:, :1] * self.steps
        summed: Tensor = F.embedding_bag(rows, self.table, mode="sum")
        return F.normalize(summed, dim=1, eps=1e-12)


def codes(batch: QueryBatch, candidates: Candidates, collection: Collection) -> Tensor:
    """Cosine of queries and what the IDs of candidates stand for."""
    vectors = collection.reconstructed
    if vectors is None:
        raise GeniusError("re-ranking by codes needs the quantizer")
    return _products(batch.z, candidates.rows, vectors.take)


register("embeddings", embeddings)
register("codes", codes)
register("none", none)
