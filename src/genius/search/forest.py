"""Tries as tensors: the ragged expansion of beams into their true children, on any device.

`TrieView` is one trie; `Forest` is several searched as one (the base and the delta of an index), with a filter.
A beam's state is one range `lo, hi` per trie, in the space of its next level (see `trie.py`). Nothing is padded
to a level's largest branching: children are one flat list.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from genius.search.trie import CodeTrie


def as_tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """A memory-mapped or plain array as a tensor, without a copy on the CPU; unsigned kinds as their signed twins."""
    signed = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32}.get(array.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # read-only maps are only ever read
        return torch.from_numpy(np.asarray(array if signed is None else array.view(signed))).to(device)


def widen(codes: Tensor) -> Tensor:
    """Codes in their signed twin type -> int64."""
    mask = {torch.int16: 0xFFFF, torch.int32: 0xFFFFFFFF}.get(codes.dtype)
    return codes.long() if mask is None else codes.long() & mask


def ragged(counts: Tensor) -> tuple[Tensor, Tensor]:
    """(R,) lengths -> for every element of the concatenation, its row and its place in the row."""
    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    start = counts.cumsum(0) - counts
    return row, torch.arange(len(row), device=counts.device) - start[row]


class TrieView:
    """A `CodeTrie` on a device."""

    def __init__(self, trie: CodeTrie, device: torch.device) -> None:
        self.trie, self.top, self.device = trie, trie.top, device
        self.node_codes = [as_tensor(a, device) for a in trie.node_codes]
        self.node_child = [as_tensor(a, device) for a in trie.node_child]
        self.tails = as_tensor(trie.tails, device)
        self.order = as_tensor(trie.order, device)
        given = trie.arrays()
        self.item_start, self.shared, self.extra = (
            as_tensor(given[name], device) if name in given else None for name in ("item_start", "shared", "extra")
        )

    def id_range(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Ranges in the space of `level` -> ranges of IDs."""
        for child in self.node_child[level:]:
            lo, hi = child[lo].long(), child[hi].long()
        return lo, hi

    def item_range(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Ranges in the space of `level` -> ranges of sorted item positions."""
        lo, hi = self.id_range(level, lo, hi)
        return self.positions(lo), self.positions(hi)

    @property
    def several(self) -> bool:
        """Whether some items share an ID."""
        return self.item_start is not None or self.shared is not None

    def positions(self, ids: Tensor) -> Tensor:
        """First sorted positions of IDs (see `CodeTrie`)."""
        if self.item_start is not None:
            return self.item_start[ids].long()
        if self.shared is None or self.extra is None:
            return ids
        return ids + self.extra[torch.searchsorted(self.shared, ids.to(self.shared.dtype))]

    def ids_at(self, positions: Tensor) -> Tensor:
        """The IDs of items by their sorted positions."""
        if self.item_start is not None:
            return torch.searchsorted(self.item_start, positions.to(self.item_start.dtype), right=True) - 1
        if self.shared is None or self.extra is None:
            return positions
        at = torch.searchsorted(self.shared + self.extra[:-1], positions.to(self.shared.dtype), right=True)
        last = F.pad(self.shared, (1, 0), value=-1)[at]  # the last shared ID that begins before it, and may hold it
        return torch.maximum(last.long(), positions - self.extra[at])

    def codes_of_ids(self, ids: Tensor, level: int = 0) -> Tensor:
        """(n,) ID positions -> (n, M - level) int64: their codes from `level` on."""
        parts = [widen(self.tails[ids, max(level - self.top, 0) :])]
        node = ids
        for above in range(self.top - 1, level - 1, -1):  # a node's first child says where it begins
            node = torch.searchsorted(self.node_child[above], node.to(self.node_child[above].dtype), right=True) - 1
            parts.append(widen(self.node_codes[above][node])[:, None])
        return torch.cat(parts[::-1], 1)

    def expand(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ranges (R,) -> true children, flat: their row, code, and range in the space of level + 1; rows ascending,
        codes ascending within a row."""
        row, place = ragged(hi - lo)
        at = lo[row] + place
        if level < self.top:
            child = self.node_child[level]
            return row, widen(self.node_codes[level][at]), child[at].long(), child[at + 1].long()
        column = self.tails[:, level - self.top]
        code = widen(column[at])
        # IDs are sorted, so a child begins wherever the code changes within its row
        begins = place == 0
        begins[1:] |= code[1:] != code[:-1]
        first = begins.nonzero()[:, 0]
        row, code, start = row[first], code[first], at[first]
        end = hi[row]
        inner = row[1:] == row[:-1]
        end[:-1] = torch.where(inner, start[1:], end[:-1])
        return row, code, start, end


@dataclass(slots=True)
class Children:
    """A flat list of candidates."""

    row: Tensor  # (C,) which beam, ascending
    code: Tensor  # (C,) int64
    lo: Tensor  # (tries, C) ranges in the space of the next level; empty where a trie lacks the child
    hi: Tensor  # (tries, C)
    items: Tensor  # (C,) allowed items below

    def __getitem__(self, index: Tensor) -> Children:
        return Children(self.row[index], self.code[index], self.lo[:, index], self.hi[:, index], self.items[index])


@dataclass(slots=True)
class Leaves:
    """A flat list of IDs."""

    row: Tensor  # (C,) which range they are below, ascending
    lo: Tensor  # (tries, C) ranges of IDs, each of one ID in one trie
    hi: Tensor  # (tries, C)
    items: Tensor  # (C,) allowed items with this ID


class Forest:
    """Several tries searched as one, restricted to allowed items."""

    def __init__(self, views: Sequence[TrieView], level_sizes: Sequence[int], allowed: Tensor | None = None) -> None:
        """`allowed` (rows,) bool over item rows; None: every item."""
        self.views, self.level_sizes = list(views), tuple(level_sizes)
        self.device = self.views[0].device
        self.allowed = allowed
        # how many allowed items come before each sorted position: a range's count is a difference of two
        self.before = [None if allowed is None else _count_before(allowed, view.order) for view in self.views]

    def root(self, queries: int) -> tuple[Tensor, Tensor]:
        """(tries, queries) ranges of everything."""
        hi = torch.tensor([view.trie.root[1] for view in self.views], device=self.device)
        return torch.zeros(len(self.views), queries, dtype=torch.long, device=self.device), hi[:, None].repeat(1, queries)

    def items_below(self, level: int, lo: Tensor, hi: Tensor) -> Tensor:
        """(tries, ...) ranges in the space of `level` -> number of allowed items."""
        total = torch.zeros_like(lo[0])
        for t, view in enumerate(self.views):
            first, last = view.item_range(level, lo[t], hi[t])
            before = self.before[t]
            total += last - first if before is None else before[last].long() - before[first].long()
        return total

    def ids_below(self, level: int, lo: Tensor, hi: Tensor) -> Tensor:
        """(tries, ...) -> number of IDs, allowed or not (an ID in two tries counts twice)."""
        total = torch.zeros_like(lo[0])
        for t, view in enumerate(self.views):
            first, last = view.id_range(level, lo[t], hi[t])
            total += last - first
        return total

    def leaves(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Leaves, Tensor]:
        """(tries, R) ranges -> every ID below that leads to an allowed item, ranges ascending, and its codes
        (C, M - level) from `level` on. An ID in two tries comes twice."""
        parts = []
        for t, view in enumerate(self.views):
            first, last = view.id_range(level, lo[t], hi[t])
            row, place = ragged(last - first)
            at = first[row] + place
            parts.append((row, at, torch.full_like(at, t), view.codes_of_ids(at, level)))
        row, at, trie, codes = (torch.cat(column) for column in zip(*parts, strict=True))
        if len(parts) > 1:
            row, by = row.sort(stable=True)
            at, trie, codes = at[by], trie[by], codes[by]
        here = trie[None] == torch.arange(len(self.views), device=self.device)[:, None]
        lo, hi = torch.where(here, at, 0), torch.where(here, at + 1, 0)
        items = self.items_below(len(self.level_sizes), lo, hi)
        if self.allowed is not None:
            keep = (items > 0).nonzero()[:, 0]
            row, codes, lo, hi, items = row[keep], codes[keep], lo[:, keep], hi[:, keep], items[keep]
        return Leaves(row, lo, hi, items), codes

    def expand(self, level: int, lo: Tensor, hi: Tensor) -> Children:
        """(tries, R) ranges -> the children that lead to at least one allowed item."""
        parts = [view.expand(level, lo[t], hi[t]) for t, view in enumerate(self.views)]
        if len(parts) == 1:
            row, code, left, right = parts[0]
            lo, hi = left[None], right[None]
        else:
            size = self.level_sizes[level]
            keys = torch.cat([row * size + code for row, code, _, _ in parts])
            unique, where = torch.unique(keys, return_inverse=True)
            row, code = unique // size, unique % size
            lo = torch.zeros(len(parts), len(unique), dtype=torch.long, device=self.device)
            hi = torch.zeros_like(lo)
            start = 0
            for t, (part, _, left, right) in enumerate(parts):
                at = where[start : start + len(part)]
                lo[t, at], hi[t, at] = left, right
                start += len(part)
        items = self.items_below(level + 1, lo, hi)
        children = Children(row, code, lo, hi, items)
        return children if self.allowed is None else children[(items > 0).nonzero()[:, 0]]

    def rows(self, level: int, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """(tries, R) ranges -> (which range, item row) of every allowed item below, flat, ranges ascending."""
        owners, rows = [], []
        for t, view in enumerate(self.views):
            first, last = view.item_range(level, lo[t], hi[t])
            owner, place = ragged(last - first)
            owners.append(owner)
            rows.append(view.order[first[owner] + place].long())
        owner, row = torch.cat(owners), torch.cat(rows)
        if len(owners) > 1:
            owner, by = owner.sort(stable=True)
            row = row[by]
        if self.allowed is not None:
            keep = self.allowed[row]
            owner, row = owner[keep], row[keep]
        return owner, row


def _count_before(allowed: Tensor, order: Tensor) -> Tensor:
    count = torch.zeros(len(order) + 1, dtype=torch.int32 if len(order) < 2**31 else torch.int64, device=order.device)
    torch.cumsum(allowed[order.long()], 0, dtype=count.dtype, out=count[1:])
    return count
