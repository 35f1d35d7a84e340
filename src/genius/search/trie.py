"""`CodeTrie`: the set of IDs that exist, and which items sit below any prefix.

Derived from codes alone, in a few flat arrays that memory-map as they are. Knows nothing of decoders or scores.

IDs (distinct codes) are sorted, so everything below a prefix is one contiguous range. The upper levels, where many IDs share a
node, are explicit: nodes in breadth-first order, each with its code and its first child (the end is the next node's first child,
so children cost nothing). From the level where most nodes have a single ID below them, paths are compressed: the other codes of
each ID are a row of `tails`, and a node is a range of IDs. A prefix is therefore always a half-open range `lo, hi` in the *space*
of its next level: that level's nodes while they are explicit, IDs afterwards.

Ranges are tensors of any shape, on the trie's device. Deletions and filters are a mask over item rows: `count_before` makes
cumulative sums of it, and the items below a range are a difference of two. Additions are `merged` into a new trie.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError

ALWAYS_EXPLICIT = 2  # levels whose nodes are explicit in any case
WORD = 63  # bits used of an int64: words stay non-negative
RARE = 1 / 16  # share of IDs that several items have up to which those alone are listed: 8 B each against 4 B per ID
EXPLICIT_UP_TO = 0.5  # a level is explicit while its nodes are at most this share of the IDs: 6 B per node against 2 B per ID
Array = NDArray[Any]
Column = Callable[[int], Tensor]  # level -> (N,) int64: the codes of that level, in the order of sorted IDs


@dataclass(slots=True)
class Children:
    """The true children of some prefixes, flat: rows ascending, codes ascending within a row."""

    row: Tensor  # (C,) number of the prefix
    code: Tensor  # (C,) int64
    lo: Tensor  # (C,) ranges in the space of the next level
    hi: Tensor  # (C,)
    items: Tensor  # (C,) allowed items below

    def __getitem__(self, index: Tensor) -> Children:
        return Children(self.row[index], self.code[index], self.lo[index], self.hi[index], self.items[index])


class CodeTrie:
    """Build with `CodeTrie.build(codes, level_sizes)`; row i of `codes` is item i."""

    def __init__(self, level_sizes: Sequence[int], arrays: dict[str, Array], top: int) -> None:
        """A trie over arrays that `build` made, or that were read from a file.

        Args:
            level_sizes: number of codes of each level.
            arrays: by name, as `arrays()` returns them; they may be memory-mapped.
            top: number of explicit levels.
        """
        self.level_sizes = tuple(int(k) for k in level_sizes)
        self.top = top
        self._arrays = arrays
        self._inverse: Tensor | None = None
        self._place(torch.device("cpu"))

    def _place(self, device: torch.device) -> None:
        """Make the tensors that everything below reads: on the CPU, views of the arrays."""
        tensors = {name: _as_tensor(array, device) for name, array in self._arrays.items()}
        self.device = device
        self._node_codes = [tensors[f"codes_{level}"] for level in range(self.top)]  # (nodes,)
        self._node_child = [tensors[f"child_{level}"] for level in range(self.top)]  # (nodes + 1,) into the next space
        self._tails = tensors["tails"]  # (ids, levels - top): the codes from level `top` on
        self._order = tensors["order"]  # (items,) item row at each sorted position
        # Where several items share an ID: (ids + 1,) first sorted position of each ID; or, where few IDs are shared, which
        # those are, ascending, and (n + 1,) how many items beyond one per ID there are before each. Neither: one item each.
        self._item_start = tensors.get("item_start")
        self._shared = tensors.get("shared")
        self._extra = tensors.get("extra")

    def to(self, device: torch.device | str) -> CodeTrie:
        """This trie with its arrays on another device; itself if they are there.

        Args:
            device: The device.
        """
        where = torch.device(device)
        if where == self.device:
            return self
        moved = copy.copy(self)
        moved._inverse = None
        moved._place(where)
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
    def order(self) -> Array:
        """(items,) item row at each sorted position, in host memory."""
        return self._arrays["order"]

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, codes included."""
        held = sum(int(array.nbytes) for array in self._arrays.values())
        return held + (0 if self._inverse is None else self._inverse.nbytes)

    def arrays(self) -> dict[str, Array]:
        """The arrays by the names they have on disk."""
        return dict(self._arrays)

    def __len__(self) -> int:
        return self.items

    def __repr__(self) -> str:
        return f"CodeTrie(items={self.items}, ids={self.ids}, levels={self.levels}, explicit={self.top}, bytes={self.nbytes})"

    # -- build -------------------------------------------------------------------------------------------------

    @classmethod
    def build(cls, codes: Array | Tensor, level_sizes: Sequence[int], rows: Array | Tensor | None = None) -> CodeTrie:
        """The trie of a table of codes.

        Args:
            codes: (N, M) integers; several rows may share an ID. Sorted on the device that holds them.
            level_sizes: M numbers of codes.
            rows: (N,) names of the items; default 0..N-1.

        Raises:
            GeniusError: codes out of range, or a row that appears twice.
        """
        sizes = tuple(int(k) for k in level_sizes)
        table = _check_codes(codes, sizes)
        names = _check_rows(rows, len(table))
        ordered = _SortedCodes(table, sizes)
        order = ordered.order.cpu().numpy()
        return cls._from_sorted(sizes, ordered.column, order if names is None else names[order])

    def merged(self, codes: Array | Tensor, rows: Array | Tensor) -> CodeTrie:
        """A new trie of these items and more; this one stays as it is. Linear in the number of items: nothing is sorted again.

        Args:
            codes: (n, M) of the new items.
            rows: (n,) their names, none of which is here already. Among equal IDs the new items come last.

        Raises:
            GeniusError: codes out of range, or a row that appears twice.
        """
        table = _check_codes(codes, self.level_sizes).to(self.device)
        names = _check_rows(rows, len(table))
        assert names is not None
        known = np.isin(names, self.order)
        if known.any():
            raise GeniusError(f"item row {int(names[known][0])} appears twice")
        added = _SortedCodes(table, self.level_sizes)
        after = self._insertion_points(table[added.order])  # ascending
        place = after + torch.arange(len(table), device=self.device)  # of each new item in the merged order
        is_old = torch.ones(self.items + len(table), dtype=torch.bool, device=self.device)
        is_old[place] = False

        def column(level: int) -> Tensor:
            out = torch.empty(len(is_old), dtype=torch.long, device=self.device)
            out[is_old] = self._column(level)
            out[place] = added.column(level)
            return out

        order = np.empty(len(is_old), dtype=np.int64)
        order[is_old.cpu().numpy()] = self.order
        order[place.cpu().numpy()] = names[added.order.cpu().numpy()]
        return CodeTrie._from_sorted(self.level_sizes, column, order)

    @classmethod
    def _from_sorted(cls, sizes: tuple[int, ...], column: Column, order: Array) -> CodeTrie:
        """From codes in sorted order, a column for each level, and the item row at each position."""
        levels = len(sizes)
        items = len(order)
        fresh = _first_difference(column, levels, items)
        starts_id = (fresh < levels).nonzero()[:, 0]  # sorted positions where a new ID begins
        ids = len(starts_id)
        unique = ids == items
        fresh_id = fresh if unique else fresh[starts_id]  # level of the first difference, per ID
        pointer = torch.int32 if items < 2**31 - 1 else torch.int64
        firsts: list[Tensor] = []  # of each explicit level: ID positions where its nodes begin
        for level in range(levels):
            begins = fresh_id <= level
            if level >= ALWAYS_EXPLICIT and int(begins.sum()) > max(EXPLICIT_UP_TO * ids, 1):
                break
            firsts.append(begins.nonzero()[:, 0])
        top = len(firsts)
        arrays: dict[str, Array] = {}
        for level, first in enumerate(firsts):
            at = first if unique else starts_id[first]
            arrays[f"codes_{level}"] = column(level)[at].cpu().numpy().astype(_code_type(sizes[level]))
            last_explicit = level + 1 == top
            child = first if last_explicit else torch.searchsorted(firsts[level + 1], first)
            end = ids if last_explicit else len(firsts[level + 1])
            arrays[f"child_{level}"] = F.pad(child, (0, 1), value=end).to(pointer).cpu().numpy()
        code_type = _code_type(max(sizes[top:], default=1))
        tails = torch.empty(ids, levels - top, dtype=_SIGNED[code_type], device=fresh.device)
        for level in range(top, levels):
            codes = column(level)
            tails[:, level - top] = codes if unique else codes[starts_id]  # keeps the low bits
        arrays["tails"] = tails.cpu().numpy().view(code_type)
        arrays["order"] = order.astype(_row_type(order))
        if not unique:
            ends = F.pad(starts_id, (0, 1), value=items)
            more = ends.diff() - 1
            shared = more.nonzero()[:, 0]
            if len(shared) <= RARE * ids:
                arrays["shared"] = shared.to(pointer).cpu().numpy()
                arrays["extra"] = F.pad(more[shared].cumsum(0), (1, 0)).to(pointer).cpu().numpy()
            else:
                arrays["item_start"] = ends.to(pointer).cpu().numpy()
        return cls(sizes, arrays, top)

    def _column(self, level: int) -> Tensor:
        """(items,) int64: the codes of a level at every sorted position."""
        if level < self.top:
            codes = _widen(self._node_codes[level])
            nodes = torch.arange(len(codes) + 1, device=self.device)
            bounds = self.positions(self._ids_from(level, nodes))
        else:
            codes = _widen(self._tails[:, level - self.top])
            bounds = self.positions(torch.arange(self.ids + 1, device=self.device))
        return codes.repeat_interleave(bounds.diff())

    def _insertion_points(self, codes: Tensor) -> Tensor:
        """(n,) sorted position behind the items whose IDs are not greater than each of codes (n, M)."""
        lo, hi = (bound.repeat(len(codes)) for bound in self.root)
        for level in range(self.levels):
            wanted = codes[:, level]
            left = self._bound(level, lo, hi, wanted)
            right = self._bound(level, left, hi, wanted + 1)
            # where the code is missing left == right: an empty range at the right place, and it stays empty
            lo, hi = self._next_space(level, left), self._next_space(level, right)
        return self.positions(hi)

    def _bound(self, level: int, lo: Tensor, hi: Tensor, wanted: Tensor) -> Tensor:
        """(n,) first place of each range whose code is at least `wanted`; its end if there is none. Binary search."""
        for _ in range(int((hi - lo).max().item()).bit_length() if len(lo) else 0):
            midpoint = (lo + hi) // 2
            open_ = lo < hi
            smaller = open_ & (self._code_at(level, midpoint.clamp(max=self._space(level) - 1)) < wanted)
            lo = torch.where(smaller, midpoint + 1, lo)
            hi = torch.where(open_ & ~smaller, midpoint, hi)
        return lo

    # -- ranges ------------------------------------------------------------------------------------------------

    @property
    def root(self) -> tuple[Tensor, Tensor]:
        """The range of everything, in the space of level 0: two tensors (1,)."""
        lo = torch.zeros(1, dtype=torch.long, device=self.device)
        return lo, torch.full_like(lo, self._space(0))

    def _space(self, level: int) -> int:
        return len(self._node_codes[level]) if level < self.top else self.ids

    def _code_at(self, level: int, at: Tensor) -> Tensor:
        return _widen(self._node_codes[level][at] if level < self.top else self._tails[at, level - self.top])

    def _next_space(self, level: int, at: Tensor) -> Tensor:
        return self._node_child[level][at].long() if level < self.top else at

    def _ids_from(self, level: int, at: Tensor) -> Tensor:
        """Bounds in the space of `level` -> bounds of IDs."""
        for child in self._node_child[level:]:
            at = child[at].long()
        return at

    def id_range(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Ranges in the space of `level` -> ranges of IDs.

        Args:
            level: Number of codes that the ranges have read.
            lo: (R,) first place of each range.
            hi: (R,) place after its last.
        """
        return self._ids_from(level, lo), self._ids_from(level, hi)

    def positions(self, ids: Tensor) -> Tensor:
        """First sorted positions of IDs.

        Args:
            ids: Numbers of IDs.
        """
        if self._item_start is not None:
            return self._item_start[ids].long()
        if self._shared is None or self._extra is None:
            return ids
        return ids + self._extra[torch.searchsorted(self._shared, ids.to(self._shared.dtype))]

    def item_range(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Ranges in the space of `level` -> ranges of sorted positions.

        Args:
            level: Number of codes that the ranges have read.
            lo: (R,) first place of each range.
            hi: (R,) place after its last.
        """
        first, last = self.id_range(level, lo, hi)
        return self.positions(first), self.positions(last)

    def count_before(self, allowed: Tensor) -> Tensor:
        """(items + 1,) how many allowed items come before each sorted position.

        Args:
            allowed: bool over item rows: which may be found.
        """
        count = torch.zeros(self.items + 1, dtype=self._order.dtype, device=self.device)
        torch.cumsum(allowed[self._order.long()], 0, dtype=count.dtype, out=count[1:])
        return count

    def items_below(self, level: int, lo: Tensor, hi: Tensor, before: Tensor | None = None) -> Tensor:
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
        return before[last].long() - before[first].long()

    def expand(self, level: int, lo: Tensor, hi: Tensor, before: Tensor | None = None) -> Children:
        """The children of prefixes that lead to at least one allowed item.

        Args:
            level: of the children's codes.
            lo, hi: (R,) ranges in the space of `level`.
            before: of `count_before`; None: every item is allowed.
        """
        row, place = ragged(hi - lo)
        start = lo[row] + place
        code = self._code_at(level, start)
        if level < self.top:
            end = start + 1
        else:
            # IDs are sorted, so a child begins wherever the code changes within its row
            begins = place == 0
            begins[1:] |= code[1:] != code[:-1]
            first = begins.nonzero()[:, 0]
            row, code, start = row[first], code[first], start[first]
            end = hi[row]
            end[:-1] = torch.where(row[1:] == row[:-1], start[1:], end[:-1])
        start, end = self._next_space(level, start), self._next_space(level, end)
        items = self.items_below(level + 1, start, end, before)
        children = Children(row, code, start, end, items)
        return children if before is None else children[(items > 0).nonzero()[:, 0]]

    def rows_of(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Ranges (R,) in the space of `level` -> flat: which range, ascending, and the row of every item below it.

        Args:
            level: Number of codes that the ranges have read.
            lo: (R,) first place of each range.
            hi: (R,) place after its last.
        """
        first, last = self.item_range(level, lo, hi)
        owner, place = ragged(last - first)
        return owner, self._order[first[owner] + place].long()

    # -- IDs and prefixes --------------------------------------------------------------------------------------

    def codes_of_ids(self, ids: Tensor) -> Tensor:
        """(n,) numbers of IDs -> (n, M) int64 codes.

        Args:
            ids: Numbers of IDs.
        """
        parts = [_widen(self._tails[ids])]
        node = ids
        for child, codes in zip(reversed(self._node_child), reversed(self._node_codes), strict=True):
            node = torch.searchsorted(child, node.to(child.dtype), right=True) - 1  # a node's first child says where it begins
            parts.append(_widen(codes[node])[:, None])
        return torch.cat(parts[::-1], 1)

    def ids_at(self, positions: Tensor) -> Tensor:
        """The IDs of items by their sorted positions.

        Args:
            positions: Sorted positions.
        """
        if self._item_start is not None:
            return torch.searchsorted(self._item_start, positions.to(self._item_start.dtype), right=True) - 1
        if self._shared is None or self._extra is None:
            return positions
        at = torch.searchsorted(self._shared + self._extra[:-1], positions.to(self._shared.dtype), right=True)
        last = F.pad(self._shared, (1, 0), value=-1)[at]  # the last shared ID that begins before it, and may hold it
        return torch.maximum(last.long(), positions - self._extra[at])

    def find(self, prefix: Sequence[int]) -> tuple[Tensor, Tensor]:
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
            wanted = torch.tensor([int(code)], device=self.device)
            left = self._bound(level, lo, hi, wanted)
            right = self._bound(level, left, hi, wanted + 1)
            lo, hi = self._next_space(level, left), self._next_space(level, right)
        return lo, hi

    def rows_below(self, prefix: Sequence[int]) -> NDArray[np.int64]:
        """Rows of the items whose codes start with `prefix`, in sorted order.

        Args:
            prefix: Codes, from the first.
        """
        return self.rows_of(len(prefix), *self.find(prefix))[1].cpu().numpy()

    def children(self, prefix: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Codes that may follow `prefix`, ascending, and the number of items below each.

        Args:
            prefix: Codes, from the first.
        """
        if len(prefix) >= self.levels:
            raise GeniusError(f"a full code of {self.levels} levels has no children")
        found = self.expand(len(prefix), *self.find(prefix))
        return found.code.cpu().numpy(), found.items.cpu().numpy()

    def positions_of(self, rows: Array | Tensor | Sequence[int]) -> Tensor:
        """Sorted position of each item row; an unknown row is an error.

        Args:
            rows: Rows of items.
        """
        wanted = torch.atleast_1d(torch.as_tensor(rows, device=self.device).long())
        if self._inverse is None:  # built on the first call: beam search never needs it
            size = int(self._order.max()) + 1 if self.items else 0
            inverse = torch.full((size,), -1, dtype=self._order.dtype, device=self.device)
            inverse[self._order.long()] = torch.arange(self.items, dtype=inverse.dtype, device=self.device)
            self._inverse = inverse
        known = (wanted >= 0) & (wanted < len(self._inverse))
        out = torch.full_like(wanted, -1)
        out[known] = self._inverse[wanted[known]].long()
        if (out < 0).any():
            raise GeniusError(f"no item has row {int(wanted[out < 0][0])} in this trie")
        return out

    def codes_at(self, positions: Array | Tensor | Sequence[int]) -> NDArray[np.int64]:
        """Codes (n, M) of the items at sorted positions.

        Args:
            positions: Sorted positions.
        """
        at = torch.as_tensor(positions, device=self.device).long()
        return self.codes_of_ids(self.ids_at(at)).cpu().numpy()

    def codes_of(self, rows: Array | Tensor | Sequence[int]) -> NDArray[np.int64]:
        """Codes (n, M) of item rows.

        Args:
            rows: Rows of items.
        """
        return self.codes_at(self.positions_of(rows))


class _SortedCodes:
    """The codes of a collection in order, by packing each into machine words.

    A code of 98 bits is two words, so two radix sorts; everything later reads the sorted words in sequence instead of gathering
    rows. Any device.
    """

    def __init__(self, codes: Tensor, sizes: Sequence[int]) -> None:
        """codes (N, M) integers, already known to be in range."""
        self.fields: list[tuple[int, int, int]] = []  # of each level: word, shift, mask
        words: list[Tensor] = []
        free_bits = 0
        for level, size in enumerate(sizes):
            bits = max(int(size - 1).bit_length(), 1)
            if bits > free_bits:
                words.append(codes[:, level].to(torch.int64, copy=True))
                free_bits = WORD - bits
            else:
                words[-1] = words[-1].bitwise_left_shift_(bits).bitwise_or_(codes[:, level].to(torch.int64))
                free_bits -= bits
            self.fields.append((len(words) - 1, bits, (1 << bits) - 1))
        shift = 0
        above = len(words)
        for level in range(len(sizes) - 1, -1, -1):
            word, bits, mask = self.fields[level]
            if word != above:
                shift = 0
            above = word
            self.fields[level] = (word, shift, mask)
            shift += bits
        # least significant word first: each sort is stable, so earlier orders survive among equals
        last, self.order = words[-1].sort(stable=True)
        self.words = [last]
        for earlier in reversed(words[:-1]):
            first, by = earlier[self.order].sort(stable=True)
            self.order = self.order[by]
            self.words = [first, *(later[by] for later in self.words)]

    def column(self, level: int) -> Tensor:
        """Codes of one level in sorted order: (N,) int64."""
        word, shift, mask = self.fields[level]
        return (self.words[word] >> shift) & mask


def ragged(counts: Tensor) -> tuple[Tensor, Tensor]:
    """(R,) lengths -> for every element of the concatenation, its row and its place in the row."""
    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    start = counts.cumsum(0) - counts
    return row, torch.arange(len(row), device=counts.device) - start[row]


def _first_difference(column: Column, levels: int, items: int) -> Tensor:
    """(N,) uint8: the first level at which each sorted code differs from the one before; M: same code; 0 for the first."""
    fresh: Tensor | None = None
    for level in range(levels - 1, -1, -1):
        codes = column(level)
        if fresh is None:
            fresh = torch.full((items,), levels, dtype=torch.uint8, device=codes.device)
        fresh[1:].masked_fill_(codes[1:] != codes[:-1], level)
    assert fresh is not None
    fresh[:1] = 0
    return fresh


def _as_tensor(array: Array, device: torch.device) -> Tensor:
    """A memory-mapped or ordinary array as a tensor, without a copy on the CPU; unsigned numbers as signed ones of their bits."""
    signed = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32}.get(array.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # read-only maps are only ever read
        return torch.from_numpy(np.asarray(array if signed is None else array.view(signed))).to(device)


def _widen(codes: Tensor) -> Tensor:
    """Codes as `_as_tensor` holds them -> int64."""
    mask = {torch.int16: 0xFFFF, torch.int32: 0xFFFFFFFF}.get(codes.dtype)
    return codes.long() if mask is None else codes.long() & mask


_SIGNED: dict[Any, torch.dtype] = {np.uint8: torch.uint8, np.uint16: torch.int16, np.uint32: torch.int32}


def _code_type(size: int) -> type[np.unsignedinteger[Any]]:
    if size <= 2**8:
        return np.uint8
    return np.uint16 if size <= 2**16 else np.uint32


def _row_type(rows: Array) -> type[np.signedinteger[Any]]:
    return np.int32 if not len(rows) or int(rows.max()) < 2**31 - 1 else np.int64


def _check_codes(codes: Array | Tensor, sizes: tuple[int, ...]) -> Tensor:
    table = codes.detach() if isinstance(codes, Tensor) else torch.from_numpy(np.asarray(codes))
    if table.ndim != 2 or table.shape[1] != len(sizes):
        raise GeniusError(f"codes must be (items, {len(sizes)}), got shape {tuple(table.shape)}")
    if table.is_floating_point() or table.is_complex() or table.dtype == torch.bool:
        raise GeniusError(f"codes must be integers, got {str(table.dtype).removeprefix('torch.')}")
    for level, size in enumerate(sizes):
        column = table[:, level]
        if len(table) and (int(column.min()) < 0 or int(column.max()) >= size):
            bad = int(((column < 0) | (column >= size)).nonzero()[0, 0])
            raise GeniusError(f"item {bad} has code {int(column[bad])} at level {level}, which has codes 0..{size - 1}")
    return table


def _check_rows(rows: Array | Tensor | None, items: int) -> Array | None:
    if rows is None:
        return None
    names = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    if names.shape != (items,):
        raise GeniusError(f"rows must be ({items},), one per item, got {tuple(names.shape)}")
    if items and int(names.min()) < 0:
        raise GeniusError("item rows must not be negative")
    if len(np.unique(names)) < items:
        values, counts = np.unique(names, return_counts=True)
        raise GeniusError(f"item row {int(values[counts > 1][0])} appears twice")
    return names
