"""Beam search constrained to a trie (4.4), exact: every true child of every beam competes by log-probability, nothing else does.

One loop serves search, trace and evaluation, in torch on any device. Beams grow 1 -> 3 -> B. A query leaves the loop early when
all its beams are on unary paths: the other codes of their IDs are then scored in one pass, with the same result (with one child
each, no beam can displace another). `trace` and the evaluation watch the loop through a hook.

With fixed shapes the loop reads no number back from the device: the children of a beam are a table as wide as the largest fan-out
of the trie, and unary paths begin where those of all IDs do. On a GPU it is then captured as one CUDA graph per batch size, and
replayed (`genius.search.cuda_graphs`).

`Beam` is the plan of the engine (`genius.search.engine.Plan`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.features import as_numpy
from genius.model.generator import Generator
from genius.search.arrays import HOST, Ints
from genius.search.cuda_graphs import CudaGraphs
from genius.search.decoder import CodeScorer, Decoder, DecoderState
from genius.search.params import SearchParams
from genius.search.tensors import tensor_arrays
from genius.search.trie import Children, CodeTrie
from genius.search.types import BeamResult, Candidates, QueryBatch
from genius.top_k import tensor_top_k

BROKEN = "the generator gives NaN for a code: its weights or the query are broken"
QUERIES_AT_ONCE = {"cpu": 32, "cuda": 512}  # queries decoded together: bounds memory, keeps products large enough
MAX_CHILDREN = 1 << 26  # places in a table of children of fixed width: half a gigabyte for each of its columns
FEWEST_AT_ONCE = 32  # queries whose tables must fit: otherwise children are listed, and their number is read back
MODALITY_WEIGHT = 10.0  # of log p(modality) of the query bank: code log-probabilities of two modalities are not comparable
WIDER = 4  # times as many beams where fewer than k items came back
OPERATIONS_PER_MS = {"cpu": 2e7, "cuda": 2e10}  # multiply-adds in a millisecond, roughly, for `Beam.cost`


@dataclass(slots=True)
class Beams:
    """The beams of some queries between two levels; n differs from level to level."""

    queries: Tensor  # (G,) positions in the batch
    codes: Tensor  # (G, n, level) int64: the codes chosen so far
    scores: Tensor  # (G, n) sums of log-probabilities; -inf: no beam here
    lo: Tensor  # (G, n) ranges in the trie; empty: no beam here
    hi: Tensor  # (G, n)
    state: DecoderState

    @property
    def level(self) -> int:
        """Of the next code."""
        return self.codes.shape[2]

    def select(self, keep: Tensor) -> Beams:
        """The beams of some of the queries, by bool (G,)."""
        index = keep.nonzero()[:, 0]
        return Beams(
            self.queries[index],
            self.codes[index],
            self.scores[index],
            self.lo[index],
            self.hi[index],
            self.state.select(index),
        )


@dataclass(frozen=True, slots=True)
class BeamStep:
    """One level of a search as a hook sees it."""

    before: Beams
    children: Children  # every candidate; `row` counts the beams of `before`, query after query
    totals: Tensor  # (C,) log-probability of the whole prefix of each candidate
    kept: Tensor  # (G, n) which candidates became beams, best first; -1: none
    after: Beams


Hook = Callable[[BeamStep], None]


@torch.inference_mode()
def beam_search(
    generator: Generator | CodeScorer,
    trie: CodeTrie,
    z: Tensor,
    beams: int,
    *,
    target: Tensor | None = None,
    allowed: Tensor | None = None,
    first: Tensor | None = None,
    on_step: Hook | None = None,
) -> BeamResult:
    """The published search (4.4) over true children, to complete IDs. Queries, targets and masks are not checked again here.

    Args:
        generator: What scores codes: a generator, or another `CodeScorer`.
        trie: The IDs that exist.
        z: (Q, D) fused queries.
        beams: B, prefixes kept at every level.
        target: (Q,) given code of level 0, whose log-probability is then not added; -1: unknown. None: all unknown.
        allowed: bool over item rows; IDs without an allowed item do not exist. None: every item.
        first: (Q, K_0) scores of the codes of level 0, in place of the generator's log-probabilities. None: the generator's.
        on_step: Called after every level. With it unary paths are followed code by code as well.

    Raises:
        GeniusError: If there are no beams, the levels of trie and generator differ, or the generator gives NaN.
    """
    if beams < 1:
        raise GeniusError(f"beams must be at least 1, got {beams}")
    scorer = scorer_of(generator)
    if tuple(scorer.level_sizes) != trie.level_sizes:
        raise GeniusError(f"the trie has levels {trie.level_sizes}, the generator {tuple(scorer.level_sizes)}")
    trie = trie.on(tensor_arrays(z.device))
    given = torch.full((len(z),), -1, device=z.device)
    if target is not None:
        given = target.to(z.device)
    return _search(scorer, trie, z, beams, given, _counts(trie, allowed), first, on_step)


def _search(
    scorer: CodeScorer,
    trie: CodeTrie,
    z: Tensor,
    beams: int,
    given: Tensor,
    before: Tensor | None,
    first: Tensor | None,
    on_step: Hook | None = None,
    fixed: bool = False,
) -> BeamResult:
    """The loop. `fixed`: no shape depends on a number on the device, and NaN is in the scores of the result."""
    result = BeamResult(
        codes=torch.full((len(z), beams, trie.levels), -1, dtype=torch.long, device=z.device),
        scores=torch.full((len(z), beams), -torch.inf, device=z.device),
        ids=torch.full((len(z), beams), -1, dtype=torch.long, device=z.device),
    )
    state = _begin(scorer, trie, z, given, before, fixed)
    while len(state.queries):
        if state.level == trie.levels:
            _write(result, state)
            break
        if fixed:
            if state.level >= max(trie.top, 1) and trie.fan_out(state.level) <= 1:  # each beam has at most one ID below it
                state = _finish_tails(scorer, trie, state)
            else:
                state = _step(scorer, trie, state, beams, given, before, first, None, fixed)
            continue
        lowest, end = trie.id_range(state.level, state.lo, state.hi)
        unary = (end - lowest <= 1).all(1)
        if on_step is None and state.level and unary.any():  # at level 0 a code may be given
            tails = _finish_tails(scorer, trie, state.select(unary))
            _check(tails.scores)
            _write(result, tails)
            state = state.select(~unary)
        else:
            state = _step(scorer, trie, state, beams, given, before, first, on_step)
    return result


def scorer_of(generator: Generator | CodeScorer) -> CodeScorer:
    """What scores codes: a decoder around a generator; another scorer as it is."""
    if isinstance(generator, Generator):
        return Decoder(generator)
    return generator


def _counts(trie: CodeTrie, allowed: Tensor | None) -> Tensor | None:
    """Cumulative numbers of allowed items, as `CodeTrie.expand` reads them; None: all are allowed."""
    if allowed is None:
        return None
    counts: Tensor = trie.count_before(allowed)
    return counts


def _check(scores: Tensor) -> None:
    """Refuse NaN."""
    if torch.isnan(scores).any():
        raise GeniusError(BROKEN)


def _begin(scorer: CodeScorer, trie: CodeTrie, z: Tensor, given: Tensor, before: Tensor | None, fixed: bool) -> Beams:
    """One beam, the root, for every query that has something to find; with fixed shapes for every query."""
    lo, hi = trie.root
    queries = torch.arange(len(z), device=z.device)
    if not fixed:
        first = trie.expand(0, lo, hi, before)
        exists = (given[:, None] == first.code).any(1) | ((given < 0) & bool(len(first.code)))
        queries = queries[exists]
    return Beams(
        queries=queries,
        codes=torch.empty(len(queries), 1, 0, dtype=torch.long, device=z.device),
        scores=torch.zeros(len(queries), 1, device=z.device),
        lo=lo.repeat(len(queries), 1),
        hi=hi.repeat(len(queries), 1),
        state=scorer.start(z[queries]),
    )


def _step(
    scorer: CodeScorer,
    trie: CodeTrie,
    state: Beams,
    beams: int,
    given: Tensor,
    before: Tensor | None,
    first: Tensor | None,
    on_step: Hook | None,
    fixed: bool = False,
) -> Beams:
    """One level deeper."""
    lo = state.lo.flatten()
    hi = state.hi.flatten()
    if fixed:
        children = trie.expand_padded(state.level, lo, hi, before)
    else:
        children = trie.expand(state.level, lo, hi, before)
    if state.level == 0:
        children, totals = _first_level(scorer, state, children, given[state.queries], first, fixed)
    else:
        totals = _totals(scorer, state, children)
    if fixed:
        kept = _best_of_padded(totals.masked_fill(children.items == 0, -torch.inf), state, beams)
    else:
        _check(totals)
        kept = _best(children, totals, state, beams)
    after = _advance(state, children, totals, kept)
    if on_step is not None:
        on_step(BeamStep(state, children, totals, kept, after))
    return after


def _totals(scorer: CodeScorer, state: Beams, children: Children) -> Tensor:
    """(C,) log-probability of the whole prefix of every candidate. A prior over codes or items would be added here."""
    log_probs, state.state = scorer.next_log_probs(state.codes, state.state)
    return state.scores.flatten()[children.row] + log_probs.flatten(0, 1)[children.row, children.code]


def _first_level(
    scorer: CodeScorer, state: Beams, children: Children, given: Tensor, first: Tensor | None, fixed: bool
) -> tuple[Children, Tensor]:
    """The candidates of level 0 and their log-probabilities. A given code (G,) is the only candidate, and costs nothing."""
    wanted = given[children.row]
    competes = (wanted < 0) | (children.code == wanted)
    if fixed:
        children.items *= competes
    else:
        children = children[competes.nonzero()[:, 0]]
        wanted = given[children.row]
        if (wanted >= 0).all():  # the decoder reads the code together with the start token, at the next level
            return children, torch.zeros(len(wanted), device=given.device)
    if first is not None:  # likewise
        known = first[state.queries[children.row], children.code]
        return children, known.masked_fill(wanted >= 0, 0.0)
    return children, _totals(scorer, state, children).masked_fill(wanted >= 0, 0.0)


def _best(children: Children, totals: Tensor, state: Beams, count: int) -> Tensor:
    """(G, n) flat numbers of each query's best candidates, best first; -1: it has no more."""
    group, width = state.scores.shape
    query = children.row // width  # ascending, so that a query's candidates are contiguous
    counts = torch.bincount(query, minlength=group)
    start = counts.cumsum(0) - counts
    table = torch.full((group, int(counts.max())), -torch.inf, device=totals.device)
    table[query, torch.arange(len(query), device=query.device) - start[query]] = totals
    best = tensor_top_k(table, count)[1]
    return (start[:, None] + best).masked_fill(best >= counts[:, None], -1)


