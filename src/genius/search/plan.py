"""Where a search of fixed shape may stop, read off the trie once per collection. Knows counts only.

A CUDA graph cannot decide while it runs how deep to go. `Plan` says beforehand which levels to step through, at which
depths the re-ranking budget must be checked, and from which depth on paths are unary. Queries that do not fit the
plan are flagged by the search and done again without it, so a plan affects speed, never results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from genius.search.forest import TrieView

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
