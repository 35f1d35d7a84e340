"""SearchEngine: early stop, re-rankers, filters, deletes, additions; k results whenever k exist."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_reference import tiny_generator, tiny_quantizer

from genius.errors import GeniusError
from genius.search import CodeTrie, Int8Rows, SearchEngine, SearchParams, beam_search

SIZES = (3, 5, 4, 6)
GENERATOR, QUANTIZER = tiny_generator(SIZES), tiny_quantizer(SIZES)
PLAIN = SearchParams(beams=8, rerank=0, reranker="none")


def collection(seed: int, items: int, skew: float = 2.0) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    codes = np.stack([np.minimum((rng.random(items) ** skew * size).astype(np.int64), size - 1) for size in SIZES], axis=1)
    vectors = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((items, 8))).float(), dim=1)
    return codes, vectors, torch.from_numpy(rng.standard_normal((3, 8))).float()


def engine_of(codes: np.ndarray, vectors: torch.Tensor | None) -> SearchEngine:
    return SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes, SIZES), vectors)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 120),
    k=st.integers(1, 150),
    beams=st.integers(1, 10),
    rerank=st.sampled_from([0, 3, 10, 50]),
    reranker=st.sampled_from(["embeddings", "codes", "none"]),
    share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    target=st.sampled_from([-1, 0, 1, 2]),
)
def test_k_allowed_items_come_back_when_they_exist(seed, items, k, beams, rerank, reranker, share, target) -> None:
    codes, vectors, z = collection(seed, items)
    allowed = np.random.default_rng(seed + 1).random(items) < share
    params = SearchParams(beams=beams, rerank=rerank, reranker=reranker)
    found = engine_of(codes, vectors).search(z, k=k, params=params, target=torch.full((3,), target), allowed=allowed)
    valid = allowed & ((codes[:, 0] == target) if target >= 0 else True)
    assert found.rows.shape == found.scores.shape == (3, k)
    for rows, scores in zip(found.rows, found.scores, strict=True):
        real = rows[rows >= 0].tolist()
        assert len(real) == min(k, int(valid.sum()))
        assert len(set(real)) == len(real) and valid[real].all()
        assert (rows[len(real) :] == -1).all() and torch.isneginf(scores[len(real) :]).all()
        assert (scores[: len(real)].diff() <= 1e-6).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(1, 100), beams=st.integers(1, 12))
def test_plain_search_is_the_beams_items_in_order(seed: int, items: int, beams: int) -> None:
    codes, _, z = collection(seed, items)
    engine = engine_of(codes, None)
    params = SearchParams(beams=beams, rerank=0, reranker="none")
    trie = engine.base.trie
    for q, beam in enumerate(beam_search(GENERATOR, trie, z, beams).codes):
        expected = [row for code in beam.tolist() if code[0] >= 0 for row in trie.rows_below(code).tolist()]
        rows = engine.search(z[q : q + 1], k=len(expected), params=params).rows[0].tolist()
        assert rows == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(1, 100), beams=st.integers(1, 12))
def test_full_depth_rerank_sorts_the_beams_items(seed: int, items: int, beams: int) -> None:
    """GENIUS^R: items of all beams by the dot product with the stored vectors."""
    codes, vectors, z = collection(seed, items)
    engine, dense = engine_of(codes, vectors), torch.randn(3, 8)
    beam = beam_search(GENERATOR, engine.base.trie, z, beams)
    for q in range(3):
        rows = np.concatenate([engine.base.trie.rows_below(c) for c in beam.codes[q].tolist() if c[0] >= 0])
        scores = vectors[rows] @ dense[q]
        found = engine.search(z[q : q + 1], k=len(rows), params=SearchParams(beams=beams, rerank=0), dense=dense[q : q + 1])
        assert torch.allclose(found.scores[0], scores.sort(descending=True).values, atol=1e-5)
        assert found.rows[0].tolist() == rows[scores.argsort(descending=True, stable=True).numpy()].tolist()
        assert found.touched.tolist() == [len(rows)]


def test_budget_for_everything_is_dense_search() -> None:
    codes, vectors, z = collection(1, 90)
    found = engine_of(codes, vectors).search(z, k=10, params=SearchParams(rerank=90))
    assert (found.rows == (z @ vectors.T).topk(10).indices).all() and (found.touched == 90).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(20, 200), beams=st.integers(1, 6), budget=st.integers(5, 40))
def test_early_stop_stays_within_its_budget_and_holds_the_beams(seed: int, items: int, beams: int, budget: int) -> None:
    """At most R items are looked at, and the best beam's items of the full-depth search's first level are among them."""
    codes, vectors, z = collection(seed, items)
    engine = SearchEngine(GENERATOR, None, CodeTrie.build(codes, SIZES), vectors)  # without codebooks nothing is scanned
    found = engine.search(z, k=1, params=SearchParams(beams=beams, rerank=budget))
    largest = np.unique(codes, axis=0, return_counts=True)[1].max()
    assert (found.touched <= max(budget, 1)).all() or largest * beams > budget
    assert (found.touched >= min(items, 1)).all()


def test_an_early_stop_fills_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beam of two items would do, but what is ranked next costs nothing more: as much as fits is looked at."""
    monkeypatch.setattr(SearchEngine, "_planned", lambda *_: None)  # beams, as on a GPU: ten vectors would simply be compared
    codes = np.array([[0, first, last, 0] for first in range(5) for last in range(2)])
    vectors = torch.nn.functional.normalize(torch.randn(10, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    engine = SearchEngine(GENERATOR, None, CodeTrie.build(codes, SIZES), vectors)  # without codebooks nothing is scanned
    z = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    for budget, touched in ((2, 2), (5, 4), (6, 6), (9, 8)):
        found = engine.search(z, k=1, params=SearchParams(beams=1, rerank=budget), target=torch.zeros(3, dtype=torch.long))
        assert found.touched.tolist() == [touched] * 3


def test_codes_only_reads_the_codebooks_of_each_modality() -> None:
    codes, _, z = collection(3, 60)
    own = tiny_quantizer(SIZES, own_books_from=1)
    unit = torch.nn.functional.normalize(own.decode(torch.from_numpy(codes)), dim=1)
    engine = SearchEngine(GENERATOR, own, CodeTrie.build(codes, SIZES), unit)
    by_codes = engine.search(z, k=5, params=SearchParams(reranker="codes"))
    assert torch.allclose(engine.search(z, k=5).scores, by_codes.scores, atol=1e-5)


def test_rerankers_agree_when_vectors_are_reconstructions() -> None:
    """Codes only = cosine with the reconstruction; int8 rows = nearly the same."""
    codes, _, z = collection(3, 60)
    reconstruction = sum(QUANTIZER.codebook(i)[torch.from_numpy(codes[:, i])] for i in range(4))
    unit = torch.nn.functional.normalize(reconstruction, dim=1)
    engine = engine_of(codes, unit)
    exact = engine.search(z, k=5)
    by_codes = engine.search(z, k=5, params=SearchParams(reranker="codes"))
    assert torch.allclose(exact.scores, by_codes.scores, atol=1e-5)
    half = engine_of(codes, unit.half()).search(z, k=5)
    assert torch.allclose(exact.scores, half.scores, atol=5e-3)
    small = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes, SIZES), Int8Rows.of(unit)).search(z, k=5)
    assert torch.allclose(exact.scores, small.scores, atol=3e-2)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(0, 60),
    added=st.lists(st.integers(0, 20), max_size=3),
    share=st.sampled_from([0.0, 0.3, 0.9]),
    rerank=st.sampled_from([0, 8]),
    reranker=st.sampled_from(["embeddings", "codes", "none"]),
    merge=st.booleans(),
)
def test_additions_and_deletions_equal_a_fresh_build(seed, items, added, share, rerank, reranker, merge) -> None:
    """Base + delta - tombstones finds the same items with the same scores as a trie built from what is left."""
    total = items + sum(added)
    codes, vectors, z = collection(seed, max(total, 1))
    codes, vectors = codes[:total], vectors[:total]
    engine = engine_of(codes[:items], vectors[:items])
    at = items
    for count in added:
        before, at = engine, at + count
        engine = engine.changed(items, codes[items:at], vectors[at - count : at])
        assert before.rows == at - count  # it still shows what it showed
    alive = np.random.default_rng(seed).random(total) >= share
    left = np.flatnonzero(alive)
    if merge:
        engine = engine.changed(total, codes[:0], alive=alive, trie=CodeTrie.build(codes[left], SIZES, rows=left))
    else:
        engine = engine.changed(items, codes[items:], alive=alive)
    fresh = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes[left], SIZES, rows=left), vectors)
    params = SearchParams(beams=7, rerank=rerank, reranker=reranker)
    ours, theirs = engine.search(z, k=9, params=params), fresh.search(z, k=9, params=params)
    assert torch.allclose(ours.scores, theirs.scores, atol=1e-5)
    for a, b, s in zip(ours.rows.tolist(), theirs.rows.tolist(), ours.scores, strict=True):
        if len(np.unique(s.numpy().round(5))) == len(s):  # without ties the rows are the same too
            assert a == b


