"""Beam search constrained to a trie, exact: every true child of every beam competes by log p, nothing else does.

Plain torch on any device; the recorded search of `cuda_search.py` is tested against it. Beams grow 1 -> 3 -> B. A query leaves
the loop as soon as it can: when all its beams are on unary paths, the tails are scored in one teacher-forced pass (same result as
stepping: with one child each, no beam can displace another); or when the items below its beams fit the re-ranking budget.

`trace` is the same search for people who ask why: one query at a time, every level to the end, remembering what the search itself
throws away: which codes competed, which were kept, and how likely each was. A search never comes there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.features import check_finite
from genius.model.generator import Generator
from genius.search.decoder import Memory, Writer, decoder_of
from genius.search.forest import Children, Forest, TrieView, widen
from genius.search.params import BeamResult
from genius.search.trie import CodeTrie

BROKEN = "the generator gives NaN for a code: its weights or the query are broken"


@dataclass(slots=True)
class Beams:
    """A search between two levels: the beams of some queries at one depth; best first in what `decode` yields.

    n differs from depth to depth."""

    queries: Tensor  # (G,) positions in the batch
    level: int  # codes chosen so far = the space that lo and hi are ranges of
    codes: Tensor  # (G, n, level) int64
    scores: Tensor  # (G, n) sums; -inf: no beam here
    lo: Tensor  # (tries, G, n)
    hi: Tensor  # (tries, G, n)
    items: Tensor  # (G, n) allowed items below each beam, 0 where there is none
    memory: Memory | None  # None: nothing is decoded after this
    hidden: Tensor | None = None  # (G, n, d) states for the next level, where they are known already
    mass: Tensor | None = None  # (G, n) log of what their logits are divided by, where it is known already

    def select(self, keep: Tensor) -> Beams:
        """Some of the queries."""
        return Beams(
            self.queries[keep],
            self.level,
            self.codes[keep],
            self.scores[keep],
            self.lo[:, keep],
            self.hi[:, keep],
            self.items[keep],
            None if self.memory is None else self.memory.select(keep),
            None if self.hidden is None else self.hidden[keep],
            None if self.mass is None else self.mass[keep],
        )


def decode(writer: Writer, forest: Forest, z: Tensor, beams: int, *, target: int = -1, stop: int = 0) -> Iterator[Beams]:
    """Search for every row of z (Q, D); yields groups of queries as they finish, each exactly once; nothing at
    all where nothing exists.

    `target`: code of level 0, given to all queries (-1: let the generator choose). `stop` R > 0: finish when at most R
    items are below a query's beams, and hand over further children, best first, while they fit R.
    """
    state = begin(writer, forest, z, target)
    if not len(state.queries) or not bool(state.items.any()):
        return  # nothing to find: no ID is made up
    levels = len(forest.level_sizes)
    while len(state.queries):
        if state.level == levels:
            yield _sorted(state)
            return
        if stop:
            fits = state.items.sum(1) <= stop
            if fits.any():  # only at the start: later levels are checked as they are made
                yield state.select(fits.nonzero()[:, 0])
                state = state.select((~fits).nonzero()[:, 0])
                continue
        single = (forest.ids_below(state.level, state.lo, state.hi) <= 1).all(1)
        if single.any():
            yield _finish_tails(writer, forest, state.select(single.nonzero()[:, 0]))
            state = state.select((~single).nonzero()[:, 0])
            continue
        if state.level == 0 and levels > 1 and forest.level_sizes[0] <= min(beams, 8):
            state = _first_pair(writer, forest, state)
            continue
        state, early = _step(writer, forest, state, beams, stop)
        if early is not None:
            yield early


def begin(writer: Writer, forest: Forest, z: Tensor, target: int) -> Beams:
    queries = len(z)
    lo, hi = forest.root(queries)
    device = z.device
    state = Beams(
        queries=torch.arange(queries, device=device),
        level=0,
        codes=torch.empty(queries, 1, 0, dtype=torch.long, device=device),
        scores=torch.zeros(queries, 1, device=device),
        lo=lo[:, :, None],
        hi=hi[:, :, None],
        items=forest.items_below(0, lo, hi)[:, None],
        memory=writer.start(z),
    )
    if target < 0:
        return state
    # the modality is known: level 0 is given, not scored, and its token is read together with the start token
    children = forest.expand(0, state.lo[:, :, 0], state.hi[:, :, 0])
    children = children[(children.code == target).nonzero()[:, 0]]
    if not len(children.row):
        return state.select(torch.empty(0, dtype=torch.long, device=device))
    return advance(state, children, torch.zeros(len(children.row), device=device), torch.arange(queries, device=device)[:, None])


def _first_pair(writer: Writer, forest: Forest, state: Beams) -> Beams:
    """Levels 0 and 1 in one pass: every code of level 0 becomes a beam, so their tokens need not wait for its scores."""
    group, before = len(state.queries), state.memory
    assert before is not None
    children = forest.expand(0, state.lo.flatten(1), state.hi.flatten(1))
    index = torch.arange(len(children.row), device=children.row.device).view(group, -1)  # the same codes for every query
    begun = advance(state, children, torch.zeros(len(children.row), device=index.device), index)
    assert begun.memory is not None
    out, begun.memory = writer.run(begun.codes, begun.memory)  # start token and code of each beam
    first, begun.hidden = out[:, :1, 0], out[:, :, 1]
    mass = writer.mass(torch.cat([first[:, 0], begun.hidden.flatten(0, 1)]))  # of both levels: the table is read once
    if mass is not None:
        mass, begun.mass = mass[:group], mass[group:].view(group, -1)
    log_p = writer.log_p(0, first, before, state.codes, mass)
    begun.scores = log_p[children.row, children.code].view(group, -1)
    if torch.isnan(begun.scores).any():
        raise GeniusError(BROKEN)
    return begun


def _step(writer: Writer, forest: Forest, state: Beams, beams: int, stop: int) -> tuple[Beams, Beams | None]:
    """One level deeper. Queries whose best beams fit `stop` come back apart, with as many children as fit."""
    group = len(state.scores)
    children, worth = candidates(writer, forest, state)
    order = ranked(children, worth, group, state.scores.shape[1])
    index = order.best(beams)
    early = None
    if stop:
        below = torch.where(index >= 0, children.items[index.clamp(min=0)], 0).sum(1)
        fits = below <= stop
        if fits.any():
            done = fits.nonzero()[:, 0]
            early = _fill(state, children, worth, order, done, max(beams, stop), stop)
            going = (~fits).nonzero()[:, 0]
            if not len(going):
                state.queries = state.queries[:0]  # nobody goes on: nothing is carried along
                return state, early
            state, index = state.select(going), index[going]
    return advance(state, children, worth, index), early


def candidates(writer: Writer, forest: Forest, state: Beams) -> tuple[Children, Tensor]:
    """The true children of all beams, and what each is worth: log p of the whole prefix."""
    assert state.memory is not None
    hidden, mass = state.hidden, None if state.mass is None else state.mass.flatten()
    if hidden is None:
        out, state.memory = writer.run(state.codes, state.memory)
        hidden = out[:, :, -1]
    state.hidden = state.mass = None
    log_p = writer.log_p(state.level, hidden, state.memory, state.codes, mass)
    children = forest.expand(state.level, state.lo.flatten(1), state.hi.flatten(1))
    worth = state.scores.flatten()[children.row] + log_p[children.row, children.code]
    if torch.isnan(worth).any():
        raise GeniusError(BROKEN)
    return children, worth


class _Ranked(NamedTuple):
    """The children of each query side by side."""

    table: Tensor  # (G, most children of any query) worth, -inf beyond a query's own
    start: Tensor  # (G,) where a query's children begin in the flat list
    counts: Tensor  # (G,)

    def best(self, count: int) -> Tensor:
        """(G, n) flat numbers of each query's best children; -1: it has no more."""
        best = self.table.topk(min(count, self.table.shape[1]), dim=1).indices
        return (self.start[:, None] + best).masked_fill(best >= self.counts[:, None], -1)

    def select(self, queries: Tensor) -> _Ranked:
        return _Ranked(self.table[queries], self.start[queries], self.counts[queries])


