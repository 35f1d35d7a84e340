"""Honest questions: whole groups are held out, and no answer or content is on both sides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from train_fixtures import small_data

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.features import Features
from genius.train.holdout import components, groups, sample_pool, sample_queries, split, split_given


def a_set(pairs: list[tuple[int, int]], queries: Features, pool: Features) -> FeatureSet:
    ids = [str(i) for i in range(len(queries))], [str(i) for i in range(len(pool))]
    return FeatureSet(queries, pool, torch.tensor(pairs).reshape(-1, 2), *ids)


def texts(rows: torch.Tensor) -> Features:
    there = torch.ones(len(rows), dtype=torch.bool)
    return Features(torch.zeros_like(rows), rows, ~there, there)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40))
def test_components_are_those_of_a_plain_search(nodes: int, edges: list[tuple[int, int]]) -> None:
    edges = [(a % nodes, b % nodes) for a, b in edges]
    label = components(nodes, torch.tensor(edges).reshape(-1, 2)).tolist()
    reached = {node: {node} for node in range(nodes)}
    for _ in range(nodes):
        for a, b in edges:
            both = reached[a] | reached[b]
            for node in both:
                reached[node] = both
    assert label == [min(reached[node]) for node in range(nodes)]


def test_captions_of_one_photo_stay_together() -> None:
    """Two hundred photos with five captions each: a caption asks for the photo, the photo for its captions."""
    torch.manual_seed(0)
    photos, words = torch.randn(200, 8), torch.randn(1000, 8)
    no, yes = torch.zeros(1200, dtype=torch.bool), torch.arange(1200) >= 1000
    # questions: 1,000 captions in other words than the pool's, then 200 photos with an instruction that all share
    shared = torch.randn(8)
    queries = Features(torch.cat([torch.zeros(1000, 8), photos]), torch.cat([words + 1, shared.expand(200, 8)]), yes, ~no)
    pictures = torch.arange(1200) < 200
    pool = Features(torch.cat([photos, torch.zeros(1000, 8)]), torch.cat([torch.zeros(200, 8), words]), pictures, ~pictures)
    pairs = [(c, c // 5) for c in range(1000)] + [(1000 + c // 5, 200 + c) for c in range(1000)]
    data = a_set(pairs, queries, pool)
    group, words_for_it = groups(data)
    assert words_for_it == "positives, images and texts"
    photo_of = torch.cat([torch.arange(1000) // 5, torch.arange(200)])
    for photo in (0, 7, 199):
        assert group[photo_of == photo].unique().numel() == 1
    assert group.unique().numel() == 200
    parts = split(data, 0.1, seed=3)
    assert parts.offsets is not None and parts.validation is not None
    sides = [set(photo_of[[int(i) for i in part.query_ids]].tolist()) for part in (parts.train, parts.offsets, parts.validation)]
    assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    assert 60 <= len(parts.offsets.queries) + len(parts.validation.queries) <= 120
    assert len(parts.offsets.queries) > len(parts.validation.queries)


def test_when_answers_link_everything_that_is_said() -> None:
    queries, pool = texts(torch.randn(50, 4)), texts(torch.randn(50, 4))
    chain = [(i, i) for i in range(50)] + [(i, (i + 1) % 50) for i in range(50)]
    _, words = groups(a_set(chain, queries, pool))
    assert "nothing" in words
    hub = [(i, i) for i in range(50)]
    same = texts(torch.randn(1, 4).expand(50, 4).contiguous())  # all items say the same: content links too much, answers do not
    assert groups(a_set(hub, queries, same))[1] == "positives"


def test_the_split_is_a_function_of_the_seed_and_leaves_something_to_train_on() -> None:
    data = small_data()
    first, again, other = split(data, 0.2, 0), split(data, 0.2, 0), split(data, 0.2, 1)
    assert first.train.query_ids == again.train.query_ids != other.train.query_ids
    alone = data.take_queries(range(1))
    assert split(alone, 0.5, 0).offsets is None and len(split(alone, 0.5, 0).train.queries) == 1


def test_a_smaller_pool_keeps_every_answer() -> None:
    data = small_data()
    small = sample_pool(data, 30, seed=0)
    assert len(small.pool) < len(data.pool)
    for query, row in small.pairs.tolist():
        pairs = {data.pool_ids[r] for q, r in data.pairs.tolist() if q == query}
        assert small.pool_ids[row] in pairs
    assert len(small.pairs) == len(data.pairs)
    few = sample_queries(data, 9)
    assert len(few.queries) <= 9 and few.tasks.unique().numel() == data.tasks.unique().numel()


def test_a_set_of_honest_questions_is_used_to_the_last_one_whatever_its_size() -> None:
    data = small_data()
    train, given = data.take_queries(range(0, len(data.queries), 2)), data.take_queries(range(1, len(data.queries), 2))
    parts = split_given(train, given, seed=0)
    assert parts.train.query_ids == train.query_ids and parts.offsets is not None and parts.validation is not None
    offsets, judging = set(parts.offsets.query_ids), set(parts.validation.query_ids)
    assert not offsets & judging and offsets | judging == set(given.query_ids) and len(offsets) > len(judging)
    with pytest.raises(GeniusError, match="held-out queries is empty"):
        split_given(train, given.take_queries(range(0)), seed=0)
    alone = split_given(train, given.take_queries(range(1)), seed=0)
    held = [part for part in (alone.offsets, alone.validation) if part is not None]
    assert [part.query_ids for part in held] == [given.query_ids[:1]]
