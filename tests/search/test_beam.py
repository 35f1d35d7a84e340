"""Beam search against the slow truth on random tries and random tiny decoders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_reference import HEADS, reference_beam, tiny_generator

from genius.errors import GeniusError
from genius.search import CodeTrie, SearchParams
from genius.search.beam import Beam, _search, beam_search
from genius.search.decoder import Decoder
from genius.search.tensors import tensor_arrays
from genius.search.types import QueryBatch

SIZES = (3, 5, 4, 6)
GENERATORS = {(seed, head): tiny_generator(SIZES, seed, head) for seed in range(2) for head in HEADS}


def random_codes(rng: np.random.Generator, items: int, skew: float) -> np.ndarray:
    """Codes whose branching goes from bushy to unary with the number of items and the skew."""
    columns = [np.minimum((rng.random(items) ** skew * size).astype(np.int64), size - 1) for size in SIZES]
    return np.stack(columns, axis=1)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 60),
    skew=st.sampled_from([1.0, 3.0]),
    beams=st.integers(1, 40),
    model=st.sampled_from(sorted(GENERATORS)),
    target=st.sampled_from([-1, -1, 0, 1, 2]),
)
def test_equals_brute_force(seed, items, skew, beams, model, target) -> None:
    """Two of four random queries a case (the truth is slow); ties apart, codes and order are equal, scores to 1e-5."""
    rng = np.random.default_rng(seed)
    codes, generator = random_codes(rng, items, skew), GENERATORS[model]
    z = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((4, 8))).float(), dim=1)
    found = beam_search(generator, CodeTrie.build(codes, SIZES), z, beams, target=torch.full((4,), target))
    for q in (0, 3):
        assert_same(found.codes[q], found.scores[q], reference_beam(generator, codes, z[q], beams, target=target))


@pytest.mark.parametrize("model", list(GENERATORS))
def test_an_only_item_has_the_score_of_brute_force(model) -> None:
    """Its whole path is a tail: the modality counts there too."""
    codes = random_codes(np.random.default_rng(0), 1, 1.0)
    z = torch.nn.functional.normalize(torch.randn(1, 8), dim=1)
    found = beam_search(GENERATORS[model], CodeTrie.build(codes, SIZES), z, 5)
    assert_same(found.codes[0], found.scores[0], reference_beam(GENERATORS[model], codes, z[0], 5))


@pytest.mark.parametrize("model", list(GENERATORS))
def test_queries_with_and_without_a_target_share_a_batch(model) -> None:
    """Each has the scores that it has alone: a given modality costs nothing, an unknown one its log-probability."""
    rng = np.random.default_rng(1)
    codes = random_codes(rng, 40, 1.0)
    z = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((3, 8))).float(), dim=1)
    found = beam_search(GENERATORS[model], CodeTrie.build(codes, SIZES), z, 6, target=torch.tensor([1, -1, 0]))
    for q, target in enumerate((1, -1, 0)):
        assert_same(found.codes[q], found.scores[q], reference_beam(GENERATORS[model], codes, z[q], 6, target=target))


def test_scores_of_the_first_level_may_be_given() -> None:
    """They take the place of the generator's; one that is out of the question finds nothing before all others."""
    rng = np.random.default_rng(2)
    codes = random_codes(rng, 40, 1.0)
    generator = GENERATORS[0, "level"]
    z = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((1, 8))).float(), dim=1)
    trie = CodeTrie.build(codes, SIZES)
    wanted = beam_search(generator, trie, z, 6, target=torch.tensor([1]))
    found = beam_search(generator, trie, z, 6, first=torch.tensor([[-100.0, 0.0, -100.0]]))
    there = wanted.ids[0] >= 0
    assert torch.equal(found.codes[0][there], wanted.codes[0][there])
    assert torch.allclose(found.scores[0][there], wanted.scores[0][there], atol=1e-5)
    moved = beam_search(generator, trie, z, 6, first=torch.tensor([[-104.0, -4.0, -104.0]]))
    assert torch.allclose(moved.scores[0][there], wanted.scores[0][there] - 1, atol=1e-5)  # four levels


