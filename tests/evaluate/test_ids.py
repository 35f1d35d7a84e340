"""From codes back to items: against a dictionary, with collisions, missing IDs and short beams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.errors import GeniusError
from genius.evaluate.ids import IdTable, items_of, ranked


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4))
def test_lookup_equals_a_dictionary(seed: int, items: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = tuple(int(k) for k in rng.integers(1, 6, size=levels))
    codes = np.stack([rng.integers(0, k, size=items) for k in sizes], 1)
    table = IdTable(codes, sizes)
    known: dict[tuple[int, ...], list[int]] = {}
    for row, code in enumerate(codes.tolist()):
        known.setdefault(tuple(code), []).append(row)
    assert table.ids == len(known)
    asked = np.stack([rng.integers(-1, k + 1, size=(3, 7)) for k in sizes], 2)
    found = table.lookup(asked)
    for place in np.ndindex(found.shape):
        rows = known.get(tuple(asked[place].tolist()))
        if rows is None:
            assert found[place] == -1
        else:
            assert table.order[table.start[found[place]] : table.start[found[place] + 1]].tolist() == rows
    prefixes = table.prefixes(codes)
    for level in range(levels):
        assert len(np.unique(prefixes[:, level])) == len({tuple(c[: level + 1]) for c in codes.tolist()})


def test_items_in_beam_order_and_by_score() -> None:
    table = IdTable(np.array([[0, 1], [1, 0], [0, 1], [1, 1]]), (2, 2))
    ids = table.lookup(np.array([[[1, 1], [0, 1], [-1, -1]], [[0, 0], [1, 0], [0, 1]]]))
    candidates = items_of(table, ids)
    assert candidates.counts.tolist() == [3, 3]
    assert ranked(candidates, 4)[0].tolist() == [[3, 0, 2, -1], [1, 0, 2, -1]]  # [0, 0] is nobody's ID
    scores = np.array([0.1, 0.5, 0.5, 0.3, 0.2, 0.9])
    rows, values = ranked(candidates, 2, scores)
    assert rows.tolist() == [[0, 2], [2, 1]] and values.tolist() == [[0.5, 0.5], [0.9, 0.3]]  # equal scores: lower row first


def test_wrong_input() -> None:
    table = IdTable(np.array([[0], [1]]), (2,))
    with pytest.raises(GeniusError, match="one ID twice"):
        items_of(table, np.array([[1, 0, 1]]))
    with pytest.raises(GeniusError, match="expected"):
        IdTable(np.zeros((3, 2), np.int64), (2,))
