"""The k best of every row: exact, ties in their order, and nothing in the package ranks in another way."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.top_k import SORTED, device_top_k, tensor_top_k, top_k

SRC = Path(__file__).parents[2] / "src" / "genius"
ELSEWHERE = {"topk", "argpartition", "kthvalue", "msort"}  # of numpy and torch


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(0, 5),
    count=st.integers(0, 3 * SORTED),
    k=st.integers(1, 300),
    different=st.sampled_from([1, 3, 50, 1 << 20]),
    hidden=st.sampled_from([0.0, 0.5, 0.999, 1.0]),
    seed=st.integers(0, 99),
)
def test_numpy_and_torch_rank_as_a_full_sort_does(
    queries: int, count: int, k: int, different: int, hidden: float, seed: int
) -> None:
    """Also among many equal scores, where most are filtered, and where there are fewer than k."""
    random = np.random.default_rng(seed)
    scores = random.integers(0, different, (queries, count)).astype(np.float32)
    scores[random.random(scores.shape) < hidden] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    for values, places in (
        top_k(scores, k),
        tensor_top_k(torch.from_numpy(scores), k),
        device_top_k(torch.from_numpy(scores), k),
    ):
        assert np.array_equal(np.asarray(places), expected)
        assert np.array_equal(np.asarray(values), np.take_along_axis(scores, expected, 1))


def ranks(call: ast.Call) -> bool:
    """Whether a call ranks by its own means: a partial sort, or a sort from the best down."""
    name = getattr(call.func, "attr", "")
    if name in ELSEWHERE or ast.unparse(call.func) in ("np.partition", "torch.sort"):
        return True
    downwards = any(keyword.arg == "descending" for keyword in call.keywords)
    return name in ("sort", "argsort") and downwards


def test_nothing_else_in_the_package_ranks_scores() -> None:
    found = []
    for path in SRC.rglob("*.py"):
        if path == SRC / "top_k.py":
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        found += [f"{path.relative_to(SRC)}:{call.lineno}: {ast.unparse(call)[:80]}" for call in calls if ranks(call)]
    assert not found, "call genius.top_k instead:\n" + "\n".join(found)


@pytest.mark.parametrize("line", ["x.topk(3)", "np.argpartition(x, 3)", "np.partition(x, 3)", "x.sort(descending=True)"])
def test_a_ranking_elsewhere_would_be_noticed(line: str) -> None:
    (call,) = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call)]
    assert ranks(call)
