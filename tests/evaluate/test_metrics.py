"""Metrics equal ranx on random runs with ties, several positives and missing queries; intervals and tests behave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trec import read_run

from genius import ranking
from genius.errors import GeniusError
from genius.evaluate.report import write_qrels, write_run


def random_case(seed: int, queries: int = 60, pool: int = 80, k: int = 30) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Ranked rows with many tied scores, lists of different lengths, some empty; up to 12 positives a query."""
    rng = np.random.default_rng(seed)
    rows = np.full((queries, k), -1, np.int64)
    scores = np.full((queries, k), -np.inf)
    for q in range(queries):
        length = int(rng.integers(0, k + 1)) if q % 3 else k
        values = np.sort(rng.integers(0, 6, size=length))[::-1].astype(float)  # ties everywhere
        rows[q, :length], scores[q, :length] = rng.permutation(pool)[:length], values
    positives = [sorted(rng.choice(pool, size=int(rng.integers(1, 13)), replace=False).tolist()) for _ in range(queries)]
    return rows, scores, positives


@pytest.mark.parametrize("seed", range(5))
def test_equal_ranx(seed: int, tmp_path: Path) -> None:
    ranx = pytest.importorskip("ranx", reason="ranx is not installed")
    rows, scores, positives = random_case(seed)
    query_ids, pool_ids = [f"q{i}" for i in range(len(rows))], [f"d{i}" for i in range(80)]
    write_run(tmp_path / "run.trec", query_ids, pool_ids, rows, scores, "ours")
    write_qrels(tmp_path / "qrels.trec", query_ids, pool_ids, positives)
    qrels = ranx.Qrels.from_file(str(tmp_path / "qrels.trec"), kind="trec")
    run = ranx.Run.from_file(str(tmp_path / "run.trec"), kind="trec")
    assert len(run.run) < len(rows)  # queries without an answer are missing from the file
    names = {f"hit@{k}": f"hit_rate@{k}" for k in (1, 5, 10)} | {f"recall@{k}": f"recall@{k}" for k in (1, 5, 10)}
    names |= {"ndcg@10": "ndcg@10", "mrr@10": "mrr@10"}
    theirs = ranx.evaluate(qrels, run, list(names.values()), make_comparable=True)
    ours = ranking.per_query(ranking.judge(rows, positives), (1, 5, 10))
    for mine, other in names.items():
        assert ours[mine].mean() == pytest.approx(theirs[other], abs=1e-9), mine


def test_run_files_keep_our_order_among_ties(tmp_path: Path) -> None:
    rows, scores, _ = random_case(3)
    write_run(tmp_path / "run", [f"q{i}" for i in range(len(rows))], [f"d{i}" for i in range(80)], rows, scores, "t")
    read = read_run(tmp_path / "run")
    for q, ranked in enumerate(rows):
        assert [name for name, _ in read.get(f"q{q}", [])] == [f"d{row}" for row in ranked if row >= 0]


def test_by_hand() -> None:
    judged = ranking.judge(np.array([[7, 3, 9, 1], [2, -1, -1, -1], [-1, -1, -1, -1]]), [[3, 1, 8], [5], [2]])
    assert ranking.hit_at(judged, 1).tolist() == [0, 0, 0] and ranking.hit_at(judged, 2).tolist() == [1, 0, 0]
    assert ranking.recall_at(judged, 4).tolist() == [2 / 3, 0, 0]
    expected = (1 / np.log2(3) + 1 / np.log2(5)) / (1 + 1 / np.log2(3) + 0.5)
    assert ranking.ndcg_at(judged, 10)[0] == pytest.approx(expected)
    assert ranking.reciprocal_rank_at(judged, 10).tolist() == [0.5, 0, 0]


def test_wrong_input_is_an_error_not_a_number() -> None:
    with pytest.raises(GeniusError, match="2 ranked lists for 1 queries"):
        ranking.judge(np.zeros((2, 3), np.int64), [[1]])
    with pytest.raises(GeniusError, match="more than once"):
        ranking.judge(np.array([[4, 4]]), [[4]])
    with pytest.raises(GeniusError, match="different queries"):
        ranking.paired_p_value(np.zeros(3), np.zeros(4))


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        values = (rng.random(150) < 0.3).astype(float)
        low, high = ranking.bootstrap_interval([values], samples=400, seed=trial)
        inside += low <= 0.3 <= high
    assert 0.88 <= inside / 200 <= 0.99
    narrow = ranking.bootstrap_interval([(rng.random(5000) < 0.3).astype(float)])
    assert narrow[1] - narrow[0] < 0.04


def test_average_interval_weighs_tasks_equally() -> None:
    small, large = np.zeros(10), np.ones(10_000)
    assert ranking.bootstrap_interval([small, large]) == (0.5, 0.5)


def test_paired_test_against_the_exact_sign_flips() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(10), rng.random(10)
    difference = a - b
    signs = np.array([[1 if (n >> i) & 1 else -1 for i in range(10)] for n in range(1024)])
    exact = (np.abs(signs @ difference) >= abs(difference.sum()) - 1e-12).mean()
    assert ranking.paired_p_value(a, b, samples=20_000) == pytest.approx(exact, abs=0.02)
    assert ranking.paired_p_value(a, a) == 1.0
    assert ranking.paired_p_value(np.ones(40), np.zeros(40)) < 0.001


def test_holm_by_hand() -> None:
    assert ranking.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
