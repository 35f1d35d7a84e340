"""The trace of a search against the search itself and against brute force."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_reference import KINDS, tiny_generator

from genius.search import CodeTrie, SearchEngine, SearchParams, beam_search

SIZES = (3, 5, 4, 6)
GENERATORS = {(seed, kind): tiny_generator(SIZES, seed, kind) for seed in range(2) for kind in KINDS}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 60),
    beams=st.integers(1, 12),
    rerank=st.integers(0, 40),
    model=st.sampled_from(sorted(GENERATORS)),
    target=st.sampled_from([-1, 0, 1, 2]),
)
def test_a_trace_writes_what_the_search_writes(seed: int, items: int, beams: int, rerank: int, model, target: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, items) for size in SIZES], axis=1)
    generator = GENERATORS[model]
    trie = CodeTrie.build(codes, SIZES)
    z = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((1, 8))).float(), dim=1)
    own = codes if target < 0 else codes[codes[:, 0] == target]
    asked = torch.from_numpy(own[:3])
    params = SearchParams(beams=beams, rerank=rerank, reranker="none" if rerank == 0 else "codes")
    engine = SearchEngine(generator, None, trie, None, precision="exact")
    trace = engine.trace(z, asked, params=params, target=target, rejected=4)
    found = beam_search(generator, trie, z, beams, target=torch.tensor([target]))
    if not len(own):
        assert not trace.steps
        return
    last = trace.steps[-1]
    count = int((found.scores[0] > -torch.inf).sum())
    assert len(trace.steps) == len(SIZES) and len(last.kept) == count
    got = torch.tensor([one.total for one in last.kept])
    assert torch.allclose(got / len(SIZES), found.scores[0, :count], atol=1e-5)
    for step, before in zip(trace.steps[1:], trace.steps, strict=False):
        beam = {one.prefix: one for one in before.kept}
        totals = [one.total for one in (*step.kept, *step.rejected)]
        assert totals == sorted(totals, reverse=True)  # whatever was rejected is worse than all that was kept
        for one in (*step.kept, *step.rejected):
            matching = (codes[:, : len(one.prefix)] == np.array(one.prefix)).all(1)
            assert one.items == matching.sum() > 0
            assert abs(beam[one.prefix[:-1]].total + one.log_p - one.total) < 1e-4
        assert step.items == sum(one.items for one in step.kept)
        children = {tuple(row[: step.level + 1]) for row in codes.tolist() if tuple(row[: step.level]) in beam}
        assert step.competing == len(children)
    likely = {one.prefix: one.total for one in last.kept}
    for row, ids in zip(trace.paths, asked.tolist(), strict=True):  # as likely as the beams say, where they hold it
        if tuple(ids) in likely:
            assert abs(float(row.sum()) - likely[tuple(ids)]) < 1e-4


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(1, 80), rerank=st.integers(1, 80))
def test_a_trace_knows_where_the_search_stops(seed: int, items: int, rerank: int) -> None:
    """What is below the beams there is what the search compares, up to the budget."""
    rng = np.random.default_rng(seed)
    codes = np.unique(np.stack([rng.integers(0, size, items) for size in SIZES], axis=1), axis=0)
    trie, generator = CodeTrie.build(codes, SIZES), GENERATORS[0, KINDS[0]]
    vectors = torch.nn.functional.normalize(torch.randn(len(codes), 8, generator=torch.Generator().manual_seed(seed)), dim=1)
    engine = SearchEngine(generator, None, trie, vectors, precision="exact")
    z, params = vectors[:1], SearchParams(beams=4, rerank=rerank)
    trace = engine.trace(z, torch.empty(0, len(SIZES), dtype=torch.long), params=params)
    touched = int(engine.search(z, k=1, params=params).touched)
    if trace.stop is None:
        assert all(step.items > rerank for step in trace.steps)
    else:
        below = len(codes) if trace.stop == 0 else trace.steps[trace.stop - 1].items
        assert below <= touched <= rerank or trace.stop == 0
        assert trace.stop == 0 or all(step.items > rerank for step in trace.steps[: trace.stop - 1])
