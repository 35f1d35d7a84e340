"""The item bias: against its formula, in every plan, for items added later, on disk, and by what it does to hubs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius.model.config import GeneratorConfig, QuantizerConfig
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.model.query_bank import PSEUDO_QUERIES, TEMPERATURE, UNJUDGED_WEIGHT, QueryBank
from genius.search import CodeTrie, SearchEngine, SearchParams, flat
from genius.search.engine import BIAS_IN_LOG_P
from genius.search.item_bias import ItemBias
from genius.search.scan import ScanCache

SIZES = (3, 16, 16)
WIDTH = 16
IMAGE, TEXT = 0, 1


def unit(count: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)), dim=1)


def bank(count: int = 400) -> QueryBank:
    """Text queries for images, all on one side of the space."""
    z = F.normalize(unit(count, 1) + 2 * unit(1, 2), dim=1)
    return QueryBank.of(z, torch.full((count,), TEXT), torch.full((count,), IMAGE))


def engine(vectors: torch.Tensor, modality: torch.Tensor, **more: object) -> SearchEngine:
    torch.manual_seed(0)
    generator = Generator(GeneratorConfig(width=WIDTH, level_sizes=SIZES, d_model=16, layers=1, heads=2, d_kv=8, d_ff=32)).eval()
    quantizer = ResidualQuantizer(QuantizerConfig(width=WIDTH, level_sizes=SIZES)).eval()
    codes = torch.randint(16, (len(vectors), 3), generator=torch.Generator().manual_seed(3))
    codes[:, 0] = modality
    trie = CodeTrie.build(codes.numpy(), SIZES)
    return SearchEngine(generator, quantizer, trie, vectors, **more)  # type: ignore[arg-type]


def by_formula(queries: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    weight = min(UNJUDGED_WEIGHT, len(queries) / (len(queries) + PSEUDO_QUERIES))
    raw = weight * TEMPERATURE * (torch.logsumexp(queries @ vectors.T / TEMPERATURE, 0) - math.log(len(queries)))
    return raw - raw.mean()


@pytest.mark.parametrize("plan", ["flat", "scan"])
def test_scores_are_similarity_less_the_bias(plan: str) -> None:
    vectors, known = unit(600, 4), bank()
    found = engine(vectors, torch.zeros(600, dtype=torch.long), bank=known)
    z = unit(5, 5)
    params = SearchParams(plan=plan)
    target = torch.zeros(5, dtype=torch.long)
    result = found.search(z, k=7, params=params, target=target, modality=torch.full((5,), TEXT))
    expected = z @ vectors.T - by_formula(torch.from_numpy(known.z), vectors)
    assert found.item_bias is not None
    half_a_step = found.item_bias.step[TEXT, IMAGE] / 2 + 1e-5
    own = expected.numpy()[np.arange(5)[:, None], result.rows]
    np.testing.assert_allclose(result.scores, own, atol=half_a_step, rtol=0)
    np.testing.assert_allclose(result.scores, expected.topk(7, 1).values, atol=2 * half_a_step, rtol=0)


@pytest.mark.parametrize("off", ["switch", "unknown modality", "another direction"])
def test_without_a_direction_scores_are_similarities(off: str) -> None:
    vectors = unit(300, 4)
    found = engine(vectors, torch.zeros(300, dtype=torch.long), bank=bank())
    z, target = unit(4, 5), torch.zeros(4, dtype=torch.long)
    modality = {"switch": torch.full((4,), TEXT), "unknown modality": None, "another direction": torch.full((4,), IMAGE)}[off]
    result = found.search(z, k=3, params=SearchParams(item_bias=off != "switch"), target=target, modality=modality)
    np.testing.assert_allclose(result.scores, (z @ vectors.T).topk(3, 1).values, atol=1e-5, rtol=0)


def test_queries_of_different_modalities_have_their_own_bias() -> None:
    vectors = unit(300, 4)
    found = engine(vectors, torch.zeros(300, dtype=torch.long), bank=bank())
    z, target = unit(1, 5).expand(2, -1).contiguous(), torch.zeros(2, dtype=torch.long)
    result = found.search(z, k=300, target=target, modality=torch.tensor([TEXT, IMAGE]))
    assert not np.array_equal(result.rows[0], result.rows[1])
    assert np.array_equal(result.rows[1], (z[1] @ vectors.T).argsort(descending=True))


def test_one_query_gets_what_it_gets_in_a_batch() -> None:
    modality = torch.arange(300) % 2
    z = torch.cat([torch.from_numpy(bank().z), unit(300, 8)])
    queries = torch.cat([torch.full((400,), TEXT), torch.full((300,), IMAGE)])
    known = QueryBank.of(z, queries, queries * 0)
    found = engine(unit(300, 4), modality, bank=known).item_bias
    assert found is not None
    asked = np.array([TEXT, IMAGE, -1, 2, TEXT])
    rows = np.random.default_rng(0).integers(0, 300, (5, 40))
    together = found.take(asked, rows)
    assert (together[0] != 0).any() and (together[1] != 0).any() and not together[2:4].any()
    for place in range(5):
        assert np.array_equal(found.take(asked[place : place + 1], rows[place : place + 1])[0], together[place])


def test_items_added_later_have_the_bias_of_the_formula_and_others_keep_theirs() -> None:
    vectors, known = unit(400, 4), bank()
    first = engine(vectors[:300], torch.zeros(300, dtype=torch.long), bank=known)
    before = first.item_bias
    assert before is not None
    added = np.zeros((100, 3), np.int64)
    grown = first.changed(300, added, vectors[300:].numpy())
    after = grown.item_bias
    assert after is not None and len(after) == 400
    assert np.array_equal(after.codes[:, :300], before.codes)
    raw = known.item_bias(vectors[300:], TEXT, IMAGE) - before.centres[TEXT, IMAGE]
    half_a_step = before.step[TEXT, IMAGE] / 2 + 1e-6
    np.testing.assert_allclose(after.columns(slice(300, 400))[:, TEXT], raw, atol=half_a_step, rtol=0)


def test_the_bias_of_an_added_item_follows_its_own_modality() -> None:
    """Texts come first in the collection, then images: added images have the bias of images."""
    vectors, known = unit(400, 4), bank()
    first = engine(vectors[:300], (torch.arange(300) < 150).long(), bank=known)
    before = first.item_bias
    assert before is not None
    after = first.changed(300, np.zeros((100, 3), np.int64), vectors[300:].numpy()).item_bias
    assert after is not None
    raw = known.item_bias(vectors[300:], TEXT, IMAGE) - before.centres[TEXT, IMAGE]
    half_a_step = before.step[TEXT, IMAGE] / 2 + 1e-6
    np.testing.assert_allclose(after.columns(slice(300, 400))[:, TEXT], raw, atol=half_a_step, rtol=0)


def test_a_bias_takes_one_byte_per_query_modality_and_is_as_exact_as_its_steps() -> None:
    vectors, known = unit(400, 4), bank()
    modality = torch.arange(400) % 2  # half of the items are texts: no query of the bank wants them
    found = engine(vectors, modality, bank=known).item_bias
    assert found is not None and found.bytes_per_item == 1 and found.codes.nbytes == 400
    images = modality == 0
    expected = known.item_bias(vectors[images], TEXT, IMAGE)
    expected = expected - expected.mean()
    rows = np.flatnonzero(images)[None]
    half_a_step = found.step[TEXT, IMAGE] / 2 + 1e-6
    np.testing.assert_allclose(found.take(np.array([TEXT]), rows)[0], expected, atol=half_a_step, rtol=0)
    np.testing.assert_allclose(found.columns(rows[0])[:, TEXT], expected, atol=half_a_step, rtol=0)
    assert not found.take(np.array([TEXT]), np.flatnonzero(~images)[None]).any()
    assert not found.take(np.array([IMAGE]), rows).any()
    assert not found.take(np.array([-1]), rows).any()


@pytest.mark.parametrize("kept", [True, False])
def test_the_exact_plan_adds_modality_and_bias_as_the_formula_says(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With vectors that stay in memory (one product with more dimensions) and with such that are read anew."""
    if not kept:
        monkeypatch.setattr(flat, "RESIDENT", 0)
    vectors, known = unit(300, 4), bank()
    modality = torch.arange(300) % 3
    found = engine(vectors, modality, bank=known)
    bias = found.item_bias
    assert bias is not None
    z = unit(6, 5)
    of_query = torch.tensor([TEXT, IMAGE, -1, TEXT, IMAGE, TEXT])
    log_probs = found.modality_log_probs(z)
    expected = (z @ vectors.T).numpy() + (log_probs - log_probs.max(1, keepdims=True))[:, modality]
    plain = found.search(z, k=300, params=SearchParams(plan="flat"))
    np.testing.assert_allclose(plain.scores, -np.sort(-expected, 1), atol=1e-5, rtol=0)
    expected -= bias.take(of_query.numpy(), np.tile(np.arange(300), (6, 1)))
    corrected = found.search(z, k=300, params=SearchParams(plan="flat"), modality=of_query)
    np.testing.assert_allclose(corrected.scores, -np.sort(-expected, 1), atol=1e-5, rtol=0)
    first_ten = found.search(z, k=10, params=SearchParams(plan="flat"), modality=of_query)
    assert np.array_equal(first_ten.rows, np.argsort(-expected, 1)[:, :10])


