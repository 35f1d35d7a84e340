"""Hit rates on held-out queries while training: of the dense vectors, and of the generator's search."""

from __future__ import annotations

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer

AT = (1, 5, 10)
SCORES = 2**28  # products held at a time: a gigabyte


def split(data: FeatureSet, share: float, limit: int, seed: int) -> tuple[FeatureSet, FeatureSet | None]:
    """(training queries, held-out queries) over the same pool. The smaller part is drawn at random, fixed by `seed`."""
    count = min(int(len(data.queries) * share), limit)
    if count < 1:
        return data, None
    order = torch.randperm(len(data.queries), generator=torch.Generator().manual_seed(seed))
    return data.take_queries(order[count:].sort().values), data.take_queries(order[:count].sort().values)


def nearest_rows(queries: Tensor, pool: Tensor, k: int, chunk: int = 2048) -> Tensor:
    """(Q, k) rows of the pool by inner product, best first. At most a gigabyte of products at a time."""
    k = min(k, pool.shape[0])
    chunk = max(1, min(chunk, SCORES // max(pool.shape[0], 1)))
    return torch.cat([(q @ pool.T).topk(k, dim=1).indices for q in queries.split(chunk)])


def hit_rates(rows: Tensor, data: FeatureSet, prefix: str, at: tuple[int, ...] = AT) -> dict[str, float]:
    """hit@k of result `rows` (Q, k): a query counts when any of its positives is among the first k."""
    positives = data.positives()
    good = [set(p) for p in positives]
    listed = rows.tolist()
    out = {}
    for k in at:
        hits = [bool(good[i].intersection(found[:k])) for i, found in enumerate(listed)]
        out[f"{prefix}_hit@{k}"] = sum(hits) / max(len(hits), 1)
    return out


def dense_hits(queries: Tensor, pool: Tensor, data: FeatureSet, prefix: str = "dense") -> dict[str, float]:
    return hit_rates(nearest_rows(queries, pool, max(AT)), data, prefix)


def generator_hits(
    generator: Generator, quantizer: ResidualQuantizer, codes: Tensor, pool: Tensor, queries: Tensor, data: FeatureSet, beams: int
) -> dict[str, float]:
    """Plain GENIUS and GENIUS^R (the same beams, re-ranked) at full depth over the whole pool."""
    from genius.search import CodeTrie, SearchEngine, SearchParams

    device = str(codes.device)
    trie = CodeTrie.build(codes.cpu().numpy(), quantizer.config.level_sizes)
    engine = SearchEngine(generator, quantizer, trie, pool, device=device)
    out: dict[str, float] = {}
    for name, reranker in (("genius", "none"), ("genius_r", "embeddings")):
        params = SearchParams(beams=beams, rerank=0, reranker=reranker)  # type: ignore[arg-type]
        found = [engine.search(z, k=max(AT), params=params).rows.cpu() for z in queries.split(64)]
        out.update(hit_rates(torch.cat(found), data, name))
    return out
