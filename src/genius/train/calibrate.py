"""How much nearness counts when it writes the last codes: chosen on held-out queries, stored with the model.

A decoder that was trained long says more than one that was not; the weight of `SearchParams.finish` says how much it is
believed beside the codebooks. Knows the trained parts and held-out queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.validate import hit_rates

WEIGHTS = (15.0, 40.0, 100.0, 300.0, 1000.0)  # nats per unit of cosine
WITHOUT_DATA = 300.0  # where nothing is held out
QUERIES = 300  # looked at


@torch.no_grad()
def choose_finish(
    generator: Generator,
    quantizer: ResidualQuantizer,
    codes: Tensor,
    queries: Tensor | None,
    held_out: FeatureSet | None,
    beams: int = 50,
) -> tuple[float, dict[str, float]]:
    """The weight with the best hit@5 of plain GENIUS on held-out queries (`queries` are their z), and what each one gave."""
    if held_out is None or queries is None or not len(held_out.queries):
        return WITHOUT_DATA, {}
    picked = torch.linspace(0, len(held_out.queries) - 1, min(QUERIES, len(held_out.queries))).long().unique()
    asked, some = queries[picked.to(queries.device)], held_out.take_queries(picked)
    trie = CodeTrie.build(codes.cpu().numpy(), quantizer.config.level_sizes)
    engine = SearchEngine(generator, quantizer, trie, device=str(codes.device))
    found: dict[float, float] = {}
    for weight in WEIGHTS:
        params = SearchParams(beams=beams, rerank=0, reranker="none", finish=weight)
        rows = torch.cat([engine.search(z, k=5, params=params).rows.cpu() for z in asked.split(64)])
        found[weight] = hit_rates(rows, some, "finish", (5,))["finish_hit@5"]
    best = max(found.values())
    # of equally good ones the middle one: the held-out queries are few
    level = [weight for weight, value in found.items() if value >= best - 1e-9]
    return level[len(level) // 2], {f"finish{weight:g}_hit@5": value for weight, value in found.items()}