def ranked(children: Children, worth: Tensor, group: int, width: int) -> _Ranked:
    query = children.row // width  # ascending, so that a query's children are contiguous
    counts = torch.bincount(query, minlength=group)
    start = counts.cumsum(0) - counts
    table = torch.full((group, int(counts.max())), -torch.inf, device=worth.device)
    table[query, torch.arange(len(query), device=query.device) - start[query]] = worth
    return _Ranked(table, start, counts)


def _fill(state: Beams, children: Children, worth: Tensor, ranked: _Ranked, done: Tensor, widest: int, stop: int) -> Beams:
    """Children of the finished queries, best first, as long as their items fit the budget: they cost nothing more."""
    index = ranked.select(done).best(widest)
    items = torch.where(index >= 0, children.items[index.clamp(min=0)], 0)
    index = index.masked_fill(items.cumsum(1) > stop, -1)
    kept = int((index >= 0).sum(1).max())
    chosen = state.select(done)
    chosen.memory = None  # nothing is decoded after this
    return advance(chosen, children, worth, index[:, :kept])


def advance(state: Beams, children: Children, worth: Tensor, index: Tensor) -> Beams:
    """The beams at children `index` (G, n); -1: no beam. Rows of children may count beams of more queries than the state has:
    only a beam's place within its query is read."""
    group, width = state.scores.shape
    missing = index < 0
    index = index.clamp(min=0)
    chosen = children[index.flatten()]
    code = chosen.code.view_as(index)
    parent = (chosen.row.view_as(index) % width).masked_fill(missing, 0)
    query = torch.arange(group, device=index.device)[:, None]
    return Beams(
        queries=state.queries,
        level=state.level + 1,
        codes=torch.cat([state.codes[query, parent], code[:, :, None]], 2),
        scores=worth[index].masked_fill(missing, -torch.inf),
        lo=chosen.lo.view(len(chosen.lo), *index.shape).masked_fill(missing, 0),
        hi=chosen.hi.view(len(chosen.hi), *index.shape).masked_fill(missing, 0),
        items=chosen.items.view_as(index).masked_fill(missing, 0),
        memory=None if state.memory is None else state.memory.follow(parent),
    )


