"""SearchEngine: every plan against brute force; targets, filters, deletions, additions; k results whenever k exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from search_reference import tiny_generator, tiny_quantizer

from genius.errors import GeniusError
from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, SearchEngine, SearchParams, SearchResult, StoredVectors, flat, rerank, scan, vectors
from genius.search.beam import beam_search

SIZES = (3, 5, 4, 6)
GENERATOR, QUANTIZER = tiny_generator(SIZES), tiny_quantizer(SIZES)
BEAM = SearchParams(beams=8, rerank=0, reranker="none")


def collection(seed: int, items: int, skew: float = 2.0) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    codes = np.stack([np.minimum((rng.random(items) ** skew * size).astype(np.int64), size - 1) for size in SIZES], axis=1)
    stored = F.normalize(torch.from_numpy(rng.standard_normal((items, 8))).float(), dim=1)
    return codes, stored, F.normalize(torch.from_numpy(rng.standard_normal((3, 8))).float(), dim=1)


def engine_of(codes: np.ndarray, stored: torch.Tensor | None, **more: Any) -> SearchEngine:
    return SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes, SIZES), stored, **more)


def brute_force(
    engine: SearchEngine, codes: np.ndarray, stored: torch.Tensor, z: torch.Tensor, target: torch.Tensor, valid: torch.Tensor
) -> torch.Tensor:
    """(Q, N) scores: similarity, log p(modality) where the target is unknown, -inf where an item may not be found.

    log p is relative to the likeliest modality that exists: its items keep their similarity."""
    modality = torch.from_numpy(codes[:, 0])
    with torch.no_grad():
        log_probs = torch.from_numpy(engine.modality_log_probs(z))
    there = torch.from_numpy(engine.collection.modality_counts > 0)
    log_probs = log_probs - log_probs[:, there].amax(1, keepdim=True)
    several = len(modality[valid.any(0) if valid.ndim == 2 else valid].unique()) > 1 or len(modality.unique()) > 1
    prior = log_probs[:, modality] if several else torch.zeros(len(z), len(codes))
    scores = z @ stored.float().T + prior.masked_fill(target[:, None] >= 0, 0)
    right = (target[:, None] < 0) | (modality[None] == target[:, None])
    return scores.masked_fill(~(right & valid), -torch.inf)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 120),
    k=st.integers(1, 150),
    beams=st.integers(1, 10),
    rerank=st.sampled_from([0, 50]),
    reranker=st.sampled_from(["embeddings", "codes", "none"]),
    share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    target=st.sampled_from([-1, 0, 1, 2]),
    plan=st.sampled_from(["auto", "flat", "scan", "beam"]),
)
def test_k_allowed_items_come_back_when_they_exist(seed, items, k, beams, rerank, reranker, share, target, plan) -> None:
    codes, stored, z = collection(seed, items)
    allowed = np.random.default_rng(seed + 1).random(items) < share
    params = SearchParams(beams, rerank, reranker, plan)
    found = engine_of(codes, stored).search(z, k=k, params=params, target=torch.full((3,), target), allowed=allowed)
    valid = allowed & ((codes[:, 0] == target) if target >= 0 else True)
    assert found.rows.shape == found.scores.shape == (3, k)
    for rows, scores in zip(found.rows, found.scores, strict=True):
        real = rows[rows >= 0].tolist()
        assert len(real) == min(k, int(valid.sum()))
        assert len(set(real)) == len(real) and valid[real].all()
        assert (rows[len(real) :] == -1).all() and np.isneginf(scores[len(real) :]).all()
        assert (np.diff(scores[: len(real)]) <= 1e-6).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 200),
    k=st.integers(1, 30),
    filters=st.sampled_from(["none", "one for all", "one per query"]),
    share=st.sampled_from([0.02, 0.5]),
    block=st.sampled_from([7, 64]),
    half=st.booleans(),
)
def test_flat_is_brute_force(seed: int, items: int, k: int, filters: str, share: float, block: int, half: bool) -> None:
    """Mixed targets, any filter, resident vectors or blocks: the scores of exhaustive search."""
    codes, stored, z = collection(seed, items)
    stored = stored.half() if half else stored
    rng = np.random.default_rng(seed)
    allowed = {"none": None, "one for all": rng.random(items) < share, "one per query": rng.random((3, items)) < share}[filters]
    target = torch.from_numpy(rng.integers(-1, 3, 3))
    engine = engine_of(codes, stored)
    valid = torch.ones(items, dtype=torch.bool) if allowed is None else torch.from_numpy(allowed)
    truth = brute_force(engine, codes, stored, z, target, valid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat, "RESIDENT", 0 if half else flat.RESIDENT)
        patch.setattr(vectors.StoredVectors.blocks, "__defaults__", (block,))
        found = engine.search(z, k=k, target=target, allowed=allowed)
    best = truth.topk(min(k, items)).values
    assert found.plan == "flat" and np.allclose(found.scores[:, : best.shape[1]], best, atol=1e-5)
    of_rows = np.take_along_axis(truth.numpy(), found.rows.clip(min=0), 1)
    assert np.allclose(of_rows[found.rows >= 0], found.scores[found.rows >= 0], atol=1e-5)
    assert found.considered.tolist() == (truth > -torch.inf).sum(1).tolist()


def test_an_unknown_target_equals_dense_given_the_target() -> None:
    """Where the decoder is sure of the modality, the default ranks as exhaustive search of that modality does."""
    codes, stored, z = collection(2, 400)
    engine = engine_of(codes, stored, bank=bank_of(z))
    for query, target in enumerate((0, 1, 2)):
        wanted = torch.tensor([target])
        own = z[query : query + 1]
        given_target = engine.search(own, k=5, target=wanted)
        unknown = engine.search(own, k=5)
        assert unknown.rows.tolist() == given_target.rows.tolist()
        assert set(codes[unknown.rows[0], 0]) == {target}


@pytest.mark.parametrize("reranker", ["none", "embeddings"])
def test_beams_take_the_modality_from_the_query_bank(reranker: str) -> None:
    """With a bank that is sure, few beams find what they find where the target is given."""
    codes, stored, z = collection(2, 400)
    engine = engine_of(codes, stored, bank=bank_of(z))
    params = SearchParams(plan="beam", beams=12, reranker=reranker)
    for query, target in enumerate((0, 1, 2)):
        own = z[query : query + 1]
        unknown = engine.search(own, k=5, params=params)
        assert unknown.rows.tolist() == engine.search(own, k=5, params=params, target=torch.tensor([target])).rows.tolist()
        assert set(codes[unknown.rows[0], 0]) == {target}
        trace = engine.trace(own, codes[unknown.rows[0]], params=params)
        assert trace.steps[0].kept[0].prefix == (target,)
        if reranker == "none":
            assert np.allclose(trace.paths.mean(1).numpy(), unknown.scores[0], atol=1e-5)


def test_scores_keep_their_scale_where_no_item_is_of_the_likeliest_modality() -> None:
    """Items of the likeliest modality that there is have their similarity as score; others less."""
    codes, stored, z = collection(2, 400)
    there = np.flatnonzero(codes[:, 0] != 2)  # the third query wants what nobody has
    engine = engine_of(codes[there], stored[there], bank=bank_of(z))
    found = engine.search(z[2:3], k=len(there))
    similarity = (stored[there].float() @ z[2]).numpy()[found.rows[0]]
    assert (found.scores[0] - similarity).max() == pytest.approx(0, abs=1e-3)


def bank_of(z: torch.Tensor) -> QueryBank:
    """A bank that has seen queries like z[i] want modality i."""
    near = F.normalize(z.repeat(200, 1) + 0.02 * torch.randn(600, 8), dim=1)
    target = torch.arange(600) % 3
    return QueryBank.of(near, torch.ones(600).long(), target)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(1, 100), beams=st.integers(1, 12))
def test_plain_search_is_the_beams_items_in_order(seed: int, items: int, beams: int) -> None:
    codes, _, z = collection(seed, items)
    engine = engine_of(codes, None)
    params = SearchParams(beams=beams, rerank=0, reranker="none")
    trie = engine.collection.trie
    for q, beam in enumerate(beam_search(GENERATOR, trie, z, beams).codes):
        expected = [row for code in beam.tolist() if code[0] >= 0 for row in trie.rows_below(code).tolist()]
        found = engine.search(z[q : q + 1], k=len(expected), params=params)
        assert found.rows[0].tolist() == expected and found.plan == "beam"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(1, 100), beams=st.integers(1, 12))
def test_reranked_beams_sort_the_beams_items(seed: int, items: int, beams: int) -> None:
    """GENIUS^R: items of all beams by the dot product with the stored vectors, and by nothing else."""
    codes, stored, z = collection(seed, items)
    engine, dense = engine_of(codes, stored), torch.randn(3, 8)
    beam = beam_search(GENERATOR, engine.collection.trie, z, beams)
    for q in range(3):
        rows = np.concatenate([engine.collection.trie.rows_below(c) for c in beam.codes[q].tolist() if c[0] >= 0])
        scores = stored[rows] @ dense[q]
        found = engine.search(z[q : q + 1], k=len(rows), params=SearchParams(beams=beams, rerank=0), dense=dense[q : q + 1])
        assert np.allclose(found.scores[0], scores.sort(descending=True).values, atol=1e-5)
        assert found.rows[0].tolist() == rows[scores.argsort(descending=True, stable=True).numpy()].tolist()
        assert found.considered.tolist() == [len(rows)]


@pytest.mark.parametrize("modality_codebooks_from", [0, 1])
def test_codes_rank_by_what_they_stand_for(modality_codebooks_from: int) -> None:
    """Exhaustive search of reconstructions, with vectors stored or not."""
    codes, _, z = collection(3, 60)
    own = tiny_quantizer(SIZES, modality_codebooks_from=modality_codebooks_from)
    unit = F.normalize(own.decode(torch.from_numpy(codes)), dim=1)
    engine = SearchEngine(GENERATOR, own, CodeTrie.build(codes, SIZES), unit)
    by_codes = engine.search(z, k=5, params=SearchParams(reranker="codes"))
    assert np.allclose(engine.search(z, k=5).scores, by_codes.scores, atol=1e-5)
    without = SearchEngine(GENERATOR, own, CodeTrie.build(codes, SIZES)).search(z, k=5, params=SearchParams(reranker="codes"))
    assert without.rows.tolist() == by_codes.rows.tolist()


def test_a_reranker_of_ones_own_is_asked_after_every_plan() -> None:
    from genius.search import rerank

    def farthest(batch, candidates, collection):
        return -rerank.find("embeddings")(batch, candidates, collection)

    rerank.register("farthest", farthest)
    rerank.register("farthest", farthest)  # the same again is no other
    try:
        codes, stored, z = collection(4, 50)
        engine = engine_of(codes, stored)
        for plan in ("flat", "scan", "beam"):
            target = torch.zeros(3, dtype=torch.long)
            found = engine.search(z, k=3, target=target, params=SearchParams(beams=60, reranker="farthest", plan=plan))
            nearest = engine.search(z, k=50, target=target, params=SearchParams(beams=60, plan=plan))
            real = (nearest.rows[0] >= 0).sum()
            assert found.rows[0].tolist() == nearest.rows[0, :real][::-1][:3].tolist()
        with pytest.raises(GeniusError, match="already"):
            rerank.register("farthest", lambda *_: stored)
    finally:
        del rerank._registry["farthest"]


def test_a_reranker_that_breaks_its_word_is_one_clear_error() -> None:
    from genius.search import rerank

    codes, stored, z = collection(4, 50)
    for name, scores, said in (
        ("short", lambda batch, found, _: found.scores[:, :1], "scores of shape"),
        ("nan", lambda batch, found, _: found.scores * np.nan, "NaN"),
    ):
        rerank.register(name, scores)
        try:
            with pytest.raises(GeniusError, match=said):
                engine_of(codes, stored).search(z, k=5, params=SearchParams(reranker=name))
        finally:
            del rerank._registry[name]


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
    """What was added and what was deleted: the same items with the same scores as a trie built from what is left."""
    total = items + sum(added)
    codes, stored, z = collection(seed, max(total, 1))
    codes, stored = codes[:total], stored[:total]
    engine = engine_of(codes[:items], stored[:items])
    at = items
    for count in added:
        before, at = engine, at + count
        engine = engine.changed(items, codes[items:at], stored[at - count : at].numpy())
        assert before.rows == at - count  # it still shows what it showed
    alive = np.random.default_rng(seed).random(total) >= share
    left = np.flatnonzero(alive)
    if merge:
        engine = engine.changed(total, codes[:0], alive=alive, trie=CodeTrie.build(codes[left], SIZES, rows=left))
    else:
        engine = engine.changed(items, codes[items:], alive=alive)
    fresh = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes[left], SIZES, rows=left), stored)
    params = SearchParams(beams=7, rerank=rerank, reranker=reranker)
    ours, theirs = engine.search(z, k=9, params=params), fresh.search(z, k=9, params=params)
    assert np.allclose(ours.scores, theirs.scores, atol=1e-5)
    for a, b, s in zip(ours.rows.tolist(), theirs.rows.tolist(), ours.scores, strict=True):
        if len(np.unique(s.round(5))) == len(s):  # without ties the rows are the same too
            assert a == b


@pytest.mark.parametrize("plan", ["flat", "scan", "beam"])
def test_filters_may_differ_by_query_and_targets_may_be_mixed(plan: str) -> None:
    codes, stored, z = collection(5, 80)
    engine = engine_of(codes, stored)
    allowed = np.random.default_rng(0).random((3, 80)) < 0.3
    target = torch.tensor([1, -1, 0])
    params = SearchParams(beams=4, plan=plan)
    together = engine.search(z, k=6, allowed=allowed, target=target, params=params)
    for q in range(3):
        alone = engine.search(z[q : q + 1], k=6, allowed=allowed[q], target=target[q : q + 1], params=params)
        assert alone.rows[0].tolist() == together.rows[q].tolist()


@pytest.mark.parametrize("plan", ["flat", "scan", "beam"])
def test_batches_do_not_change_results(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "QUERIES", 16)
    codes, stored, _ = collection(6, 150)
    engine = engine_of(codes, stored)
    z = torch.randn(70, 8)
    params = SearchParams(beams=6, plan=plan)
    together = engine.search(z, k=5, params=params)
    single = [engine.search(z[i : i + 1], k=5, params=params) for i in range(70)]
    assert np.allclose(together.scores, np.concatenate([s.scores for s in single]), atol=1e-5)
    assert (together.rows == np.concatenate([s.rows for s in single])).mean() > 0.99  # ties apart


@pytest.mark.parametrize("plan", ["auto", "flat", "scan", "beam"])
def test_nothing_to_find_is_no_error(plan: str) -> None:
    codes, stored, z = collection(8, 20)
    engine = engine_of(codes, stored)
    params = SearchParams(plan=plan)
    nothing = engine.search(z, k=4, allowed=np.zeros(20, bool), params=params)
    assert (nothing.rows == -1).all() and np.isneginf(nothing.scores).all()
    dead = engine.changed(20, codes[:0], alive=np.zeros(20, bool)).search(z, k=4, params=params)
    empty = engine_of(codes[:0], stored[:0]).search(z, k=4, params=params)
    assert (dead.rows == -1).all() and (empty.rows == -1).all() and empty.rows.shape == (3, 4)
    assert engine.search(z[:0], k=4, params=params).rows.shape == (0, 4)
    more = engine.search(z, k=30, params=params)
    assert (more.rows[:, :20] >= 0).all() and (more.rows[:, 20:] == -1).all()


def test_segments_in_any_order_are_the_vectors_of_one_array(tmp_path) -> None:
    """Vectors lie in several files, in another order than rows."""
    codes, stored, z = collection(9, 90)
    place = np.random.default_rng(0).permutation(90)
    lying = np.empty((90, 8), np.float16)
    lying[place] = stored.half().numpy()
    parts = []
    for number, part in enumerate((lying[:30], lying[30:31], lying[31:])):
        np.save(tmp_path / f"{number}.npy", part)
        parts.append(np.load(tmp_path / f"{number}.npy", mmap_mode="r"))
    segments = StoredVectors(parts, place)
    rows = np.random.default_rng(1).integers(0, 90, 40)
    assert np.array_equal(segments.take(rows), stored.half().float().numpy()[rows])
    assert np.array_equal(np.concatenate([block for _, block in segments.blocks(16)]), stored.half().float())
    grown = segments.extended(stored[:4].numpy().astype(np.float16))
    assert len(grown) == 94 and np.array_equal(grown.take(np.array([91])), stored[1:2].half().float())
    with pytest.raises(IndexError):
        StoredVectors.of(lying).take(np.array([90]))
    engine = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes, SIZES), segments)
    assert np.allclose(engine.search(z, k=5).scores, engine_of(codes, stored.half()).search(z, k=5).scores)


@pytest.mark.parametrize("precision", [np.float16, np.float32])
def test_products_with_chosen_vectors_are_those_of_brute_force(precision: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read piece by piece into kept memory, from one segment or several, in any order."""
    monkeypatch.setattr(vectors, "COMPARED", 64)  # eight vectors at a time
    rng = np.random.default_rng(0)
    stored = rng.standard_normal((90, 8)).astype(precision)
    queries = rng.standard_normal((3, 8)).astype(np.float32)
    order = rng.permutation(90)
    rows = rng.integers(-1, 90, (3, 50))
    for segments, places in (([stored], None), ([stored], order), ([stored[:40], stored[40:]], order)):
        found = StoredVectors(segments, places).products(queries, rows)
        lying = stored if places is None else stored[places]
        true = np.einsum("qd,qcd->qc", queries, lying[rows].astype(np.float32))
        assert np.allclose(found[rows >= 0], true[rows >= 0], atol=1e-5)


