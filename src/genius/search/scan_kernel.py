"""The kernel of a scan on a GPU: looks product codes up, in Triton. Imported on CUDA only; see `TensorCells`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ITEMS = 256  # of a cell, looked up together
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _look_up(  # type: ignore[no-untyped-def]
    tables, words, items, cells, cell_scores, starts, sizes, ends, rows, allowed, out, probes, slots,
    SUBSPACES: tl.constexpr, WORDS: tl.constexpr, MASKED: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """One cell of one query: the sum of a number per code, by tables of 16 numbers that stay in the cache."""
    probe = tl.program_id(0)
    query = tl.program_id(1).to(tl.int64)
    at = query * probes + probe
    cell = tl.load(cells + at)
    size = tl.load(sizes + cell)
    start = tl.load(starts + cell)
    score = tl.load(cell_scores + at)
    to = query * slots + tl.load(ends + at) - size
    table = tables + query * (SUBSPACES * 16)
    for first in range(0, size, ITEMS):
        item = first + tl.arange(0, ITEMS)
        inside = item < size
        total = tl.zeros((ITEMS,), tl.float32) + score
        for word in tl.static_range(WORDS):
            bits = tl.load(words + word * items + start + item, mask=inside, other=0)
            for place in tl.static_range(8):
                if word * 8 + place < SUBSPACES:
                    code = (bits >> (4 * place)) & 15
                    total += tl.load(table + (word * 8 + place) * 16 + code)
        if MASKED:
            row = tl.load(rows + start + item, mask=inside, other=0)
            visible = tl.load(allowed + row, mask=inside, other=0)
            total = tl.where(visible != 0, total, float("-inf"))
        tl.store(out + to + item, total, mask=inside)


def look_up(
    tables: Tensor, index: Any, cells: Tensor, cell_scores: Tensor, ends: Tensor, allowed: Tensor | None, out: Tensor
) -> None:
    """Write the scores of all items of the probed cells into their slots.

    Args:
        tables: (Q, S, 16) what each code adds.
        index: `TensorCells`.
        cells: (Q, P) that are probed.
        cell_scores: (Q, P).
        ends: (Q, P) slots up to the end of each.
        allowed: (N,) bool over rows; None: all.
        out: (Q, slots), -inf where nothing is written.
    """
    queries, probes = cells.shape
    mask = index.rows
    if allowed is not None:
        mask = allowed.view(torch.uint8)
    _look_up[(probes, queries)](
        tables, index.words, index.words.shape[1], cells, cell_scores, index.starts, index.sizes, ends, index.rows, mask, out,
        probes, out.shape[1], tables.shape[1], len(index.words), allowed is not None, ITEMS, num_warps=WARPS,
    )  # fmt: skip
