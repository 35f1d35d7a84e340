"""GENIUS behind the two calls of the benchmark: the engine's default search over items of one modality.

IDs and decoder take no part in that search and are not built: neither their time nor their bytes are counted. Knows the engine;
nothing of timing.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, LazyPart, ScanCache, SearchEngine, SearchParams
from lab.front.algorithms import Algorithm, Floats, Ints, Setting, grid

TARGET = 0  # modality of the items: images
TEXT = 1  # modality of the queries
LEVELS = (3, 2)
KEPT = "lab.front"  # identity of a kept scan: its folder says of what it is


class Genius(Algorithm):
    """The default search with the target given: codes in memory, fp16 vectors that may lie on disk."""

    settings = grid(
        rerank=(
            15,
            25,
            40,
            60,
            80,
            100,
            150,
            200,
            250,
            300,
            400,
            500,
            600,
            800,
            1000,
            1200,
            1400,
            1700,
            2000,
            2400,
            2800,
            3400,
            4000,
            4800,
            5600,
            6400,
            8000,
        )
    )

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        self._open(train, learn, None)
        self.engine.scan.prepare()

    def save(self, folder: Path) -> None:
        self.engine.scan.prepare().save(folder, KEPT)

    def load(self, folder: Path, train: Floats, learn: Floats) -> None:
        self._open(train, learn, ScanCache(folder, KEPT, writable=False))
        self.engine.scan.prepare()

    def _open(self, train: Floats, learn: Floats, cache: ScanCache | None) -> None:
        self.disk_bytes = 2 * train.shape[1]
        codes = np.zeros((len(train), len(LEVELS)), np.int64)
        bank = QueryBank.of(learn, np.full(len(learn), TEXT), np.full(len(learn), TARGET))
        part = LazyPart(SimpleNamespace(level_sizes=LEVELS, width=train.shape[1], labelled=True), lambda: None)
        trie = CodeTrie.build(codes, LEVELS)
        vectors = train.astype(np.float16, copy=False)
        self.engine = SearchEngine(part, None, trie, vectors, bank=bank, cache=cache)

    def set(self, setting: Setting) -> None:
        self.params = SearchParams(rerank=int(setting["rerank"]), plan="scan")

    def query(self, queries: Floats, k: int) -> Ints:
        found: Ints = self.engine.search(queries, k=k, params=self.params, target=np.full(len(queries), TARGET)).rows
        return found

    def add(self, items: Floats) -> None:
        codes = np.zeros((len(items), len(LEVELS)), np.int64)
        self.engine = self.engine.changed(self.engine.rows, codes, items.astype(np.float16))
        self.engine.scan.prepare()

    @property
    def memory_bytes(self) -> int:
        return self.engine.scan.prepare().nbytes
