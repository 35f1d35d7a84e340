"""Sums of looked-up numbers over stretches of codes: compiled by numba where it is installed, else numpy.

Both add in the same order, so both give the same numbers to the last bit. Compiling, or loading what was compiled, takes longer
than a few searches by numpy: a process begins with numpy and changes over when it has searched some more.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.search.cells import STEP, Cells, members

Found = tuple[NDArray[np.int64], NDArray[np.float32]]
EVERYONE = np.empty(0, np.bool_)

WARM = 50  # scans by numpy before a process pays for the compiled one
_scans = 0


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of the last level that a trie spells out (of IDs, where that is the cells' own), and what a query looks up."""

    cells: Cells
    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    shared: NDArray[np.float32]  # dots of the query with the codes that all in a stretch share
    items: int  # in all of them
    table: NDArray[np.float32]  # (sum of K,) dots of the query with every code
    node_start: int  # where the nodes' level begins in the table
    starts: NDArray[np.int64]  # where the tails' levels do


def look_up(scan: Stretches, allowed: NDArray[np.bool_] | None) -> Found:
    """Sorted positions and cosines of the allowed items in some stretches of a trie."""
    global _scans
    _scans += 1
    kernel = compiled() if _scans > WARM else None
    return by_numpy(scan, allowed) if kernel is None else by_numba(kernel, scan, allowed)


def by_numpy(scan: Stretches, allowed: NDArray[np.bool_] | None) -> Found:
    cells, lo, hi, shared = scan.cells, scan.lo, scan.hi, scan.shared
    if len(cells.last_codes):
        nodes = members(lo, hi)
        shared = np.repeat(shared, hi - lo) + scan.table[scan.node_start :][cells.last_codes[nodes]]
        lo, hi = cells.last_child[nodes].astype(np.int64), cells.last_child[nodes + 1].astype(np.int64)
    ids = members(lo, hi)
    scores = np.repeat(shared, hi - lo)
    tails = cells.tails[ids]
    for level, start in enumerate(scan.starts.tolist()):
        scores += scan.table[start:][tails[:, level]]
    scores *= cells.inverse[ids] * np.float32(STEP)
    positions = ids
    if len(cells.item_start):
        first, last = cells.item_start[ids].astype(np.int64), cells.item_start[ids + 1].astype(np.int64)
        positions, scores = members(first, last), np.repeat(scores, last - first)
    if allowed is None:
        return positions, scores
    keep = allowed[cells.order[positions]]
    return positions[keep], scores[keep]


def by_numba(kernel: Callable[..., int], scan: Stretches, allowed: NDArray[np.bool_] | None) -> Found:
    cells = scan.cells
    positions, scores = np.empty(scan.items, np.int64), np.empty(scan.items, np.float32)
    count = kernel(
        scan.lo, scan.hi, scan.shared, cells.last_codes, cells.last_child, scan.node_start, cells.tails, scan.starts, scan.table,
        cells.inverse, np.float32(STEP), cells.order, cells.item_start,
        EVERYONE if allowed is None else allowed, positions, scores,
    )  # fmt: skip
    return positions[:count], scores[:count]


@cache
def compiled() -> Callable[..., int] | None:
    """The compiled loop; None without numba."""
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    return numba.njit(cache=True, nogil=True)(_loop)  # type: ignore[no-any-return]


def _loop(
    lo: Any, hi: Any, shared: Any, node_codes: Any, node_child: Any, node_start: Any, tails: Any, starts: Any, table: Any,
    inverse: Any, step: Any, order: Any, item_start: Any, allowed: Any, positions: Any, scores: Any,
) -> int:  # fmt: skip
    """Over every ID of every stretch. No `node_codes`: the stretches are of IDs; no `item_start`: one item an ID; no `allowed`:
    all are."""
    count, levels = 0, len(starts)
    nodes, several, masked = len(node_codes) > 0, len(item_start) > 0, len(allowed) > 0
    for r in range(len(lo)):
        for n in range(lo[r], hi[r] if nodes else lo[r] + 1):
            base, first_id, end_id = shared[r], lo[r], hi[r]
            if nodes:
                base += table[node_start + node_codes[n]]
                first_id, end_id = np.int64(node_child[n]), np.int64(node_child[n + 1])
            for i in range(first_id, end_id):
                score = base
                for level in range(levels):
                    score += table[starts[level] + tails[i, level]]
                score *= np.float32(inverse[i]) * step
                first, last = np.int64(i), np.int64(i + 1)
                if several:
                    first, last = np.int64(item_start[i]), np.int64(item_start[i + 1])
                for position in range(first, last):
                    if not masked or allowed[order[position]]:
                        positions[count] = position
                        scores[count] = score
                        count += 1
    return count
