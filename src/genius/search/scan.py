"""The code scan: one decoder row, the cells it likes best, and table look-ups over the codes of everything in them.

A cell is what shares its first two codes: the kind and the first code that says something. The decoder's first row says how
likely every cell is. Cells are taken, likeliest first, until they hold the budget of items. The items in them are then compared
with the query by their codes alone: the cosine of a reconstruction is a sum of numbers looked up in one small table a query,
divided by a length that is known beforehand.

Deleted items and items that a filter keeps out are passed over while scanning, so no filter costs a count of the whole
collection. Knows cells, codebooks and the decoder's first row; what becomes of the best is `genius.search.quick`'s business. For
a CPU; `genius.search.batch_scan` is its twin for many questions at once on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.model.quantizer import ResidualQuantizer
from genius.search.cells import STEP, Cells, members
from genius.search.decoder import Writer
from genius.search.lookups import Found, Stretches, look_up
from genius.search.rerank import Reconstructions
from genius.search.trie import CodeTrie

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Tables = Sequence[Floats | None]

NOWHERE, NOTHING = np.empty(0, np.int64), np.empty(0, np.float32)


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
