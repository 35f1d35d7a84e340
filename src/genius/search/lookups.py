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

Found = tuple[NDArray[Any], NDArray[np.float32]]  # positions (whole numbers of 4 or 8 bytes), scores
EVERYONE = np.empty(0, np.bool_)

BINS = 2048
MANY = 4096  # scores from which counting them pays
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
    # half the bytes where they do: room that is taken anew for every scan is cleared by the system first
    positions = np.empty(scan.items, np.int32 if cells.trie.items < 1 << 31 else np.int64)
    scores = np.empty(scan.items, np.float32)
    starts = tuple(scan.starts.tolist())  # not an array: as many levels as there are, known when it is compiled
    count = kernel(
        scan.lo, scan.hi, scan.shared, cells.last_codes, cells.last_child, scan.node_start, cells.tails, starts, scan.table,
        cells.inverse, np.float32(STEP), cells.order, cells.item_start,
        EVERYONE if allowed is None else allowed, positions, scores,
    )  # fmt: skip
    return positions[:count], scores[:count]


def least_of_best(scores: NDArray[np.float32], wanted: int) -> np.float32:
    """The `wanted`-th largest score."""
    if _scans > WARM and compiled_least() is not None and len(scores) > MANY:
        return np.float32(compiled_least()(scores, wanted))  # type: ignore[misc]
    return np.float32(np.partition(scores, len(scores) - wanted)[len(scores) - wanted])


@cache
def compiled_least() -> Callable[..., float] | None:
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    return numba.njit(cache=True, nogil=True)(_least)  # type: ignore[no-any-return]


def _least(scores: Any, wanted: int) -> Any:
    """Scores are counted in bins; only the bin that holds the wanted one is sorted."""
    low = high = scores[0]
    for i in range(len(scores)):
        low, high = min(low, scores[i]), max(high, scores[i])
    if not high > low:
        return low
    bins = np.zeros(BINS, np.int64)
    scale = np.float32(BINS - 1) / (high - low)
    for i in range(len(scores)):
        bins[np.int64((scores[i] - low) * scale)] += 1
    at, above = BINS - 1, 0
    while above + bins[at] < wanted:
        above += bins[at]
        at -= 1
    own, count = np.empty(bins[at], np.float32), 0
    for i in range(len(scores)):
        if np.int64((scores[i] - low) * scale) == at:
            own[count] = scores[i]
            count += 1
    own.sort()
    return own[count - (wanted - above)]


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
