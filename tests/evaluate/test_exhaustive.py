"""Exhaustive search: numpy and torch give the same rows, also among ties, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius.evaluate import methods
from genius.evaluate.methods import exhaustive
from genius.search import flat
from genius.search.tensors import tensor_arrays


def world(queries: int = 70, pool: int = 900, width: int = 24, copies: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    vectors = F.normalize(torch.randn(pool, width, generator=random), dim=1)
    vectors[-copies:] = vectors[:copies]  # exact ties, far apart
    return F.normalize(torch.randn(queries, width, generator=random), dim=1), vectors


def brute(queries: torch.Tensor, vectors: torch.Tensor, k: int) -> np.ndarray:
    scores = (queries.double() @ vectors.double().T).numpy()
    return np.lexsort((np.broadcast_to(np.arange(len(vectors)), scores.shape), -scores), axis=1)[:, :k]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("block", [64, 333, 5000])
def test_equals_brute_force(backend: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "torch":  # what a GPU runs
        monkeypatch.setattr(methods, "HOST", tensor_arrays("cpu"))
    monkeypatch.setattr(flat, "COMPARED", block)
    monkeypatch.setattr(methods, "QUERIES", 16)
    monkeypatch.setattr(methods, "SETTLED", 5)
    queries, vectors = world()
    rows, scores = exhaustive(queries, lambda rows: vectors[rows], len(vectors), 20)
    expected = brute(queries, vectors, 20)
    assert np.array_equal(rows, expected)
    assert torch.allclose(torch.from_numpy(scores), (queries @ vectors.T).gather(1, torch.from_numpy(expected)), atol=1e-5)


def test_fewer_items_than_k() -> None:
    queries, vectors = world(pool=50, copies=1)
    rows, scores = exhaustive(queries, lambda rows: vectors[rows], 7, 10)
    assert (rows[:, 7:] == -1).all() and (rows[:, :7] >= 0).all() and np.isneginf(scores[:, 7:]).all()
