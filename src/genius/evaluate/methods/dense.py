"""Exhaustive search over vectors: the honest ceiling, by Faiss where it is installed, else by torch.

Both give the same answer: each proposes a few more than k, the proposals are scored again in double precision, and
equal scores are ordered by row. Blocks of the pool are made when they are needed, so memory does not grow with N.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from genius.errors import GeniusError

Backend = Literal["auto", "faiss", "torch"]
Block = Callable[[int, int], Tensor]
"""block(start, stop) -> (stop - start, D) float32 rows of the pool."""

SPARE = 32  # proposals beyond k: what rounding may have pushed over the edge


def pick_backend(backend: Backend, device: torch.device) -> Literal["faiss", "torch"]:
    if backend == "faiss":
        if importlib.util.find_spec("faiss") is None:
            raise GeniusError("Faiss is not installed: pip install 'genius-search[eval]', or use torch")
        return "faiss"
    if backend == "auto" and device.type == "cpu" and importlib.util.find_spec("faiss") is not None:
        return "faiss"
    return "torch"


def exhaustive(
    queries: Tensor,
    block: Block,
    size: int,
    k: int,
    *,
    backend: Backend = "auto",
    block_rows: int = 65_536,
    query_rows: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Inner products of queries (Q, D) with `size` pool rows: (Q, k) rows and scores, best first, -1 where N < k."""
    n, device = queries.shape[0], queries.device
    spare = min(k + SPARE, size)
    best_scores = torch.full((n, spare), -torch.inf, device=device)
    best_rows = torch.full((n, spare), -1, dtype=torch.long, device=device)
    search = _faiss_block if pick_backend(backend, device) == "faiss" else _torch_block
    for start in range(0, size, block_rows):
        vectors = block(start, min(start + block_rows, size)).to(device, torch.float32)
        for q in range(0, n, query_rows):
            scores, rows = search(queries[q : q + query_rows], vectors, min(spare, vectors.shape[0]))
            joined = torch.cat([best_scores[q : q + query_rows], scores], 1)
            ids = torch.cat([best_rows[q : q + query_rows], rows + start], 1)
            top = joined.topk(spare, dim=1)
            best_scores[q : q + query_rows], best_rows[q : q + query_rows] = top.values, ids.gather(1, top.indices)
    return _settle(queries, block, best_rows, k, block_rows)


def _faiss_block(queries: Tensor, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
    import faiss

    scores, rows = faiss.knn(queries.numpy(), vectors.numpy(), k, metric=faiss.METRIC_INNER_PRODUCT)
    return torch.from_numpy(scores), torch.from_numpy(rows)


def _torch_block(queries: Tensor, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
    top = (queries @ vectors.T).topk(k, dim=1)
    return top.values, top.indices


def _settle(queries: Tensor, block: Block, rows: Tensor, k: int, block_rows: int) -> tuple[Tensor, Tensor]:
    """Score the proposals again in double precision; order by score, then by row."""
    rows = rows.sort(1).values  # by row, so that the stable sort below keeps that order among equal scores
    scores = torch.full(rows.shape, -torch.inf, dtype=torch.float64, device=rows.device)
    last = int(rows.max()) if rows.numel() else -1
    for start in range(0, last + 1, block_rows):
        stop = min(start + block_rows, last + 1)
        inside = (rows >= start) & (rows < stop)
        owner, place = inside.nonzero(as_tuple=True)
        if len(owner) == 0:
            continue
        vectors = block(start, stop).to(queries.device, torch.float32)
        for part in torch.arange(len(owner), device=rows.device).split(8192):
            q, p = owner[part], place[part]
            products = (queries[q].double() * vectors[rows[q, p] - start].double()).sum(1)
            scores[q, p] = products
    order = scores.sort(dim=1, descending=True, stable=True)
    picked = rows.gather(1, order.indices)[:, :k]
    values = order.values[:, :k]
    if picked.shape[1] < k:
        picked = torch.nn.functional.pad(picked, (0, k - picked.shape[1]), value=-1)
        values = torch.nn.functional.pad(values, (0, k - values.shape[1]), value=-torch.inf)
    return picked, values.float()
