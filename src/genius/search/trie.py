"""`CodeTrie`: the set of codes that exist, and which items sit below any prefix.

Derived from codes alone, in a few flat arrays that memory-map as they are. Knows nothing of decoders or scores.

IDs (distinct codes) are sorted, so everything below a prefix is one contiguous range. The upper levels, where
many IDs share a node, are explicit: nodes in breadth-first order, each with its code and its first child (the
end is the next node's first child, so children cost nothing). From the level where most nodes have a single ID
below them, paths are compressed: the rest of each ID is a row of `tails`, and a node is a range of IDs. A
prefix is therefore always a half-open range `lo, hi` in the *space* of its next level: that level's nodes while
they are explicit, IDs afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError

ALWAYS_EXPLICIT = 2  # levels spelt out in any case: they are the cells that `genius.search.scan` chooses among
WORD = 63  # bits used of an int64: words stay non-negative
RARE = 1 / 16  # share of IDs that several items have up to which those alone are written down: 8 B each against 4 B an ID
EXPLICIT_UP_TO = 0.5  # a level is explicit while its nodes are at most this share of the IDs: 6 B a node against 2 B an ID
Array = NDArray[Any]


class SortedCodes:
    """The codes of a collection in order, by packing each into machine words.

    A code of 98 bits is two words, so two radix sorts; everything later reads the sorted words in sequence instead of gathering
    rows. Any device.
    """

    def __init__(self, codes: Tensor, sizes: Sequence[int]) -> None:
        """codes (N, M) integers, already known to be in range."""
        self.fields: list[tuple[int, int, int]] = []  # of each level: word, shift, mask
        words: list[Tensor] = []
        room = 0
        for level, size in enumerate(sizes):
            bits = max(int(size - 1).bit_length(), 1)
            if bits > room:
                words.append(codes[:, level].to(torch.int64, copy=True))
                room = WORD - bits
            else:
                words[-1] = words[-1].bitwise_left_shift_(bits).bitwise_or_(codes[:, level].to(torch.int64))
                room -= bits
            self.fields.append((len(words) - 1, bits, (1 << bits) - 1))
        shift, above = 0, len(words)
        for level in range(len(sizes) - 1, -1, -1):
            word, bits, mask = self.fields[level]
            shift = 0 if word != above else shift
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

    def first_difference(self) -> Tensor:
        """(N,) uint8: the first level at which each differs from the one before; M: same code; 0 for the first."""
        levels = len(self.fields)
        fresh = torch.full((len(self.order),), levels, dtype=torch.uint8, device=self.order.device)
        for level in range(levels - 1, -1, -1):
            column = self.column(level)
            fresh[1:].masked_fill_(column[1:] != column[:-1], level)
        fresh[:1] = 0
        return fresh


class CodeTrie:
    """Build with `CodeTrie.build(codes, level_sizes)`; row i of `codes` is item i."""

    def __init__(self, level_sizes: Sequence[int], arrays: dict[str, Array], top: int) -> None:
        """From the arrays that `build` or `load` made; `top` is the number of explicit levels."""
        self.level_sizes = tuple(int(k) for k in level_sizes)
        self.top = top
        self.node_codes = [arrays[f"codes_{level}"] for level in range(top)]  # (nodes,) unsigned
        self.node_child = [arrays[f"child_{level}"] for level in range(top)]  # (nodes + 1,) into the next space
        self.tails = arrays["tails"]  # (ids, levels - top) unsigned: the codes from level `top` on
        self.order = arrays["order"]  # (items,) item row at each sorted position
        # (ids + 1,) first sorted position of each ID; or, where few have several items, which those are, ascending, and (n + 1,)
        # how many items there are before each beyond one an ID; neither: one item each
        self._start, self.shared, self.extra = (arrays.get(name) for name in ("item_start", "shared", "extra"))
        self._inverse: Array | None = None

    @property
    def levels(self) -> int:
        return len(self.level_sizes)

    @property
    def items(self) -> int:
        return int(self.order.shape[0])

    @property
    def ids(self) -> int:
        return int(self.tails.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, codes included."""
        made = [] if self.shared is None else [self._start]
        held = [*self.arrays().values(), *(array for array in (*made, self._inverse) if array is not None)]
        return sum(int(array.nbytes) for array in held)

    def __len__(self) -> int:
        return self.items

    def __repr__(self) -> str:
        return f"CodeTrie(items={self.items}, ids={self.ids}, levels={self.levels}, explicit={self.top}, bytes={self.nbytes})"

    # -- build -------------------------------------------------------------------------------------------------

    @classmethod
    def build(cls, codes: Array | Tensor, level_sizes: Sequence[int], rows: Array | Tensor | None = None) -> CodeTrie:
        """(N, M) codes -> trie. Several rows may share an ID. `rows` (N,) names the items; default 0..N-1."""
        table = codes.detach() if isinstance(codes, Tensor) else torch.from_numpy(np.asarray(codes))
        sizes = tuple(int(k) for k in level_sizes)
        _check_codes(table, sizes)
        names = _check_rows(rows, len(table))
        ordered = SortedCodes(table, sizes)  # on the device that holds the codes
        fresh = ordered.first_difference()
        starts_id = (fresh < len(sizes)).nonzero()[:, 0]  # sorted positions where a new ID begins
        ids, items = len(starts_id), len(table)
        unique = ids == items
        fresh_id = fresh if unique else fresh[starts_id]  # level of the first difference, per ID
        pointer = torch.int32 if items < 2**31 - 1 else torch.int64
        top, firsts = 0, []  # firsts[l]: ID positions where a node of level l begins
        while top < len(sizes):
            if top >= ALWAYS_EXPLICIT and int((fresh_id <= top).sum()) > max(EXPLICIT_UP_TO * ids, 1):
                break
            firsts.append((fresh_id <= top).nonzero()[:, 0])
            top += 1
        arrays: dict[str, Array] = {}
        for level, first in enumerate(firsts):
            at = first if unique else starts_id[first]
            arrays[f"codes_{level}"] = ordered.column(level)[at].cpu().numpy().astype(_code_type(sizes[level]))
            below = firsts[level + 1] if level + 1 < top else None
            child = first if below is None else torch.searchsorted(below, first)
            end = ids if below is None else len(below)
            arrays[f"child_{level}"] = torch.cat([child, child.new_tensor([end])]).to(pointer).cpu().numpy()
        kind = _code_type(max(sizes[top:], default=1))
        tails = torch.empty(ids, len(sizes) - top, dtype=_SIGNED[kind], device=table.device)
        for level in range(top, len(sizes)):
            column = ordered.column(level)
            tails[:, level - top] = column if unique else column[starts_id]  # keeps the low bits
        arrays["tails"] = tails.cpu().numpy().view(kind)
        order = ordered.order.to(pointer).cpu().numpy()
        arrays["order"] = order if names is None else names[order].astype(_row_type(names))
        if not unique:
            ends = torch.cat([starts_id, starts_id.new_tensor([items])])
            more = ends.diff() - 1
            shared = more.nonzero()[:, 0]
            if len(shared) <= RARE * ids:
                arrays["shared"] = shared.to(pointer).cpu().numpy()
                arrays["extra"] = torch.nn.functional.pad(more[shared].cumsum(0), (1, 0)).to(pointer).cpu().numpy()
            else:
                arrays["item_start"] = ends.to(pointer).cpu().numpy()
        return cls(sizes, arrays, top)

    def arrays(self) -> dict[str, Array]:
        """The arrays by the names they have on disk."""
        out: dict[str, Array] = {}
        for level in range(self.top):
            out[f"codes_{level}"], out[f"child_{level}"] = self.node_codes[level], self.node_child[level]
        out["tails"], out["order"] = self.tails, self.order
        if self.shared is not None and self.extra is not None:
            out["shared"], out["extra"] = self.shared, self.extra
        elif self._start is not None:
            out["item_start"] = self._start
        return out

    # -- questions ---------------------------------------------------------------------------------------------

    @property
    def root(self) -> tuple[int, int]:
        """The range of everything, in the space of level 0."""
        return 0, len(self.node_codes[0]) if self.top else self.ids

    def find(self, prefix: Sequence[int]) -> tuple[int, int]:
        """The range below a prefix, in the space of level len(prefix); empty if no item has it."""
        if len(prefix) > self.levels:
            raise GeniusError(f"a prefix of {len(prefix)} codes in a trie of {self.levels} levels")
        lo, hi = self.root
        for level, code in enumerate(prefix):
            if not 0 <= code < self.level_sizes[level]:
                raise GeniusError(f"code {code} at level {level} is not in 0..{self.level_sizes[level] - 1}")
            column = self.node_codes[level] if level < self.top else self.tails[:, level - self.top]
            left = lo + int(np.searchsorted(column[lo:hi], code, side="left"))
            right = lo + int(np.searchsorted(column[lo:hi], code, side="right"))
            if left == right:
                return 0, 0
            lo, hi = (
                (int(self.node_child[level][left]), int(self.node_child[level][right])) if level < self.top else (left, right)
            )
        return lo, hi

    def item_range(self, level: int, lo: Any, hi: Any) -> tuple[Any, Any]:
        """Ranges in the space of `level` -> ranges of sorted item positions. Scalars or arrays."""
        for child in self.node_child[level:]:
            lo, hi = child[lo], child[hi]
        return self.positions(lo), self.positions(hi)

    @property
    def item_start(self) -> Array | None:
        """(ids + 1,) first sorted position of each ID, for loops over many IDs; None: one item each."""
        if self._start is None and self.shared is not None:
            self._start = np.asarray(self.positions(np.arange(self.ids + 1)), dtype=self.order.dtype)
        return self._start

    def positions(self, ids: Any) -> Any:
        """First sorted positions of IDs. Scalars or arrays."""
        if self._start is not None:
            return self._start[ids]
        if self.shared is None or self.extra is None:
            return ids
        return ids + self.extra[np.searchsorted(self.shared, np.asarray(ids, self.shared.dtype))].astype(np.int64)

    def rows_below(self, prefix: Sequence[int]) -> NDArray[np.int64]:
        """Rows of the items whose codes start with `prefix`, in sorted order."""
        lo, hi = self.item_range(len(prefix), *self.find(prefix))
        return np.asarray(self.order[int(lo) : int(hi)]).astype(np.int64)

    def children(self, prefix: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Codes that may follow `prefix`, ascending, and the number of items below each."""
        level = len(prefix)
        if level >= self.levels:
            raise GeniusError(f"a full code of {self.levels} levels has no children")
        lo, hi = self.find(prefix)
        if level < self.top:
            left, right = self.node_child[level][lo:hi], self.node_child[level][lo + 1 : hi + 1]
            first, last = self.item_range(level + 1, left, right)
            codes = self.node_codes[level][lo:hi]
        else:
            column = np.asarray(self.tails[lo:hi, level - self.top])
            codes, at = np.unique(column, return_index=True)
            first, last = self.item_range(level + 1, lo + at, lo + np.append(at[1:], hi - lo))
        return np.asarray(codes).astype(np.int64), (np.asarray(last).astype(np.int64) - np.asarray(first).astype(np.int64))

    def positions_of(self, rows: Array | Sequence[int]) -> NDArray[np.int64]:
        """Sorted position of each item row; unknown rows are an error."""
        wanted = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        if self._inverse is None:  # built on the first call: searches never need it
            inverse = np.full(int(self.order.max()) + 1 if self.items else 0, -1, dtype=self.order.dtype)
            inverse[self.order] = np.arange(self.items, dtype=self.order.dtype)
            self._inverse = inverse
        known = (wanted >= 0) & (wanted < len(self._inverse))
        out = np.full(wanted.shape, -1, dtype=np.int64)
        out[known] = self._inverse[wanted[known]]
        if (out < 0).any():
            raise GeniusError(f"no item has row {int(wanted[out < 0][0])} in this trie")
        return out

    def codes_at(self, positions: Array) -> NDArray[np.int64]:
        """Codes (n, M) of the items at sorted positions."""
        node: Array = np.asarray(positions, dtype=np.int64)
        if self._start is not None:
            node = _holder(self._start, node)
        elif self.shared is not None and self.extra is not None:
            at = np.searchsorted(self.shared + self.extra[:-1], node.astype(self.shared.dtype), side="right")
            last = np.append(-1, self.shared)[at]  # the last shared ID that begins before it, and may hold it
            node = np.maximum(last, node - self.extra[at])
        codes = np.empty((len(node), self.levels), dtype=np.int64)
        codes[:, self.top :] = self.tails[node]
        for level in range(self.top - 1, -1, -1):
            node = _holder(self.node_child[level], node)
            codes[:, level] = self.node_codes[level][node]
        return codes

    def codes_of(self, rows: Array | Sequence[int]) -> NDArray[np.int64]:
        """Codes (n, M) of item rows."""
        return self.codes_at(self.positions_of(rows))


def _holder(starts: Array, at: Array) -> NDArray[np.int64]:
    """Which of the ranges that begin at `starts` holds each place. In the starts' own type, else all are converted."""
    return np.searchsorted(starts, at.astype(starts.dtype), side="right") - 1


_SIGNED: dict[Any, torch.dtype] = {np.uint8: torch.uint8, np.uint16: torch.int16, np.uint32: torch.int32}


def _code_type(size: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if size <= 2**8 else np.uint16 if size <= 2**16 else np.uint32


def _row_type(rows: Array) -> type[np.signedinteger[Any]]:
    return np.int32 if not len(rows) or int(rows.max()) < 2**31 - 1 else np.int64


def _check_codes(table: Tensor, sizes: tuple[int, ...]) -> None:
    if table.ndim != 2 or table.shape[1] != len(sizes):
        raise GeniusError(f"codes must be (items, {len(sizes)}), got shape {tuple(table.shape)}")
    if table.is_floating_point() or table.is_complex() or table.dtype == torch.bool:
        raise GeniusError(f"codes must be integers, got {str(table.dtype).removeprefix('torch.')}")
    for level, size in enumerate(sizes):
        column = table[:, level]
        if len(table) and (int(column.min()) < 0 or int(column.max()) >= size):
            bad = int(((column < 0) | (column >= size)).nonzero()[0, 0])
            raise GeniusError(f"item {bad} has code {int(column[bad])} at level {level}, which has codes 0..{size - 1}")


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
