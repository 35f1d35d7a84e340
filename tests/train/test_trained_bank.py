"""Training and fitting leave a sample of queries with the model: the index learns from it where queries look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_fixtures import small_config, small_data

from genius.model.bias_choice import JudgedQueries
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.train import handover, prepare, train
from genius.train.calibration import Searched
from genius.train.handover import training_queries
from genius.train.holdout import split


def test_a_trained_model_brings_queries_of_every_direction(tmp_path: Path) -> None:
    data = small_data()
    trained = train(small_config(tmp_path, encoder__steps=2, quantizer__steps=4, generator__steps=2), data, quiet=True)
    bank = Genius.from_pretrained(str(tmp_path)).queries
    assert bank is not None and trained.model.queries is not None and len(bank) == len(trained.model.queries)
    assert np.linalg.norm(bank.z, axis=1) == pytest.approx(1, abs=1e-2)
    assert bank.bias_weights is not None and (bank.bias_weights >= 0).all()  # chosen on validation queries, and kept
    directions = set(zip(bank.modality.tolist(), bank.target.tolist(), strict=True))
    queries = data.queries.modality.tolist()
    targets = data.pool.modality.tolist()
    assert directions == {(queries[q], targets[p]) for q, p in data.pairs.tolist()}


def test_directions_are_equally_frequent_and_held_out_queries_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data()
    parts = split(data, 0.3, 0)
    assert parts.offsets is not None
    monkeypatch.setattr(handover, "BANK_SIZE", 30)
    chosen, target, first = training_queries(parts, seed=0)
    assert len(chosen) == 30
    modality = chosen.modality
    counts = torch.bincount(3 * modality + target)
    assert counts[counts > 0].tolist() == [10, 10, 10]
    held_out = {tuple(row.tolist()) for row in parts.offsets.queries.text}
    found = sum(tuple(row.tolist()) in held_out for row in chosen.text)
    assert first.any() and first.tolist() == sorted(first.tolist(), reverse=True)
    assert all(tuple(row.tolist()) in held_out for row in chosen.text[first])
    assert found >= min(30, len(parts.offsets.queries)) * 0.8


def test_probabilities_are_fitted_on_all_held_out_queries_up_to_a_limit() -> None:
    def searched(first: int, count: int) -> Searched:
        numbers = np.arange(first, first + count)
        z = np.stack([numbers, numbers], 1).astype(np.float32)
        return Searched(z, z, numbers, numbers > 3, [[int(number)] for number in numbers])

    found = searched(0, 3).joined(searched(3, 5), 6)
    assert found.z[:, 0].tolist() == found.modality.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.positives == [[0], [1], [2], [3], [4], [5]]
    assert found.has_image.tolist() == [False] * 4 + [True] * 2
    assert len(searched(0, 3).joined(searched(3, 5), 2).z) == 3  # what is there stays


def test_a_pool_that_is_validated_on_in_part_judges_the_bias_by_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 100,000 items held-out queries name rows of the whole pool, of which validation holds a sample."""
    data = small_data()
    monkeypatch.setattr(prepare, "VALIDATION_POOL", len(data.pool) // 3)
    seen = []

    def chosen(bank: QueryBank, judged: JudgedQueries, items: Any, modality: Any, **more: Any) -> QueryBank:
        seen.extend([(judged, items), *((other, items) for _, other in more["further"])])
        return bank

    monkeypatch.setattr(handover, "choose", chosen)
    train(small_config(tmp_path, encoder__steps=2, quantizer__steps=4, generator__steps=2), data, quiet=True)
    assert len(seen) == 2
    for judged, items in seen:
        rows = [row for own in judged.positives for row in own]
        assert rows and max(rows) < len(items) < len(data.pool)
    trained = seen[0][0]
    nearest = (trained.z @ np.asarray(seen[0][1]).T).argmax(1)
    assert np.mean([row in own for row, own in zip(nearest, trained.positives, strict=True)]) > 0.1  # rows are of these items