@pytest.mark.parametrize("candidates", [3, 30, 200])
def test_the_best_candidates_are_those_of_a_stable_sort(candidates: int) -> None:
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 6, (20, candidates)).astype(np.float32)  # many are equal
    rows = np.where(rng.random((20, candidates)) < 0.2, -1, rng.integers(0, 999, (20, candidates)))
    found, values = rerank.top_k(rows, scores, 5)
    for query in range(20):
        order = sorted(np.flatnonzero(rows[query] >= 0), key=lambda place, own=scores[query]: -own[place])[:5]
        assert found[query, : len(order)].tolist() == rows[query, order].tolist()
        assert values[query, : len(order)].tolist() == scores[query, order].tolist()
        assert (found[query, len(order) :] == -1).all() and np.isneginf(values[query, len(order) :]).all()


def test_broken_calls_are_one_clear_error() -> None:
    codes, stored, z = collection(7, 20)
    engine = engine_of(codes, stored)
    spoilt = z.clone()
    spoilt[1, 2] = torch.nan
    for call, message in [
        (lambda: engine.search(z, k=0), "k must be"),
        (lambda: engine.search(z[0], k=1), r"z must be \(queries, 8\)"),
        (lambda: engine.search(z[:, :5], k=1), r"z must be \(queries, 8\)"),
        (lambda: engine.search(z, k=1, dense=z[:1]), "dense vectors"),
        (lambda: engine.search(z, k=1, dense=z[:, :5]), r"dense must be \(queries, 8\)"),
        (lambda: engine.search(z, k=1, allowed=np.ones(5, dtype=bool)), "allowed"),
        (lambda: engine.search(z, k=1, allowed=np.ones((2, 20), dtype=bool)), "allowed has 2 rows for 3 queries"),
        (lambda: engine.search(z, k=1, target=torch.tensor([0, 1, 3])), "target codes"),
        (lambda: engine.search(z, k=1, target=torch.tensor([0])), "one per query"),
        (lambda: engine_of(codes, None).search(z, k=1, params=SearchParams(plan="flat")), "does not suit"),
        (lambda: engine_of(codes, None).search(z, k=1, params=SearchParams(plan="scan")), "no vectors"),
        (lambda: engine_of(codes, None).search(z, k=1), "no embeddings"),
        (lambda: engine_of(codes, stored[:5]), "5 embeddings for 20"),
        (lambda: engine.changed(20, codes[:2]), "20 embeddings for 22 item rows"),
        (lambda: engine_of(codes, None).changed(20, codes[:2], stored[:2].numpy()), "no embeddings"),
        (lambda: engine.changed(20, codes[:0], alive=np.ones(19, dtype=bool)), "alive has shape"),
        (lambda: SearchParams(beams=0), "beams"),
        (lambda: SearchParams(rerank=-1), "rerank"),
        (lambda: SearchParams(reranker="nobody"), "reranker must be one of 'codes', 'embeddings', 'none', got 'nobody'"),
        (lambda: SearchParams(plan="magic"), "plan must be one of"),
    ]:
        with pytest.raises(GeniusError, match=message):
            call()
    for plan in ("auto", "flat", "scan", "beam"):
        with pytest.raises(GeniusError, match="queries' z"):
            engine.search(spoilt, k=3, params=SearchParams(plan=plan))
    assert engine.rows == len(engine.vectors) == 20  # nothing was half added


