"""The code scan: one decoder row, the pairs of codes it leads to, and table look-ups over the codes of everything below them.

A trie is cut into cells: what shares its first two codes, the kind and the first code that says something. The decoder's first
row says how likely every cell is. In the likeliest cells, which hold several times the budget of items, pairs of codes are ranked
by the cosine of the query and what the codes so far stand for, and taken, nearest first, until they hold the budget. The items
below them are then compared with the query by all of their codes: the cosine of a reconstruction is a sum of numbers looked up in
one small table a query, divided by a length that is known beforehand.

Deleted items and items that a filter keeps out are passed over while scanning, so no filter costs a count of the whole
collection. Knows cells, codebooks and the decoder's first row; what becomes of the best is `genius.search.quick`'s business. For
a CPU; `genius.search.batch_scan` is the same for many questions at once on a GPU, with whole cells in place of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.model.quantizer import ResidualQuantizer
from genius.search.decoder import Writer
from genius.search.lookups import NO_NODES, STEP, Floats, Found, Ints, Mask, Stretches, look_up, members, plain, warmer
from genius.search.rerank import Reconstructions
from genius.search.trie import CodeTrie

NORMS_AT_ONCE = 65_536
WIDE = 4  # times the budget that the cells hold whose pairs are ranked; and they hold a pair for so many codes of it

Tables = Sequence[Floats | None]


class Cells:
    """One trie, cut into cells and their pairs, ready to be scanned. Where a trie spells no pairs out, IDs stand for them."""

    def __init__(self, trie: CodeTrie, lengths: Reconstructions) -> None:
        self.trie, kinds, size = trie, trie.level_sizes[0], trie.level_sizes[1]
        self.lo, self.hi = np.zeros(kinds * size, np.int64), np.zeros(kinds * size, np.int64)  # pairs of each cell
        self.items = np.zeros(kinds * size, np.int64)
        first = np.asarray(trie.node_child[0], np.int64)
        owner = np.repeat(np.asarray(trie.node_codes[0], np.int64), np.diff(first))
        cell = owner * size + np.asarray(trie.node_codes[1], np.int64)
        below = np.asarray(trie.node_child[1], np.int64)
        self.lo[cell], self.hi[cell] = below[:-1], below[1:]
        start, end = trie.item_range(2, below[:-1], below[1:])
        self.items[cell] = np.asarray(end, np.int64) - np.asarray(start, np.int64)
        self.tails, self.order, paired = plain(trie.tails), plain(trie.order), trie.top > 2
        self.node_codes, self.node_child = ([plain(level) for level in levels] for levels in (trie.node_codes, trie.node_child))
        self.item_start = plain(np.empty(0, trie.order.dtype) if trie.item_start is None else trie.item_start)
        ids = np.arange(trie.ids) if trie.item_start is None else np.asarray(trie.item_start[:-1])
        self.inverse, self.longest = _inverse_lengths(trie, ids, trie.levels, lengths)
        # of every pair: its second code, first of a row, its first item, and one over the length of what it stands for
        self.seconds = self.node_codes[2][:, None] if paired else self.tails
        self.pair_start = plain(trie.item_range(2, np.arange(below[-1] + 1), 0)[0]) if paired else self.item_start
        self.pair_inverse, _ = _inverse_lengths(trie, self.pair_start[:-1] if paired else ids, 3, lengths)

    @property
    def nbytes(self) -> int:
        """What this holds beside the trie."""
        firsts = 0 if self.pair_start is self.item_start else self.pair_start.nbytes
        held = (self.inverse, self.pair_inverse, self.lo, self.hi, self.items)
        return sum(array.nbytes for array in held) + firsts

    def places_of(self, ids: NDArray[Any]) -> Ints:
        """Sorted positions of all items that have these IDs."""
        if not len(self.item_start):
            return ids.astype(np.int64)
        return members(self.item_start[ids].astype(np.int64), self.item_start[ids + 1].astype(np.int64))


def _inverse_lengths(
    trie: CodeTrie, positions: NDArray[Any], levels: int, lengths: Reconstructions
) -> tuple[NDArray[np.uint16], float]:
    """One over the length of what the first codes of some items stand for, in steps of STEP, the same for the same codes in any
    trie; the longest."""
    inverse, longest = np.empty(len(positions), np.uint16), 0.0
    for i in range(0, len(positions), NORMS_AT_ONCE):
        here = slice(i, i + NORMS_AT_ONCE)
        codes = trie.codes_at(np.asarray(positions[here], np.int64))[:, :levels]
        exact = lengths.lengths(torch.from_numpy(codes)).numpy()
        inverse[here] = np.minimum(np.round(1 / (exact * STEP)), 65_535)
        longest = max(longest, float(exact.max()))
    return inverse, longest


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
        self.firsts = np.cumsum([0, *(trie.ids for trie in tries)])[:-1].tolist()  # an ID's place: those of the tries before, too
        self.counts: Ints = np.sum([cells.items for cells in self.cells], axis=0)  # (cells,) items in each, allowed or not
        self.pairs: Ints = np.sum([cells.hi - cells.lo for cells in self.cells], axis=0)
        self.means = quantizer.codebook(0).detach().float()
        written = range(1, config.levels)
        # of every level after the first, in a table
        self.starts = tuple(np.uint64(start) for start in np.cumsum([0, *self.sizes[1:]])[:-1])
        own = config.own_books_from > 0
        books = [torch.cat([quantizer.book_of(level, kind) for level in written]) for kind in range(self.kinds if own else 1)]
        self.books = [book.detach().float().contiguous() for book in books]

    @staticmethod
    def suits(quantizer: ResidualQuantizer | None, tries: Sequence[CodeTrie]) -> bool:
        """Whether pairs can be cut: the first code is the kind, two more follow, and the first two levels are spelt out."""
        labelled = quantizer is not None and quantizer.config.labelled and quantizer.config.levels > 2
        return labelled and all(trie.top >= 2 for trie in tries)

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
        """Places and cosines by codes of the IDs below the best pairs of one query; about `budget` items are looked at.

        liked (cells,), tables: per kind (sum of K,), middles (kinds,) dots with what the kinds take off."""
        warmer()
        wide = self._widest(liked, budget)
        kinds = wide // self.sizes[1]
        pairs: list[tuple[int, Cells, Floats, Floats, Found]] = []
        for kind in sorted(set(kinds.tolist())):
            own, table = wide[kinds == kind], tables[kind]
            assert table is not None
            shared = middles[kind] + table[own % self.sizes[1]]
            for first, cells in zip(self.firsts, self.cells, strict=True):
                lo, hi = cells.lo[own], cells.hi[own]
                if (room := int((hi - lo).sum())) > 0:
                    start, inverse = cells.pair_start, cells.pair_inverse
                    ranked = Stretches(lo, hi, shared, cells.seconds, self.starts[1:2], table, start, inverse, room, *NO_NODES)
                    pairs.append((first, cells, table, np.repeat(shared, hi - lo), look_up(ranked, cells.order, None)))
        if not pairs:
            return Found(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int32))
        least = Found.joined([found for *_, found in pairs]).least_of_best(budget)
        parts = []
        for first, cells, table, shared, found in pairs:
            near = np.flatnonzero(found.scores >= least)
            below = self._below(cells, found.ids[near].astype(np.int64), shared[near], table, int(found.items[near].sum()))
            part = look_up(below, cells.order, allowed)
            parts.append(Found(part.ids + np.int64(first), part.scores, part.items) if first else part)
        return Found.joined(parts)

    def rows_of(self, places: NDArray[Any], allowed: Mask | None = None) -> Ints:
        """Rows of the allowed items of IDs that are given by their places: those of the first trie, then the next one's."""
        rows = [cells.order[cells.places_of(ids)].astype(np.int64) for cells, ids in self._by_trie(places)]
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return joined if allowed is None else joined[allowed[joined]]

    def codes_of(self, places: NDArray[Any], allowed: Mask | None = None) -> tuple[Ints, Ints]:
        """The same rows in ascending order, and (n, M) codes."""
        parts = [(cells, cells.places_of(ids)) for cells, ids in self._by_trie(places)]
        rows = np.concatenate([cells.order[positions].astype(np.int64) for cells, positions in parts])
        codes = np.concatenate([cells.trie.codes_at(positions) for cells, positions in parts])
        by = np.argsort(rows)
        by = by if allowed is None else by[allowed[rows[by]]]
        return rows[by], codes[by]

    def _by_trie(self, places: NDArray[Any]) -> Iterator[tuple[Cells, NDArray[Any]]]:
        if len(self.cells) == 1:
            yield self.cells[0], places
            return
        for first, cells in zip(self.firsts, self.cells, strict=True):
            yield cells, places[(places >= first) & (places < first + cells.trie.ids)] - first

    @property
    def doubt(self) -> float:
        """By how much the cosine of a unit query may be wrong, since lengths are held in steps."""
        return STEP * max(cells.longest for cells in self.cells)

    def _below(self, cells: Cells, pairs: Ints, shared: Floats, table: Floats, items: int) -> Stretches:
        """What is below some pairs of a trie; `shared`: dots with the codes of their cells; `items`: how many there are."""
        top, lo, hi = cells.trie.top, pairs, pairs + 1
        for level in range(2, top - 1):  # nodes above the last level that is spelt out
            nodes = lo if level == 2 else members(lo, hi)
            shared = shared if level == 2 else np.repeat(shared, hi - lo)
            shared = shared + table[int(self.starts[level - 1]) :][cells.node_codes[level][nodes]]
            lo, hi = (cells.node_child[level][at].astype(np.int64) for at in (nodes, nodes + 1))
        last = (cells.node_codes[-1], cells.node_child[-1], self.starts[top - 2]) if top > 2 else NO_NODES
        tails = cells.tails, self.starts[top - 1 :]
        return Stretches(lo, hi, shared, *tails, table, cells.item_start, cells.inverse, items, *last)

    def _widest(self, liked: Floats, budget: int) -> Ints:
        """Cells, likeliest first, until they hold WIDE times the budget and a pair for WIDE codes of it; in their own order."""
        exist = np.flatnonzero((liked > -np.inf) & (self.counts > 0))
        best = exist[np.argsort(-liked[exist])]
        most = np.searchsorted(np.cumsum(self.counts[best]), WIDE * budget)
        return np.sort(best[: 1 + max(int(most), int(np.searchsorted(np.cumsum(self.pairs[best]), budget // WIDE)))])