def test_a_bias_is_read_back_from_its_cache_and_not_for_another_bank(tmp_path: Path) -> None:
    vectors, modality = unit(300, 4), torch.zeros(300, dtype=torch.long)
    cache = ScanCache(tmp_path / "scan", "this collection")
    made = engine(vectors, modality, bank=bank(), cache=cache).item_bias
    assert made is not None
    known = bank()
    identity = f"this collection-{known.digest()}"
    again = ItemBias.load(cache.folder, identity, modality.numpy())
    assert again is not None and np.array_equal(again.columns(slice(0, 300)), made.columns(slice(0, 300)))
    assert ItemBias.load(cache.folder, identity, modality.numpy()[:299]) is None
    other = engine(vectors, modality, bank=bank(200), cache=cache).item_bias
    assert other is not None and not np.array_equal(other.columns(slice(0, 300)), made.columns(slice(0, 300)))


@pytest.mark.parametrize("damage", ["none", "cut", "nan", "shape", "slot"])
def test_a_damaged_cache_is_computed_anew(tmp_path: Path, damage: str) -> None:
    tables = [np.zeros((3, 3), np.float32) for _ in range(3)]
    modality = np.zeros(10, np.int64)
    known = ItemBias(np.zeros((1, 10), np.uint8), np.array([-1, 0, -1]), *tables, modality)
    if damage == "nan":
        known = replace(known, first=np.full((3, 3), np.nan, np.float32))
    if damage == "shape":
        known = replace(known, codes=np.zeros((1, 9), np.uint8))
    if damage == "slot":
        known = replace(known, slots=np.array([-1, 1, -1]))
    known.save(tmp_path, "x")
    path = tmp_path / "item_bias.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    assert (ItemBias.load(tmp_path, "x", modality) is None) == (damage != "none")


