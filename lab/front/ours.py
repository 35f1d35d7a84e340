"""GENIUS behind the two calls of the benchmark: the engine's default search over items of one modality.

IDs and decoder take no part in that search and are not built: neither their time nor their bytes are counted. Knows the engine;
nothing of timing.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, LazyPart, ScanCache, SearchEngine, SearchParams
from genius.search.scan import FORMAT
from lab.front import algorithms
from lab.front.algorithms import Algorithm, Floats, Ints, Setting, grid

TARGET = 0  # modality of the items: images
TEXT = 1  # modality of the queries
LEVELS = (3, 2)


class Genius(Algorithm):
    """The default search with the target given: codes in memory, fp16 vectors that may lie on disk."""

    settings = grid(
        rerank=(
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
    memory_of = "packed codes, rows, cells and transforms"

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        self.disk_bytes = 2 * train.shape[1]
        codes = np.zeros((len(train), len(LEVELS)), np.int64)
        bank = QueryBank.of(learn, np.full(len(learn), TEXT), np.full(len(learn), TARGET))
        part = LazyPart(SimpleNamespace(level_sizes=LEVELS, width=train.shape[1], labelled=True), lambda: None)
        cache = None
        if algorithms.KEPT is not None:
            kept = algorithms.KEPT / f"{FORMAT}_{len(train)}"
            cache = ScanCache(kept, bank.digest())
        trie = CodeTrie.build(codes, LEVELS)
        self.engine = SearchEngine(part, None, trie, train.astype(np.float16), bank=bank, cache=cache)
        start = time.process_time()
        self.engine.scan.prepare()
        self.build_seconds = time.process_time() - start
        if algorithms.KEPT is not None:
            seconds = kept.with_suffix(".seconds")
            if not seconds.exists():
                seconds.write_text(str(self.build_seconds))
            self.build_seconds = float(seconds.read_text())
        self.set(self.settings[0])

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
