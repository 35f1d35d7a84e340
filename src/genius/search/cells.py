"""A trie cut into cells: what shares its first two codes, the kind and the first code that says something.

Knows where each cell's items are, and how long every reconstruction is. Nothing of queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.search.rerank import Reconstructions
from genius.search.trie import CodeTrie

NORMS_AT_ONCE = 65_536
STEP = 2.0**-12  # in which one over a length is held: 0.02 % of a unit vector's; reconstructions shorter than 1/16 count as that


class Cells:
    """One trie, cut into cells, ready to be scanned."""

    def __init__(self, trie: CodeTrie, lengths: Reconstructions) -> None:
        self.trie, kinds, size = trie, trie.level_sizes[0], trie.level_sizes[1]
        self.lo, self.hi = np.zeros(kinds * size, np.int64), np.zeros(kinds * size, np.int64)
        self.items = np.zeros(kinds * size, np.int64)
        first = np.asarray(trie.node_child[0], np.int64)
        owner = np.repeat(np.asarray(trie.node_codes[0], np.int64), np.diff(first))
        cell = owner * size + np.asarray(trie.node_codes[1], np.int64)
        below = np.asarray(trie.node_child[1], np.int64)
        self.lo[cell], self.hi[cell] = below[:-1], below[1:]
        start, end = trie.item_range(2, below[:-1], below[1:])
        self.items[cell] = np.asarray(end, np.int64) - np.asarray(start, np.int64)
        self.tails, self.order, last = plain(trie.tails), plain(trie.order), trie.top - 1
        self.item_start = plain(np.empty(0, trie.order.dtype) if trie.item_start is None else trie.item_start)
        # the nodes between cells and IDs; none where a cell's nodes are IDs
        self.last_codes = plain(trie.node_codes[last] if last > 1 else np.empty(0, np.uint16))
        self.last_child = plain(trie.node_child[last] if last > 1 else np.empty(0, np.int32))
        self.inverse, self.longest = _inverse_lengths(trie, lengths)

    @property
    def nbytes(self) -> int:
        """What this holds beside the trie."""
        return int(self.inverse.nbytes + self.lo.nbytes + self.hi.nbytes + self.items.nbytes)


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as an ordinary read-only array: what runs over it is compiled for one kind only."""
    same = np.asarray(array).view(np.ndarray)
    same.flags.writeable = False
    return same


def _inverse_lengths(trie: CodeTrie, lengths: Reconstructions) -> tuple[NDArray[np.uint16], float]:
    """One over the length of every ID's reconstruction in steps of STEP, the same for the same codes in any trie; the longest."""
    inverse, longest = np.empty(trie.ids, np.uint16), 0.0
    for i in range(0, trie.ids, NORMS_AT_ONCE):
        ids = np.arange(i, min(i + NORMS_AT_ONCE, trie.ids))
        positions = ids if trie.item_start is None else np.asarray(trie.item_start[ids], np.int64)
        exact = lengths.lengths(torch.from_numpy(trie.codes_at(positions))).numpy()
        inverse[ids] = np.minimum(np.round(1 / (exact * STEP)), 65_535)
        longest = max(longest, float(exact.max()))
    return inverse, longest


def members(lo: NDArray[np.int64], hi: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every number of every stretch, stretch after stretch."""
    counts = hi - lo
    ends = np.cumsum(counts)
    inside: NDArray[np.int64] = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(lo - (ends - counts), counts)
    return inside
