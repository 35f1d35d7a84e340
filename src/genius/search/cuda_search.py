"""IDs written to the end, with fixed shapes: what one CUDA graph records. Same results as `beam.py`, another arrangement.

Nothing here waits for the device or depends on values: beams fill slots (1, 3, B, B, ...), children are scattered into
rows of -inf, every token's q, k and v stay where they were computed and beams point to their ancestors' slots.
Knows one trie, no filter, no delta. `StaticDecoder` is what `genius.search.batch_scan` records, too.

A CUDA graph cannot decide while it runs from which level on paths are unary. That is read off the trie once a collection.
Queries that do not fit are flagged and done again step by step, so it affects speed, never results.
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


def steps_of(view: TrieView, beams: int, tolerance: float = 0.0) -> int:
    """Levels decoded one by one: until at most `tolerance` of the queries have a beam that shares its prefix with another ID
    (judged by a sample); the rest is one pass over the tails."""
    trie = view.trie
    levels = trie.levels
    steps = max(trie.top, 1)
    if trie.ids > 1:
        rng = np.random.default_rng(0)
        at = np.unique(rng.integers(0, trie.ids - 1, SAMPLE)) if trie.ids > SAMPLE else np.arange(trie.ids - 1)
        first, second = trie.codes_at(trie.positions(at)), trie.codes_at(trie.positions(at + 1))
        same = np.logical_and.accumulate(first == second, axis=1)
        while steps < levels and 2 * beams * same[:, steps - 1].mean() > tolerance:
            steps += 1
    return steps


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
    def look_up(self, ranges: Ranges, looked: Looked, tables: Tensor, slots: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class Ranges:
    """Stretches of places of every query, (Q, C) each: where they are laid out, and what all in one begin with."""

    ends: Tensor  # int32, one after the other: the first slot behind each
    begins: Tensor  # int32: a slot's place is this plus the slot
    shared: Tensor  # float32: dot of the query and the codes above
    block: Tensor  # int32: where the kind's part of the query's table begins


@dataclass(frozen=True, slots=True)
class Looked:
    """What is looked at: nodes of one level, or items."""

    codes: Tensor  # (levels, n) int16
    inverse: Tensor  # (n,) float16: one over the length of what the codes so far stand for
    starts: Tensor  # (levels,) int32: where each level begins in a kind's part of the table
    positions: Tensor | None = None  # what places stand for, where some are left out


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recorded search is for; one graph each."""

    queries: int
    beams: int
    k: int
    steps: int
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


