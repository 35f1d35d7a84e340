"""A base from a table in any order; a cache on disk: what was written comes back, one of another format is not used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.index.cache import TRIE, _load_trie, build
from genius.index.folder import About
from genius.search import CodeTrie

SIZES = (3, 6, 300, 4)


def random_codes(seed: int, items: int, skew: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([np.minimum((rng.random(items) ** skew * size).astype(np.int64), size - 1) for size in SIZES], axis=1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(0, 60), skew=st.sampled_from([1.0, 6.0]))
def test_a_trie_survives_the_disk(tmp_path_factory: pytest.TempPathFactory, seed: int, items: int, skew: float) -> None:
    trie = CodeTrie.build(random_codes(seed, items, skew), SIZES)
    folder = tmp_path_factory.mktemp("cache")
    for name, array in trie.arrays().items():
        np.save(folder / f"{TRIE}{name}.npy", array)
    again = _load_trie(folder, {path.name: "" for path in folder.iterdir()}, SIZES, trie.top)
    assert {name: array.tolist() for name, array in again.arrays().items()} == {
        name: array.tolist() for name, array in trie.arrays().items()
    }


class Shuffled:
    """A version of a table whose rows lie in another order than they were written in, as after compaction or upserts."""

    version = 7
    noted = None

    def __init__(self) -> None:
        self.table_seqs = np.array([[30, 10], [40, 20]])  # two batches
        self.codes_of_seq = {seq: np.array(codes, np.uint16) for seq, codes in zip((10, 20, 30, 40), CODES, strict=True)}

    def count(self) -> int:
        return 4

    def codes(self) -> Iterator[tuple[np.ndarray, list[str], np.ndarray]]:
        for seqs in self.table_seqs:
            yield seqs, [f"item {seq}" for seq in seqs], np.stack([self.codes_of_seq[seq] for seq in seqs.tolist()])

    def embeddings(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for seqs in self.table_seqs:
            yield seqs, np.stack([seqs, -seqs], 1).astype(np.float16)


CODES = [(2, 0, 7, 1), (0, 5, 299, 3), (1, 1, 1, 1), (0, 5, 0, 3)]


def test_rows_of_a_base_are_in_the_order_of_writing() -> None:
    """Codes, vectors and ids of a row belong together, however the table is ordered."""
    about = About("id", None, "fingerprint", SIZES, 2, "now")
    base = build(Shuffled(), about, None)  # type: ignore[arg-type]
    assert base.seqs.tolist() == [10, 20, 30, 40]
    assert base.trie.codes_of(np.arange(4)).tolist() == [list(codes) for codes in CODES]
    vectors = base.vectors()
    assert vectors is not None and vectors.take(np.arange(4))[:, 0].tolist() == [10, 20, 30, 40]
    assert [int(base.candidates(f"item {seq}")[0]) for seq in (10, 20, 30, 40)] == [0, 1, 2, 3]
