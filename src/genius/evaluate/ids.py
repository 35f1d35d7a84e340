"""IDs without the search engine: which rows carry an ID, which prefixes exist, and a plain beam search over them.

Plain arrays, no Python loop over items. Independent of `genius.search.CodeTrie` on purpose: the harness checks the
search with something the search did not build. `PlainBeam` is slow and written from the paper (4.4) with the generator's public
functions. It says at which level a search loses its targets (is a positive's prefix still in the beam?), and it is a second
opinion on `genius.search.beam_search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.model.generator import Generator
from genius.search.decoder import Writer

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

    def first(self, most: int) -> Candidates:
        """At most so many of every query, those of its best beams."""
        place = np.arange(len(self.owner)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        return Candidates(self.owner[place < most], self.rows[place < most], np.minimum(self.counts, most))


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


class PlainBeam:
    """Beam search for one query at a time, level by level, over the children that exist."""

    def __init__(self, table: IdTable, generator: Generator, instead: Writer | None = None) -> None:
        """`instead` writes in the generator's place."""
        self.table, self.generator, self.instead = table, generator, instead
        self.children = [_children(keys, size) for keys, size in zip(table.keys, table.level_sizes, strict=True)]

    @torch.inference_mode()
    def levels(self, z: Tensor, beams: int) -> list[tuple[Ints, Ints, npt.NDArray[np.float64]]]:
        """z (D,) -> for every level: prefix numbers (n,), codes (n, level + 1), score sums (n,), best first."""
        prefix, codes, scores = np.zeros(1, np.int64), np.zeros((1, 0), np.int64), np.zeros(1)
        out = []
        for level in range(len(self.table.level_sizes)):
            worth = self._worth(z, codes, level)  # (n, K)
            first, last, child_codes = self.children[level]
            parent = np.repeat(np.arange(len(prefix)), last[prefix] - first[prefix])
            child = np.concatenate([np.arange(first[p], last[p]) for p in prefix])
            code = child_codes[child]
            total = scores[parent] + worth[parent, code]
            best = np.argsort(-total, kind="stable")[:beams]
            prefix, scores = child[best], total[best]
            codes = np.concatenate([codes[parent[best]], code[best, None]], 1)
            out.append((prefix, codes, scores))
        return out

    def _worth(self, z: Tensor, codes: Ints, level: int) -> npt.NDArray[np.float64]:
        """What each code of the level adds to each beam."""
        chosen = torch.from_numpy(codes).to(z.device)
        if self.instead is None:
            return self.generator.next_log_probs(z.expand(len(codes), -1), chosen).double().cpu().numpy()
        memory = self.instead.start(z[None])
        hidden, memory = self.instead.run(chosen[None], memory)
        return self.instead.log_p(level, hidden[:, :, -1], memory, chosen[None]).double().cpu().numpy()


def _children(keys: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """Children of every prefix are contiguous in the sorted keys: (first, last) per parent, and the codes."""
    parents = keys // size
    count = int(parents.max()) + 1 if len(keys) else 0
    numbers = np.arange(count)
    return np.searchsorted(parents, numbers), np.searchsorted(parents, numbers, side="right"), keys % size


def prefix_survival(beam: PlainBeam, z: Tensor, positive_codes: Sequence[Ints], beams: int) -> npt.NDArray[np.float64]:
    """(M,) share of the queries z (Q, D) with some positive's prefix among the beams after each level.

    `positive_codes[q]` is (positives, M). Queries without positives do not count.
    """
    kept = []
    for query, codes in zip(z, positive_codes, strict=True):
        if len(codes) == 0:
            continue
        gold = beam.table.prefixes(codes)  # (positives, M)
        kept.append([bool(np.isin(gold[:, level], found[0]).any()) for level, found in enumerate(beam.levels(query, beams))])
    return np.mean(kept, axis=0) if kept else np.full(len(beam.table.level_sizes), np.nan)