def test_a_hub_is_found_less_often() -> None:
    """An item in the middle of all queries is the nearest of most; its own query still finds it."""
    hub = F.normalize(unit(1, 2), dim=1)
    queries = F.normalize(unit(500, 1) + 1.2 * hub, dim=1)
    items = F.normalize(queries[:100] + 0.9 * unit(100, 8), dim=1)
    vectors = torch.cat([hub, items])
    known = QueryBank.of(queries[100:], torch.full((400,), TEXT), torch.full((400,), IMAGE))
    found = engine(vectors, torch.zeros(101, dtype=torch.long), bank=known)
    asked, target, modality = queries[:100], torch.zeros(100, dtype=torch.long), torch.full((100,), TEXT)

    def hits(on: bool) -> tuple[int, int]:
        rows = found.search(asked, k=1, params=SearchParams(item_bias=on), target=target, modality=modality).rows[:, 0]
        return int((rows == 0).sum()), int((rows == np.arange(1, 101)).sum())

    hub_without, right_without = hits(False)
    hub_with, right_with = hits(True)
    assert hub_with < hub_without
    assert right_with >= right_without


def test_scores_made_of_codes_take_the_share_that_was_judged_for_them() -> None:
    """All of a direction, half of another one, nothing of a third; nothing at all where nobody has judged."""
    modality = torch.arange(90) % 3
    shares = np.zeros((3, 3), np.float32)
    shares[TEXT] = (1.0, 0.5, 0.0)
    together = QueryBank(bank(600).z, np.full(600, TEXT), np.arange(600) % 3)
    unjudged = engine(unit(90, 4), modality, bank=together)
    judged = engine(unit(90, 4), modality, bank=replace(together, code_shares=shares))
    by_codes = SearchParams(reranker="codes")
    assert unjudged.bias_for(by_codes) is None
    assert unjudged.bias_for(SearchParams()) is unjudged.item_bias
    assert judged.bias_for(replace(by_codes, item_bias=False)) is None
    part, whole = judged.bias_for(by_codes), judged.item_bias
    assert part is not None and whole is not None
    rows = np.arange(90)[None]
    taken, full = part.take(np.array([TEXT]), rows)[0], whole.take(np.array([TEXT]), rows)[0]
    step = float(whole.step.max())
    np.testing.assert_allclose(taken, full * shares[TEXT][modality.numpy()], atol=0.51 * step)
    assert not taken[modality.numpy() == 2].any()
    grown = judged.changed(90, np.zeros((0, len(SIZES)), np.int64))
    assert grown.code_bias is not part


