"""The trace of a search against the search itself and against brute force."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_reference import HEADS, tiny_generator

from genius.search import CodeTrie
from genius.search.beam import beam_search, trace

SIZES = (3, 5, 4, 6)
GENERATORS = {(seed, head): tiny_generator(SIZES, seed, head) for seed in range(2) for head in HEADS}


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 60),
    beams=st.integers(1, 12),
    model=st.sampled_from(sorted(GENERATORS)),
    target=st.sampled_from([-1, 0, 1, 2]),
    share=st.sampled_from([0.5, 1.0]),
)
def test_a_trace_follows_the_search(seed: int, items: int, beams: int, model, target: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, items) for size in SIZES], axis=1)
    generator = GENERATORS[model]
    trie = CodeTrie.build(codes, SIZES)
    z = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((1, 8))).float(), dim=1)
    may = rng.random(items) < share
    codes = codes[may]
    own = codes if target < 0 else codes[codes[:, 0] == target]
    ids, allowed = torch.from_numpy(own[:3]), torch.from_numpy(may)
    found = beam_search(generator, trie, z, beams, target=torch.tensor([target]), allowed=allowed)
    traced = trace(generator, trie, z, beams, ids=ids, target=target, allowed=allowed, rejected=4)
    if not len(own):
        assert not traced.steps
        return
    last = traced.steps[-1]
    count = int((found.scores[0] > -torch.inf).sum())
    assert len(traced.steps) == len(SIZES) and len(last.kept) == count
    got = torch.tensor([one.total for one in last.kept])
    assert torch.allclose(got / len(SIZES), found.scores[0, :count], atol=1e-5)
    assert traced.steps[0].given == (target >= 0)
    for step, before in zip(traced.steps[1:], traced.steps, strict=False):
        beam = {one.prefix: one for one in before.kept}
        totals = [one.total for one in (*step.kept, *step.rejected)]
        assert totals == sorted(totals, reverse=True)  # whatever was rejected is less likely than all that was kept
        for one in (*step.kept, *step.rejected):
            matching = (codes[:, : len(one.prefix)] == np.array(one.prefix)).all(1)
            assert one.items == matching.sum() > 0
            assert abs(beam[one.prefix[:-1]].total + one.log_p - one.total) < 1e-4
        assert step.items == sum(one.items for one in step.kept)
        children = {tuple(row[: step.level + 1]) for row in codes.tolist() if tuple(row[: step.level]) in beam}
        assert step.competing == len(children)
    likely = {one.prefix: one.total for one in last.kept}
    for row, one in zip(traced.paths, ids.tolist(), strict=True):  # as likely as the beams say, where they hold it
        if tuple(one) in likely:
            assert abs(float(row.sum()) - likely[tuple(one)]) < 1e-4
