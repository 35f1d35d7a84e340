"""The search with fixed shapes: what one CUDA graph records. Same results as `beam.py`, another arrangement.

Nothing here waits for the device or depends on values: beams fill slots (1, 3, B, B, ...), children are scattered into
rows of -inf, every token's q, k and v stay where they were computed and beams point to their ancestors' slots.
Knows one trie, no filter, no delta.

A CUDA graph cannot decide while it runs how deep to go. `Plan`, read off the trie once a collection, says beforehand which
levels to step through, at which depths the re-ranking budget must be checked, and from which depth on paths are unary. Queries
that do not fit the plan are flagged and done again without it, so a plan affects speed, never results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from genius.search.decoder import Decoder
from genius.search.forest import TrieView, widen
from genius.search.params import Reranker

SAMPLE = 400_000  # IDs looked at to find the depth where paths are unary
PREFIXES = 400  # prefixes whose item counts are looked at to guess where a budget is met


@dataclass(frozen=True, slots=True)
class Plan:
    """Fixed course of a search."""

    steps: int  # levels decoded one by one
    stops: tuple[int, ...]  # depths at which the budget is checked; empty: full depth
    budget: int  # R; 0: full depth


def plan_full_depth(view: TrieView, beams: int, tolerance: float = 0.0) -> Plan:
    """Step until at most `tolerance` of the queries have a beam that shares its prefix with another ID (judged by a
    sample); the rest is one pass over the tails."""
    trie = view.trie
    levels = trie.levels
    steps = max(trie.top, 1)
    if trie.ids > 1:
        rng = np.random.default_rng(0)
        at = np.unique(rng.integers(0, trie.ids - 1, SAMPLE)) if trie.ids > SAMPLE else np.arange(trie.ids - 1)
        first = at if trie.item_start is None else np.asarray(trie.item_start[at])
        second = at + 1 if trie.item_start is None else np.asarray(trie.item_start[at + 1])
        same = np.logical_and.accumulate(trie.codes_at(first) == trie.codes_at(second), axis=1)
        while steps < levels and 2 * beams * same[:, steps - 1].mean() > tolerance:
            steps += 1
    return Plan(steps, (), 0)


def plan_budget(view: TrieView, beams: int, budget: int) -> Plan:
    """Check the budget at every depth where it may be met, down to where it nearly always is."""
    trie = view.trie
    stops = []
    rng = np.random.default_rng(0)
    sample = trie.codes_at(rng.integers(0, max(trie.items, 1), PREFIXES)) if trie.items else np.empty((0, trie.levels), int)
    for depth in range(1, trie.levels + 1):
        if _least_below(view, depth, beams) <= budget:
            stops.append(depth)
            counts = [_items(view, depth, code[:depth].tolist()) for code in sample]
            if depth == trie.levels or not counts or float(np.quantile(counts, 0.99)) * beams <= budget:
                return Plan(depth, tuple(stops), budget)
    return Plan(trie.levels, (*stops, trie.levels), budget)


def _items(view: TrieView, depth: int, prefix: list[int]) -> int:
    lo, hi = view.trie.item_range(depth, *view.trie.find(prefix))
    return int(hi) - int(lo)


def _least_below(view: TrieView, depth: int, beams: int) -> int:
    """No `beams` prefixes of this depth have fewer items below them together."""
    if depth > view.top:
        return min(beams, view.trie.ids)  # compressed levels: at least one item each
    at = torch.arange(len(view.node_codes[depth - 1]), device=view.device)
    lo, hi = view.item_range(depth - 1, at, at + 1)
    counts = hi - lo
    return int(counts.topk(min(beams, len(counts)), largest=False).values.sum()) if len(counts) else 0


class Ops(Protocol):
    """`TorchOps` or `TritonOps`; see there."""

    def add_norm(self, x: Tensor, y: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor: ...
    def self_attention(self, cache: Tensor, ancestors: Tensor, bias: Tensor, first: int, length: int, heads: int) -> Tensor: ...
    def cross_attention(self, q: Tensor, kv: Tensor, queries: int, heads: int) -> Tensor: ...
    def linear_relu(self, h: Tensor, weight: Tensor, zero: Tensor) -> Tensor: ...
    def logits(self, h: Tensor, head: Tensor) -> Tensor: ...
    def log_normalizer(self, h: Tensor, head: Tensor) -> Tensor: ...
    def pick(self, h: Tensor, head: Tensor, token: Tensor) -> Tensor: ...
    def expand(self, logits: Tensor, base: Tensor, lo: Tensor, hi: Tensor, codes: Tensor) -> Tensor: ...
    def find(
        self, codes: Tensor, lo: Tensor, hi: Tensor, parent: Tensor, code: Tensor, child: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...
    def dots(self, query: Tensor, rows: Tensor, vectors: Tensor, scales: Tensor | None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recorded search is for; one graph each."""

    queries: int
    beams: int
    k: int
    plan: Plan
    reranker: Reranker
    targets: bool  # whether some queries' targets are known


