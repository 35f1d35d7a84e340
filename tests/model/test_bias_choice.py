"""How strongly an item bias is applied: by positives, by agreement, and not at all for queries of something else."""

from __future__ import annotations

import numpy as np
import pytest

from genius.model import bias_choice
from genius.model.bias_choice import (
    JudgedQueries,
    agreement,
    choose,
    choose_crossed,
    complete,
    fitting,
    shrink,
)
from genius.model.query_bank import TEMPERATURE, UNJUDGED_WEIGHT, QueryBank, mean_similarity

WIDTH = 32
TEXT, IMAGE = 1, 0


def unit(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def normalized(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def bank(z: np.ndarray, **more: object) -> QueryBank:
    count = len(z)
    return QueryBank(z, np.full(count, TEXT), np.full(count, IMAGE), **more)  # type: ignore[arg-type]


def hubs() -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Items, of which twenty lie where all queries look, and queries that want the others."""
    middle = unit(1, 9)
    items = normalized(np.concatenate([unit(200, 1) + 1.0 * middle, unit(20, 2) * 0.2 + middle]))
    wanted = np.random.default_rng(3).integers(0, 200, 600)
    queries = normalized(items[wanted] + 0.8 * middle + 0.9 * unit(600, 4))
    return items, queries, [[int(row)] for row in wanted]


def test_positives_choose_a_weight_where_there_are_hubs_and_none_where_there_are_none() -> None:
    items, queries, positives = hubs()
    modality = np.zeros(len(items), np.int64)
    judged = JudgedQueries(queries[300:], np.full(300, TEXT), np.full(300, IMAGE), positives[300:])
    chosen = choose(bank(queries[:300]), judged, items, modality)
    assert chosen.bias_weight(TEXT, IMAGE) > 0
    even = unit(220, 5)
    near = normalized(even[np.arange(300) % 220] + 0.3 * unit(300, 6))
    right = JudgedQueries(near, np.full(300, TEXT), np.full(300, IMAGE), [[int(row)] for row in np.arange(300) % 220])
    assert choose(bank(unit(300, 7)), right, even, modality).bias_weight(TEXT, IMAGE) == 0


def test_a_weight_must_be_better_than_chance() -> None:
    """A hundred queries find one weight better than another now and then, though it is not."""
    random = np.random.default_rng(0)
    usual = random.random(100).astype(np.float32)
    lucky = usual + random.normal(0.02, 0.2, 100).astype(np.float32)
    better = usual + random.normal(0.2, 0.2, 100).astype(np.float32)
    assert lucky.mean() > usual.mean()
    assert bias_choice._best_weight({0.0: usual, 0.4: lucky}, 0.0) == 0
    assert bias_choice._best_weight({0.0: usual, 0.4: better}, 0.0) == 0.4
    assert bias_choice._best_weight({0.0: usual + 0.3, 0.4: better, 0.6: usual}, 0.6) == 0
    assert bias_choice._best_weight({0.0: usual}, 0.0) == 0


def hub_like(seed: int, hubness: float) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """300 items and 900 queries, and their positives; `hubness`: how far twenty items lie where all queries look."""
    middle = unit(1, seed)
    items = normalized(np.concatenate([unit(280, seed + 1) + middle, unit(20, seed + 2) * 0.2 / max(hubness, 0.05) + middle]))
    wanted = np.random.default_rng(seed).integers(0, 300, 900)
    queries = normalized(items[wanted] + hubness * middle + 1.1 * unit(900, seed + 3))
    return items, queries, [[int(row)] for row in wanted]


@pytest.mark.parametrize("hubness", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_chosen_never_loses_by_more_than_chance_on_other_queries(hubness: float, seed: int) -> None:
    """Neither for vectors nor for codes; where there is a gain it is found."""
    items, queries, positives = hub_like(10 * seed, hubness)
    coarse = normalized(items + 0.6 * unit(300, 10 * seed + 5))
    modality = np.zeros(len(items), np.int64)
    judged = JudgedQueries(queries[300:600], np.full(300, TEXT), np.full(300, IMAGE), positives[300:600])
    chosen = choose(bank(queries[:300]), judged, items, modality, reconstructed=coarse)
    bias = chosen.item_bias(items, TEXT, IMAGE)
    for compared, share in ((items, 1.0), (coarse, chosen.code_share(TEXT, IMAGE))):
        scores = queries[600:] @ compared.T
        places = [np.array(own) for own in positives[600:]]
        before = bias_choice._reciprocal_ranks(scores, places, 0 * bias)
        after = bias_choice._reciprocal_ranks(scores, places, share * bias)
        difference = after - before
        assert difference.mean() >= -2.5 * difference.std() / len(difference) ** 0.5
    assert hubness < 0.8 or bias.any()


def reciprocal_ranks(queries: np.ndarray, positives: list[list[int]], items: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return bias_choice._reciprocal_ranks(queries @ items.T, [np.array(own) for own in positives], bias)


@pytest.mark.parametrize("clicked", [False, True])
@pytest.mark.parametrize("log", ["like the others", "of one item"])
@pytest.mark.parametrize("seed", range(3))
def test_a_short_log_does_not_lose_what_the_model_knew(clicked: bool, log: str, seed: int) -> None:
    """70 queries alone would get a weight near .1 in place of the model's own, and 70 of one item push that item down."""
    items, queries, positives = hub_like(10 * seed, 0.8)
    modality = np.zeros(len(items), np.int64)
    judged = JudgedQueries(queries[300:600], np.full(300, TEXT), np.full(300, IMAGE), positives[300:600])
    known = choose(bank(queries[:300]), judged, items, modality)
    assert known.bias_weight(TEXT, IMAGE) > 0
    short = queries[600:670]
    of_short = positives[600:670]
    if log == "of one item":
        short = normalized(items[:1] + 0.7 * unit(70, 77 + seed))
        of_short = [[0]] * 70
    if clicked:
        rows = list(range(70))
        taught = JudgedQueries(short, np.full(70, TEXT), np.full(70, IMAGE), of_short)
        learned = choose_crossed(bank(short), taught, rows, items, modality, known)
    else:
        learned = shrink(bank(short), items, modality, known)
    plain, before, after = (
        reciprocal_ranks(queries[670:], positives[670:], items, bias)
        for bias in (np.zeros(len(items), np.float32), known.item_bias(items, TEXT, IMAGE), learned.item_bias(items, TEXT, IMAGE))
    )
    assert before.mean() > plain.mean()
    assert after.mean() >= 0.98 * before.mean()


@pytest.mark.parametrize("hubness", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("queries_in_log", [64, 100, 300])
def test_a_short_log_of_a_model_without_a_bank_loses_nothing(hubness: float, queries_in_log: int) -> None:
    gains = []
    for seed in range(4):
        items, queries, positives = hub_like(10 * seed, hubness)
        learned = shrink(bank(queries[:queries_in_log]), items, np.zeros(len(items), np.int64))
        bias = learned.item_bias(items, TEXT, IMAGE)
        none = reciprocal_ranks(queries[300:], positives[300:], items, 0 * bias)
        gains.append(reciprocal_ranks(queries[300:], positives[300:], items, bias).mean() / none.mean())
    assert min(gains) >= 0.98 and np.mean(gains) >= 0.995


def test_the_models_own_queries_complete_a_bank_up_to_enough() -> None:
    known = bank(unit(3000, 1))
    for count, expected in ((70, bias_choice.ENOUGH), (bias_choice.ENOUGH, bias_choice.ENOUGH), (2500, 2500)):
        log = bank(unit(count, 2))
        completed, chosen = complete(log, known)
        assert len(completed) == expected
        assert np.array_equal(completed.z[:count], log.z)
        assert bool(chosen) == (count < bias_choice.ENOUGH)
    assert complete(log, None)[0] is log
    assert len(complete(bank(unit(70, 2)), bank(unit(3000, 1), real=False))[0]) == 70


def test_codes_take_no_bias_that_gains_for_vectors_alone() -> None:
    items, queries, positives = hubs()
    modality = np.zeros(len(items), np.int64)
    judged = JudgedQueries(queries[300:], np.full(300, TEXT), np.full(300, IMAGE), positives[300:])
    middle = unit(1, 9)
    without_hubs = normalized(items - (items @ middle.T) * middle)  # a bias corrects what codes do not have
    for reconstructed, gains in ((items, True), (without_hubs, False), (None, False)):
        chosen = choose(bank(queries[:300]), judged, items, modality, reconstructed=reconstructed)
        assert chosen.bias_weight(TEXT, IMAGE) > 0
        assert (chosen.code_share(TEXT, IMAGE) > 0) == gains


def test_a_foreign_bank_gets_no_weight() -> None:
    """Queries from elsewhere say nothing of which items are hubs for ours: positives choose no bias."""
    items, queries, positives = hubs()
    modality = np.zeros(len(items), np.int64)
    judged = JudgedQueries(queries, np.full(600, TEXT), np.full(600, IMAGE), positives)
    chosen = choose(bank(unit(400, 21)), judged, items, modality, reconstructed=items)
    assert chosen.bias_weight(TEXT, IMAGE) == 0
    assert chosen.code_share(TEXT, IMAGE) == 0


def test_queries_are_judged_on_items_that_no_training_query_shows() -> None:
    wanted = np.arange(2000) < 1500
    shown = np.arange(2000) % 2 == 0
    judged = JudgedQueries(unit(1, 1), np.zeros(1), np.zeros(1), [[4, 1600]])
    rows = bias_choice._candidates(wanted, [judged], shown)
    assert rows.tolist() == sorted([4, *range(1, 1500, 2)])
    assert len(bias_choice._candidates(wanted, [judged], wanted)) == 1500  # too few new ones


def test_few_judged_queries_leave_it_to_agreement() -> None:
    items, queries, positives = hubs()
    modality = np.zeros(len(items), np.int64)
    judged = JudgedQueries(queries[300:310], np.full(10, TEXT), np.full(10, IMAGE), positives[300:310])
    by_agreement = shrink(bank(queries[:300]), items, modality)
    chosen = choose(bank(queries[:300]), judged, items, modality)
    assert chosen.bias_weight(TEXT, IMAGE) == pytest.approx(by_agreement.bias_weight(TEXT, IMAGE))


def test_agreement_falls_with_noise_and_the_weight_with_few_queries() -> None:
    items, queries, _ = hubs()
    modality = np.zeros(len(items), np.int64)
    assert agreement(queries, items) > 0.9
    assert agreement(unit(80, 8), unit(200, 10)) < 0.5
    many = shrink(bank(queries), items, modality).bias_weight(TEXT, IMAGE)
    few = shrink(bank(queries[:100]), items, modality).bias_weight(TEXT, IMAGE)
    assert 0 < few < many < 600 / 1100
    assert shrink(bank(queries[:60]), items, modality).bias_weight(TEXT, IMAGE) == 0  # too few to say anything
    assert not bank(queries, real=False).directions()


def test_what_training_chose_limits_what_a_log_without_positives_does() -> None:
    items, queries, _ = hubs()
    modality = np.zeros(len(items), np.int64)
    weights = np.zeros((3, 3), np.float32)
    weights[TEXT, IMAGE] = 0.65
    strong = bank(queries[:300], bias_weights=weights, bias_temperatures=np.full((3, 3), TEMPERATURE, np.float32))
    none = bank(queries[:300], bias_weights=0 * weights, bias_temperatures=strong.bias_temperatures)
    found = [shrink(bank(queries), items, modality, known).bias_weight(TEXT, IMAGE) for known in (None, strong, none)]
    assert found[0] == pytest.approx(UNJUDGED_WEIGHT) and UNJUDGED_WEIGHT < found[1] <= 0.65 and found[2] == 0


def test_queries_of_something_else_do_not_count() -> None:
    items, queries, _ = hubs()
    modality = np.zeros(len(items), np.int64)
    known = bank(queries[:300])
    foreign = bank(normalized(-unit(1, 9) + 0.5 * unit(200, 11)))
    assert fitting(foreign, known, items, modality).mean() < 0.05
    assert fitting(bank(queries[300:]), known, items, modality).mean() > 0.85
    assert fitting(foreign, known.subset(np.arange(300) < 10), items, modality).all()  # too few are known to tell


def test_mean_similarity_is_the_formula() -> None:
    queries, items = unit(700, 12), unit(5, 13)
    expected = TEMPERATURE * np.log(np.exp(queries @ items.T / TEMPERATURE).mean(0))
    assert mean_similarity(queries, items, TEMPERATURE) == pytest.approx(expected, abs=1e-5)


def test_a_query_is_judged_by_the_other_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own half it would be among the queries that its bias is made of."""
    z = unit(120, 12)
    rows = list(range(10, 110))
    judged = JudgedQueries(z[rows], np.full(100, TEXT), np.full(100, IMAGE), [[0]] * 100)
    folds: list[tuple[QueryBank, JudgedQueries]] = []
    monkeypatch.setattr(bias_choice, "_by_positives", lambda known, parts, *_, **__: folds.extend(parts) or known)
    choose_crossed(bank(z), judged, rows, unit(5, 13), np.zeros(5, np.int64))
    assert [len(own.z) for _, own in folds] == [50, 50]
    for part, own in folds:
        assert len(part) == 60 and not {row.tobytes() for row in part.z} & {row.tobytes() for row in own.z}