def assert_same(codes: torch.Tensor, scores: torch.Tensor, expected: list[tuple[tuple[int, ...], float]]) -> None:
    count = len(expected)
    assert (codes[count:] == -1).all() and torch.isneginf(scores[count:]).all()
    want = torch.tensor([score for _, score in expected])
    assert torch.allclose(scores[:count], want, atol=1e-5)
    got = [tuple(row) for row in codes[:count].tolist()]
    for i, (code, score) in enumerate(expected):
        if got[i] != code:  # only a tie may swap two
            assert code in got or abs(score - expected[-1][1]) < 1e-5
            assert got[i] not in dict(expected) or abs(dict(expected)[got[i]] - score) < 1e-5


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(1, 80), beams=st.integers(1, 30), share=st.floats(0.0, 1.0))
def test_filter_is_a_smaller_trie(seed, items, beams, share) -> None:
    """Searching with a filter finds what a trie of the allowed items alone would."""
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, items, 2.0)
    allowed = rng.random(items) < share
    generator = GENERATORS[0, "vocabulary"]
    z = torch.from_numpy(rng.standard_normal((3, 8))).float()
    full = beam_search(generator, CodeTrie.build(codes, SIZES), z, beams, allowed=torch.from_numpy(allowed))
    small = beam_search(generator, CodeTrie.build(codes[allowed], SIZES), z, beams)
    assert torch.allclose(full.scores, small.scores, atol=1e-5)
    close = torch.isclose(full.scores[:, 1:], full.scores[:, :-1], atol=1e-5).any()
    assert close or (full.codes == small.codes).all()


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 90),
    skew=st.sampled_from([1.0, 3.0]),
    beams=st.integers(1, 30),
    model=st.sampled_from(sorted(GENERATORS)),
    share=st.sampled_from([1.0, 0.5, 0.0]),
    given_scores=st.booleans(),
)
def test_fixed_shapes_find_what_shapes_that_follow_the_trie_find(seed, items, skew, beams, model, share, given_scores) -> None:
    """What a GPU captures: with targets that are given, unknown and absent, a filter, and scores of the first level."""
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, items, skew)
    trie = CodeTrie.build(codes, SIZES).on(tensor_arrays("cpu"))
    z = torch.from_numpy(rng.standard_normal((4, 8))).float()
    target = torch.tensor([-1, 0, 1, 2])
    first = torch.randn(4, SIZES[0]) if given_scores else None
    allowed = None
    if share < 1:
        allowed = torch.from_numpy(rng.random(items) < share)
    expected = beam_search(GENERATORS[model], trie, z, beams, target=target, allowed=allowed, first=first)
    before = None if allowed is None else trie.count_before(allowed)
    scorer = Decoder(GENERATORS[model], all_modalities=True)
    with torch.inference_mode():
        found = _search(scorer, trie, z, beams, target, before, first, fixed=True)
    assert torch.allclose(found.scores, expected.scores, atol=1e-5)
    assert torch.equal(found.ids < 0, expected.ids < 0)
    close = torch.isclose(found.scores[:, 1:], found.scores[:, :-1], atol=1e-5).any()
    assert close or (torch.equal(found.codes, expected.codes) and torch.equal(found.ids, expected.ids))


def test_fixed_shapes_carry_nan_to_the_scores() -> None:
    """Nothing is read back on the way, so what is broken is seen at the end."""
    broken = tiny_generator(SIZES)
    with torch.no_grad():
        broken.final_norm.weight.fill_(float("nan"))
    for codes in ([[2, 4, 3, 5], [0, 1, 1, 1]], [[2, 4, 3, 5]]):
        trie = CodeTrie.build(np.array(codes), SIZES).on(tensor_arrays("cpu"))
        with torch.inference_mode():
            found = _search(Decoder(broken), trie, torch.randn(2, 8), 3, torch.tensor([-1, 2]), None, None, fixed=True)
        assert torch.isnan(found.scores).any(1).all()


def test_nothing_is_made_up() -> None:
    generator = GENERATORS[0, "vocabulary"]
    z = torch.randn(2, 8)
    empty = beam_search(generator, CodeTrie.build(np.empty((0, 4), dtype=np.int64), SIZES), z, 5)
    assert (empty.codes == -1).all() and torch.isneginf(empty.scores).all()
    one = beam_search(generator, CodeTrie.build(np.array([[2, 4, 3, 5]]), SIZES), z, 5)
    assert (one.codes[:, 0] == torch.tensor([2, 4, 3, 5])).all() and (one.codes[:, 1:] == -1).all()
    absent = beam_search(generator, CodeTrie.build(np.array([[2, 4, 3, 5]]), SIZES), z, 5, target=torch.tensor([0, 2]))
    assert (absent.codes[0] == -1).all() and absent.codes[1, 0].tolist() == [2, 4, 3, 5]
    none = beam_search(generator, CodeTrie.build(np.array([[2, 4, 3, 5]]), SIZES), z, 5, allowed=torch.tensor([False]))
    assert (none.codes == -1).all()


