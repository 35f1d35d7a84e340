"""The harness against hand-computed numbers and brute force; local and universal pools cannot be mixed up."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch
from plain_beam import PlainBeam, next_log_probs

from genius.data.features import FeatureSet
from genius.data.synthetic import synthetic_features
from genius.errors import GeniusError
from genius.evaluate import EvalConfig, Evaluation, build_methods, evaluate, methods
from genius.evaluate.generative import BeamMethod, EngineMethod, IdSource, NoDecoder
from genius.evaluate.methods import Ints, MethodResult, Pool, Space
from genius.features import Features
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.search import CodeTrie, SearchParams
from genius.search.beam import beam_search
from genius.search.tensors import tensor_arrays
from genius.search.vectors import StoredVectors
from genius.types import Modality

T, I, P = Modality.TEXT, Modality.IMAGE, Modality.PAIR  # noqa: E741
WIDTH, SIZES = 24, (3, 6, 5, 4)


def tiny_model(data: FeatureSet, seed: int = 0, **quantizer: object) -> Genius:
    torch.manual_seed(seed)
    config = GeniusConfig(
        fusion=FusionConfig(width=WIDTH, projection=32, hidden=32),
        quantizer=QuantizerConfig(width=WIDTH, level_sizes=SIZES, **quantizer),  # type: ignore[arg-type]
        generator=GeneratorConfig(
            width=WIDTH, level_sizes=SIZES, d_model=32, layers=2, heads=2, d_kv=16, d_ff=64, prefix_tokens=4, dropout=0.0
        ),
    )
    model = Genius(config)
    z, _ = model.embed(data.pool)
    model.quantizer.initialise(z, data.pool.modality, iterations=5)
    return model


@pytest.fixture(scope="module")
def data() -> FeatureSet:
    return synthetic_features(60, 240, WIDTH, directions=((T, I), (I, T), (P, P)), clusters=12, seed=3)


@pytest.fixture(scope="module")
def model(data: FeatureSet) -> Genius:
    return tiny_model(data)


# -- hand-computed -------------------------------------------------------------------------------------------------


class Scripted:
    """A method whose answers are written down."""

    label = "scripted"

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = np.array(rows, dtype=np.int64)

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        place = {int(row): i for i, row in enumerate(pool.rows)}
        rows = np.array([[place.get(int(r), -1) for r in self.rows[q]] for q in queries])
        touched = np.arange(len(queries), dtype=np.int64)
        return MethodResult(rows, -np.broadcast_to(np.arange(rows.shape[1]), rows.shape).astype(float), touched, 2.0, 12.25)


def test_twelve_queries_by_hand() -> None:
    """Task a: queries 0-3, task b: 4-11. The numbers below were worked out on paper."""
    image, text = torch.zeros(10, dtype=torch.bool), torch.ones(10, dtype=torch.bool)
    pool = Features(torch.zeros(10, WIDTH), torch.randn(10, WIDTH, generator=torch.Generator().manual_seed(0)), image, text)
    asked = Features(
        torch.zeros(12, WIDTH), torch.ones(12, WIDTH), torch.zeros(12, dtype=torch.bool), torch.ones(12, dtype=torch.bool)
    )
    positives = [[0], [1, 2], [3], [4, 5, 6], [0], [1], [2], [3], [4], [5], [6, 7], [8, 9]]
    lists = [
        [0, 9, 8, 7, 6],  # 0: hit at 1
        [9, 1, 8, 2, 7],  # 1: first of two at rank 2, second at rank 4
        [9, 8, 7, 6, 5],  # 2: miss
        [9, 8, 4, 5, 0],  # 3: two of three, ranks 3 and 4
        [1, 2, 3, 4, 0],  # 4: rank 5
        [1, -1, -1, -1, -1],  # 5: rank 1, short list
        [-1, -1, -1, -1, -1],  # 6: no answer at all
        [4, 3, 0, 1, 2],  # 7: rank 2
        [4, 0, 1, 2, 3],  # 8: rank 1
        [0, 1, 2, 3, 4],  # 9: miss
        [7, 6, 0, 1, 2],  # 10: both, ranks 1 and 2
        [0, 1, 9, 2, 3],  # 11: one of two, rank 3
    ]
    data = FeatureSet(
        asked,
        pool,
        torch.tensor([[q, p] for q, rows in enumerate(positives) for p in rows]),
        [f"q{i}" for i in range(12)],
        [f"d{i}" for i in range(10)],
        torch.tensor([0] * 4 + [1] * 8),
        {0: "a", 1: "b"},
    )
    config = EvalConfig(methods=(), pools=("universal",), cutoffs=(1, 5), depth=5, reference="scripted")
    found = evaluate(tiny_model(data), data, config, extra=[Scripted(lists)])
    a, b = found.find("a", "scripted", "universal"), found.find("b", "scripted", "universal")
    assert (a.queries, b.queries) == (4, 8) and a.main == "hit@5"
    assert a.metrics["hit@1"] == 1 / 4 and a.metrics["hit@5"] == 3 / 4
    assert a.metrics["recall@5"] == pytest.approx((1 + 1 + 0 + 2 / 3) / 4)
    assert b.metrics["hit@1"] == 3 / 8 and b.metrics["hit@5"] == 6 / 8
    assert b.metrics["recall@1"] == pytest.approx((1 + 1 + 0.5) / 8) and b.metrics["recall@5"] == pytest.approx(5.5 / 8)
    assert b.metrics["mrr@10"] == pytest.approx((1 / 5 + 1 + 0 + 1 / 2 + 1 + 0 + 1 + 1 / 3) / 8)
    log = np.log2
    ideal = 1 + 1 / log(3)
    by_hand = [1, (1 / log(3) + 1 / log(5)) / ideal, 0, (1 / log(4) + 1 / log(5)) / (ideal + 1 / log(4))]
    assert a.metrics["ndcg@10"] == pytest.approx(np.mean(by_hand))
    assert found.average("scripted", "universal") == 0.75
    assert (a.queries_per_second, a.bytes_per_item) == (6.0, 12.25) and (a.touched, b.touched) == (1.5, 7.5)
    assert a.p_value is None and a.intervals["hit@5"][0] <= 0.75 <= a.intervals["hit@5"][1]


# -- methods against brute force -----------------------------------------------------------------------------------


def run(model: Genius, data: FeatureSet, **changes: object) -> Evaluation:
    values: dict[str, object] = {"beams": (8,), "depth": 10, "bootstrap": 20, "rerank": 40} | changes
    return evaluate(model, data, EvalConfig(**values))  # type: ignore[arg-type]


def test_dense_equals_faiss(model: Genius, data: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    by_numpy = run(model, data, methods=("dense",), pools=("local", "universal"))
    monkeypatch.setattr(methods, "HOST", tensor_arrays("cpu"))
    found = run(model, data, methods=("dense", "score-fusion"), pools=("universal",))
    pool, queries = model.embed(data.pool)[1].numpy(), model.embed(data.queries)[1].numpy()
    index = faiss.IndexFlatIP(WIDTH)
    index.add(pool)
    _, rows = index.search(queries, 10)
    for task, own in found.query_rows.items():
        assert np.array_equal(found.runs[task, "dense", "universal"][0], rows[own])
    for key, (mine, _) in found.runs.items():
        if key[1] == "dense":
            assert np.array_equal(mine, by_numpy.runs[key][0])


@pytest.mark.parametrize("decoder", [True, False])
def test_beam_methods_equal_a_plain_beam(model: Genius, data: FeatureSet, decoder: bool) -> None:
    space = Space(model, data)
    pool, queries = Pool("universal", np.arange(len(data.pool))), np.arange(12)
    scorer = None if decoder else NoDecoder(model.quantizer)
    plain = PlainBeam(space.codes, model.generator, scorer)
    trie = CodeTrie.build(space.codes, SIZES)
    ids = []
    for q in queries:
        found, scores = plain.levels(space.query_z[q], 6)[-1]
        ids.append(found)
        theirs = beam_search(scorer or model.generator, trie, space.query_z[q : q + 1], 6)
        assert [tuple(row) for row in theirs.codes[0].tolist()] == found
        assert np.allclose(theirs.scores[0].numpy() * len(SIZES), scores, atol=1e-4)  # a mean over the codes
    source = IdSource.of(space, decoder=decoder, at_once=5)
    answer = BeamMethod("m", source, 6).answer(space, pool, queries, 10)
    reranked = BeamMethod("r", source, 6, "embeddings").answer(space, pool, queries, 10)
    few = BeamMethod("f", source, 6, "embeddings", most=3).answer(space, pool, queries, 10)
    z, dense = space.query_dense, space.dense

    def by_vector(rows: np.ndarray, q: int) -> list[int]:
        return rows[np.lexsort((rows, -(dense[rows] @ z[q]).numpy()))].tolist()

    for q in queries:
        own = np.array(plain.rows(ids[q]))
        assert answer.rows[q][answer.rows[q] >= 0].tolist() == own[:10].tolist()
        assert reranked.rows[q][reranked.rows[q] >= 0].tolist() == by_vector(own, q)[:10]
        assert answer.touched[q] == len(own) and answer.reached is not None
        assert bool(answer.reached[q]) == bool(set(own.tolist()) & set(space.positives[q]))
        # the likeliest three, in the order of their vectors
        assert few.rows[q][few.rows[q] >= 0].tolist() == by_vector(own[:3], q) and few.touched[q] == len(own[:3])


def test_few_beams_return_few_items(model: Genius, data: FeatureSet) -> None:
    """One beam is one ID, as in the paper: the list is not filled up by searching further."""
    found = run(model, data, methods=("genius",), beams=(1, 4), pools=("universal",))
    codes = Space(model, data).codes
    for task in found.query_rows:
        one, four = found.runs[task, "genius@1", "universal"][0], found.runs[task, "genius@4", "universal"][0]
        for rows, most in ((one, 1), (four, 4)):
            assert all(1 <= len({tuple(codes[r]) for r in ranked_rows if r >= 0}) <= most for ranked_rows in rows)


def test_candidate_recall_bounds_hits(model: Genius, data: FeatureSet) -> None:
    found = run(model, data, methods=("genius", "no-decoder", "default"), pools=("local",))
    for result in found.results:
        assert result.candidate_recall is not None and result.metrics["hit@10"] <= result.candidate_recall


def test_codes_exhaustive_and_engine(model: Genius, data: FeatureSet) -> None:
    found = run(
        model,
        data,
        methods=("codes", "default", "default-codes", "genius-codes", "genius-r", "no-decoder-r"),
        pools=("universal",),
        rerank=240,
    )
    space = Space(model, data)
    vectors = torch.nn.functional.normalize(model.quantizer.decode(torch.from_numpy(space.codes)), dim=1)
    for task, own in found.query_rows.items():
        scores = space.query_z[own] @ vectors.T
        rows = torch.from_numpy(found.runs[task, "codes", "universal"][0])
        assert torch.allclose(scores.gather(1, rows), scores.topk(10).values, atol=1e-5)
        assert found.find(task, "codes", "universal").bytes_per_item == (2 + 3 + 3 + 2) / 8
        # over so few items the default search compares all of them, and adds how likely their modality is
        with torch.no_grad():
            log_p = next_log_probs(model.generator, space.query_z[own], torch.empty(len(own), 0, dtype=torch.long))
        log_p = log_p - log_p[:, space.modality.long().unique()].amax(1, keepdim=True)
        scores = space.query_dense[own] @ space.dense.T + log_p[:, space.modality.long()]
        assert np.allclose(found.runs[task, "default", "universal"][1], scores.topk(10).values.numpy(), atol=1e-5)


# -- pools ---------------------------------------------------------------------------------------------------------


def test_local_results_are_not_filtered_union_results(model: Genius, data: FeatureSet) -> None:
    """B1: the published code evaluated local pools from beams that were constrained to the union."""
    found = run(model, data, methods=("genius", "genius-r"), beams=(3,), pools=("universal", "local"))
    codes, space = Space(model, data).codes, Space(model, data)
    confused = 0
    for number, name in data.names.items():
        rows = data.pools[number].numpy()
        plain = PlainBeam(codes[rows], model.generator)
        local, union = found.runs[name, "genius", "local"][0], found.runs[name, "genius", "universal"][0]
        for place, query in enumerate(found.query_rows[name]):
            expected = rows[plain.rows(plain.levels(space.query_z[query], 3)[-1][0])][:10]
            assert local[place][local[place] >= 0].tolist() == expected.tolist()  # searched in its own pool
            filtered = [r for r in union[place] if r in set(rows.tolist())]
            confused += filtered != [r for r in local[place] if r >= 0]
        one, other = found.find(name, "genius", "local"), found.find(name, "genius", "universal")
        assert one.pool_digest != other.pool_digest and (one.pool_size, other.pool_size) == (80, 240)
    assert confused > 30  # B1 would have been seen: filtering the union's beams gives other lists


def test_order_of_pools_changes_nothing(model: Genius, data: FeatureSet) -> None:
    one = run(model, data, methods=("genius", "genius-r"), beams=(3,), pools=("universal", "local"))
    other = run(model, data, methods=("genius-r", "genius"), beams=(3,), pools=("local", "universal"))
    for key, (rows, _) in one.runs.items():
        assert np.array_equal(rows, other.runs[key][0])


def test_a_foreign_pool_is_an_error(model: Genius, data: FeatureSet) -> None:
    space = Space(model, data)
    queries = (data.tasks == 0).nonzero()[:, 0].numpy()
    method = build_methods(space, EvalConfig(methods=("genius",)))[0]
    with pytest.raises(GeniusError, match="another task's pool"):
        method.answer(space, Pool("wrong", data.pools[1].numpy()), queries, 5)


def test_positives_in_another_tasks_pool_count_where_they_can_be_found(model: Genius, data: FeatureSet) -> None:
    space = Space(model, data)
    queries = (data.tasks == 0).nonzero()[:1, 0].numpy()
    own, stranger = space.positives[queries[0]], int(data.pools[1][0])
    space.positives[queries[0]] = [*own, stranger]
    place = {int(row): i for i, row in enumerate(data.pools[0].tolist())}
    assert space.local_positives(Pool("own", data.pools[0].numpy()), queries) == [[place[row] for row in own]]
    everything = Pool("universal", np.arange(len(data.pool)))
    assert space.local_positives(everything, queries) == [[*own, stranger]]


def test_known_targets_restrict_the_beams(model: Genius, data: FeatureSet) -> None:
    told = run(model, data, methods=("genius",), pools=("universal",), target="given")
    kinds = data.pool.modality.numpy()
    for task, direction in zip(told.query_rows, (I, T, P), strict=True):
        rows = told.runs[task, "genius", "universal"][0]
        assert set(kinds[rows[rows >= 0]]) == {int(direction)}


def test_decodings_are_shared_but_never_across_pools(model: Genius, data: FeatureSet) -> None:
    space, queries = Space(model, data), np.arange(8)
    source = IdSource.of(space, at_once=32)
    universal, local = Pool("universal", np.arange(240)), Pool("universal", np.arange(120))  # the same name on purpose
    a = source.decode(space, universal, queries, 4)
    assert source.decode(space, universal, queries, 4) is a
    assert source.decode(space, local, queries, 4) is not a


def test_bad_configs_are_one_line(model: Genius, data: FeatureSet) -> None:
    with pytest.raises(GeniusError, match="unknown method 'bm25'"):
        run(model, data, methods=("bm25",))
    with pytest.raises(GeniusError, match="none of the tasks nowhere"):
        run(model, data, tasks=("nowhere",))


def test_without_local_pools_only_the_universal_is_searched(model: Genius, data: FeatureSet) -> None:
    from dataclasses import replace

    plain = replace(data, pools={}, tasks=torch.full((60,), -1), names={})
    found = run(model, plain, methods=("dense",))
    assert found.pools == ["universal"] and [r.task for r in found.results] == ["all"]
    assert run(model, plain, methods=("dense",), pools=("local",)).pools == ["local"]


def test_queries_without_a_positive_are_left_out_and_counted(model: Genius, data: FeatureSet) -> None:
    from dataclasses import replace

    fewer = replace(data, pairs=data.pairs[data.pairs[:, 0] >= 6])
    found = run(model, fewer, methods=("dense",), pools=("universal",))
    assert found.about["unjudged"] == 6 and sum(r.queries for r in found.results) == 54


def test_the_report_counts_the_queries_that_were_asked(model: Genius, data: FeatureSet) -> None:
    found = evaluate(model, data, EvalConfig(methods=("dense",), pools=("universal",), queries=3, bootstrap=0))
    assert found.about["queries"] == sum(result.queries for result in found.results) < len(data.queries)


def test_candidate_recall_of_the_engine_by_brute_force(model: Genius, data: FeatureSet) -> None:
    """The items of the beams, found without the engine; a comparison of all vectors reaches everything."""
    space, queries = Space(model, data), np.arange(60)
    pool, beams = Pool("universal", np.arange(240)), 5
    params = SearchParams(beams, 0, "none")
    answer = EngineMethod("genius", params, sample=60).answer(space, pool, queries, 1)
    plain = PlainBeam(space.codes, model.generator)
    assert answer.reached is not None
    for q in queries:
        below = plain.rows(plain.levels(space.query_z[q], beams)[-1][0])
        assert answer.touched[q] == len(below)
        assert answer.reached[q] == float(bool(set(below) & set(space.positives[q])))
    everything = EngineMethod("default", SearchParams(), sample=60).answer(space, pool, queries, 5)
    assert (everything.touched == 240).all() and everything.reached is not None and (everything.reached == 1).all()


def test_a_large_pools_vectors_stay_where_they_lie(model: Genius, data: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """5.6 million vectors are not copied for the default search, and in host memory they stay there."""
    from genius.evaluate import generative

    engines: list[generative.SearchEngine] = []

    class Watched(generative.SearchEngine):
        def __init__(self, *args: object, **named: object) -> None:
            super().__init__(*args, **named)  # type: ignore[arg-type]
            engines.append(self)

    monkeypatch.setattr(generative, "SearchEngine", Watched)
    space = Space(model, data)
    space.place = torch.device("cpu", 0)  # another device than the model's, as host memory is to a GPU
    method = build_methods(space, EvalConfig(methods=("default",)))[0]
    half = np.unique([*range(0, 240, 2), *(row for rows in space.positives[:8] for row in rows)])
    everything, some = Pool("all", np.arange(240)), Pool("some", half)
    answers = [method.answer(space, pool, np.arange(8), 5).rows for pool in (everything, some)]
    whole, part = (engine.collection.vectors for engine in engines)
    assert isinstance(whole, StoredVectors) and part is not None and len(part) == len(half)
    assert whole.parts[0].ctypes.data == space.dense.data_ptr()
    usual = Space(model, data)
    assert all(
        (method.answer(usual, p, np.arange(8), 5).rows == a).all() for p, a in zip((everything, some), answers, strict=True)
    )
