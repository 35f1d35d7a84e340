"""How an ID is written, step by step: which codes competed, which were kept, and how likely each was.

The same beam search as `beam.decode`, one query at a time, every level to the end, remembering what the search itself throws
away. For people who ask why; a search never comes here. Knows codes and log p; nothing of items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genius.search.beam import Beams, advance, begin, candidates, ranked
from genius.search.decoder import Writer
from genius.search.forest import Forest


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
