"""How a model is best searched: chosen on held-out queries, stored with the model.

A decoder that was trained long says more than one that was not. `SearchParams.geometry` says how much nearness counts while
codes are written, `SearchParams.finish` where it writes the last ones, `SearchParams.rerank` how many items are looked at.
Knows the trained parts and held-out queries.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.validate import hit_rates, nearest_rows

WEIGHTS = (15.0, 40.0, 100.0, 300.0, 1000.0)  # nats per unit of cosine
WITHOUT_DATA = {"finish": 300.0, "geometry": 1.0}  # where nothing is held out
GEOMETRY = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
WORTH = 0.005  # that geometry must add to the default search: without it a step is cheaper
MOST = 2500  # items that the default search looks at, however large the pool
SHARES = (0.04, 0.08)  # ... and of a small pool these, where more is not better
LEAST = 100  # items that are always looked at
LOSS = 0.002  # against MOST that counts as none
QUERIES = 600  # looked at, the same number of each task where there are enough


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
        budget: int = 0,  # items that a search may look at; 0: to be chosen
        leaves: int = 2000,  # of `SearchParams`
    ) -> None:
        self.pool, self.weight, self.leaves = pool, 0.0, leaves
        self.budgets = [budget] if budget else budgets(len(codes))
        self.budget = self.budgets[0]
        self.best: Tensor | None = None  # (Q, 5) of an exhaustive search among items of the wanted kind, once it is asked for
        self.kinds = codes[:, 0].cpu() if quantizer.config.labelled else None  # (N,) modality of the pool's items
        picked = _of_each_task(held_out.tasks)
        self.asked, self.data = queries[picked.to(queries.device)], held_out.take_queries(picked)
        trie = CodeTrie.build(codes.cpu().numpy(), quantizer.config.level_sizes)
        self.engine = SearchEngine(generator, quantizer, trie, pool, device=str(codes.device))

    @torch.no_grad()
    def rows(self, params: SearchParams) -> Tensor:
        return torch.cat([self.engine.search(z, k=5, params=params).rows.cpu() for z in self.asked.split(64)])

    def hit(self, rows: Tensor) -> float:
        return hit_rates(rows, self.data, "at", (5,))["at_hit@5"]

    def kept(self, rows: Tensor) -> float:
        """The share of an exhaustive search's five best items that `rows` (Q, 5) hold, of the kind that the answers are of."""
        if self.best is None:
            self.best = self._exhaustive()
        held = (self.best[:, :, None] == rows[:, None]).any(2) & (self.best >= 0)
        return held.sum().item() / max(int((self.best >= 0).sum()), 1)

    def _exhaustive(self) -> Tensor:
        """(Q, 5) rows, -1 where fewer items of the kind exist. An item of another kind is not missed by anyone."""
        assert self.pool is not None
        if self.kinds is None:
            return nearest_rows(self.asked, self.pool, 5).cpu()
        best = torch.full((len(self.asked), 5), -1)
        wanted = self.kinds[[rows[0] for rows in self.data.positives()]]
        for kind in wanted.unique().tolist():
            own, items = (wanted == kind).nonzero()[:, 0], (self.kinds == kind).nonzero()[:, 0]
            found = nearest_rows(self.asked[own.to(self.asked.device)], self.pool[items.to(self.pool.device)], 5).cpu()
            best[own, : found.shape[1]] = items[found]
        return best

    def finish(self, beams: int = 50) -> tuple[float, dict[str, float]]:
        """The weight of nearness with the best hit@5 of plain GENIUS, and what each one gave."""
        plain = SearchParams(beams=beams, rerank=0, reranker="none", geometry=self.weight, leaves=self.leaves)
        found = {w: self.hit(self.rows(replace(plain, finish=w))) for w in WEIGHTS}
        best = max(found.values())
        level = [weight for weight, value in found.items() if value >= best - 1e-9]
        # of equally good ones the middle one: the held-out queries are few
        return level[len(level) // 2], {f"finish{weight:g}_hit@5": value for weight, value in found.items()}

    def geometry(self) -> tuple[float, dict[str, float]]:
        """The weight of the geometric term in the default search: 0 unless another one is clearly better. `finish` keeps it.

        Judged by hit@5 and by what is kept of an exhaustive search's five best items: hits alone are too few to choose by.
        """
        if self.pool is None:
            return self.weight, {}
        found: dict[float, float] = {}
        out: dict[str, float] = {}
        for weight in GEOMETRY:
            found[weight], more = self._judge(f"geometry{weight:g}", SearchParams(geometry=weight, rerank=self.budget))
            out |= more
        most = max(found.values())
        self.weight = 0.0 if most - found[0.0] < WORTH else next(w for w, value in found.items() if value >= most - 1e-9)
        return self.weight, out

    def rerank(self) -> tuple[int, dict[str, float]]:
        """How many items the default search looks at: the fewest that lose nothing against MOST. Ask for `geometry` first."""
        if self.pool is None or len(self.budgets) == 1:
            return self.budgets[-1], {}
        found: dict[int, float] = {}
        out: dict[str, float] = {}
        for budget in self.budgets:
            found[budget], more = self._judge(f"rerank{budget}", SearchParams(geometry=self.weight, rerank=budget))
            out |= more
        return next(budget for budget, value in found.items() if value >= max(found.values()) - LOSS), out

    def _judge(self, name: str, params: SearchParams) -> tuple[float, dict[str, float]]:
        rows = self.rows(params)
        hit, kept = self.hit(rows), self.kept(rows)
        return (hit + kept) / 2, {f"{name}_hit@5": hit, f"{name}_kept@5": kept}


def budgets(items: int) -> list[int]:
    """How many items a search over so many may look at: rising, the last one is MOST."""
    return sorted({min(MOST, max(LEAST, round(share * items))) for share in SHARES} | {MOST})


def _of_each_task(tasks: Tensor) -> Tensor:
    """Numbers of at most QUERIES queries, spread over each task."""
    kinds = tasks.unique().tolist()
    most = max(QUERIES // max(len(kinds), 1), 1)
    own = [(tasks == kind).nonzero()[:, 0] for kind in kinds]
    return torch.cat([rows[torch.linspace(0, len(rows) - 1, min(most, len(rows))).long()] for rows in own]).sort().values