def _best_of_padded(totals: Tensor, state: Beams, count: int) -> Tensor:
    """As `_best`, where every beam has equally many children, of which those that do not exist have -inf."""
    table = totals.view(len(state.scores), -1)
    values, best = tensor_top_k(table, count)
    first = torch.arange(len(table), device=table.device)[:, None] * table.shape[1]
    return (first + best).masked_fill(torch.isneginf(values), -1)


def _advance(state: Beams, children: Children, totals: Tensor, kept: Tensor) -> Beams:
    """The beams at candidates `kept` (G, n)."""
    missing = kept < 0
    index = kept.clamp(min=0)
    parent = (children.row[index] % state.scores.shape[1]).masked_fill(missing, 0)
    query = torch.arange(len(kept), device=kept.device)[:, None]
    return Beams(
        queries=state.queries,
        codes=torch.cat([state.codes[query, parent], children.code[index][:, :, None]], 2),
        scores=totals[index].masked_fill(missing, -torch.inf),
        lo=children.lo[index].masked_fill(missing, 0),
        hi=children.hi[index].masked_fill(missing, 0),
        state=state.state.follow(parent),
    )


def _finish_tails(scorer: CodeScorer, trie: CodeTrie, state: Beams) -> Beams:
    """Every beam has one ID below it: score the other codes of it in one pass."""
    ids, end = trie.id_range(state.level, state.lo, state.hi)
    codes = trie.codes_of_ids(ids.flatten()).view(*ids.shape, -1)
    scores = state.scores + scorer.path_log_probs(codes, state.state, state.level).sum(2)
    return Beams(state.queries, codes, scores, ids, end, state.state)


