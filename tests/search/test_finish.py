"""The last codes by nearness, against plain loops over every ID of the collection."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_reference import tiny_generator, tiny_quantizer

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams, beam_search
from genius.search.views import Forest, TrieView

SIZES = (3, 5, 4, 6)
GENERATOR, QUANTIZER, OWN = tiny_generator(SIZES, 0, "level"), tiny_quantizer(SIZES), tiny_quantizer(SIZES, own_books_from=2)


def random_codes(rng: np.random.Generator, items: int) -> np.ndarray:
    return np.stack([rng.integers(0, size, items) for size in SIZES], axis=1)


def random_queries(rng: np.random.Generator, count: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((count, 8))).float(), dim=1)


def brute_force(
    codes: np.ndarray, z: torch.Tensor, weight: float, quantizer: ResidualQuantizer
) -> list[tuple[tuple[int, ...], float]]:
    """Every ID with log p of its first code + weight * cosine of its reconstruction, best first: what a search of one
    decoded level must find when everything fits `leaves`."""
    ids = torch.from_numpy(np.unique(codes, axis=0))
    log_p = GENERATOR.code_log_probs(z[None].expand(len(ids), -1), ids)[0].gather(1, ids[:, :1])[:, 0]
    near = torch.nn.functional.cosine_similarity(quantizer.decode(ids), z[None])
    scores = log_p + weight * near * z.norm()
    return [(tuple(ids[i].tolist()), float(scores[i]) / len(SIZES)) for i in scores.argsort(descending=True).tolist()]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 80),
    beams=st.integers(3, 30),
    weight=st.sampled_from([0.5, 20.0]),
    own_books=st.booleans(),
)
@torch.no_grad()
def test_equals_all_ids_when_they_fit(seed: int, items: int, beams: int, weight: float, own_books: bool) -> None:
    rng = np.random.default_rng(seed)
    quantizer = OWN if own_books else QUANTIZER
    codes, z = random_codes(rng, items), random_queries(rng, 3)
    found = beam_search(GENERATOR, CodeTrie.build(codes, SIZES), z, beams, quantizer=quantizer, finish=weight, leaves=100)
    for q in range(3):
        expected = brute_force(codes, z[q], weight, quantizer)[:beams]
        got = [tuple(row) for row in found.codes[q, : len(expected)].tolist()]
        assert torch.allclose(found.scores[q, : len(expected)], torch.tensor([s for _, s in expected]), atol=1e-5)
        assert (found.codes[q, len(expected) :] == -1).all()
        for place, (code, score) in enumerate(expected):
            assert got[place] == code or abs(dict(expected).get(got[place], score) - score) < 1e-5  # only ties swap


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(5, 80), leaves=st.integers(1, 40), k=st.integers(1, 20))
def test_never_fewer_than_k_and_never_a_made_up_id(seed: int, items: int, leaves: int, k: int) -> None:
    """With a filter and items added later, every small budget of leaves gives min(k, existing) distinct allowed rows."""
    rng = np.random.default_rng(seed)
    codes, z = random_codes(rng, items), random_queries(rng, 2)
    engine = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes, SIZES))
    engine.add(random_codes(rng, 7))
    allowed = rng.random(items + 7) < 0.6
    params = SearchParams(beams=4, rerank=0, reranker="none", finish=3.0, leaves=leaves)
    found = engine.search(z, k=k, params=params, allowed=allowed)
    for rows in found.rows.tolist():
        real = [row for row in rows if row >= 0]
        assert len(real) == len(set(real)) == min(k, int(allowed.sum()))
        assert allowed[real].all()


def test_codes_of_ids_are_the_codes() -> None:
    rng = np.random.default_rng(0)
    codes = np.unique(random_codes(rng, 300), axis=0)
    view = TrieView(CodeTrie.build(codes, SIZES), torch.device("cpu"))
    for level in range(len(SIZES) + 1):
        assert (view.codes_of_ids(torch.arange(len(codes)), level).numpy() == codes[:, level:]).all()
    lo, hi = Forest([view], SIZES).root(1)
    leaves, tail = Forest([view], SIZES).leaves(0, lo, hi)
    assert (tail.numpy() == codes).all() and (leaves.items == 1).all()


def test_bad_settings_are_named() -> None:
    codes, z = random_codes(np.random.default_rng(0), 10), random_queries(np.random.default_rng(0), 1)
    with pytest.raises(GeniusError, match="finish must not be negative"):
        SearchParams(finish=-1.0)
    with pytest.raises(GeniusError, match="leaves must be at least 1"):
        SearchParams(leaves=0)
    with pytest.raises(GeniusError, match="needs the quantizer"):
        beam_search(GENERATOR, CodeTrie.build(codes, SIZES), z, 5, finish=1.0)
    with pytest.raises(GeniusError, match="needs the quantizer"):
        SearchEngine(GENERATOR, None, CodeTrie.build(codes, SIZES)).search(
            z, k=1, params=SearchParams(rerank=0, reranker="none", finish=1.0)
        )
