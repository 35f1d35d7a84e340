"""Exhaustive top k by inner product, in memory. The one place for it; the judge of an evaluation, which takes its pool block by
block and settles equal scores in double precision, is `genius.evaluate.methods.vectors`."""

from __future__ import annotations

import torch
from torch import Tensor

PRODUCTS = 2**28  # held at a time: a gigabyte


def nearest_scored(queries: Tensor, pool: Tensor, k: int, chunk: int = 2048) -> tuple[Tensor, Tensor]:
    """(Q, k) scores and rows of the pool, best first; fewer columns where the pool is smaller than k."""
    k = min(k, pool.shape[0])
    chunk = max(1, min(chunk, PRODUCTS // max(pool.shape[0], 1)))
    found = [(part @ pool.T).topk(k, dim=1) for part in queries.split(chunk)]
    return torch.cat([best.values for best in found]), torch.cat([best.indices for best in found])


def nearest_rows(queries: Tensor, pool: Tensor, k: int, chunk: int = 2048) -> Tensor:
    """(Q, k) rows of the pool, best first."""
    return nearest_scored(queries, pool, k, chunk)[1]