def test_broken_input_is_one_clear_error() -> None:
    generator = GENERATORS[0, "vocabulary"]
    trie = CodeTrie.build(np.array([[2, 4, 3, 5], [0, 1, 1, 1]]), SIZES)
    z = torch.randn(2, 8)
    with pytest.raises(GeniusError, match="beams"):
        beam_search(generator, trie, z, 0)
    with pytest.raises(GeniusError, match="levels"):
        beam_search(tiny_generator((3, 5)), trie, z, 3)
    broken = tiny_generator(SIZES)
    with torch.no_grad():
        broken.final_norm.weight.fill_(float("nan"))
    with pytest.raises(GeniusError, match="NaN"):
        beam_search(broken, trie, z, 3)
    with pytest.raises(GeniusError, match="NaN"):
        beam_search(broken, CodeTrie.build(np.array([[2, 4, 3, 5]]), SIZES), z, 3)


def batch_of(z: torch.Tensor, target: torch.Tensor | None = None, allowed: torch.Tensor | None = None) -> QueryBatch:
    wanted = torch.full((len(z),), -1) if target is None else target
    return QueryBatch(z.numpy(), z.numpy(), wanted.numpy(), allowed=None if allowed is None else allowed.numpy())


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 60),
    beams=st.integers(1, 6),
    k=st.integers(1, 40),
    model=st.sampled_from(sorted(GENERATORS)),
    masks=st.sampled_from(["none", "one", "each"]),
)
def test_the_plan_returns_k_items_while_k_exist(seed, items, beams, k, model, masks) -> None:
    """Each once, allowed, of the target, with the log-probability of its ID; added items too."""
    rng = np.random.default_rng(seed)
    codes, generator = random_codes(rng, items, 2.0), GENERATORS[model]
    old = items // 2
    trie = CodeTrie.build(codes[:old], SIZES).merged(codes[old:], np.arange(old, items))
    z = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((4, 8))).float(), dim=1)
    target = torch.from_numpy(rng.integers(-1, 3, 4))
    allowed = {"none": None, "one": rng.random(items) < 0.6, "each": rng.random((4, items)) < 0.6}[masks]
    mask = None if allowed is None else torch.from_numpy(allowed)
    found = Beam(generator, trie).run(batch_of(z, target, mask), k, SearchParams(beams=beams))
    for q in range(4):
        own = np.ones(items, bool) if allowed is None else np.broadcast_to(allowed, (4, items))[q]
        may = np.flatnonzero(own & ((codes[:, 0] == int(target[q])) | (int(target[q]) < 0)))
        rows = found.rows[q][found.rows[q] >= 0].tolist()
        assert len(set(rows)) == len(rows) == int(found.considered[q]) >= min(k, len(may))
        assert set(rows) <= set(may.tolist())
        if rows:
            paths = generator(z[q].expand(len(rows), -1), torch.from_numpy(codes[rows]))[:, int(target[q] >= 0) :]
            assert np.allclose(found.scores[q, : len(rows)], paths.sum(1).detach().numpy() / len(SIZES), atol=1e-5)
            assert (np.diff(found.scores[q, : len(rows)]) <= 0).all()


def test_the_paper_never_searches_further() -> None:
    codes = random_codes(np.random.default_rng(0), 60, 1.0)
    trie, z = CodeTrie.build(codes, SIZES), torch.randn(3, 8)
    plain = Beam(GENERATORS[0, "level"], trie, widen=False).run(batch_of(z), 20, SearchParams(beams=2))
    best = beam_search(GENERATORS[0, "level"], trie, z, 2)
    for q in range(3):
        rows = plain.rows[q][plain.rows[q] >= 0].tolist()
        held = {tuple(ids) for ids in best.codes[q].tolist()}
        assert rows and set(rows) == {row for row, ids in enumerate(codes.tolist()) if tuple(ids) in held}


def test_no_queries_and_no_items() -> None:
    empty = CodeTrie.build(np.empty((0, 4), dtype=np.int64), SIZES)
    plan = Beam(GENERATORS[0, "level"], empty)
    assert plan.run(batch_of(torch.randn(2, 8)), 3, SearchParams()).rows.shape == (2, 0)
    assert plan.run(batch_of(torch.randn(0, 8)), 3, SearchParams()).rows.shape == (0, 0)


def test_a_generator_in_training_is_refused() -> None:
    """Dropout would make every search another one."""
    generator = tiny_generator(SIZES).train()
    with pytest.raises(GeniusError, match="eval"):
        beam_search(generator, CodeTrie.build(np.array([[2, 4, 3, 5]]), SIZES), torch.randn(1, 8), 3)