def _write(result: BeamResult, state: Beams) -> None:
    """Put finished queries into the result, best first; slots without a beam last."""
    scores, by = tensor_top_k(state.scores, state.scores.shape[1])
    query = torch.arange(len(by), device=by.device)[:, None]
    missing = torch.isneginf(scores)
    width = scores.shape[1]
    result.codes[state.queries, :width] = state.codes[query, by].masked_fill(missing[:, :, None], -1)
    result.scores[state.queries, :width] = scores / state.level
    result.ids[state.queries, :width] = state.lo[query, by].masked_fill(missing, -1)


# -- the plan ---------------------------------------------------------------------------------------------------


class Beam:
    """The plan that generates IDs: its candidates are the items of the IDs that the beams hold, by log-probability."""

    name = "beam"

    def __init__(
        self,
        generator: Generator | CodeScorer,
        trie: CodeTrie,
        *,
        widen: bool = True,
        device: str | torch.device = "cpu",
    ) -> None:
        """
        Args:
            generator: What scores codes: a generator, or another `CodeScorer`.
            trie: The IDs of the collection.
            widen: Search again with more beams where fewer than k items came back. False: exactly B beams, as in the paper.
            device: Where the generator is.
        """
        self.scorer = scorer_of(generator)
        self.widen = widen
        self.arrays = tensor_arrays(device)
        self.items_of_ids = trie.on(HOST)
        self.trie = trie.on(self.arrays)
        self.graphs: CudaGraphs | None = None
        if self.arrays.device.type == "cuda" and type(self.scorer) is Decoder:
            self.graphs = CudaGraphs()

    def suits(self, batch: QueryBatch, k: int, params: SearchParams) -> bool:
        """Whether it can serve a request: always."""
        return True

    def cost(self, batch: QueryBatch, k: int, params: SearchParams) -> float:
        """Rough milliseconds: every weight of the decoder once for every beam and level."""
        weights = 0
        if isinstance(self.scorer, Decoder):
            weights = sum(weight.numel() for weight in self.scorer.generator.parameters())
        operations = len(batch) * params.beams * self.trie.levels * weights
        return operations / OPERATIONS_PER_MS.get(self.arrays.device.type, OPERATIONS_PER_MS["cpu"])

    def run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        """The items of every query's beams, best first; with `widen`, at least k while k exist."""
        if not len(batch):
            return Candidates.empty(0)
        at_once = self._at_once(params.beams)
        if batch.allowed is not None and batch.allowed.ndim == 2:
            at_once = 1
        parts = []
        for first in range(0, len(batch), at_once):
            queries = np.arange(first, min(first + at_once, len(batch)))
            parts.append(self._run(batch.select(queries), k, params.beams))
        return Candidates.cat(parts)

    def _at_once(self, beams: int) -> int:
        """Queries that are decoded together."""
        most = QUERIES_AT_ONCE.get(self.arrays.device.type, QUERIES_AT_ONCE["cpu"])
        if self._captures(beams):
            fitting = MAX_CHILDREN // self._children_per_query(beams)
            return min(most, 1 << (fitting.bit_length() - 1))  # captured batches are powers of two
        return most

    def _children_per_query(self, beams: int) -> int:
        """Places of one query in the largest table of children of fixed width."""
        largest = prefixes = 1
        for level in range(self.trie.levels):
            children = prefixes * self.trie.fan_out(level)
            largest = max(largest, children)
            prefixes = min(children, beams)
        return largest

    def _captures(self, beams: int) -> bool:
        """Whether a search runs as a captured CUDA graph."""
        if self.graphs is None or not self.graphs.available or not self.trie.ids:
            return False
        return FEWEST_AT_ONCE * self._children_per_query(beams) <= MAX_CHILDREN

    @torch.inference_mode()
    def _run(self, batch: QueryBatch, k: int, beams: int) -> Candidates:
        """The candidates of queries that share one mask."""
        mask = batch.allowed_for(0)
        before = None
        if mask is not None:
            before = self.trie.count_before(self.arrays.put(mask))
        wanted = np.minimum(self._existing(batch.target, before), k)
        queries = np.arange(len(batch))
        flat: list[tuple[Ints, Ints, NDArray[np.float32]]] = []  # owner, row, score
        while len(queries):
            found = self._beams(batch.select(queries), before, beams)
            owner, row, score = _items(self.items_of_ids, found, mask)
            short = np.bincount(owner, minlength=len(queries)) < wanted[queries]
            if not self.widen:
                short[:] = False
            done = ~short[owner]
            flat.append((queries[owner[done]], row[done], score[done]))
            queries = queries[short]
            beams = max(WIDER * beams, k)
        owner, row, score = (np.concatenate(column) for column in zip(*flat, strict=True))
        return _table(owner, row, score, len(batch))

    def _beams(self, batch: QueryBatch, before: Tensor | None, beams: int) -> BeamResult:
        """The beams of some queries, by a captured CUDA graph where there is one."""
        arrays = self.arrays
        z = arrays.put(batch.z)
        target = arrays.put(batch.target)
        first = modality_scores(batch, arrays)
        found = None
        if self._captures(beams) and len(batch) <= self._at_once(beams):
            found = self._replayed(batch, z, target, first, before, beams)
        if found is None:
            found = _search(self.scorer, self.trie, z, beams, target, before, first)
        _check(found.scores)
        return found

    def _replayed(
        self, batch: QueryBatch, z: Tensor, target: Tensor, first: Tensor | None, before: Tensor | None, beams: int
    ) -> BeamResult | None:
        """The beams by a captured CUDA graph; None: the device refuses the capture."""
        assert isinstance(self.scorer, Decoder) and self.graphs is not None
        targets = np.unique(batch.target)
        if first is None and targets[0] >= 0:  # every first code is given: the decoder is not asked for it
            first = torch.zeros(len(z), self.trie.level_sizes[0], device=z.device)
        one_modality = len(targets) == 1 and int(targets[0]) >= 0
        scorer = Decoder(self.scorer.generator, one_modality=one_modality, all_modalities=True)

        def search(z: Tensor, target: Tensor, first: Tensor | None, before: Tensor | None) -> BeamResult:
            return _search(scorer, self.trie, z, beams, target, before, first, fixed=True)

        found: BeamResult | None = self.graphs.run(search, (beams, one_modality), len(z), [z, target, first], [before])
        return found

    def _existing(self, target: Ints, before: Tensor | None) -> Ints:
        """(Q,) items that each query may find."""
        trie = self.items_of_ids
        first = trie.expand(0, *trie.root)
        items = first.items
        if before is not None:
            low, high = (self.arrays.put(position) for position in trie.item_range(1, first.lo, first.hi))
            items = self.arrays.host(before[high] - before[low])
        of_code = np.zeros(trie.level_sizes[0], np.int64)
        of_code[first.code] = items
        existing: Ints = np.where(target < 0, of_code.sum(), of_code[np.maximum(target, 0)])
        return existing


