"""Kernels of an exact search on a GPU, in Triton: no product is written but the largest of every group. Imported on CUDA only.

The members of the k groups with the best maxima hold the k best vectors, and are compared once more. Knows tensors of halves.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from genius.top_k import device_top_k

GROUP = 32  # vectors whose best product stands for them
DEPTH = 64  # numbers of vectors that are multiplied at a time: it divides their width
FEW = 16  # queries that are compared as memory allows
OF_FEW = {"QUERIES": 16, "VECTORS": 128, "num_warps": 4, "num_stages": 4}
OF_MANY = {"QUERIES": 128, "VECTORS": 128, "num_warps": 8, "num_stages": 3}


@triton.jit  # type: ignore[untyped-decorator]
def _maxima(  # type: ignore[no-untyped-def]
    queries, vectors, visible, out, query_count, items, groups,
    WIDTH: tl.constexpr, MASKED: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
    QUERIES: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """The largest product of each query with the visible members of each group; -inf: there is none."""
    blocks_of_queries = tl.cdiv(query_count, QUERIES)
    program = tl.program_id(0)
    query = (program % blocks_of_queries) * QUERIES + tl.arange(0, QUERIES)
    block = (program // blocks_of_queries).to(tl.int64)
    item = block * VECTORS + tl.arange(0, VECTORS)
    exists = item < items
    products = tl.zeros((QUERIES, VECTORS), tl.float32)
    for first in range(0, WIDTH, DEPTH):
        at = first + tl.arange(0, DEPTH)
        left = tl.load(queries + query[:, None] * WIDTH + at[None, :], mask=query[:, None] < query_count, other=0.0)
        right = tl.load(vectors + item[None, :] * WIDTH + at[:, None], mask=exists[None, :], other=0.0)
        products = tl.dot(left, right, products)
    if MASKED:
        exists = exists & (tl.load(visible + item, mask=exists, other=0) != 0)
    products = tl.where(exists[None, :], products, float("-inf"))
    best = tl.max(tl.reshape(products, (QUERIES, VECTORS // GROUP, GROUP)), 2)
    group = block * (VECTORS // GROUP) + tl.arange(0, VECTORS // GROUP)
    to = out + query[:, None].to(tl.int64) * groups + group[None, :]
    tl.store(to, best, mask=(query[:, None] < query_count) & (group[None, :] < groups))


@triton.jit  # type: ignore[untyped-decorator]
def _members(  # type: ignore[no-untyped-def]
    queries, vectors, visible, chosen, out, items, count,
    WIDTH: tl.constexpr, MASKED: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The products of one query with the members of one of its groups, in float32; -inf: not visible, or no member."""
    place = tl.program_id(0)
    query = tl.program_id(1).to(tl.int64)
    item = tl.load(chosen + query * count + place) * GROUP + tl.arange(0, GROUP)
    exists = item < items
    products = tl.zeros((GROUP,), tl.float32)
    for first in range(0, WIDTH, DEPTH):
        at = first + tl.arange(0, DEPTH)
        of_item = tl.load(vectors + item[:, None] * WIDTH + at[None, :], mask=exists[:, None], other=0.0)
        products += tl.sum(of_item.to(tl.float32) * tl.load(queries + query * WIDTH + at)[None, :], 1)
    if MASKED:
        exists = exists & (tl.load(visible + item, mask=exists, other=0) != 0)
    products = tl.where(exists, products, float("-inf"))
    tl.store(out + (query * count + place) * GROUP + tl.arange(0, GROUP), products)


def suited(vectors: Tensor) -> bool:
    """Whether the kernels compare these vectors (N, D)."""
    return vectors.is_cuda and vectors.dtype == torch.float16 and vectors.shape[1] % DEPTH == 0


def nearest(queries: Tensor, vectors: Tensor, k: int, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """The vectors with the largest inner products: these (Q, min(k, N)), best first, and rows; -inf where none is visible.

    Args:
        queries: (Q, D) float32.
        vectors: (N, D) halves that are `suited`.
        k: How many.
        visible: (N,) bool; None: all.
    """
    query_count, width = queries.shape
    items = len(vectors)
    groups = -(-items // GROUP)
    mask = queries
    if visible is not None:
        mask = visible.view(torch.uint8)
    options: dict[str, Any] = OF_FEW if query_count <= FEW else OF_MANY
    maxima = torch.empty(query_count, groups, device=queries.device)
    blocks = -(-query_count // options["QUERIES"]) * -(-items // options["VECTORS"])  # one axis: the others hold 65,535
    _maxima[(blocks,)](
        queries.half(), vectors, mask, maxima, query_count, items, groups, width, visible is not None, GROUP, DEPTH, **options
    )
    chosen = device_top_k(maxima, k)[1].sort(dim=1).values
    count = chosen.shape[1]
    products = torch.empty(query_count, count * GROUP, device=queries.device)
    _members[(count, query_count)](
        queries, vectors, mask, chosen, products, items, count, width, visible is not None, GROUP, DEPTH
    )
    scores, places = device_top_k(products, min(k, items))
    return scores, GROUP * chosen.gather(1, places // GROUP) + places % GROUP
