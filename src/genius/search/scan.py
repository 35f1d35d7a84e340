"""The code scan: one decoder row, the cells it likes best, and table look-ups over the codes of everything in them.

A trie is cut into cells: what shares its first two codes, the kind and the first code that says something. The decoder's first
row says how likely every cell is. Cells are taken, likeliest first, until they hold the budget of items. The items in them are
then compared with the query by their codes alone: the cosine of a reconstruction is a sum of numbers looked up in one small
table a query, divided by a length that is known beforehand. Sums are compiled by numba where it is installed, else numpy; both
add in the same order, so both give the same numbers to the last bit. Compiling, or loading what was compiled, takes longer than
a few searches by numpy: a process begins with numpy and changes over when it has searched some more.

Deleted items and items that a filter keeps out are passed over while scanning, so no filter costs a count of the whole
collection. Knows cells, codebooks and the decoder's first row; what becomes of the best is `genius.search.quick`'s business. For
a CPU; `genius.search.batch_scan` is its twin for many questions at once on a GPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.model.quantizer import ResidualQuantizer
from genius.search.decoder import Writer
from genius.search.rerank import Reconstructions
from genius.search.trie import CodeTrie

NORMS_AT_ONCE = 65_536
STEP = 2.0**-12  # in which one over a length is held: 0.02 % of a unit vector's; reconstructions shorter than 1/16 count as that
Found = tuple[NDArray[Any], NDArray[np.float32]]  # positions (whole numbers of 4 or 8 bytes), scores
EVERYONE = np.empty(0, np.bool_)

BINS = 2048
MANY = 4096  # scores from which counting them pays
WARM = 50  # scans by numpy before a process pays for the compiled one
_scans = 0

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Tables = Sequence[Floats | None]

NOWHERE, NOTHING = np.empty(0, np.int64), np.empty(0, np.float32)


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
    # a trie that spells out every level has no tails, and numba cannot index an empty tuple of where they start
    kernel = compiled() if _scans > WARM and len(scan.starts) else None
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


class CodeScan:
    """Cells of several tries that are searched as one."""

    def __init__(self, quantizer: ResidualQuantizer, tries: Sequence[CodeTrie], known: Sequence[Cells] = ()) -> None:
        """`known`: cells of tries that may be among these."""
        device = torch.device("cpu")
        config = quantizer.config
        self.sizes, self.kinds = config.level_sizes, config.level_sizes[0]
        self.lengths = Reconstructions(quantizer, device)
        ready = {id(cells.trie): cells for cells in known}
        self.cells = [ready[id(trie)] if id(trie) in ready else Cells(trie, self.lengths) for trie in tries]
        self.firsts = np.cumsum([0, *(trie.items for trie in tries)])[:-1].tolist()
        self.counts: Ints = np.sum([cells.items for cells in self.cells], axis=0)  # (cells,) items in each, allowed or not
        self.means = quantizer.codebook(0).detach().float()
        written = range(1, config.levels)
        self.starts = np.cumsum([0, *self.sizes[1:]])[:-1].astype(np.int64)  # of every level after the first, in a table
        own = config.own_books_from > 0
        books = [torch.cat([quantizer.book_of(level, kind) for level in written]) for kind in range(self.kinds if own else 1)]
        self.books = [book.detach().float().contiguous() for book in books]

    @staticmethod
    def suits(quantizer: ResidualQuantizer | None, tries: Sequence[CodeTrie]) -> bool:
        """Whether cells can be cut: the first code is the kind, and the first two levels are spelt out."""
        return quantizer is not None and quantizer.config.labelled and all(trie.top >= 2 for trie in tries)

    @property
    def nbytes(self) -> int:
        return sum(cells.nbytes for cells in self.cells)

    def liked(self, writer: Writer, z: Tensor, target: int) -> Floats:
        """(Q, kinds * K) log p of every cell, in one pass of the decoder; -inf for cells of another kind than `target`."""
        queries, size = len(z), self.sizes[1]
        kinds = torch.arange(self.kinds) if target < 0 else torch.tensor([target])
        codes = kinds.expand(queries, -1)[:, :, None].contiguous()
        before = writer.start(z)
        out, memory = writer.run(codes, before)
        score = writer.log_p(1, out[:, :, 1], memory, codes).view(queries, len(kinds), size)
        if target < 0:
            kind = writer.log_p(0, out[:, :1, 0], before, codes[:, :1, :0])
            return (score + kind[:, :, None]).flatten(1).numpy()
        whole = np.full((queries, self.kinds * size), -np.inf, np.float32)
        whole[:, target * size : (target + 1) * size] = score[:, 0].numpy()
        return whole

    def tables(self, z: Tensor, target: int) -> list[Floats | None]:
        """Per kind (Q, sum of K): dots of the queries with all codes of the later levels. None: a kind that is not asked for."""
        if len(self.books) == 1:
            table: Floats = (z @ self.books[0].T).numpy()
            return [table] * self.kinds
        return [(z @ book.T).numpy() if target in (-1, kind) else None for kind, book in enumerate(self.books)]

    def scan(self, liked: Floats, tables: Tables, middles: Floats, budget: int, allowed: Mask | None) -> Found:
        """Places of the items in the likeliest cells of one query, and their cosines by codes; about `budget` are looked at.

        liked (cells,), tables: per kind (sum of K,), middles (kinds,) dots with what the kinds take off."""
        chosen = self._choose(liked, budget)
        kinds = chosen // self.sizes[1]
        parts = []
        for kind in sorted(set(kinds.tolist())):
            own, table = chosen[kinds == kind], tables[kind]
            assert table is not None
            shared = middles[kind] + table[own % self.sizes[1]]
            for first, cells in zip(self.firsts, self.cells, strict=True):
                positions, scores = look_up(self._stretches(cells, own, shared, table), allowed)
                parts.append((positions + np.int64(first) if first else positions, scores))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([NOWHERE, *(part[0] for part in parts)]), np.concatenate([NOTHING, *(part[1] for part in parts)])

    def rows_at(self, places: Ints) -> Ints:
        """Item rows at places, which are sorted positions in the first trie, then the next one's."""
        out = np.empty(len(places), np.int64)
        for own, cells, positions in self._by_trie(places):
            out[own] = cells.order[positions]
        return out

    def codes_at(self, places: Ints) -> Ints:
        """(n, M) codes of the items at places."""
        out = np.empty((len(places), len(self.sizes)), np.int64)
        for own, cells, positions in self._by_trie(places):
            out[own] = cells.trie.codes_at(positions)
        return out

    def _by_trie(self, places: Ints) -> Iterator[tuple[Any, Cells, Ints]]:
        if len(self.cells) == 1:
            yield slice(None), self.cells[0], places
            return
        for first, cells in zip(self.firsts, self.cells, strict=True):
            own = (places >= first) & (places < first + cells.trie.items)
            yield own, cells, places[own] - first

    @property
    def doubt(self) -> float:
        """By how much the cosine of a unit query may be wrong, since lengths are held in steps."""
        return STEP * max(cells.longest for cells in self.cells)

    def _stretches(self, cells: Cells, own: Ints, shared: Floats, table: Floats) -> Stretches:
        trie = cells.trie
        lo, hi = cells.lo[own], cells.hi[own]
        for level in range(2, trie.top - 1):  # seldom: nodes between the cells and the last level that is spelt out
            nodes = members(lo, hi)
            shared = np.repeat(shared, hi - lo) + table[self.starts[level - 1] :][trie.node_codes[level][nodes]]
            lo, hi = (np.asarray(trie.node_child[level][at], np.int64) for at in (nodes, nodes + 1))
        below = self.starts[trie.top - 1 :]
        return Stretches(cells, lo, hi, shared, int(cells.items[own].sum()), table, int(self.starts[trie.top - 2]), below)

    def _choose(self, liked: Floats, budget: int) -> Ints:
        """Cells, likeliest first, until they hold the budget."""
        exist = np.flatnonzero((liked > -np.inf) & (self.counts > 0))
        best = exist[np.argsort(-liked[exist], kind="stable")]
        held = np.cumsum(self.counts[best])
        return best[: int(np.searchsorted(held, budget)) + 1]