def modality_scores(batch: QueryBatch, arrays: Any) -> Tensor | None:
    """(Q, 3) scores of the codes of level 0 by the query bank; None: the decoder's log-probabilities count."""
    if batch.modality_log_probs is None:
        return None
    scores: Tensor = arrays.put(MODALITY_WEIGHT * batch.modality_log_probs)
    return scores


def _items(trie: CodeTrie, found: BeamResult, allowed: NDArray[np.bool_] | None) -> tuple[Ints, Ints, NDArray[np.float32]]:
    """The allowed items of all beams, flat, beams in their order: query, item row, score."""
    beams = found.ids.shape[1]
    ids = as_numpy(found.ids).ravel()
    beam, row = trie.rows_of(trie.levels, np.maximum(ids, 0), ids + 1)
    if allowed is not None:
        keep = allowed[row]
        beam = beam[keep]
        row = row[keep]
    return beam // beams, row, as_numpy(found.scores).ravel()[beam]


def _table(owner: Ints, row: Ints, score: NDArray[np.float32], queries: int) -> Candidates:
    """Flat candidates -> (Q, C), those of a query in their order."""
    by = np.argsort(owner, kind="stable")
    owner = owner[by]
    counts = np.bincount(owner, minlength=queries)
    place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    rows = np.full((queries, int(counts.max())), -1, np.int64)
    scores = np.full(rows.shape, -np.inf, np.float32)
    rows[owner, place] = row[by]
    scores[owner, place] = score[by]
    return Candidates(rows, scores, counts)


