"""Hard negatives: what the current vectors rank high for a training query without being an answer.

In-batch negatives are other queries' answers, and hardly ever the one candidate that is nearest and wrong: the title of the
very product whose photo is asked for, say. The lists are made anew a few times while a stage trains. Knows vectors and
positives; nothing of losses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.nearest import nearest_rows
from genius.train.sampling import Positives, step_seed

LISTED = 24  # wrong candidates kept per query; a step draws one of them at random, since a few are answers nobody noted
QUERIES_AT_MOST, POOL_AT_MOST = 100_000, 200_000  # looked at per round on a GPU; a tenth of the queries on a CPU


class HardNegatives:
    """Lists of wrong candidates (Q, LISTED), -1 where none is known yet."""

    def __init__(self, rounds: int, steps: int) -> None:
        """`rounds` evenly spread over the steps, the first after one part of them."""
        self.at = {round(steps * (i + 1) / (rounds + 1)) for i in range(rounds)}

    def sample(self, queries: int, pool: int, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
        """Which queries are looked up in a round, and among which candidates."""
        random = torch.Generator().manual_seed(seed)
        limit = QUERIES_AT_MOST if device.type == "cuda" else QUERIES_AT_MOST // 10
        asked = torch.randperm(queries, generator=random)[:limit].to(device)
        return asked, torch.randperm(pool, generator=random)[:POOL_AT_MOST].to(device)

    @torch.no_grad()
    def mine(
        self, lists: Tensor, asked: Tensor, queries: Tensor, kept: Tensor, candidates: Tensor, positives: Positives, pool: int
    ) -> None:
        """Fill rows `asked` of `lists` (Q, LISTED) in place: `queries` (n, D) are their unit vectors, `candidates` (m, D) those
        of the pool rows `kept`; `pool` is the size of the whole pool."""
        most = min(len(kept), LISTED + 8)
        for part in torch.arange(len(asked), device=asked.device).split(1024):
            rows = asked[part]
            found = kept[nearest_rows(queries[part], candidates, most)]  # (n, most)
            wrong = ~positives.among(rows, found, pool)
            order = (~wrong).long().argsort(dim=1, stable=True)[:, : lists.shape[1]]  # wrong ones first, nearest first
            best = found.gather(1, order).masked_fill(~wrong.gather(1, order), -1)
            lists[rows, : best.shape[1]] = best.to(lists.dtype)

    @staticmethod
    def draw(lists: Tensor, rows: Tensor, instead: Tensor, seed: int) -> Tensor:
        """(B,) one wrong candidate of each query; where none is known, the pool row of `instead`."""
        generator = torch.Generator(rows.device).manual_seed(seed)
        column = torch.randint(lists.shape[1], rows.shape, generator=generator, device=rows.device)
        picked = lists[rows, column].long()
        return torch.where(picked >= 0, picked, instead)


def no_lists(queries: int) -> Tensor:
    """Lists before the first round."""
    return torch.full((queries, LISTED), -1, dtype=torch.int32)


def draw_seed(seed: int, stage: str, step: int, micro: int) -> int:
    """Another number than the one that draws the positives."""
    return step_seed(seed, stage, step, micro) + 1


__all__ = ["HardNegatives", "draw_seed", "no_lists"]