def _finish_tails(writer: Writer, forest: Forest, state: Beams) -> Beams:
    """Every beam has one ID below it: read the rest of its codes, score them in one pass."""
    group, width = state.scores.shape
    levels = len(forest.level_sizes)
    codes = torch.zeros(group, width, levels - state.level, dtype=torch.long, device=state.scores.device)
    lo, hi = torch.zeros_like(state.lo), torch.zeros_like(state.hi)
    for t, view in enumerate(forest.views):
        if not view.trie.ids:
            continue
        here = state.hi[t] > state.lo[t]
        at = torch.where(here, state.lo[t], 0)
        for level in range(state.level, view.top):
            codes[:, :, level - state.level] += torch.where(here, widen(view.node_codes[level][at]), 0)
            at = torch.where(here, view.node_child[level][at].long(), 0)
        first = max(state.level, view.top)
        codes[:, :, first - state.level :] += torch.where(here[:, :, None], widen(view.tails[at, first - view.top :]), 0)
        lo[t], hi[t] = torch.where(here, at, 0), torch.where(here, at + 1, 0)
    whole = torch.cat([state.codes, codes], 2)
    assert state.memory is not None
    # (G, n, L, d): each state foretells the next code; the first may be known already
    known = [] if state.hidden is None else [state.hidden[:, :, None]]
    missing = codes.shape[2] - len(known)
    out = [writer.run(whole[:, :, :-1], state.memory)[0][:, :, -missing:]] if missing else []
    scores = state.scores + writer.path_log_p(state.level, torch.cat([*known, *out], 2), state.memory, whole)
    if torch.isnan(scores).any():
        raise GeniusError(BROKEN)
    return _sorted(Beams(state.queries, levels, whole, scores, lo, hi, state.items, None))


def _sorted(state: Beams) -> Beams:
    """Best first; slots without a beam last."""
    scores, by = state.scores.sort(dim=1, descending=True, stable=True)
    query = torch.arange(len(by), device=by.device)[:, None]
    lo, hi = state.lo[:, query, by], state.hi[:, query, by]
    return Beams(state.queries, state.level, state.codes[query, by], scores, lo, hi, state.items[query, by], None)


@torch.inference_mode()
def beam_search(
    generator: Generator,
    trie: CodeTrie,
    z: Tensor,
    beams: int,
    *,
    target: Tensor | None = None,
    allowed: Tensor | None = None,
    writer: Writer | None = None,
) -> BeamResult:
    """Full depth, exact: the published search (4.4) over true children. `writer` takes the place of the generator's decoder.

    z (Q, D); target (Q,) known code of level 0 or -1: given, so its log p is not added; allowed (N,) bool over items.
    """
    if beams < 1:
        raise GeniusError(f"beams must be at least 1, got {beams}")
    check_queries(z)
    device = z.device
    scribe: Writer = decoder_of(generator, device) if writer is None else writer
    if tuple(scribe.level_sizes) != trie.level_sizes:
        raise GeniusError(f"the trie has levels {trie.level_sizes}, the generator {tuple(scribe.level_sizes)}")
    forest = Forest([TrieView(trie, device)], trie.level_sizes, check_allowed(allowed, trie.items, device))
    codes = torch.full((len(z), beams, trie.levels), -1, dtype=torch.long, device=device)
    scores = torch.full((len(z), beams), -torch.inf, device=device)
    for code, queries in by_target(target, len(z), trie.level_sizes[0], device):
        for found in decode(scribe, forest, z[queries], beams, target=code):
            n = found.scores.shape[1]
            real = found.scores > -torch.inf
            where = queries[found.queries]
            codes[where, :n] = found.codes.masked_fill(~real[:, :, None], -1)
            scores[where, :n] = found.scores / trie.levels
    return BeamResult(codes, scores)


def check_queries(z: Tensor, name: str = "z", finite: bool = True) -> None:
    if z.ndim != 2:
        raise GeniusError(f"{name} must be (queries, width), got shape {tuple(z.shape)}")
    if finite:
        check_finite(z, f"queries' {name}")