@pytest.mark.parametrize("plan", ["auto", "flat", "scan", "beam"])
def test_bad_input_is_one_clear_line_in_every_plan(plan: str) -> None:
    """And what is no error, only empty: a collection, or a filter, without items; more hits wanted than there are items."""
    codes, stored, z = collection(7, 20)
    engine = engine_of(codes, stored)
    spoilt = z.clone()
    spoilt[1, 2] = torch.nan

    def search(queries: torch.Tensor = z, k: int = 3, reranker: str = "embeddings", **options: Any) -> SearchResult:
        return engine.search(queries, k=k, params=SearchParams(plan=plan, reranker=reranker), **options)

    for call, message in [
        (lambda: search(spoilt), r"1 queries' z are NaN or infinite \(first: row 1\)"),
        (lambda: search(dense=spoilt), r"1 queries' dense are NaN or infinite \(first: row 1\)"),
        (lambda: search(z[:, :5]), r"z must be \(queries, 8\), got \(3, 5\)"),
        (lambda: search(k=0), "k must be at least 1, got 0"),
        (lambda: search(allowed=np.ones(19, bool)), r"allowed must be bool with 20 items last, got bool of shape \(19,\)"),
        (lambda: search(allowed=np.ones(20)), "allowed must be bool with 20 items last, got float64"),
        (lambda: search(target=np.array([0, 1, 3])), r"target codes must be -1\.\.2, got 0\.\.3"),
        (lambda: search(reranker="nobody"), "reranker must be one of 'codes', 'embeddings', 'none', got 'nobody'"),
    ]:
        with pytest.raises(GeniusError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    more = search(k=25)
    assert more.rows.shape == (3, 25) and all(sorted(row[row >= 0]) == list(range(20)) for row in more.rows)
    assert np.isneginf(more.scores[more.rows < 0]).all()
    empty = engine_of(codes[:0], stored[:0])
    for found in (search(allowed=np.zeros(20, bool)), empty.search(z, k=3, params=SearchParams(plan=plan))):
        assert (found.rows == -1).all() and np.isneginf(found.scores).all() and (found.considered == 0).all()
    assert search(z[:0]).rows.shape == (0, 3)


def test_one_rule_picks_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams where they are asked for or nothing else can be compared, flat while it is cheap, a scan beyond."""
    codes, stored, z = collection(1, 90)
    engine = engine_of(codes, stored)
    assert engine.search(z, k=3).plan == "flat"
    assert engine.search(z, k=3, params=BEAM).plan == "beam"
    assert engine_of(codes, None).search(z, k=3, params=SearchParams(reranker="codes")).plan == "flat"
    assert SearchEngine(GENERATOR, None, CodeTrie.build(codes, SIZES)).search(z, k=3, params=BEAM).plan == "beam"
    monkeypatch.setattr(scan, "FEWEST_ITEMS", 50)
    monkeypatch.setattr(flat, "START", 10.0)
    assert engine.search(z, k=3).plan == "scan"
