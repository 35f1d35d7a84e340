"""GENIUS behind the two calls of the benchmark: the engine as the product builds it, over items of one modality.

The same file measures an older version: run it with that version's `src` on the path. Knows the engine; nothing of timing.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.fit import FitConfig, fit_vectors
from genius.model.config import FusionConfig
from genius.model.quantizer import Fusion
from genius.search import CodeTrie, SearchEngine, SearchParams
from lab.front.algorithms import Algorithm, Floats, Ints, Setting, grid

TARGET = 0  # modality of the items: images
STEP = 65_536
SAMPLE = 30_000  # items that codebooks are fitted to
FEW = 4_096  # the same where IDs take no part in the default search


class Genius(Algorithm):
    """The default search with the target given: codes in memory, fp16 vectors that may lie on disk.

    IDs and decoder are fitted to the items as `genius index --encoder` fits them.
    """

    settings = grid(rerank=(100, 250, 400, 600, 800, 1000, 1400, 2000, 2800, 4000, 5600, 8000))
    memory_of = "arrays of codes, cells and trie"

    def fit_ood(self, train: Floats, learn: Floats, learn_neighbors: NDArray[np.int32]) -> None:
        width = train.shape[1]
        self.disk_bytes = 2 * width
        scans = "bank" in inspect.signature(SearchEngine.__init__).parameters
        rows = train
        if scans:  # IDs take no part in the default search: few codes, fitted to some items
            rows = train[np.random.default_rng(0).permutation(len(train))[:FEW]]
        some = torch.from_numpy(rows)
        config = FitConfig(sample=SAMPLE, iterations=6, steps=150)
        fusion = Fusion(FusionConfig(width, 1, 1))
        self.model = fit_vectors(fusion, some, torch.full((len(some),), TARGET), None, None, None, config, say=print).model
        quantizer = self.model.quantizer
        levels = quantizer.config.level_sizes
        with torch.inference_mode():
            parts = []
            for at in range(0, len(train), STEP):
                block = torch.from_numpy(train[at : at + STEP])
                parts.append(quantizer.encode(block, torch.full((len(block),), TARGET)).numpy().astype(np.uint16))
        self.trie = CodeTrie.build(np.concatenate(parts).astype(np.int32), levels)
        options: dict[str, Any] = {}
        if scans:
            options["bank"] = query_bank(learn)
        self.engine = SearchEngine(self.model.generator, quantizer, self.trie, train.astype(np.float16), **options)
        self.set(self.settings[0])
        for _ in range(130):  # an older version compiles its loops after a hundred searches
            self.query(learn[:1], 10)

    def set(self, setting: Setting) -> None:
        self.params = SearchParams(rerank=int(setting["rerank"]))

    def query(self, queries: Floats, k: int) -> Ints:
        found: Ints = self.engine.search(queries, k=k, params=self.params, target=np.full(len(queries), TARGET)).rows
        return found

    @property
    def memory_bytes(self) -> int:
        scan: Any = getattr(self.engine, "scan", None)
        if scan is None:  # the older version
            quick: Any = getattr(self.engine, "_quick")  # noqa: B009
            return int(self.trie.nbytes + quick.scan.nbytes)
        prepared = scan.prepare()
        return sum(int(array.nbytes) for cells in prepared.cells.values() for array in cells.arrays().values())


def query_bank(learn: Floats) -> Any:
    """Training queries as the model folder would keep them: texts that ask for images."""
    bank: Any = importlib.import_module("genius.model.query_bank").QueryBank
    count = len(learn)
    return bank.of(torch.from_numpy(learn), torch.ones(count, dtype=torch.long), torch.full((count,), TARGET))