class StaticDecoder:
    """The decoder over buffers. Fill `z`, `dense`, `target`, call `run`, read `rows`, `scores`, `touched`, `flags`."""

    rows: Tensor  # (Q, k)
    scores: Tensor  # (Q, k)
    touched: Tensor  # (Q,)
    flags: Tensor  # (Q,) bool: which queries must be searched in another way

    def __init__(self, decoder: Decoder, ops: Ops, queries: int, width: int, slots: int) -> None:
        """`width` of `dense`; `slots`: tokens whose keys and values are kept."""
        self.decoder, self.ops, self.config, self.device = decoder, ops, decoder.config, decoder.device
        self.queries, self.levels, device = queries, decoder.config.levels, decoder.device
        self.z = torch.zeros(queries, decoder.config.width, device=device)
        self.dense = torch.zeros(queries, width, device=device)
        self.target = torch.full((queries,), -1, dtype=torch.long, device=device)
        self.bias = decoder.bias[0, :, :, 0].float().contiguous()  # (heads, M) by distance
        self.zero = torch.zeros(decoder.config.d_ff, dtype=decoder.dtype, device=device)
        self.cache = [torch.empty(slots, 3 * decoder.inner, dtype=decoder.dtype, device=device) for _ in decoder.layers]

    def run(self) -> None:
        raise NotImplementedError

    def _prefix(self) -> list[Tensor]:
        decoder, config = self.decoder, self.config
        prefix = torch.addmm(decoder.prefix_bias, self.z.to(decoder.dtype), decoder.prefix_weight.T).view(-1, config.d_model)
        normed = self.ops.add_norm(prefix.float(), None, decoder.eps, decoder.dtype) * decoder.prefix_norm
        return [normed @ layer.cross_kv for layer in decoder.layers]  # (Q * prefix, 2 * inner)

    def _hidden(self, inputs: Tensor, ancestors: Tensor, cross: list[Tensor], first: int) -> Tensor:
        """inputs (R, L, d), ancestors (R, past) -> (R * L, d); q, k, v are left in the cache from slot `first` on."""
        decoder, ops, heads = self.decoder, self.ops, self.config.heads
        length, x = inputs.shape[1], inputs.flatten(0, 1).float()
        y: Tensor | None = None
        for i, layer in enumerate(decoder.layers):
            h = ops.add_norm(x, y, decoder.eps, decoder.dtype)
            torch.mm(h, layer.qkv, out=self.cache[i][first : first + len(x)])
            mixed = ops.self_attention(self.cache[i], ancestors, self.bias, first, length, heads)
            h = ops.add_norm(x, mixed @ layer.out, decoder.eps, decoder.dtype)
            mixed = ops.cross_attention(h @ layer.cross_q, cross[i], self.queries, heads)
            h = ops.add_norm(x, mixed @ layer.cross_out, decoder.eps, decoder.dtype)
            y = ops.linear_relu(h, layer.ff_in, self.zero) @ layer.ff_out
        return ops.add_norm(x, y, decoder.eps, decoder.dtype)

    def _first_two(self, cross: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The start and every code of level 0 in one pass, since all are beams: codes (Q, K_0), states (Q, K_0, 2, d)."""
        size = self.config.level_sizes[0]
        codes = torch.arange(size, device=self.device).expand(self.queries, size).contiguous()
        none = torch.empty(self.queries * size, 0, dtype=torch.int32, device=self.device)
        inputs = self.decoder.head.inputs(codes.view(-1, 1), 0)
        return codes, self._hidden(inputs, none, cross, 0).view(self.queries, size, 2, -1)

    def _given(self, worth: Tensor) -> Tensor:
        """(Q, K_0) log p of the first codes: a known target is given, not scored."""
        chosen = torch.arange(worth.shape[1], device=self.device) == self.target[:, None]
        given = torch.where(chosen & (worth > -torch.inf), 0.0, -torch.inf)
        return torch.where(self.target[:, None] >= 0, given, worth)


class StaticSearch(StaticDecoder):
    """One `Shape` of a search that writes every ID to its end."""

    def __init__(self, shape: Shape, parts: Parts) -> None:
        config = parts.decoder.config
        self.shape, self.view, self.vectors, self.scales = shape, parts.view, parts.vectors, parts.scales
        self.widths = [1]  # beams that enter each level
        for size in config.level_sizes[: shape.steps]:
            self.widths.append(min(shape.beams, self.widths[-1] * size))
        # levels 0 and 1 in one pass, unless the search must choose at level 0
        self.paired = config.level_sizes[0] <= min(shape.beams, 8) and shape.steps > 1
        tail = max(config.levels - shape.steps, 0)
        slots = 2 * self.widths[1] + sum(self.widths[:-1]) + self.widths[-1] * tail
        width = config.width if parts.vectors is None else parts.vectors.shape[1]
        super().__init__(parts.decoder, parts.ops, shape.queries, width, shape.queries * slots)
        self.query = torch.arange(shape.queries, device=self.device)[:, None]

    # -- the course --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """One search of every query."""
        shape, queries, device = self.shape, self.queries, self.device
        cross = self._prefix()
        self.flags = torch.zeros(queries, dtype=torch.bool, device=device)
        lo = torch.zeros(queries, 1, dtype=torch.long, device=device)
        hi = torch.full((queries, 1), self.view.trie.root[1], dtype=torch.long, device=device)
        score = torch.zeros(queries, 1, device=device)
        ancestors = torch.empty(queries, 1, 0, dtype=torch.int32, device=device)
        self.codes = torch.empty(queries, 1, 0, dtype=torch.long, device=device)  # (Q, n, level) what the beams have written
        first, begin = 0, 0
        if self.paired:
            h, score, lo, hi, ancestors = self._first_pair(cross)
            first, begin = 2 * queries * self.widths[1], 1
        for level in range(begin, shape.steps):
            width = self.widths[level]
            if not (self.paired and level == 1):
                h = self._hidden(self._inputs(level), ancestors.flatten(0, 1), cross, first)
            worth = self._worth(level, h, score, lo, hi)
            score, parent, code = self._best(worth, self.widths[level + 1], width)
            self.flags |= torch.isnan(score).any(1)
            alive = score > -torch.inf
            parent_row = torch.where(alive, self.query * width + parent, -1)
            self.codes = torch.cat([self.codes[self.query, parent], code[:, :, None]], 2)
            lo, hi = self._find(level, lo, hi, parent_row, code)
            if self.paired and level == 1:
                ancestors = ancestors[self.query, parent]  # both tokens of the pair
            else:
                own = (first + self.query * width + parent).to(torch.int32)
                ancestors = torch.cat([ancestors[self.query, parent], own[:, :, None]], 2)
                first += queries * width
        self._finish(ancestors, cross, first, score, lo, hi)

    def _first_pair(self, cross: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Levels 0 and 1 in one pass: every code of level 0 becomes a beam, so their tokens need not wait for its scores.

        -> hidden states for level 1, and score, lo, hi (Q, K_0) and ancestors (Q, K_0, 2) of the level-0 beams.
        """
        queries, width = self.queries, self.widths[1]
        codes, h = self._first_two(cross)
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
        if level == 0 and self.shape.targets:
            worth = self._given(worth)
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

    def _finish(self, ancestors: Tensor, cross: list[Tensor], first: int, score: Tensor, lo: Tensor, hi: Tensor) -> None:
        """Full depth: the tails in one pass, then the items of the beams."""
        shape, depth = self.shape, self.shape.steps
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
        plenty = 4 if self.view.several else 1
        count = max(plenty * shape.beams, shape.k)
        rows, _, total = self._lay_out(first, items, count)
        self.flags |= total > count  # more items share the beams' IDs than there is room for
        self.touched = total.clamp(max=count)
        values = self.ops.dots(self.dense, rows, self.vectors, self.scales)
        self.scores, at = values.topk(shape.k, dim=1)
        self.rows = torch.where(self.scores > -torch.inf, rows.gather(1, at), -1)
        self._flag_short()

    def _flag_short(self) -> None:
        """Fewer than k although there may be more: such queries are searched again with wider beams."""
        self.flags |= (self.touched < self.shape.k) & (self.touched < self.view.trie.items)
