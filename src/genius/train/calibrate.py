"""How much geometry counts beside the decoder: chosen on held-out queries, stored with the model.

A decoder that was trained long says more than one that was not. `SearchParams.finish` says how much it is believed where
nearness writes the last codes, `SearchParams.geometry` where the default search picks what is re-ranked. Knows the trained
parts and held-out queries.
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
GEOMETRY = (0.0, 0.5, 1.0, 2.0)
WORTH = 0.005  # hit@5 that geometry must add to the default search: without it, a GPU searches in one recorded graph
QUERIES = 300  # looked at


class Calibration:
    """Searches of a freshly trained model over some of the held-out queries."""

    def __init__(
        self,
        generator: Generator,
        quantizer: ResidualQuantizer,
        codes: Tensor,  # (N, M) of the pool
        pool: Tensor | None,  # (N, D) z of the pool; None: only what needs no vectors can be chosen
        queries: Tensor,  # (Q, D) z of the held-out queries
        held_out: FeatureSet,
        budget: int = 2000,  # items that a search may look at
    ) -> None:
        self.budget = budget
        picked = torch.linspace(0, len(held_out.queries) - 1, min(QUERIES, len(held_out.queries))).long().unique()
        self.asked, self.data = queries[picked.to(queries.device)], held_out.take_queries(picked)
        trie = CodeTrie.build(codes.cpu().numpy(), quantizer.config.level_sizes)
        self.engine = SearchEngine(generator, quantizer, trie, pool, device=str(codes.device))

    @torch.no_grad()
    def hit(self, params: SearchParams) -> float:
        rows = torch.cat([self.engine.search(z, k=5, params=params).rows.cpu() for z in self.asked.split(64)])
        return hit_rates(rows, self.data, "at", (5,))["at_hit@5"]

    def finish(self, beams: int = 50) -> tuple[float, dict[str, float]]:
        """The weight of nearness with the best hit@5 of plain GENIUS, and what each one gave."""
        found = {w: self.hit(SearchParams(beams=beams, rerank=0, reranker="none", finish=w, leaves=self.budget)) for w in WEIGHTS}
        best = max(found.values())
        level = [weight for weight, value in found.items() if value >= best - 1e-9]
        # of equally good ones the middle one: the held-out queries are few
        return level[len(level) // 2], {f"finish{weight:g}_hit@5": value for weight, value in found.items()}

    def geometry(self) -> tuple[float, dict[str, float]]:
        """The weight of the geometric term in the default search: 0 unless another one is clearly better."""
        found = {w: self.hit(SearchParams(geometry=w, rerank=self.budget)) for w in GEOMETRY}
        best = max(found.values())
        chosen = 0.0 if best - found[0.0] < WORTH else next(w for w, value in found.items() if value >= best - 1e-9)
        return chosen, {f"geometry{weight:g}_hit@5": value for weight, value in found.items()}