# -- trace ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prefix that competed."""

    prefix: tuple[int, ...]
    log_p: float  # of its last code, given those before
    total: float  # of the whole prefix: what beams are ranked by
    items: int  # below it, that may be found


@dataclass(frozen=True, slots=True)
class Step:
    """One level of a traced search."""

    level: int  # of the code, from 0
    given: bool  # the code was given with the query, so it has no log-probability
    competing: int  # candidates in all
    kept: tuple[Candidate, ...]  # the beams, best first
    rejected: tuple[Candidate, ...]  # the best of the others
    items: int  # below the beams


class Trace(NamedTuple):
    """How IDs were generated for one query."""

    steps: tuple[Step, ...]
    paths: Tensor  # (n, M) log-probability of every code of the given IDs; 0 for a given one


@torch.inference_mode()
def trace(
    generator: Generator | CodeScorer,
    trie: CodeTrie,
    z: Tensor,
    beams: int,
    *,
    ids: Tensor,
    target: int = -1,
    allowed: Tensor | None = None,
    first: Tensor | None = None,
    rejected: int = 5,
) -> Trace:
    """The beam search of one query with all that competed on the way.

    Args:
        generator, trie, beams, allowed, first: As in `beam_search`.
        z: (1, D).
        ids: (n, M) IDs whose log-probabilities are wanted, found or not.
        target: Given code of level 0; -1: unknown.
        rejected: How many of the best that were not kept are listed per level.
    """
    scorer = scorer_of(generator)
    steps: list[Step] = []

    def record(step: BeamStep) -> None:
        steps.append(_describe(step, target >= 0, rejected))

    beam_search(scorer, trie, z, beams, target=torch.tensor([target]), allowed=allowed, first=first, on_step=record)
    given = int(target >= 0)
    paths = torch.zeros(ids.shape, device=z.device)
    if len(ids):
        paths[:, given:] = scorer.path_log_probs(ids.to(z.device)[None], scorer.start(z), given)[0]
    if first is not None and not given:
        paths[:, 0] = first[0, ids[:, 0].to(z.device)]
    return Trace(tuple(steps), paths)


def _describe(step: BeamStep, target_given: bool, rejected: int) -> Step:
    """One level of a search of one query."""
    kept = step.kept[0][step.kept[0] >= 0]
    others = step.totals.index_fill(0, kept, -torch.inf)
    ranked = tensor_top_k(others[None], len(others))[1][0]
    best = ranked[: min(rejected, len(others) - len(kept))]
    beams = _candidates(step, kept)
    losers = _candidates(step, best)
    level = step.before.level
    items = sum(one.items for one in beams)
    return Step(level, target_given and level == 0, len(step.totals), beams, losers, items)


def _candidates(step: BeamStep, index: Tensor) -> tuple[Candidate, ...]:
    parent = step.children.row[index]
    prefixes = torch.cat([step.before.codes[0, parent], step.children.code[index][:, None]], 1)
    totals = step.totals[index]
    log_p = totals - step.before.scores[0, parent]
    columns = (prefixes.tolist(), log_p.tolist(), totals.tolist(), step.children.items[index].tolist())
    return tuple(Candidate(tuple(prefix), *numbers) for prefix, *numbers in zip(*columns, strict=True))
