"""Hit rates on honest questions while training: of the dense vectors, and of the generator's search."""

from __future__ import annotations

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.nearest import nearest_rows

AT = (1, 5, 10)


def hit_rates(rows: Tensor, data: FeatureSet, prefix: str, at: tuple[int, ...] = AT) -> dict[str, float]:
    """hit@k of result `rows` (Q, k): a query counts when any of its positives is among the first k."""
    right = answer_mask(rows, data)
    return {f"{prefix}_hit@{k}": right[:, :k].any(1).float().mean().item() for k in at}


def answer_mask(rows: Tensor, data: FeatureSet) -> Tensor:
    """(Q, k) bool: which of the found rows answer their question."""
    size = len(data.pool)
    keys = (data.pairs[:, 0] * size + data.pairs[:, 1]).to(rows.device)
    asked = torch.arange(len(rows), device=rows.device)[:, None]
    return torch.isin(asked * size + rows, keys) & (rows >= 0)


def quick_hits(queries: Tensor, pool: Tensor, data: FeatureSet) -> float:
    """Mean over tasks of hit@1, @5 and @10 of the dense vectors: smoother than any of them."""
    right = answer_mask(nearest_rows(queries, pool, max(AT)), data).cpu()
    values = torch.stack([right[:, :k].any(1).float() for k in AT]).mean(0)
    return float(torch.stack([values[data.tasks == task].mean() for task in data.tasks.unique()]).mean())


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
    for name in ("genius", "genius-r"):
        params = SearchParams(beams=beams).named(name)
        found = [engine.search(z, k=max(AT), params=params).rows.cpu() for z in queries.split(64)]
        out.update(hit_rates(torch.cat(found), data, name.replace("-", "_")))
    return out
