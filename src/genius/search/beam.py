"""Beam search constrained to a trie, exact: every true child of every beam competes, nothing else does.

Plain torch on any device; the CUDA graph of `cuda.py` is tested against it. Beams grow 1 -> 3 -> B. A query leaves
the loop as soon as it can: when all its beams are on unary paths, the tails are scored in one teacher-forced
pass (same result as stepping: with one child each, no beam can displace another); or when the items below its
beams fit the re-ranking budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.model.generator import START, Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search.decoder import decoder_of
from genius.search.finish import Nearness, finish_by_nearness
from genius.search.params import BeamResult, Normalizer
from genius.search.scores import Scorer
from genius.search.state import Beams
from genius.search.trie import CodeTrie
from genius.search.views import Children, Forest, TrieView, widen

BROKEN = "the generator gives NaN for a code: its weights or the query are broken"


def decode(
    scorer: Scorer,
    forest: Forest,
    z: Tensor,
    beams: int,
    *,
    target: int = -1,
    stop: int = 0,
    least: int = 0,
    step_tails: bool = False,
) -> Iterator[Beams]:
    """Search for every row of z (Q, D); yields groups of queries as they finish, each exactly once; nothing at
    all where nothing exists.

    `target`: code of level 0, given to all queries (-1: let the generator choose). `stop` R > 0: finish when at most R
    items are below a query's beams (but not before `least` codes are chosen), and hand over further children, best
    first, while they fit R. `step_tails` turns the one-pass finish off (for tests).
    """
    state = _begin(scorer, forest, z, target)
    if not len(state.queries) or not bool(state.items.any()):
        return  # nothing to find: no ID is made up
    levels = len(forest.level_sizes)
    while len(state.queries):
        if state.level == levels:
            yield _sorted(state)
            return
        if stop and state.level >= least:
            fits = state.items.sum(1) <= stop
            if fits.any():  # only at the start: later levels are checked as they are made
                yield state.select(fits.nonzero()[:, 0])
                state = state.select((~fits).nonzero()[:, 0])
                continue
        if not step_tails and state.level >= least:
            single = (forest.ids_below(state.level, state.lo, state.hi) <= 1).all(1)
            if single.any():
                yield _finish_tails(scorer, forest, state.select(single.nonzero()[:, 0]))
                state = state.select((~single).nonzero()[:, 0])
                continue
        if state.level == 0 and levels > 1 and forest.level_sizes[0] <= min(beams, 8) and not step_tails:
            state = _first_pair(scorer, forest, state)
            continue
        state, early = _step(scorer, forest, state, beams, stop)
        if early is not None:
            yield early


def _begin(scorer: Scorer, forest: Forest, z: Tensor, target: int) -> Beams:
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
        residual=z.float()[:, None] if scorer.geometric else None,
        pending=torch.full((queries, 1, 1), START, device=device),
        memory=None if scorer.decoder is None else scorer.decoder.start(z),
    )
    if target < 0:
        return state
    # the modality is known: level 0 is given, not scored, and its token is read together with the start token
    children = forest.expand(0, state.lo[:, :, 0], state.hi[:, :, 0])
    children = children[(children.code == target).nonzero()[:, 0]]
    if not len(children.row):
        return state.select(torch.empty(0, dtype=torch.long, device=device))
    return _advance(
        scorer, state, children, torch.zeros(len(children.row), device=device), torch.arange(queries, device=device)[:, None]
    )


def _first_pair(scorer: Scorer, forest: Forest, state: Beams) -> Beams:
    """Levels 0 and 1 in one pass: every code of level 0 becomes a beam, so their tokens need not wait for its scores."""
    group = len(state.queries)
    children = forest.expand(0, state.lo.flatten(1), state.hi.flatten(1))
    index = torch.arange(len(children.row), device=children.row.device).view(group, -1)  # the same codes for every query
    begun = _advance(scorer, state, children, torch.zeros(len(children.row), device=index.device), index)
    first = mass = None
    if scorer.decoder is not None:
        assert begun.memory is not None
        out, begun.memory = scorer.decoder.run(begun.pending, begun.memory)  # start token and code of each beam
        first, begun.hidden = out[:, 0, 0], out[:, :, 1]
        begun.pending = begun.pending[:, :, :0]
        mass = scorer.mass(torch.cat([first, begun.hidden.flatten(0, 1)]))  # of both levels: the table is read once
        if mass is not None:
            mass, begun.mass = mass[:group], mass[group:].view(group, -1)
    residual = None if state.residual is None else state.residual[:, 0]
    begun.scores = scorer.children(0, first, residual, children.row, children.code, mass).view(group, -1)
    if torch.isnan(begun.scores).any():
        raise GeniusError(BROKEN)
    return begun


def _step(scorer: Scorer, forest: Forest, state: Beams, beams: int, stop: int) -> tuple[Beams, Beams | None]:
    """One level deeper. Queries whose best beams fit `stop` come back apart, with as many children as fit."""
    group, width = state.scores.shape
    hidden = mass = None
    if state.hidden is not None:
        mass = None if state.mass is None else state.mass.flatten()
        hidden, state.hidden, state.mass = state.hidden.reshape(group * width, -1), None, None
    elif scorer.decoder is not None:
        assert state.memory is not None
        out, state.memory = scorer.decoder.run(state.pending, state.memory)
        hidden = out[:, :, -1].reshape(group * width, -1)
        state.pending = state.pending[:, :, :0]
    residual = None if state.residual is None else state.residual.flatten(0, 1)
    children = forest.expand(state.level, state.lo.flatten(1), state.hi.flatten(1))
    modality = state.codes[:, :, 0].flatten() if state.level else None
    gain = scorer.children(state.level, hidden, residual, children.row, children.code, mass, modality)
    worth = state.scores.flatten()[children.row] + gain
    if torch.isnan(worth).any():
        raise GeniusError(BROKEN)
    # children of a query are contiguous: lay them out as (G, most children of any query)
    query = children.row // width
    counts = torch.bincount(query, minlength=group)
    start = counts.cumsum(0) - counts
    most = int(counts.max())
    table = torch.full((group, most), -torch.inf, device=worth.device)
    table[query, torch.arange(len(query), device=query.device) - start[query]] = worth
    best = table.topk(min(beams, most), dim=1).indices  # (G, n)
    index = (start[:, None] + best).masked_fill(best >= counts[:, None], -1)
    early = None
    if stop:
        below = torch.where(index >= 0, children.items[index.clamp(min=0)], 0).sum(1)
        fits = below <= stop
        if fits.any():
            done = fits.nonzero()[:, 0]
            early = _fill(scorer, state, children, worth, table, start, counts, done, max(beams, stop), stop)
            going = (~fits).nonzero()[:, 0]
            if not len(going):
                state.queries = state.queries[:0]  # nobody goes on: nothing is carried along
                return state, early
            state, index = state.select(going), index[going]
            # rows of the children still count beams of the whole group
            children = Children(
                _renumber(children.row, going, width, group), children.code, children.lo, children.hi, children.items
            )
    return _advance(scorer, state, children, worth, index), early


def _renumber(row: Tensor, going: Tensor, width: int, group: int) -> Tensor:
    """Beams counted over the whole group -> over the queries `going` alone."""
    place = torch.zeros(group, dtype=torch.long, device=row.device)
    place[going] = torch.arange(len(going), device=row.device)
    return place[row // width] * width + row % width


def _fill(
    scorer: Scorer,
    state: Beams,
    children: Children,
    worth: Tensor,
    table: Tensor,
    start: Tensor,
    counts: Tensor,
    done: Tensor,
    widest: int,
    stop: int,
) -> Beams:
    """Children of the finished queries, best first, as long as their items fit the budget: they cost nothing more."""
    group, width = state.scores.shape
    table, start, counts = table[done], start[done], counts[done]
    best = table.topk(min(widest, table.shape[1]), dim=1).indices
    index = (start[:, None] + best).masked_fill(best >= counts[:, None], -1)
    items = torch.where(index >= 0, children.items[index.clamp(min=0)], 0)
    index = index.masked_fill(items.cumsum(1) > stop, -1)
    kept = int((index >= 0).sum(1).max())
    renumbered = replace(children, row=_renumber(children.row, done, width, group))
    chosen = state.select(done)
    chosen.memory = None  # nothing is decoded after this
    return _advance(scorer, chosen, renumbered, worth, index[:, :kept])


def _advance(scorer: Scorer, state: Beams, children: Children, worth: Tensor, index: Tensor) -> Beams:
    """The beams at children `index` (G, n); -1: no beam."""
    group, width = state.scores.shape
    missing = index < 0
    index = index.clamp(min=0)
    chosen = children[index.flatten()]
    code = chosen.code.view_as(index)
    parent = (chosen.row.view_as(index) % width).masked_fill(missing, 0)
    query = torch.arange(group, device=index.device)[:, None]
    decoder = scorer.decoder
    residual = state.residual
    if residual is not None:
        assert scorer.books is not None
        modality = state.codes[query, parent, 0] if state.level else None
        residual = residual[query, parent] - scorer.books.vectors(state.level, code, modality)
    pending = state.pending
    if decoder is not None:
        pending = torch.cat([pending[query, parent], decoder.token(code, state.level)[:, :, None]], 2)
    return Beams(
        queries=state.queries,
        level=state.level + 1,
        codes=torch.cat([state.codes[query, parent], code[:, :, None]], 2),
        scores=worth[index].masked_fill(missing, -torch.inf),
        lo=chosen.lo.view(len(chosen.lo), *index.shape).masked_fill(missing, 0),
        hi=chosen.hi.view(len(chosen.hi), *index.shape).masked_fill(missing, 0),
        items=chosen.items.view_as(index).masked_fill(missing, 0),
        residual=residual,
        pending=pending,
        memory=None if state.memory is None else state.memory.follow(parent),
    )


def _finish_tails(scorer: Scorer, forest: Forest, state: Beams) -> Beams:
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
    hidden: Tensor | None = None
    if scorer.decoder is not None and not scorer.unary_is_free:
        assert state.memory is not None
        tokens = [state.pending]
        tokens += [scorer.decoder.token(codes[:, :, i : i + 1], state.level + i) for i in range(codes.shape[2] - 1)]
        inputs = torch.cat(tokens, 2)
        # (G, n, L, d): each state predicts the next code; the first may be known already
        known = [] if state.hidden is None else [state.hidden[:, :, None]]
        out = [scorer.decoder.run(inputs, state.memory)[0]] if inputs.shape[2] else []
        hidden = torch.cat([*known, *(part[:, :, -(codes.shape[2] - len(known)) :] for part in out)], 2).flatten(0, 1)
    residual = None if state.residual is None else state.residual.flatten(0, 1)
    modality = state.codes[:, :, 0].flatten() if state.level else None
    gain = scorer.tails(state.level, hidden, residual, codes.flatten(0, 1), modality).view(group, width)
    scores = state.scores + gain
    if torch.isnan(scores).any():
        raise GeniusError(BROKEN)
    whole = torch.cat([state.codes, codes], 2)
    return _sorted(Beams(state.queries, levels, whole, scores, lo, hi, state.items, None, state.pending, None))


def _sorted(state: Beams) -> Beams:
    """Best first; slots without a beam last."""
    scores, by = state.scores.sort(dim=1, descending=True, stable=True)
    query = torch.arange(len(by), device=by.device)[:, None]
    lo, hi = state.lo[:, query, by], state.hi[:, query, by]
    return Beams(
        state.queries, state.level, state.codes[query, by], scores, lo, hi, state.items[query, by], None, state.pending, None
    )


@torch.inference_mode()
def beam_search(
    generator: Generator | None,
    trie: CodeTrie,
    z: Tensor,
    beams: int,
    *,
    quantizer: ResidualQuantizer | None = None,
    geometry: float = 0.0,
    target: Tensor | None = None,
    allowed: Tensor | None = None,
    normalizer: Normalizer = "model",
    finish: float = 0.0,
    leaves: int = 2000,
    step_tails: bool = False,
) -> BeamResult:
    """Full depth, exact: the published search (4.4) over true children. `generator` None: geometry alone; `finish` > 0:
    the last codes by nearness (see `SearchParams`).

    z (Q, D); target (Q,) known code of level 0 or -1: given, so its log p is not added; allowed (N,) bool over items.
    """
    if beams < 1:
        raise GeniusError(f"beams must be at least 1, got {beams}")
    check_queries(z)
    device = z.device
    decoder = None if generator is None else decoder_of(generator, device)
    if generator is not None and generator.config.level_sizes != trie.level_sizes:
        raise GeniusError(f"the trie has levels {trie.level_sizes}, the generator {generator.config.level_sizes}")
    scorer = Scorer(decoder, quantizer, trie.level_sizes, geometry, normalizer)
    if finish > 0 and quantizer is None:
        raise GeniusError("finishing by nearness needs the quantizer")
    nearness = Nearness(quantizer, device) if finish > 0 and quantizer is not None else None
    stop, least = (leaves, 1) if nearness is not None else (0, 0)
    forest = Forest([TrieView(trie, device)], trie.level_sizes, check_allowed(allowed, trie.items, device))
    codes = torch.full((len(z), beams, trie.levels), -1, dtype=torch.long, device=device)
    scores = torch.full((len(z), beams), -torch.inf, device=device)
    for code, queries in by_target(target, len(z), trie.level_sizes[0], device):
        for found in decode(scorer, forest, z[queries], beams, target=code, stop=stop, least=least, step_tails=step_tails):
            if nearness is not None:
                found = finish_by_nearness(found, forest, nearness, z[queries[found.queries]].float(), beams, finish)
            n = found.scores.shape[1]
            real = found.scores > -torch.inf
            where = queries[found.queries]
            codes[where, :n] = found.codes.masked_fill(~real[:, :, None], -1)
            scores[where, :n] = found.scores / trie.levels
    return BeamResult(codes, scores)


def check_queries(z: Tensor, name: str = "z", finite: bool = True) -> None:
    if z.ndim != 2:
        raise GeniusError(f"{name} must be (queries, width), got shape {tuple(z.shape)}")
    if finite and not torch.isfinite(z).all():
        bad = int((~torch.isfinite(z)).any(1).nonzero()[0])
        raise GeniusError(f"query {bad} has a NaN or infinite value in {name}")


def check_allowed(allowed: Tensor | None, rows: int, device: torch.device) -> Tensor | None:
    if allowed is None:
        return None
    mask = torch.as_tensor(allowed, device=device)
    if mask.dtype != torch.bool or mask.shape[-1:] != (rows,):
        raise GeniusError(f"allowed must be bool with {rows} items last, got {mask.dtype} of shape {tuple(mask.shape)}")
    return mask


def by_target(target: Tensor | None, queries: int, size: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Queries grouped by their known target (-1: unknown)."""
    everyone = torch.arange(queries, device=device)
    if target is None:
        if queries:
            yield -1, everyone
        return
    wanted = torch.as_tensor(target, device=device).long()
    if wanted.shape != (queries,):
        raise GeniusError(f"target must be ({queries},), one per query, got {tuple(wanted.shape)}")
    if queries and (int(wanted.min()) < -1 or int(wanted.max()) >= size):
        raise GeniusError(f"target codes must be -1..{size - 1}, got {int(wanted.min())}..{int(wanted.max())}")
    for code in wanted.unique().tolist():
        yield int(code), everyone[wanted == code]
