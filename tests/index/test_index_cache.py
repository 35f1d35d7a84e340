"""Tries on disk: what was saved comes back, and a foreign or broken file is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius import GeniusError
from genius.index.cache import load_trie, save_trie
from genius.search import CodeTrie

SIZES = (3, 6, 300, 4)


def random_codes(seed: int, items: int, skew: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([np.minimum((rng.random(items) ** skew * size).astype(np.int64), size - 1) for size in SIZES], axis=1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(0, 60), skew=st.sampled_from([1.0, 6.0]))
def test_survives_the_disk(tmp_path_factory: pytest.TempPathFactory, seed: int, items: int, skew: float) -> None:
    codes = random_codes(seed, items, skew)
    trie = CodeTrie.build(codes, SIZES)
    path = tmp_path_factory.mktemp("trie") / "codes.trie"
    save_trie(trie, path)
    again = load_trie(path)
    assert again.level_sizes == SIZES and again.top == trie.top
    assert {name: array.tolist() for name, array in again.arrays().items()} == {
        name: array.tolist() for name, array in trie.arrays().items()
    }


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello, this is no trie at all")
    with pytest.raises(GeniusError, match="cannot read"):
        load_trie(tmp_path / "text")
    with pytest.raises(GeniusError, match="no such trie"):
        load_trie(tmp_path / "absent")
    save_trie(CodeTrie.build(random_codes(0, 50, 1.0), SIZES), tmp_path / "whole")
    (tmp_path / "half").write_bytes((tmp_path / "whole").read_bytes()[:-40])
    with pytest.raises(GeniusError, match="cut short"):
        load_trie(tmp_path / "half")