def check_allowed(allowed: Tensor | None, rows: int, device: torch.device) -> Tensor | None:
    if allowed is None:
        return None
    mask = torch.as_tensor(allowed, device=device)
    if mask.dtype != torch.bool or mask.shape[-1:] != (rows,):
        raise GeniusError(f"allowed must be bool with {rows} items last, got {mask.dtype} of shape {tuple(mask.shape)}")
    return mask


def by_target(target: Tensor | None, queries: int, size: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Queries grouped by their known target (-1: unknown)."""
    everyone = np.arange(queries)  # in numpy: one question on a CPU waits for each call of torch
    if target is None:
        if queries:
            yield -1, torch.from_numpy(everyone).to(device)
        return
    wanted = np.asarray(target.cpu() if isinstance(target, Tensor) else target).astype(np.int64)
    if wanted.shape != (queries,):
        raise GeniusError(f"target must be ({queries},), one per query, got {tuple(wanted.shape)}")
    codes = sorted(set(wanted.tolist()))
    if codes and (codes[0] < -1 or codes[-1] >= size):
        raise GeniusError(f"target codes must be -1..{size - 1}, got {codes[0]}..{codes[-1]}")
    for code in codes:
        yield code, torch.from_numpy(everyone if len(codes) == 1 else everyone[wanted == code]).to(device)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prefix that could be written."""

    prefix: tuple[int, ...]
    log_p: float  # of its last code, given those before
    total: float  # of the whole prefix: what beams are ranked by
    items: int  # below it, that may be found


@dataclass(frozen=True, slots=True)
class Step:
    """One more code."""

    level: int  # of the code, from 0
    given: bool  # the code was known from the question, so it has no log p
    competing: int  # candidates in all
    kept: tuple[Candidate, ...]  # the beams, best first
    rejected: tuple[Candidate, ...]  # the best of the others
    items: int  # below the beams


class Trace(NamedTuple):
    """All steps of one question."""

    steps: tuple[Step, ...]
    stop: int | None  # codes after which a search with this budget stops and compares what is below its beams; None: never
    paths: Tensor  # (n, M) log p of every code of the IDs that were asked about


@torch.inference_mode()
def trace(
    writer: Writer, forest: Forest, z: Tensor, beams: int, *, target: int = -1, stop: int = 0, rejected: int = 5, asked: Tensor
) -> Trace:
    """Write IDs for z (1, D). `target`, `stop`: as in `decode`; `asked` (n, M): IDs whose log p is wanted, beam or not."""
    state = begin(writer, forest, z, target)
    steps: list[Step] = []
    levels = len(forest.level_sizes)
    if len(state.queries) and state.level:
        steps.append(Step(0, True, 1, (_given(state),), (), int(state.items.sum())))
    while len(state.queries) and bool(state.items.any()) and state.level < levels:
        before = state
        children, worth = candidates(writer, forest, state)
        order = ranked(children, worth, 1, state.scores.shape[1])
        best = order.best(beams + rejected)[0]
        state = advance(before, children, worth, best[None, :beams])
        seen = []
        for index in best[best >= 0].tolist():
            parent = int(children.row[index])
            prefix = (*before.codes[0, parent].tolist(), int(children.code[index]))
            total = float(worth[index])
            seen.append(Candidate(prefix, total - float(before.scores[0, parent]), total, int(children.items[index])))
        steps.append(Step(before.level, False, len(worth), tuple(seen[:beams]), tuple(seen[beams:]), int(state.items.sum())))
    everything = int(forest.items_below(0, *forest.root(1)).sum()) if target < 0 else (steps[0].items if steps else 0)
    counts = [everything, *(step.items for step in steps if not step.given)]
    first = int(target >= 0)  # codes that were there before the first count
    stopped = next((first + i for i, count in enumerate(counts) if count <= stop), None) if stop else None
    return Trace(tuple(steps), stopped, _paths(writer, z, asked, target >= 0))


def _given(state: Beams) -> Candidate:
    return Candidate((int(state.codes[0, 0, 0]),), 0.0, 0.0, int(state.items[0, 0]))


def _paths(writer: Writer, z: Tensor, asked: Tensor, given: bool) -> Tensor:
    """(n, M) log p of each code of IDs (n, M), given the codes before it; 0 for a first code that was given."""
    out = torch.zeros(asked.shape, device=z.device)
    if not len(asked):
        return out
    codes = asked.to(z.device)[None]  # (1, n, M)
    states, memory = writer.run(codes[:, :, :-1], writer.start(z))
    for level in range(int(given), codes.shape[2]):
        log_p = writer.log_p(level, states[:, :, level], memory, codes[:, :, :level])
        out[:, level] = log_p[torch.arange(len(asked), device=z.device), codes[0, :, level]]
    return out
