"""Hit rates on held-out queries, for validation and for choosing weights.

Knows vectors, codes and positives; nothing of stages.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.ranking import hit_at, judge, nearest_rows

HITS_AT = (1, 5, 10)  # k of hit@k
QUERIES_AT_ONCE = 64  # searched together


def positive_mask(rows: Tensor, data: FeatureSet) -> Tensor:
    """(Q, k) bool: which of the found `rows` (Q, k) are positives of their query."""
    return torch.from_numpy(judge(rows.cpu().numpy(), data.positives()).hits).to(rows.device)


def hit_rates(rows: Tensor, data: FeatureSet, prefix: str) -> dict[str, float]:
    """hit@k of result `rows` (Q, k), as `PREFIX_hit@k`."""
    judged = judge(rows.cpu().numpy(), data.positives())
    return {f"{prefix}_hit@{k}": float(hit_at(judged, k).mean()) for k in HITS_AT}


def mean_hits(queries: Tensor, pool: Tensor, data: FeatureSet) -> float:
    """Mean over tasks of hit@1, @5 and @10 of the dense vectors: smoother than any of them."""
    judged = judge(nearest_rows(queries, pool, max(HITS_AT)).cpu().numpy(), data.positives())
    values = np.mean([hit_at(judged, k) for k in HITS_AT], axis=0)
    tasks = data.tasks.numpy()
    return float(np.mean([values[tasks == task].mean() for task in np.unique(tasks)]))


def dense_hits(queries: Tensor, pool: Tensor, data: FeatureSet, prefix: str = "dense") -> dict[str, float]:
    """hit@k of exhaustive search with vectors `queries` (Q, D) over `pool` (N, D)."""
    return hit_rates(nearest_rows(queries, pool, max(HITS_AT)), data, prefix)


def generator_hits(
    generator: Generator,
    quantizer: ResidualQuantizer,
    codes: Tensor,
    pool: Tensor,
    queries: Tensor,
    data: FeatureSet,
    beams: int,
) -> dict[str, float]:
    """hit@k of GENIUS and GENIUS^R (the same beams, re-ranked) over the whole pool."""
    from genius.search import CodeTrie, SearchEngine, SearchParams

    trie = CodeTrie.build(codes.cpu().numpy(), quantizer.config.level_sizes)
    engine = SearchEngine(generator, quantizer, trie, pool, device=str(codes.device))
    out: dict[str, float] = {}
    for name in ("genius", "genius-r"):
        params = SearchParams(beams=beams).named(name)
        rows = [engine.search(z, k=max(HITS_AT), params=params).rows for z in queries.split(QUERIES_AT_ONCE)]
        out.update(hit_rates(torch.from_numpy(np.concatenate(rows)), data, name.replace("-", "_")))
    return out
