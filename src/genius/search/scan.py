"""The code scan: one decoder row, the first few codes it leads to, and table look-ups over all codes of what has them.

A trie is cut into cells: what shares its first two codes, the kind and the first code that says something. The decoder's first
row says how likely every cell is. In the likeliest cells, which hold several times the budget of items, the nodes of the next
code are ranked by the cosine of the query and what their codes stand for; the nearest are kept, and where nodes still hold many
items, the nodes below them are ranked in turn. The items that are left, as many as the budget, are then compared with the query
by all of their codes: the cosine of a reconstruction is a sum of numbers looked up in one small table a query, divided by a
length that is known beforehand.

Deleted items and items that a filter keeps out are passed over while scanning, so no filter costs a count of the whole
collection. Knows cells, codebooks and the decoder's first row; what becomes of the best is `genius.search.quick`'s business. For
a CPU; `genius.search.batch_scan` is the same for many questions at once on a GPU, by whole cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.model.quantizer import ResidualQuantizer
from genius.search.decoder import Writer
from genius.search.lookups import (
    EVERYONE,
    NO_NODES,
    STEP,
    Floats,
    Found,
    Ints,
    Mask,
    Rounded,
    Stretches,
    compiled,
    look_up,
    members,
    plain,
    warmer,
)
from genius.search.rerank import Reconstructions
from genius.search.trie import CodeTrie

NORMS_AT_ONCE = 65_536
WIDE = 4  # times the items that are kept of the first level ranked by nearness are in the cells that the decoder likes
NARROW = 3  # times the items that are kept of a level ranked by nearness are those kept of such a level above
DEEP = 8  # items that nodes must hold on average for a level after the second to be ranked

Tables = Sequence[Floats | None]


@dataclass(frozen=True, slots=True)
class Nodes:
    """One level of a trie, ready to be ranked: nodes, or IDs where the trie does not spell the level out."""

    codes: NDArray[Any]  # (n, 1) of nodes; (n, tails) of IDs
    item_start: NDArray[Any]  # first item of each; none: one item each
    inverse: NDArray[np.uint16]  # one over the length of what the codes up to this level stand for


class Cells:
    """One trie, cut into cells, ready to be scanned."""

    def __init__(self, trie: CodeTrie, lengths: Reconstructions) -> None:
        self.trie, kinds, size = trie, trie.level_sizes[0], trie.level_sizes[1]
        self.lo, self.hi = np.zeros(kinds * size, np.int64), np.zeros(kinds * size, np.int64)  # in the space of the next level
        self.items = np.zeros(kinds * size, np.int64)
        first = np.asarray(trie.node_child[0], np.int64)
        owner = np.repeat(np.asarray(trie.node_codes[0], np.int64), np.diff(first))
        cell = owner * size + np.asarray(trie.node_codes[1], np.int64)
        below = np.asarray(trie.node_child[1], np.int64)
        self.lo[cell], self.hi[cell] = below[:-1], below[1:]
        start, end = trie.item_range(2, below[:-1], below[1:])
        self.items[cell] = np.asarray(end, np.int64) - np.asarray(start, np.int64)
        self.tails, self.order = plain(trie.tails), plain(trie.order)
        self.node_codes, self.node_child = ([plain(level) for level in levels] for levels in (trie.node_codes, trie.node_child))
        self.item_start = plain(np.empty(0, trie.order.dtype) if trie.item_start is None else trie.item_start)
        self.inverse, self.longest = self._inverse(self.item_start, trie.levels, lengths)
        self.nodes: dict[int, Nodes] = {}

    def rank(self, level: int, lengths: Reconstructions) -> None:
        """Make a level ready."""
        if level in self.nodes:
            return
        if level < self.trie.top:
            start = plain(self.trie.item_range(level, np.arange(len(self.node_codes[level]) + 1), 0)[0])
            self.nodes[level] = Nodes(self.node_codes[level][:, None], start, self._inverse(start, level + 1, lengths)[0])
        else:
            self.nodes[level] = Nodes(self.tails, self.item_start, self._inverse(self.item_start, level + 1, lengths)[0])

    def _inverse(self, start: NDArray[Any], levels: int, lengths: Reconstructions) -> tuple[NDArray[np.uint16], float]:
        """One over the length of what the first codes of nodes or IDs stand for, in steps of STEP, the same for the same codes in
        any trie; the longest."""
        first = start[:-1] if len(start) else np.arange(self.trie.ids)
        inverse, longest = np.empty(len(first), np.uint16), 0.0
        for i in range(0, len(first), NORMS_AT_ONCE):
            here = slice(i, i + NORMS_AT_ONCE)
            codes = self.trie.codes_at(np.asarray(first[here], np.int64))[:, :levels]
            exact = lengths.lengths(torch.from_numpy(codes)).numpy()
            inverse[here] = np.minimum(np.round(1 / (exact * STEP)), 65_535)
            longest = max(longest, float(exact.max()))
        return inverse, longest

    @property
    def nbytes(self) -> int:
        """What this holds beside the trie."""
        held: list[NDArray[Any]] = [self.inverse, self.lo, self.hi, self.items]
        for level in self.nodes.values():
            held += [level.inverse, *([] if level.item_start is self.item_start else [level.item_start])]
        return sum(array.nbytes for array in held)

    def places_of(self, ids: NDArray[Any]) -> Ints:
        """Sorted positions of all items that have these IDs."""
        if not len(self.item_start):
            return ids.astype(np.int64)
        return members(self.item_start[ids].astype(np.int64), self.item_start[ids + 1].astype(np.int64))


@dataclass(frozen=True, slots=True)
class Question:
    """One query, as the decoder and the codebooks see it."""

    target: int  # the kind that is asked for; -1: any
    liked: Floats  # (cells,) log p, of that kind
    tables: Tables  # per kind (sum of K,) dots with the codes after the first
    middles: Floats  # (kinds,) dots with what the kinds take off
    allowed: Mask | None  # over rows


@dataclass(slots=True)
class Part:
    """What is kept of one kind in one trie: stretches in the space of a level, and what all in each begin with."""

    first: int  # place of the trie's first ID
    cells: Cells
    table: Floats
    lo: Ints
    hi: Ints
    shared: Floats  # dots of the query with the codes above the stretch, as far as the trie spells them out
    items: int = 0


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
        self._occupied: dict[int, tuple[Ints, NDArray[np.int32]]] = {}  # by kind
        self.ranked = [2]
        while (level := self.ranked[-1] + 1) < config.levels - 1:
            nodes = sum(len(trie.node_codes[level]) if level < trie.top else trie.ids for trie in tries)
            if sum(trie.items for trie in tries) < DEEP * nodes:
                break
            self.ranked.append(level)
        for cells in self.cells:
            for level in self.ranked:
                cells.rank(level, self.lengths)
        self.means = quantizer.codebook(0).detach().float().numpy()
        written = range(1, config.levels)
        # of every level after the first, in a table
        self.starts = tuple(np.uint64(start) for start in np.cumsum([0, *self.sizes[1:]])[:-1])
        own = config.own_books_from > 0
        books = [torch.cat([quantizer.book_of(level, kind) for level in written]) for kind in range(self.kinds if own else 1)]
        self.books: list[Floats] = [book.detach().float().numpy() for book in books]
        spans = [np.maximum(np.abs(book).max(1), 1e-12) for book in self.books]  # each code has steps of its own
        self.rounded = [(Rounded((book / span[:, None]).T), span) for book, span in zip(self.books, spans, strict=True)]

    @staticmethod
    def suits(quantizer: ResidualQuantizer | None, tries: Sequence[CodeTrie]) -> bool:
        """Whether cells can be cut: the first code is the kind, two more follow, and the first two levels are spelt out."""
        labelled = quantizer is not None and quantizer.config.labelled and quantizer.config.levels > 2
        return labelled and all(trie.top >= 2 for trie in tries)

    @property
    def nbytes(self) -> int:
        return sum(cells.nbytes for cells in self.cells)

    def liked(self, writer: Writer, z: Tensor, target: int) -> Floats:
        """(Q, kinds * K) log p of every cell, in one pass of the decoder, or (Q, K) of those of one kind, given the kind."""
        queries = len(z)
        kinds = torch.arange(self.kinds) if target < 0 else torch.tensor([target])
        codes = kinds.expand(queries, -1)[:, :, None].contiguous()
        before = writer.start(z)
        out, memory = writer.run(codes, before)
        score = writer.log_p(1, out[:, :, 1], memory, codes).view(queries, len(kinds), self.sizes[1])
        if target < 0:
            score = score + writer.log_p(0, out[:, :1, 0], before, codes[:, :1, :0])[:, :, None]
        return score.flatten(1).numpy()

    def tables(self, z: Floats, target: int, exact: bool = True) -> list[Floats | None]:
        """Per kind (Q, sum of K): dots of the queries with all codes of the later levels. None: a kind that is not asked for.
        Not `exact`: with codes in 8 bits, which is enough to say what to compare."""
        kinds = range(len(self.books)) if target < 0 or len(self.books) == 1 else [target]
        made: list[Floats | None] = [None] * len(self.books)
        for kind in kinds:
            rounded, span = self.rounded[kind]
            made[kind] = z @ self.books[kind].T if exact else rounded.times(z) * span
        return made * self.kinds if len(made) == 1 else made

    def scan(self, asked: Question, budget: int) -> Found:
        """Places and cosines by codes of the IDs below the best pairs of one query; about `budget` items are looked at."""
        warmer()
        most = budget * NARROW ** (len(self.ranked) - 1)
        kept = self._likely(asked, WIDE * most)
        for i, level in enumerate(self.ranked):
            kept = self._nearest(kept, level, most // NARROW**i)
        found = [look_up(self._below(part), part.cells.order, asked.allowed) for part in kept]
        placed = [
            replace(own, ids=own.ids + np.int64(part.first)) if part.first else own for part, own in zip(kept, found, strict=True)
        ]
        return Found.joined(placed)

    def held(self, target: int) -> int:
        """Items in all cells of one kind, or of all (-1), allowed or not."""
        return int(self._cells_of(target)[1].sum())

    def _cells_of(self, target: int) -> tuple[Ints, NDArray[np.int32]]:
        """The cells of one kind, or of all, that hold items, and how many."""
        if target not in self._occupied:
            size = self.sizes[1]
            own = slice(None) if target < 0 else slice(target * size, (target + 1) * size)
            counts = np.sum([cells.items[own] for cells in self.cells], axis=0).astype(np.int32)
            occupied = np.flatnonzero(counts)
            self._occupied[target] = occupied, counts[occupied]
        return self._occupied[target]

    def _likely(self, asked: Question, wanted: int) -> list[Part]:
        """The likeliest cells, until they hold so many items."""
        size, (best, counts) = self.sizes[1], self._cells_of(asked.target)
        liked = asked.liked[best]
        best = best[liked >= Found(best, liked, liked, counts).least_of_best(wanted)]
        kinds, parts = {asked.target: best}, []
        if asked.target < 0:
            kinds = {kind: best[best // size == kind] - kind * size for kind in range(self.kinds)}
        for kind, codes in kinds.items():
            if len(codes):
                table = asked.tables[kind]
                assert table is not None
                own, shared = kind * size + codes, asked.middles[kind] + table[codes]
                for first, cells in zip(self.firsts, self.cells, strict=True):
                    parts.append(Part(first, cells, table, cells.lo[own], cells.hi[own], shared))
        return parts

    def _nearest(self, kept: Sequence[Part], level: int, wanted: int) -> list[Part]:
        """The nodes of a level below what is kept whose codes stand nearest to the query, until they hold so many items."""
        looked = []
        for part in kept:
            nodes, top, room = part.cells.nodes[level], part.cells.trie.top, int((part.hi - part.lo).sum())
            starts = self.starts[min(level, top) - 1 : level]
            own = Stretches(
                part.lo, part.hi, part.shared, nodes.codes, starts, part.table, nodes.item_start, nodes.inverse, room, *NO_NODES
            )
            looked.append(look_up(own, part.cells.order, None))
        least = Found.joined(looked).least_of_best(wanted)
        return [self._children(part, found, level, least) for part, found in zip(kept, looked, strict=True)]

    def _children(self, part: Part, found: Found, level: int, least: np.float32) -> Part:
        """What is below the nodes that are kept of those looked at."""
        near = np.flatnonzero(found.scores >= least)
        nodes, items, cells = found.ids[near], int(found.items[near].sum()), part.cells
        if level < cells.trie.top:
            lo, hi = (cells.node_child[level][at].astype(np.int64) for at in (nodes, nodes + 1))
            return Part(part.first, cells, part.table, lo, hi, found.sums[near], items)
        shared, ids = np.repeat(part.shared, part.hi - part.lo)[near], nodes.astype(np.int64)  # all tails are added again below
        return Part(part.first, cells, part.table, ids, ids + 1, shared, items)

    def rows_of(self, found: Found, least: np.float32, allowed: Mask | None = None) -> Ints:
        """Rows of the allowed items of IDs down to a score: those of the first trie, then the next one's."""
        kernel = compiled("_rows")
        if kernel is not None:
            looked, mask = (found.ids, found.scores, found.items, least), EVERYONE if allowed is None else allowed
            ends = [*self.firsts[1:], self.firsts[-1] + self.cells[-1].trie.ids]
            tries = zip(self.firsts, ends, self.cells, strict=True)
            return _joined([kernel(*looked, first, end, cells.item_start, cells.order, mask) for first, end, cells in tries])
        near = self._by_trie(found.ids[found.scores >= least])
        rows = _joined([cells.order[cells.places_of(ids)].astype(np.int64) for cells, ids in near])
        return rows if allowed is None else rows[allowed[rows]]

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

    def _below(self, part: Part) -> Stretches:
        """The IDs below what is left after the last ranked level."""
        cells, lo, hi, shared, top = part.cells, part.lo, part.hi, part.shared, part.cells.trie.top
        for level in range(self.ranked[-1] + 1, top - 1):  # seldom: nodes between and the last level that is spelt out
            nodes = members(lo, hi)
            shared = np.repeat(shared, hi - lo) + part.table[int(self.starts[level - 1]) :][cells.node_codes[level][nodes]]
            lo, hi = (cells.node_child[level][at].astype(np.int64) for at in (nodes, nodes + 1))
        nodes_left = self.ranked[-1] < top - 1
        last = (cells.node_codes[-1], cells.node_child[-1], self.starts[top - 2]) if nodes_left else NO_NODES
        tails = cells.tails, self.starts[top - 1 :]
        return Stretches(lo, hi, shared, *tails, part.table, cells.item_start, cells.inverse, part.items, *last)


def _joined(parts: Sequence[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