def test_filters_may_differ_by_query_and_targets_may_be_mixed() -> None:
    codes, vectors, z = collection(5, 80)
    engine = engine_of(codes, vectors)
    allowed = np.random.default_rng(0).random((3, 80)) < 0.3
    target = torch.tensor([1, -1, 0])
    together = engine.search(z, k=6, allowed=allowed, target=target, params=SearchParams(beams=4, rerank=10))
    for q in range(3):
        alone = engine.search(
            z[q : q + 1], k=6, allowed=allowed[q], target=target[q : q + 1], params=SearchParams(beams=4, rerank=10)
        )
        assert alone.rows[0].tolist() == together.rows[q].tolist()


def test_batches_do_not_change_results() -> None:
    codes, vectors, _ = collection(6, 150)
    engine = engine_of(codes, vectors)
    z = torch.randn(70, 8)
    together = engine.search(z, k=5, params=SearchParams(beams=6, rerank=12))
    single = [engine.search(z[i : i + 1], k=5, params=SearchParams(beams=6, rerank=12)) for i in range(70)]
    assert torch.allclose(together.scores, torch.cat([s.scores for s in single]), atol=1e-5)
    assert (together.rows == torch.cat([s.rows for s in single])).float().mean() > 0.99  # ties apart


def test_broken_calls_are_one_clear_error() -> None:
    codes, vectors, z = collection(7, 20)
    engine = engine_of(codes, vectors)
    for call, message in [
        (lambda: engine.search(z, k=0), "k must be"),
        (lambda: engine.search(z[0], k=1), r"z must be \(queries, width\)"),
        (lambda: engine.search(z, k=1, dense=z[:1]), "dense vectors"),
        (lambda: engine.search(z, k=1, allowed=np.ones(5, dtype=bool)), "allowed"),
        (lambda: engine_of(codes, None).search(z, k=1), "no embeddings"),
        (lambda: engine_of(codes, vectors[:5]), "5 embeddings for 20"),
        (lambda: engine.changed(20, codes[:2]), "20 embeddings for 22 item rows"),
        (lambda: engine_of(codes, None).changed(20, codes[:2], vectors[:2]), "no embeddings"),
        (lambda: engine.changed(20, codes[:2] + 50, vectors[:2]), "code"),
        (lambda: engine.changed(20, codes[:0], alive=np.ones(19, dtype=bool)), "alive has shape"),
        (lambda: SearchParams(beams=0), "beams"),
        (lambda: SearchParams(rerank=-1), "rerank"),
    ]:
        with pytest.raises(GeniusError, match=message):
            call()
    assert engine.rows == len(engine.vectors) == 20  # nothing was half added