def test_a_small_bank_corrects_little() -> None:
    small = bank(70).item_bias(unit(50, 4), TEXT, IMAGE)
    large = bank(4000).item_bias(unit(50, 4), TEXT, IMAGE)
    assert small.std() < 0.5 * large.std()
    assert not bank(60).item_bias(unit(50, 4), TEXT, IMAGE).any()


def test_the_bias_is_a_prior_of_the_items_that_beams_found() -> None:
    vectors = unit(300, 4)
    judged = replace(bank(), code_shares=np.ones((3, 3), np.float32))
    found = engine(vectors, torch.zeros(300, dtype=torch.long), bank=judged)
    assert found.item_bias is not None
    z, target, modality = unit(4, 5), torch.zeros(4, dtype=torch.long), torch.tensor([TEXT, TEXT, IMAGE, TEXT])
    beams = SearchParams(plan="beam", reranker="none", beams=300)
    plain = found.search(z, k=300, params=replace(beams, item_bias=False), target=target, modality=modality)
    corrected = found.search(z, k=300, params=beams, target=target, modality=modality)
    by_row = np.take_along_axis(plain.scores, np.argsort(plain.rows, 1), 1)  # (4, 300)
    every = np.tile(np.arange(300), (4, 1))
    expected = by_row - BIAS_IN_LOG_P / len(SIZES) * found.item_bias.take(modality.numpy(), every)
    np.testing.assert_allclose(np.take_along_axis(corrected.scores, np.argsort(corrected.rows, 1), 1), expected, atol=1e-5)
    assert (np.diff(corrected.scores, axis=1) <= 0).all()
    assert np.array_equal(corrected.rows[2], plain.rows[2]) and not np.array_equal(corrected.rows[0], plain.rows[0])
    paper = found.search(z, k=300, params=SearchParams(beams=300).named("genius"), target=target, modality=modality)
    np.testing.assert_allclose(paper.scores, plain.scores)
