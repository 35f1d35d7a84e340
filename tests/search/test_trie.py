"""CodeTrie against plain Python sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.errors import GeniusError
from genius.search import CodeTrie

SIZES = (3, 6, 300, 4)


def random_codes(seed: int, items: int, skew: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([np.minimum((rng.random(items) ** skew * size).astype(np.int64), size - 1) for size in SIZES], axis=1)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31), items=st.integers(0, 80), skew=st.sampled_from([1.0, 4.0, 20.0]), rare=st.sampled_from([0.0, 1.0])
)
def test_says_what_is_below_every_prefix(seed: int, items: int, skew: float, rare: float) -> None:
    """Whether the first position of every ID is stored, or only which IDs several items share."""
    codes = random_codes(seed, items, skew)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genius.search.trie.RARE", rare)
        trie = CodeTrie.build(codes, SIZES)
    ids, place = np.unique(codes, axis=0, return_inverse=True)
    first = np.append(0, np.cumsum(np.bincount(place.ravel(), minlength=len(ids))))
    assert ("shared" in trie.arrays()) == (rare == 1.0 and len(ids) < items)
    assert trie.positions(np.arange(len(ids) + 1)).tolist() == first.tolist()
    assert (trie.codes_of_ids(np.arange(len(ids))) == ids).all()
    assert (trie.codes_at(np.arange(items)) == codes[trie.order]).all()
    assert trie.items == items and trie.ids == len(np.unique(codes, axis=0)) and trie.levels == 4
    assert (trie.codes_of(np.arange(items)) == codes).all() if items else True
    for row in codes[:10]:
        for depth in range(5):
            prefix = row[:depth].tolist()
            below = np.flatnonzero((codes[:, :depth] == row[:depth]).all(1))
            assert sorted(trie.rows_below(prefix).tolist()) == below.tolist()
            if depth < 4:
                values, counts = np.unique(codes[below, depth], return_counts=True)
                found, items_below = trie.children(prefix)
                assert found.tolist() == values.tolist() and items_below.tolist() == counts.tolist()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    old=st.integers(0, 80),
    new=st.integers(0, 40),
    skew=st.sampled_from([1.0, 4.0, 20.0]),
    rare=st.sampled_from([0.0, 1 / 16, 1.0]),
)
def test_a_merged_trie_is_the_rebuilt_one(seed: int, old: int, new: int, skew: float, rare: float) -> None:
    """Array for array, whatever part of the items is added later."""
    codes = random_codes(seed, old + new, skew)
    rows = np.random.default_rng(seed).permutation(200)[: old + new]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genius.search.trie.RARE", rare)
        before = CodeTrie.build(codes[:old], SIZES, rows[:old])
        kept = {name: array.copy() for name, array in before.arrays().items()}
        merged = before.merged(codes[old:], rows[old:])
        whole = CodeTrie.build(codes, SIZES, rows)
    assert merged.top == whole.top and merged.arrays().keys() == whole.arrays().keys()
    for name, array in whole.arrays().items():
        assert merged.arrays()[name].dtype == array.dtype and np.array_equal(merged.arrays()[name], array), name
    assert all(np.array_equal(array, before.arrays()[name]) for name, array in kept.items())  # the old one is untouched


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(1, 80), skew=st.sampled_from([1.0, 4.0]), share=st.floats(0, 1))
def test_a_mask_counts_as_a_trie_of_the_allowed_items(seed: int, items: int, skew: float, share: float) -> None:
    codes = random_codes(seed, items, skew)
    allowed = np.random.default_rng(seed).random(items) < share
    trie, small = CodeTrie.build(codes, SIZES), CodeTrie.build(codes[allowed], SIZES)
    before = trie.count_before(allowed)
    for depth in range(4):
        for prefix in {tuple(row[:depth]) for row in codes.tolist()}:
            found = trie.expand(depth, *trie.find(prefix), before)
            values, counts = small.children(prefix)
            assert found.code.tolist() == values.tolist() and found.items.tolist() == counts.tolist()


def test_bad_additions_are_refused() -> None:
    trie = CodeTrie.build(np.array([[0, 1], [1, 0]]), (3, 2), rows=np.array([4, 9]))
    with pytest.raises(GeniusError, match="row 9 appears twice"):
        trie.merged(np.array([[0, 1]]), np.array([9]))
    with pytest.raises(GeniusError, match="item 0 has code 2 at level 1"):
        trie.merged(np.array([[0, 2]]), np.array([5]))


def test_items_keep_their_own_rows() -> None:
    codes = np.array([[0, 1, 2, 3], [0, 1, 2, 3], [2, 0, 0, 0]])
    trie = CodeTrie.build(codes, SIZES, rows=np.array([70, 5, 9]))
    assert trie.rows_below([0]).tolist() == [70, 5] and trie.rows_below([]).tolist() == [70, 5, 9]
    assert trie.codes_of([9, 5]).tolist() == [[2, 0, 0, 0], [0, 1, 2, 3]]
    assert trie.rows_below([1]).tolist() == [] and trie.children([1])[0].tolist() == []
    with pytest.raises(GeniusError, match="no item has row 6"):
        trie.codes_of([6])
    with pytest.raises(GeniusError, match="row 5 appears twice"):
        CodeTrie.build(codes, SIZES, rows=np.array([5, 5, 9]))


def test_codes_wider_than_one_word_and_bytes() -> None:
    """130 bits per code: two words decide, and large levels keep all their bits, also those that fill 16."""
    sizes = (3, 70_000, 70_000, 60_000, 70_000, 60_000, 70_000, 70_000)
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 500) for size in sizes], axis=1)
    codes[100:400, :5] = codes[0, :5]  # ties in the first word
    codes[200:300] = codes[0]
    trie = CodeTrie.build(codes, sizes)
    assert (trie.codes_of(np.arange(500)) == codes).all()
    by_hand = sorted(range(500), key=lambda i: tuple(codes[i]))
    assert trie.rows_below([]).tolist() == by_hand
    merged = CodeTrie.build(codes[:250], sizes).merged(codes[250:], np.arange(250, 500))
    assert all(np.array_equal(merged.arrays()[name], array) for name, array in trie.arrays().items())


def test_small_in_memory() -> None:
    """Codes and trie together: at most 24 bytes per item at the paper's shape, uniform and skewed, without collisions."""
    sizes = (3,) + (4096,) * 8
    for skew in (1.0, 3.0):
        rng = np.random.default_rng(1)
        codes = np.stack([(rng.random(200_000) ** skew * size).astype(np.int64) for size in sizes], axis=1)
        trie = CodeTrie.build(codes, sizes)
        assert trie.nbytes / trie.items <= 24


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.array([[0, 0, 300, 0]]), "item 0 has code 300 at level 2"),
        (np.array([[0, 0, 0, 0], [0, -1, 0, 0]]), "item 1 has code -1 at level 1"),
        (np.array([[0, 0, 0]]), "codes must be"),
        (np.array([[0.5, 0, 0, 0]]), "integers"),
    ],
)
def test_bad_codes_are_refused(codes: np.ndarray, message: str) -> None:
    with pytest.raises(GeniusError, match=message):
        CodeTrie.build(codes, SIZES)


def test_rows_that_no_item_has_are_refused() -> None:
    trie = CodeTrie.build(np.array([[0, 1], [1, 0], [2, 1]]), (3, 2))
    for row in (-1, 3):
        with pytest.raises(GeniusError, match=f"no item has row {row}"):
            trie.positions_of([0, row])
