"""`CodeTrie`: the set of IDs that exist, and which items sit below any prefix.

Derived from codes alone, in a few flat arrays that memory-map as they are. Knows nothing of decoders or scores.

IDs (distinct codes) are sorted, so everything below a prefix is one contiguous range. The upper levels, where many IDs share a
node, are explicit: nodes in breadth-first order, each with its code and its first child (the end is the next node's first child,
so children cost nothing). From the level where most nodes have a single ID below them, paths are compressed: the other codes of
each ID are a row of `tails`, and a node is a range of IDs. A prefix is therefore always a half-open range `lo, hi` in the *space*
of its next level: that level's nodes while they are explicit, IDs afterwards.

Ranges are arrays of any shape: numpy's, or, in the trie that `on` returns, tensors of a device. Deletions and filters are a mask
over item rows: `count_before` makes cumulative sums of it, and the items below a range are a difference of two. Additions are
`merged` into a new trie.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.features import as_numpy
from genius.search.arrays import HOST, Array, Arrays, Ints

ALWAYS_EXPLICIT = 2  # levels whose nodes are explicit in any case
RARE = 1 / 16  # share of IDs that several items have up to which those alone are listed: 8 B each against 4 B per ID
EXPLICIT_UP_TO = 0.5  # a level is explicit while its nodes are at most this share of the IDs: 6 B per node against 2 B per ID
Columns = list[NDArray[Any]]
"""For each level (N,) codes, in the order of sorted IDs."""


@dataclass(slots=True)
class Children:
    """The true children of some prefixes, flat: rows ascending, codes ascending within a row."""

    row: Array  # (C,) number of the prefix
    code: Array  # (C,) int64
    lo: Array  # (C,) ranges in the space of the next level
    hi: Array  # (C,)
    items: Array  # (C,) allowed items below

    def __getitem__(self, index: Array) -> Children:
        return Children(self.row[index], self.code[index], self.lo[index], self.hi[index], self.items[index])


class CodeTrie:
    """Build with `CodeTrie.build(codes, level_sizes)`; row i of `codes` is item i."""

    def __init__(self, level_sizes: Sequence[int], arrays: dict[str, NDArray[Any]], top: int) -> None:
        """A trie over arrays that `build` made, or that were read from a file.

        Args:
            level_sizes: number of codes of each level.
            arrays: by name, as `arrays()` returns them; they may be memory-mapped.
            top: number of explicit levels.
        """
        self.level_sizes = tuple(int(k) for k in level_sizes)
        self.top = top
        self._arrays = arrays
        self._inverse: Array | None = None
        self._fan_out: list[int] | None = None
        self._place(HOST)

    def _place(self, ops: Arrays) -> None:
        """Put the arrays that everything below reads where `ops` works."""
        placed = {name: ops.put(array) for name, array in self._arrays.items()}
        self.ops = ops
        self._node_codes = [placed[f"codes_{level}"] for level in range(self.top)]  # (nodes,)
        self._node_child = [placed[f"child_{level}"] for level in range(self.top)]  # (nodes + 1,) into the next space
        self._tails = placed["tails"]  # (ids, levels - top): the codes from level `top` on
        self._order = placed["order"]  # (items,) item row at each sorted position
        # Where several items share an ID: (ids + 1,) first sorted position of each ID; or, where few IDs are shared, which
        # those are, ascending, and (n + 1,) how many items beyond one per ID there are before each. Neither: one item each.
        self._item_start = placed.get("item_start")
        self._shared = placed.get("shared")
        self._extra = placed.get("extra")

    def on(self, ops: Arrays) -> CodeTrie:
        """This trie for the arrays of another device; itself if it is there.

        Args:
            ops: Array operations of the device.
        """
        if ops is self.ops:
            return self
        moved = copy.copy(self)
        moved._inverse = None
        moved._place(ops)
        return moved

    @property
    def levels(self) -> int:
        return len(self.level_sizes)

    @property
    def items(self) -> int:
        return int(self._arrays["order"].shape[0])

    @property
    def ids(self) -> int:
        """Number of distinct IDs."""
        return int(self._arrays["tails"].shape[0])

    @property
    def order(self) -> NDArray[Any]:
        """(items,) item row at each sorted position, in host memory."""
        return self._arrays["order"]

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, codes included."""
        held = sum(int(array.nbytes) for array in self._arrays.values())
        if self._inverse is not None:
            held += int(self._inverse.nbytes)
        return held

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by the names they have on disk."""
        return dict(self._arrays)

    def __len__(self) -> int:
        return self.items

    def __repr__(self) -> str:
        return f"CodeTrie(items={self.items}, ids={self.ids}, levels={self.levels}, explicit={self.top}, bytes={self.nbytes})"

    # -- build -------------------------------------------------------------------------------------------------

    @classmethod
    def build(cls, codes: Any, level_sizes: Sequence[int], rows: Any = None) -> CodeTrie:
        """The trie of a table of codes.

        Args:
            codes: (N, M) integers, an array or a tensor; several rows may share an ID.
            level_sizes: M numbers of codes.
            rows: (N,) names of the items; default 0..N-1.

        Raises:
            GeniusError: codes out of range, or a row that appears twice.
        """
        sizes = tuple(int(k) for k in level_sizes)
        table = _check_codes(codes, sizes)
        names = _check_rows(rows, len(table))
        order, columns = _sorted_columns(table, sizes)
        if names is not None:
            order = names[order]
        return cls._from_sorted(sizes, columns, order)

    def merged(self, codes: Any, rows: Any) -> CodeTrie:
        """A new trie of these items and more; this one stays as it is. Linear in the number of items: nothing is sorted again.

        Args:
            codes: (n, M) of the new items.
            rows: (n,) their names, none of which is here already. Among equal IDs the new items come last.

        Raises:
            GeniusError: codes out of range, or a row that appears twice.
        """
        table = _check_codes(codes, self.level_sizes)
        names = _check_rows(rows, len(table))
        assert names is not None
        known = np.isin(names, self.order)
        if known.any():
            raise GeniusError(f"item row {int(names[known][0])} appears twice")
        by_code, added = _sorted_columns(table, self.level_sizes)
        after = self._insertion_points(table[by_code])  # ascending
        place = after + np.arange(len(table))  # of each new item in the merged order
        is_old = np.ones(self.items + len(table), bool)
        is_old[place] = False

        def merge(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            out = np.empty(len(is_old), np.result_type(old, new))
            out[is_old] = old
            out[place] = new
            return out

        columns = [merge(self._column(level), added[level]) for level in range(self.levels)]
        return CodeTrie._from_sorted(self.level_sizes, columns, merge(self.order, names[by_code]))

    @classmethod
    def _from_sorted(cls, sizes: tuple[int, ...], columns: Columns, order: NDArray[Any]) -> CodeTrie:
        """From codes in sorted order and the item row at each position."""
        levels = len(sizes)
        items = len(order)
        fresh = _first_difference(columns, items)
        starts_id = np.flatnonzero(fresh < levels)  # sorted positions where a new ID begins
        ids = len(starts_id)
        fresh_id = fresh[starts_id]  # level of the first difference, per ID
        pointer = _row_type(items)
        firsts: list[Ints] = []  # of each explicit level: ID positions where its nodes begin
        for level in range(levels):
            begins = fresh_id <= level
            if level >= ALWAYS_EXPLICIT and int(begins.sum()) > max(EXPLICIT_UP_TO * ids, 1):
                break
            firsts.append(np.flatnonzero(begins))
        top = len(firsts)
        arrays: dict[str, NDArray[Any]] = {}
        for level, first in enumerate(firsts):
            arrays[f"codes_{level}"] = columns[level][starts_id[first]]
            child = first
            end = ids
            if level + 1 < top:
                child = np.searchsorted(firsts[level + 1], first)
                end = len(firsts[level + 1])
            arrays[f"child_{level}"] = np.append(child, end).astype(pointer)
        tails = np.empty((ids, levels - top), _code_type(max(sizes[top:], default=1)))
        for level in range(top, levels):
            tails[:, level - top] = columns[level][starts_id]
        arrays["tails"] = tails
        arrays["order"] = order.astype(_row_type(int(order.max(initial=0))))
        if ids < items:
            ends = np.append(starts_id, items)
            more = np.diff(ends) - 1
            shared = np.flatnonzero(more)
            if len(shared) <= RARE * ids:
                arrays["shared"] = shared.astype(pointer)
                arrays["extra"] = np.append(0, np.cumsum(more[shared])).astype(pointer)
            else:
                arrays["item_start"] = ends.astype(pointer)
        return cls(sizes, arrays, top)

    def _column(self, level: int) -> NDArray[Any]:
        """(items,) the codes of a level at every sorted position."""
        if level < self.top:
            codes = self._node_codes[level]
            bounds = self.positions(self._ids_from(level, np.arange(len(codes) + 1)))
        else:
            codes = self._tails[:, level - self.top]
            bounds = self.positions(np.arange(self.ids + 1))
        return np.repeat(codes, np.diff(bounds)).astype(_code_type(self.level_sizes[level]))

    def _insertion_points(self, codes: Ints) -> Ints:
        """(n,) sorted position behind the items whose IDs are not greater than each of codes (n, M)."""
        lo, hi = (bound.repeat(len(codes)) for bound in self.root)
        for level in range(self.levels):
            # where the code is missing the range is empty, at the right place, and it stays empty
            lo, hi = self._below(level, lo, hi, codes[:, level])
        points: Ints = self.positions(hi)
        return points

    def _below(self, level: int, lo: Array, hi: Array, wanted: Array) -> tuple[Array, Array]:
        """Ranges below the children `wanted` (n,) of ranges (n,) in the space of `level`; empty where there is no such child."""
        left = self._bound(level, lo, hi, wanted)
        right = self._bound(level, left, hi, wanted + 1)
        return self._next_space(level, left), self._next_space(level, right)

    def _bound(self, level: int, lo: Array, hi: Array, wanted: Array) -> Array:
        """(n,) first place of each range whose code is at least `wanted`; its end if there is none. Binary search."""
        steps = 0
        if len(lo):
            steps = int((hi - lo).max()).bit_length()
        for _ in range(steps):
            midpoint = (lo + hi) // 2
            is_open = lo < hi
            smaller = is_open & (self._code_at(level, self.ops.minimum(midpoint, self._space(level) - 1)) < wanted)
            lo = self.ops.where(smaller, midpoint + 1, lo)
            hi = self.ops.where(is_open & ~smaller, midpoint, hi)
        return lo

    # -- ranges ------------------------------------------------------------------------------------------------

    @property
    def root(self) -> tuple[Array, Array]:
        """The range of everything, in the space of level 0: two arrays (1,)."""
        lo = self.ops.arange(1)
        return lo, lo + self._space(0)

    def _space(self, level: int) -> int:
        if level < self.top:
            return len(self._node_codes[level])
        return self.ids

    def _code_at(self, level: int, at: Array) -> Array:
        if level < self.top:
            return self.ops.int64(self._node_codes[level][at])
        return self.ops.int64(self._tails[at, level - self.top])

    def _next_space(self, level: int, at: Array) -> Array:
        if level < self.top:
            return self.ops.int64(self._node_child[level][at])
        return at

    def _ids_from(self, level: int, at: Array) -> Array:
        """Bounds in the space of `level` -> bounds of IDs."""
        for child in self._node_child[level:]:
            at = self.ops.int64(child[at])
        return at

    def id_range(self, level: int, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Ranges in the space of `level` -> ranges of IDs.

        Args:
            level: Number of codes that the ranges have read.
            lo: (R,) first place of each range.
            hi: (R,) place after its last.
        """
        return self._ids_from(level, lo), self._ids_from(level, hi)

    def positions(self, ids: Array) -> Array:
        """First sorted positions of IDs.

        Args:
            ids: Numbers of IDs.
        """
        if self._item_start is not None:
            return self.ops.int64(self._item_start[ids])
        if self._shared is None or self._extra is None:
            return ids
        return ids + self._extra[self.ops.searchsorted(self._shared, ids)]

    def item_range(self, level: int, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Ranges in the space of `level` -> ranges of sorted positions.

        Args:
            level: Number of codes that the ranges have read.
            lo: (R,) first place of each range.
            hi: (R,) place after its last.
        """
        first, last = self.id_range(level, lo, hi)
        return self.positions(first), self.positions(last)

    def count_before(self, allowed: Array) -> Array:
        """(items + 1,) how many allowed items come before each sorted position.

        Args:
            allowed: bool over item rows: which may be found.
        """
        counts = self.ops.cumsum(allowed[self.ops.int64(self._order)])
        return self.ops.concatenate([self.ops.arange(1), counts])

    def items_below(self, level: int, lo: Array, hi: Array, before: Array | None = None) -> Array:
        """Number of items below ranges in the space of `level`.

        Args:
            level: Number of codes that the ranges have read.
            lo: (R,) first place of each range.
            hi: (R,) place after its last.
            before: Result of `count_before`: only allowed items count.
        """
        first, last = self.item_range(level, lo, hi)
        if before is None:
            return last - first
        return before[last] - before[first]

    def expand(self, level: int, lo: Array, hi: Array, before: Array | None = None) -> Children:
        """The children of prefixes that lead to at least one allowed item.

        Args:
            level: of the children's codes.
            lo, hi: (R,) ranges in the space of `level`.
            before: of `count_before`; None: every item is allowed.
        """
        row, place = ragged(hi - lo, self.ops)
        start = lo[row] + place
        code = self._code_at(level, start)
        end = start + 1
        if level >= self.top:
            # IDs are sorted, so a child begins wherever the code changes within its row
            begins = place == 0
            begins[1:] |= code[1:] != code[:-1]
            first = self.ops.nonzero(begins)
            row = row[first]
            code = code[first]
            start = start[first]
            end = hi[row]
            end[:-1] = self.ops.where(row[1:] == row[:-1], start[1:], end[:-1])
        start = self._next_space(level, start)
        end = self._next_space(level, end)
        items = self.items_below(level + 1, start, end, before)
        children = Children(row, code, start, end, items)
        if before is None:
            return children
        return children[self.ops.nonzero(items > 0)]

    def expand_padded(self, level: int, lo: Array, hi: Array, before: Array | None = None) -> Children:
        """As `expand`, for tensors and without reading their numbers: every prefix has `fan_out` places, in which some hold a
        child, and the others none: no items.

        Args:
            level: of the children's codes.
            lo, hi: (R,) ranges in the space of `level`.
            before: of `count_before`; None: every item is allowed, and `items` only says whether there are any.
        """
        width = self.fan_out(level)
        start = lo[:, None] + self.ops.arange(width)
        exists = start < hi[:, None]
        code = self._code_at(level, self.ops.minimum(start, self._space(level) - 1))
        end = start + 1
        if level >= self.top:  # a child begins wherever the code changes, and ends where the next one begins
            exists[:, 1:] &= code[:, 1:] != code[:, :-1]
            begins = self.ops.where(exists, start, hi[:, None])
            next_begins = begins.flip(1).cummin(1).values.flip(1)
            end = self.ops.concatenate([next_begins[:, 1:], hi[:, None]], 1)
        inside = self._space(level)
        start = self._next_space(level, self.ops.minimum(start, inside))
        end = self._next_space(level, self.ops.minimum(end, inside))
        items = self.ops.int64(exists)
        if before is not None:
            items *= self.items_below(level + 1, start, end, before)
        row = self.ops.arange(len(lo)).repeat_interleave(width)
        return Children(row, code.flatten(), start.flatten(), end.flatten(), items.flatten())

    def fan_out(self, level: int) -> int:
        """Places of the largest range below a prefix of so many codes, in the space of that level; counted once.

        Args:
            level: Codes of the prefix.
        """
        if self._fan_out is None:
            self._fan_out = self._fan_outs()
        return self._fan_out[level]

    def _fan_outs(self) -> list[int]:
        ops = self.ops
        counts = [self._space(0)]
        for child in self._node_child:
            counts.append(int(ops.int64(child[1:] - child[:-1]).max()) if len(child) > 1 else 0)
        begins = ops.arange(self.ids) < 0
        if self.ids:
            begins[self._ids_from(self.top - 1, ops.arange(self._space(self.top - 1)))] = True
        for level in range(self.top, self.levels):
            codes = self._tails[:, level - self.top]
            begins[1:] |= codes[1:] != codes[:-1]
            bounds = ops.concatenate([ops.nonzero(begins), ops.arange(1) + self.ids])
            counts.append(int((bounds[1:] - bounds[:-1]).max()) if self.ids else 0)
        return counts

    def rows_of(self, level: int, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Ranges (R,) in the space of `level` -> flat: which range, ascending, and the row of every item below it.

        Args:
            level: Number of codes that the ranges have read.
            lo: (R,) first place of each range.
            hi: (R,) place after its last.
        """
        first, last = self.item_range(level, lo, hi)
        owner, place = ragged(last - first, self.ops)
        return owner, self.ops.int64(self._order[first[owner] + place])

    # -- IDs and prefixes --------------------------------------------------------------------------------------

    def codes_of_ids(self, ids: Array) -> Array:
        """(n,) numbers of IDs -> (n, M) int64 codes.

        Args:
            ids: Numbers of IDs.
        """
        parts = [self.ops.int64(self._tails[ids])]
        node = ids
        for child, codes in zip(reversed(self._node_child), reversed(self._node_codes), strict=True):
            node = self.ops.searchsorted(child, node, right=True) - 1  # a node's first child says where it begins
            parts.append(self.ops.int64(codes[node])[:, None])
        return self.ops.concatenate(parts[::-1], 1)

    def ids_at(self, positions: Array) -> Array:
        """The IDs of items by their sorted positions.

        Args:
            positions: Sorted positions.
        """
        if self._item_start is not None:
            return self.ops.searchsorted(self._item_start, positions, right=True) - 1
        if self._shared is None or self._extra is None:
            return positions
        at = self.ops.searchsorted(self._shared + self._extra[:-1], positions, right=True)
        # the last shared ID that begins before it, and may hold it
        last = self.ops.where(at > 0, self.ops.int64(self._shared)[at - 1], -1)
        alone = positions - self._extra[at]
        return self.ops.where(last > alone, last, alone)

    def find(self, prefix: Sequence[int]) -> tuple[Array, Array]:
        """The range (1,), (1,) below a prefix, in the space of level len(prefix); empty if no item has it.

        Args:
            prefix: Codes, from the first.
        """
        if len(prefix) > self.levels:
            raise GeniusError(f"a prefix of {len(prefix)} codes in a trie of {self.levels} levels")
        lo, hi = self.root
        for level, code in enumerate(prefix):
            if not 0 <= code < self.level_sizes[level]:
                raise GeniusError(f"code {code} at level {level} is not in 0..{self.level_sizes[level] - 1}")
            lo, hi = self._below(level, lo, hi, self.ops.put(np.array([int(code)])))
        return lo, hi

    def rows_below(self, prefix: Sequence[int]) -> Ints:
        """Rows of the items whose codes start with `prefix`, in sorted order.

        Args:
            prefix: Codes, from the first.
        """
        return self.ops.host(self.rows_of(len(prefix), *self.find(prefix))[1])

    def children(self, prefix: Sequence[int]) -> tuple[Ints, Ints]:
        """Codes that may follow `prefix`, ascending, and the number of items below each.

        Args:
            prefix: Codes, from the first.
        """
        if len(prefix) >= self.levels:
            raise GeniusError(f"a full code of {self.levels} levels has no children")
        found = self.expand(len(prefix), *self.find(prefix))
        return self.ops.host(found.code), self.ops.host(found.items)

    def positions_of(self, rows: Any) -> Array:
        """Sorted position of each item row; an unknown row is an error.

        Args:
            rows: Rows of items.
        """
        wanted = np.atleast_1d(as_numpy(rows)).astype(np.int64)
        if self._inverse is None:  # built on the first call: beam search never needs it
            order = self.order
            inverse = np.full(int(order.max(initial=-1)) + 1, -1, order.dtype)
            inverse[order] = np.arange(self.items, dtype=order.dtype)
            self._inverse = self.ops.put(inverse)
        known = (wanted >= 0) & (wanted < len(self._inverse))
        out = np.full(len(wanted), -1, np.int64)
        out[known] = self.ops.host(self._inverse[self.ops.put(wanted[known])])
        if (out < 0).any():
            raise GeniusError(f"no item has row {int(wanted[out < 0][0])} in this trie")
        return self.ops.put(out)

    def codes_at(self, positions: Any) -> Ints:
        """Codes (n, M) of the items at sorted positions.

        Args:
            positions: Sorted positions.
        """
        at = self.ops.put(as_numpy(positions).astype(np.int64))
        return self.ops.host(self.codes_of_ids(self.ids_at(at)))

    def codes_of(self, rows: Any) -> Ints:
        """Codes (n, M) of item rows.

        Args:
            rows: Rows of items.
        """
        return self.codes_at(self.positions_of(rows))


def _sorted_columns(codes: NDArray[Any], sizes: Sequence[int]) -> tuple[Ints, Columns]:
    """Codes (N, M), known to be in range -> (N,) which item is at each sorted position, and the codes in that order."""
    columns = [codes[:, level].astype(_code_type(size)) for level, size in enumerate(sizes)]
    order = np.lexsort(columns[::-1])  # numbers of 8 and 16 bits are sorted by radix
    return order, [column[order] for column in columns]


def ragged(counts: Array, ops: Arrays = HOST) -> tuple[Array, Array]:
    """(R,) lengths -> for every element of the concatenation, its row and its place in the row."""
    row = ops.repeat(ops.arange(len(counts)), counts)
    start = ops.cumsum(counts) - counts
    return row, ops.arange(len(row)) - start[row]


def _first_difference(columns: Columns, items: int) -> NDArray[np.uint8]:
    """(N,) uint8: the first level at which each sorted code differs from the one before; M: same code; 0 for the first."""
    fresh = np.full(items, len(columns), np.uint8)
    for level in reversed(range(len(columns))):
        codes = columns[level]
        fresh[1:][codes[1:] != codes[:-1]] = level
    fresh[:1] = 0
    return fresh


def _code_type(size: int) -> type[np.unsignedinteger[Any]]:
    if size <= 2**8:
        return np.uint8
    if size <= 2**16:
        return np.uint16
    return np.uint32


def _row_type(largest: int) -> type[np.signedinteger[Any]]:
    if largest < 2**31 - 1:
        return np.int32
    return np.int64


def _check_codes(codes: Any, sizes: tuple[int, ...]) -> NDArray[Any]:
    table = as_numpy(codes)
    if table.ndim != 2 or table.shape[1] != len(sizes):
        raise GeniusError(f"codes must be (items, {len(sizes)}), got shape {table.shape}")
    if not np.issubdtype(table.dtype, np.integer):
        raise GeniusError(f"codes must be integers, got {table.dtype}")
    for level, size in enumerate(sizes):
        column = table[:, level]
        if len(table) and (int(column.min()) < 0 or int(column.max()) >= size):
            bad = int(np.flatnonzero((column < 0) | (column >= size))[0])
            raise GeniusError(f"item {bad} has code {int(column[bad])} at level {level}, which has codes 0..{size - 1}")
    return table


def _check_rows(rows: Any, items: int) -> Ints | None:
    if rows is None:
        return None
    names = as_numpy(rows)
    if names.shape != (items,):
        raise GeniusError(f"rows must be ({items},), one per item, got {names.shape}")
    if items and int(names.min()) < 0:
        raise GeniusError("item rows must not be negative")
    if len(np.unique(names)) < items:
        values, counts = np.unique(names, return_counts=True)
        raise GeniusError(f"item row {int(values[counts > 1][0])} appears twice")
    return names.astype(np.int64)
