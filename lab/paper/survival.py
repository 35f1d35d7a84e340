"""At which code a search loses the positives: the share of queries with a positive's prefix among their beams, level by level.

Knows a model and a feature set; nothing of methods or tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.generator import Generator
from genius.model.genius import Genius
from genius.search import CodeTrie
from genius.search.beam import BeamStep, beam_search
from genius.search.decoder import CodeScorer


@torch.no_grad()
def survival(model: Genius, test: FeatureSet, beams: int, sample: int) -> list[float]:
    """(M,) share of queries with a positive's prefix among their beams, over the whole pool, as the mean over tasks.

    Args:
        model: The model.
        test: Queries, pool and positives.
        beams: Of each query.
        sample: Queries of each task, evenly spread.
    """
    codes = model.encode(test.pool).cpu().numpy()
    trie = CodeTrie.build(codes, model.config.quantizer.level_sizes)
    positives = test.positives()
    shares = []
    for task in test.tasks.unique().tolist():
        rows = (test.tasks == task).nonzero()[:, 0]
        rows = rows[torch.linspace(0, len(rows) - 1, min(sample, len(rows))).long()]
        z = model.embed(test.queries[rows])[0]
        shares.append(prefix_survival(model.generator, trie, z, [codes[positives[row]] for row in rows.tolist()], beams))
    return [round(float(share), 4) for share in np.mean(shares, axis=0)]


def prefix_survival(
    generator: Generator | CodeScorer,
    trie: CodeTrie,
    z: Tensor,
    positives: Sequence[npt.NDArray[np.int64]],
    beams: int,
) -> npt.NDArray[np.float64]:
    """(M,) share of queries with the prefix of some positive among their beams after each level.

    Args:
        generator: As in `genius.search.beam.beam_search`; so are `trie`, `z` and `beams`.
        trie: Of the pool.
        z: (Q, D) queries.
        positives: For each query the IDs (n, M) of its positives. Queries without any do not count.
        beams: Of each query.
    """
    kept = np.zeros((len(z), trie.levels))

    def record(step: BeamStep) -> None:
        after = step.after
        for query, codes in zip(after.queries.tolist(), after.codes.cpu().numpy(), strict=True):
            prefixes = positives[query][:, : after.level]
            same = (codes[:, None] == prefixes[None]).all(2)  # (beams, positives)
            kept[query, after.level - 1] = same.any()

    beam_search(generator, trie, z, beams, on_step=record)
    judged = [query for query, codes in enumerate(positives) if len(codes)]
    if not judged:
        return np.full(trie.levels, np.nan)
    shares: npt.NDArray[np.float64] = kept[judged].mean(axis=0)
    return shares
