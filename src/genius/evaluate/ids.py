"""From beams of codes back to items: which rows carry an ID, and which prefixes exist.

Plain arrays, no Python loop over items. Independent of `genius.search.CodeTrie` on purpose: the harness checks the
search with something the search did not build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genius.errors import GeniusError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class IdTable:
    """All prefixes of the IDs of a pool, numbered level by level; the last level's numbers are the IDs."""

    def __init__(self, codes: Ints, level_sizes: Sequence[int]) -> None:
        if codes.ndim != 2 or codes.shape[1] != len(level_sizes):
            raise GeniusError(f"codes have shape {codes.shape}, expected (N, {len(level_sizes)})")
        self.level_sizes = tuple(int(k) for k in level_sizes)
        if ((codes < 0) | (codes >= np.array(self.level_sizes))).any():
            raise GeniusError(f"codes out of range for levels of sizes {self.level_sizes}")
        self.keys: list[Ints] = []  # per level: sorted (prefix number of the level before) * K + code
        number = np.zeros(len(codes), np.int64)
        for level, size in enumerate(self.level_sizes):
            keys, number = np.unique(number * size + codes[:, level], return_inverse=True)
            number = number.reshape(-1).astype(np.int64)
            self.keys.append(keys)
        self.of_row: Ints = number  # (N,) the ID of every row
        self.order: Ints = np.argsort(number, kind="stable")  # rows by ID, pool order inside one
        counts = np.bincount(number, minlength=len(self.keys[-1])) if len(codes) else np.zeros(0, np.int64)
        self.start: Ints = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def ids(self) -> int:
        return len(self.start) - 1

    def prefixes(self, codes: Ints) -> Ints:
        """(..., L) codes -> (..., L) numbers of their prefixes; -1 where a prefix does not exist (or codes are -1)."""
        shape = codes.shape
        flat = codes.reshape(-1, shape[-1])
        number = np.zeros(len(flat), np.int64)
        out = np.full(flat.shape, -1, np.int64)
        alive = np.ones(len(flat), bool)
        for level in range(shape[-1]):
            keys = self.keys[level]
            code = flat[:, level]
            wanted = number * self.level_sizes[level] + code
            place = np.searchsorted(keys, wanted).clip(max=max(len(keys) - 1, 0))
            alive &= (code >= 0) & (code < self.level_sizes[level]) & (keys[place] == wanted)
            number = np.where(alive, place, 0)
            out[alive, level] = place[alive]
        return out.reshape(shape)

    def lookup(self, codes: Ints) -> Ints:
        """(..., M) codes -> (...) ID numbers, -1 where no item has them."""
        found: Ints = self.prefixes(codes)[..., -1]
        return found


@dataclass(frozen=True, slots=True)
class Candidates:
    """The items below the beams of some queries, flat, in beam order."""

    owner: Ints  # (C,) query, ascending
    rows: Ints  # (C,) pool row
    counts: Ints  # (Q,)


def items_of(table: IdTable, ids: Ints) -> Candidates:
    """(Q, B) ID numbers in beam order (-1: none) -> their items. An ID that came twice counts once."""
    queries, beams = ids.shape
    ordered = np.sort(ids, axis=1)
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
        raise GeniusError("a beam search returned one ID twice")
    flat = ids.reshape(-1)
    real = flat >= 0
    start = np.where(real, table.start[np.where(real, flat, 0)], 0)
    counts = np.where(real, table.start[np.where(real, flat, 0) + 1] - start, 0)
    total = int(counts.sum())
    beam = np.repeat(np.arange(queries * beams), counts)
    inside = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = table.order[start[beam] + inside]
    owner = beam // beams
    return Candidates(owner, rows, np.bincount(owner, minlength=queries).astype(np.int64))


def ranked(
    candidates: Candidates, k: int, scores: npt.NDArray[np.floating] | None = None
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """The first k candidates of every query: by score, or in the order they came. (Q, k) rows, scores; -1, -inf beyond."""
    queries = len(candidates.counts)
    owner, rows = candidates.owner, candidates.rows
    begin = np.cumsum(candidates.counts) - candidates.counts
    if scores is None:
        value = -(np.arange(len(owner)) - begin[owner]).astype(np.float64)  # minus the place in the list
    else:
        value = scores.astype(np.float64)
        order = np.lexsort((rows, -value, owner))  # equal scores: lower row first
        owner, rows, value = owner[order], rows[order], value[order]
    place = np.arange(len(owner)) - begin[owner]
    keep = place < k
    out = np.full((queries, k), -1, np.int64)
    out_scores = np.full((queries, k), -np.inf)
    out[owner[keep], place[keep]] = rows[keep]
    out_scores[owner[keep], place[keep]] = value[keep]
    return out, out_scores