@dataclass(frozen=True, slots=True)
class Parts:
    """What is searched with: one decoder over one trie on one device."""

    decoder: Decoder
    view: TrieView
    ops: Ops
    vectors: Tensor | None = None  # (N, D) for re-ranking
    scales: Tensor | None = None  # (N,) of int8 vectors


class StaticSearch:
    """Buffers and course of one `Shape`. Fill `z`, `dense`, `target`, call `run`, read the results."""

    def __init__(self, shape: Shape, parts: Parts) -> None:
        decoder, vectors = parts.decoder, parts.vectors
        self.shape, self.decoder, self.view, self.ops = shape, decoder, parts.view, parts.ops
        self.vectors, self.scales = vectors, parts.scales
        config, device = decoder.config, decoder.device
        self.config, self.levels, self.device = config, config.levels, device
        self.z = torch.zeros(shape.queries, config.width, device=device)
        self.dense = torch.zeros(shape.queries, config.width if vectors is None else vectors.shape[1], device=device)
        self.target = torch.full((shape.queries,), -1, dtype=torch.long, device=device)
        self.query = torch.arange(shape.queries, device=device)[:, None]
        self.bias = decoder.bias[0, :, :, 0].float().contiguous()  # (heads, M) by distance
        self.zero = torch.zeros(config.d_ff, dtype=decoder.dtype, device=device)
        self.widths = [1]  # beams that enter each level
        for size in config.level_sizes[: shape.plan.steps]:
            self.widths.append(min(shape.beams, self.widths[-1] * size))
        # levels 0 and 1 in one pass, unless the search may end or must choose at level 0
        size = config.level_sizes[0]
        self.paired = size <= min(shape.beams, 8) and shape.plan.steps > 1 and 1 not in shape.plan.stops
        tail = 0 if shape.plan.budget else self.levels - shape.plan.steps
        slots = shape.queries * (2 * self.widths[1] + sum(self.widths[:-1]) + self.widths[-1] * max(tail, 0))
        self.cache = [torch.empty(slots, 3 * decoder.inner, dtype=decoder.dtype, device=device) for _ in decoder.layers]

    # -- the decoder -------------------------------------------------------------------------------------------

    def _prefix(self) -> list[Tensor]:
        decoder, config = self.decoder, self.config
        prefix = torch.addmm(decoder.prefix_bias, self.z.to(decoder.dtype), decoder.prefix_weight.T).view(-1, config.d_model)
        normed = self.ops.add_norm(prefix.float(), None, decoder.eps, decoder.dtype) * decoder.prefix_norm
        return [normed @ layer.cross_kv for layer in decoder.layers]  # (Q * prefix, 2 * inner)

    def _hidden(self, inputs: Tensor, ancestors: Tensor, cross: list[Tensor], first: int) -> Tensor:
        """inputs (R, L, d), ancestors (R, past) -> (R * L, d); q, k, v are left in the cache from slot `first` on."""
        decoder, ops, queries, heads = self.decoder, self.ops, self.shape.queries, self.config.heads
        length, x = inputs.shape[1], inputs.flatten(0, 1).float()
        y: Tensor | None = None
        for i, layer in enumerate(decoder.layers):
            h = ops.add_norm(x, y, decoder.eps, decoder.dtype)
            torch.mm(h, layer.qkv, out=self.cache[i][first : first + len(x)])
            mixed = ops.self_attention(self.cache[i], ancestors, self.bias, first, length, heads)
            h = ops.add_norm(x, mixed @ layer.out, decoder.eps, decoder.dtype)
            mixed = ops.cross_attention(h @ layer.cross_q, cross[i], queries, heads)
            h = ops.add_norm(x, mixed @ layer.cross_out, decoder.eps, decoder.dtype)
            y = ops.linear_relu(h, layer.ff_in, self.zero) @ layer.ff_out
        return ops.add_norm(x, y, decoder.eps, decoder.dtype)

    # -- the course --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """One search of every query; results in `rows`, `scores`, `touched`, `flags`."""
        shape, queries, device = self.shape, self.shape.queries, self.device
        cross = self._prefix()
        self.flags = torch.zeros(queries, dtype=torch.bool, device=device)
        self.done = torch.zeros(queries, dtype=torch.bool, device=device)
        lo = torch.zeros(queries, 1, dtype=torch.long, device=device)
        hi = torch.full((queries, 1), self.view.trie.root[1], dtype=torch.long, device=device)
        score = torch.zeros(queries, 1, device=device)
        ancestors = torch.empty(queries, 1, 0, dtype=torch.int32, device=device)
        self.codes = torch.empty(queries, 1, 0, dtype=torch.long, device=device)  # (Q, n, level) what the beams have written
        first, begin = 0, 0
        if self.paired:
            h, score, lo, hi, ancestors = self._first_pair(cross)
            first, begin = 2 * queries * self.widths[1], 1
        for level in range(begin, shape.plan.steps):
            width = self.widths[level]
            if not (self.paired and level == 1):
                h = self._hidden(self._inputs(level), ancestors.flatten(0, 1), cross, first)
            worth = self._worth(level, h, score, lo, hi)
            score, parent, code = self._best(worth, self.widths[level + 1], width)
            self.flags |= torch.isnan(score).any(1)
            alive = score > -torch.inf
            parent_row = torch.where(alive, self.query * width + parent, -1)
            self.codes = torch.cat([self.codes[self.query, parent], code[:, :, None]], 2)
            if level + 1 in shape.plan.stops:
                self._stop(level + 1, worth, lo, hi, width, parent_row, code)
            lo, hi = self._find(level, lo, hi, parent_row, code)
            if self.paired and level == 1:
                ancestors = ancestors[self.query, parent]  # both tokens of the pair
            else:
                own = (first + self.query * width + parent).to(torch.int32)
                ancestors = torch.cat([ancestors[self.query, parent], own[:, :, None]], 2)
                first += queries * width
        if shape.plan.budget:
            self.flags |= ~self.done
            self._rerank(*self.stopped)
            return
        self._finish(ancestors, cross, first, score, lo, hi)

    def _first_pair(self, cross: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Levels 0 and 1 in one pass: every code of level 0 becomes a beam, so their tokens need not wait for its scores.

        -> hidden states for level 1, and score, lo, hi (Q, K_0) and ancestors (Q, K_0, 2) of the level-0 beams.
        """
        queries, width = self.shape.queries, self.widths[1]
        codes = torch.arange(width, device=self.device).expand(queries, width).contiguous()
        none = torch.empty(queries * width, 0, dtype=torch.int32, device=self.device)
        inputs = self.decoder.head.inputs(codes.view(-1, 1), 0)  # the start, then each code of level 0
        h = self._hidden(inputs, none, cross, 0).view(queries, width, 2, -1)
        lo = torch.zeros(queries, 1, dtype=torch.long, device=self.device)
        hi = torch.full_like(lo, self.view.trie.root[1])
        score = self._worth(0, h[:, 0, 0].contiguous(), torch.zeros_like(lo, dtype=torch.float32), lo, hi)  # (Q, K_0)
        self.flags |= torch.isnan(score).any(1)
        lo, hi = self._find(0, lo, hi, torch.where(score > -torch.inf, self.query.expand(queries, width), -1), codes)
        self.codes = codes[:, :, None]
        slots = torch.arange(2 * queries * width, dtype=torch.int32, device=self.device).view(queries, width, 2)
        return h[:, :, 1].contiguous().view(queries * width, -1), score, lo, hi, slots

    def _worth(self, level: int, h: Tensor, score: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
        """(Q * n, K) sums of log p of the true children, -inf elsewhere."""
        rest, modality = self._left(self.codes)
        logits, normalizer = self.decoder.head.fixed(level, h, rest, modality, self.ops)
        worth = self.ops.expand(logits, score.flatten() - normalizer, lo.flatten(), hi.flatten(), self._codes(level))
        if level == 0 and self.shape.targets:  # a known target is given, not scored
            chosen = torch.arange(worth.shape[1], device=self.device) == self.target[:, None]
            given = torch.where(chosen & (worth > -torch.inf), 0.0, -torch.inf)
            worth = torch.where(self.target[:, None] >= 0, given, worth)
        return worth

    def _inputs(self, begin: int) -> Tensor:
        """What is read of the beams' codes from input `begin` on: (Q * n, L, d)."""
        return self.decoder.head.inputs(self.codes.flatten(0, 1), begin)

    def _left(self, codes: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What is left of z after codes (Q, n, l), and the first codes: (Q * n, D), (Q * n,)."""
        z = self.z.repeat_interleave(codes.shape[1], 0)
        return self.decoder.head.rest(z, codes.flatten(0, 1)), codes[:, :, 0].flatten() if codes.shape[2] else None

    def _codes(self, level: int) -> Tensor:
        return self.view.node_codes[level] if level < self.view.top else self.view.tails[:, level - self.view.top]

    def _best(self, worth: Tensor, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Best `count` children of each query: scores, parents, codes (Q, count), best first."""
        queries, size = self.shape.queries, worth.shape[1]
        if width > 1 and size > 4 * count:  # the best of all are among the best of each
            values, codes = worth.topk(count, dim=1)
            best, at = values.view(queries, width * count).topk(count, dim=1)
            return best, at // count, codes.view(queries, width * count).gather(1, at)
        best, at = worth.view(queries, width * size).topk(count, dim=1)
        return best, at // size, at % size

    def _find(self, level: int, lo: Tensor, hi: Tensor, parent_row: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        child = self.view.node_child[level] if level < self.view.top else None
        return self.ops.find(self._codes(level), lo.flatten(), hi.flatten(), parent_row, code, child)

    def _stop(self, depth: int, worth: Tensor, lo: Tensor, hi: Tensor, width: int, parent_row: Tensor, code: Tensor) -> None:
        """Queries whose best beams fit the budget take their children, best first, while they fit."""
        level, budget = depth - 1, self.shape.plan.budget
        first, last = self.view.item_range(depth, *self._find(level, lo, hi, parent_row, code))
        fits = (last - first).sum(1) <= budget
        if depth == self.levels:
            fits = torch.ones_like(fits)  # no deeper: what shares IDs beyond the budget is cut, best beams first
        fits &= ~self.done
        size = worth.shape[1]
        count = min(max(self.shape.beams, budget), width * size)
        best, at = worth.view(self.shape.queries, width * size).topk(count, dim=1)
        parent = torch.where(best > -torch.inf, self.query * width + at // size, -1)
        first, last = self.view.item_range(depth, *self._find(level, lo, hi, parent, at % size))
        items = last - first
        if depth < self.levels:
            items = items.masked_fill(items.cumsum(1) > budget, 0)
        else:
            items[:, self.shape.beams :] = items[:, self.shape.beams :].masked_fill(
                items.cumsum(1)[:, self.shape.beams :] > budget, 0
            )
        if not hasattr(self, "stopped") or depth == self.shape.plan.stops[0]:
            self.stopped = (first, items)
        else:
            old_first, old_items = self.stopped
            wide = max(old_first.shape[1], first.shape[1])
            pads = [(0, wide - old_first.shape[1]), (0, wide - first.shape[1])]
            old = [torch.nn.functional.pad(t, pads[0]) for t in (old_first, old_items)]
            new = [torch.nn.functional.pad(t, pads[1]) for t in (first, items)]
            self.stopped = (torch.where(fits[:, None], new[0], old[0]), torch.where(fits[:, None], new[1], old[1]))
        self.done |= fits

    def _finish(self, ancestors: Tensor, cross: list[Tensor], first: int, score: Tensor, lo: Tensor, hi: Tensor) -> None:
        """Full depth: the tails in one pass, then the items of the beams."""
        shape, depth = self.shape, self.shape.plan.steps
        alive = score > -torch.inf
        length = self.levels - depth
        if length:
            lo, hi = self.view.id_range(depth, lo, hi)
            self.flags |= (alive & (hi - lo != 1)).any(1)  # not unary yet
            tail = widen(self.view.tails[lo.flatten()][:, depth - self.view.top :])  # (Q * B, L)
            whole = torch.cat([self.codes, tail.view(*score.shape, length)], 2)
            inputs = self.decoder.head.inputs(whole[:, :, :-1].flatten(0, 1), depth)
            h = self._hidden(inputs, ancestors.flatten(0, 1), cross, first).view(len(tail), length, -1)
            rest, _ = self._left(self.codes)
            score = score + self.decoder.head.fixed_path(depth, h, rest, whole.flatten(0, 1), self.ops).view_as(score)
            self.flags |= torch.isnan(score).any(1)
        score, by = score.sort(dim=1, descending=True, stable=True)
        first_item, last_item = self.view.item_range(self.levels, lo, hi)
        items = torch.where(alive, last_item - first_item, 0).gather(1, by)
        if shape.reranker == "none":
            self._emit(first_item.gather(1, by), items, score)
        else:
            self._rerank(first_item.gather(1, by), items)

    # -- results -----------------------------------------------------------------------------------------------

    def _lay_out(self, first: Tensor, items: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ranges (Q, C) -> item rows in `count` slots (Q, count), -1 beyond the end; which range each is of; the totals."""
        ends = items.cumsum(1)
        slot = torch.arange(count, device=self.device).expand(len(first), count).contiguous()
        which = torch.searchsorted(ends, slot, right=True).clamp(max=first.shape[1] - 1)
        at = first.gather(1, which) + slot - (ends - items).gather(1, which)
        inside = slot < ends[:, -1:]
        rows = self.view.order[torch.where(inside, at, 0)].long()
        return torch.where(inside, rows, -1), which, ends[:, -1]

    def _emit(self, first: Tensor, items: Tensor, score: Tensor) -> None:
        self.rows, which, self.touched = self._lay_out(first, items, self.shape.k)
        self.scores = torch.where(self.rows >= 0, score.gather(1, which) / self.levels, -torch.inf)
        self._flag_short()

    def _rerank(self, first: Tensor, items: Tensor) -> None:
        shape = self.shape
        assert self.vectors is not None
        plenty = 1 if self.view.item_start is None else 4
        count = max(shape.plan.budget or plenty * shape.beams, shape.k)
        rows, _, total = self._lay_out(first, items, count)
        if not shape.plan.budget:
            self.flags |= total > count  # more items share the beams' IDs than there is room for
        self.touched = total.clamp(max=count)
        values = self.ops.dots(self.dense, rows, self.vectors, self.scales)
        self.scores, at = values.topk(shape.k, dim=1)
        self.rows = torch.where(self.scores > -torch.inf, rows.gather(1, at), -1)
        self._flag_short()

    def _flag_short(self) -> None:
        """Fewer than k although there may be more: such queries are searched again with wider beams."""
        self.flags |= (self.touched < self.shape.k) & (self.touched < self.view.trie.items)
