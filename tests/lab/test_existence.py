"""`lab.existence`: what is measured with and without positives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.existence import Pack, searched, signal

WIDTH = 8
ITEMS = 60


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    random = np.random.default_rng(0)
    items = random.normal(size=(ITEMS, WIDTH))
    queries = random.normal(size=(6, WIDTH))
    queries[:3] = items[[3, 4, 5]]  # three find their positive first
    positives = [3, 4, 5, *(int((items @ query).argmin()) for query in queries[3:])]  # three never do
    arrays: dict[str, Any] = {
        "rows": np.arange(ITEMS) + 100,
        "modality": np.arange(ITEMS) % 3,
        "items_z": items,
        "bank_z": random.normal(size=(90, WIDTH)),
        "bank_modality": np.ones(90),
        "bank_target": np.arange(90) % 3,
        "probe_weight": np.zeros((3, WIDTH), np.float32),
        "probe_bias": np.zeros(3, np.float32),
        "bias_weights": np.zeros((3, 3), np.float32),
        "test_z": queries,
        "test_modality": np.ones(6),
        "test_tasks": np.array(["text->any"] * 6),
        "test_pairs": np.array([(query, row + 100) for query, row in enumerate(positives)]),
    }
    np.savez(tmp_path / "pack.npz", **arrays)
    return Pack(tmp_path / "pack.npz")


def test_positives_are_taken_out_and_nothing_else(pack: Pack) -> None:
    lists = searched(pack, pack.queries(("test",)), np.arange(ITEMS))
    there, gone = lists["hit"][:6], lists["hit"][6:]
    assert there[:, 0].tolist() == [True] * 3 + [False] * 3
    assert not gone.any()
    shipped = lists["shipped"]
    assert (shipped[:3, 0] > shipped[6:9, 0]).all()  # the best that is left is less similar
    np.testing.assert_array_equal(shipped[3:6], shipped[9:])  # a positive far down the list changes nothing


def test_an_oracle_of_the_first_hits_reaches_the_named_ceiling() -> None:
    right = np.arange(1000) < 300
    values = np.concatenate([right, -1.0 * right])
    found = signal(values, np.arange(2000) < 1000, np.full(2000, "task"), "oracle")
    assert found["auroc"] == pytest.approx(1 - 0.7**2 / 2, abs=1e-4)
