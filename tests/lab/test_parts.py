"""Data of the paper's programs: nothing that a test query asks for is trained with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from genius.data.features import FeatureSet
from genius.features import Features
from lab.accuracy import Data
from lab.paper import parts


def a_set(tasks: list[int], pairs: list[tuple[int, int]], pool: int = 12) -> FeatureSet:
    random = torch.Generator().manual_seed(0)
    yes, no = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
    items = Features(torch.randn(pool, 6, generator=random), torch.randn(pool, 6, generator=random),
                     torch.cat([yes, no, yes]), torch.cat([no, yes, yes]))  # fmt: skip
    asked = torch.ones(len(tasks), dtype=torch.bool)
    queries = Features(torch.randn(len(tasks), 6, generator=random), torch.randn(len(tasks), 6, generator=random), asked, asked)
    ids = [f"q{i}" for i in range(len(tasks))], [str(i) for i in range(pool)]
    return FeatureSet(queries, items, torch.tensor(pairs), *ids, torch.tensor(tasks), {0: "a", 1: "b"})


def test_nothing_that_is_asked_for_in_the_test_is_trained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    train = a_set([0, 0, 0, 1, 1, 1], [(0, 0), (1, 1), (2, 2), (2, 3), (3, 4), (4, 5), (5, 6)])
    test = a_set([0, 1], [(0, 3), (1, 7)])
    monkeypatch.setattr(parts, "fashion", lambda *_: Data(train, test))
    monkeypatch.setattr(parts, "HELD_OUT", 0.5)
    data = parts.parts_of.__wrapped__("fashion", Path(), None, 600)
    assert set(data.train.pool_ids) == set(map(str, range(12))) - {"3", "7"}
    trained = {data.train.pool_ids[row] for row in data.train.pairs[:, 1].tolist()}
    judged = {data.validation.pool_ids[row] for row in data.validation.pairs[:, 1].tolist()}
    assert trained and judged and not trained & judged
    assert not set(data.train.query_ids) & set(data.validation.query_ids)
    assert len(data.test.pool) == 12  # the test is over everything
    assert {task: rows.tolist() for task, rows in data.test.pools.items()} == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
