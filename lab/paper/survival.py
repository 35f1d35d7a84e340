"""At which code a search loses the positives: the share of queries with a positive's prefix among their beams, level by level.

Knows a model and a feature set; nothing of methods or tables.
"""

from __future__ import annotations

import numpy as np
import torch

from genius.data.features import FeatureSet
from genius.evaluate.generative import prefix_survival
from genius.model.genius import Genius
from genius.search import CodeTrie


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
