"""Which examples a step sees, as a pure function of (seed, step): nothing to save, so resuming is exact."""

from __future__ import annotations

import torch
from torch import Tensor


def step_seed(seed: int, stage: str, step: int, rank: int = 0) -> int:
    """One number for the randomness of one step of one stage on one process."""
    return (seed * 1_000_003 + sum(map(ord, stage)) * 7_919 + step * 31 + rank * 15_485_863) % (2**63 - 1)


class Order:
    """Endless shuffled epochs over the examples that one of them meets (`visits`, some perhaps repeatedly), addressed by step."""

    def __init__(self, visits: Tensor, batch: int, seed: int) -> None:
        self.visits, self.count, self.batch, self.seed = visits, len(visits), batch, seed
        self._epoch, self._shuffled = -1, torch.empty(0, dtype=torch.long)

    def __call__(self, step: int) -> Tensor:
        """(batch,) example numbers of this step. An epoch's rest is joined with the next one's start."""
        return self.visits[self.places(step)]

    def places(self, step: int) -> Tensor:
        """(batch,) places in `visits` that this step meets."""
        start = step * self.batch
        parts = []
        missing = self.batch
        while missing:
            epoch, position = divmod(start, self.count)
            part = self._permutation(epoch)[position : position + missing]
            parts.append(part)
            start += len(part)
            missing -= len(part)
        return torch.cat(parts)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 65_537 + epoch)
            self._epoch, self._shuffled = epoch, torch.randperm(self.count, generator=generator)
        return self._shuffled


class Draws:
    """The (question, answer) rows of a step: of a question's answers a new one at every visit, or one kept for all."""

    def __init__(self, order: Order, positives: Positives, kept: bool, seed: int) -> None:
        self.order, self.positives = order, positives
        device = positives.rows.device
        self.kept = positives.draw(order.visits.to(device), seed) if kept else None  # (V,) an answer for every place

    def __call__(self, step: int, micro: int, parts: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows of questions and of their answers of micro-batch `micro` of `parts`: the whole batch, on every process."""
        device = self.positives.rows.device
        places = self.order.places(step).chunk(parts)[micro]
        rows = self.order.visits[places].to(device)
        return rows, self.positives.draw(rows, seed) if self.kept is None else self.kept[places.to(device)]


def share(rows: Tensor, rank: int, world: int) -> Tensor:
    """This process's part of a batch."""
    return rows if world == 1 else rows.chunk(world)[rank]


class Positives:
    """All positives of every query in one flat table."""

    def __init__(self, pairs: Tensor, queries: int) -> None:
        order = pairs[:, 0].argsort(stable=True)
        self.rows = pairs[order, 1]  # (P,) pool rows, grouped by query
        self.counts = torch.bincount(pairs[:, 0], minlength=queries)  # (Q,)
        self.starts = self.counts.cumsum(0) - self.counts

    def to(self, device: torch.device) -> Positives:
        self.rows, self.counts, self.starts = self.rows.to(device), self.counts.to(device), self.starts.to(device)
        return self

    def draw(self, queries: Tensor, seed: int) -> Tensor:
        """One random positive of each query, a function of `seed`: (B,) pool rows."""
        counts = self.counts[queries]
        generator = torch.Generator(queries.device).manual_seed(seed)
        pick = (torch.rand(queries.shape, generator=generator, device=queries.device) * counts).long()
        return self.rows[self.starts[queries] + torch.minimum(pick, counts - 1)]

    def table(self, queries: Tensor, first: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """(B, limit) positives of each query, `first` in front, and which entries are real."""
        places = torch.arange(limit - 1, device=queries.device)[None]
        counts = self.counts[queries][:, None]
        # a random window when there are more than fit
        begin = (torch.rand(queries.shape, device=queries.device)[:, None] * (counts - limit + 2).clamp(min=1)).long()
        inside = begin + places < counts
        rows = self.rows[self.starts[queries][:, None] + torch.where(inside, begin + places, 0)]
        inside = inside & (rows != first[:, None])
        return torch.cat([first[:, None], rows], 1), torch.cat([torch.ones_like(first[:, None], dtype=torch.bool), inside], 1)

    def matches(self, queries: Tensor, rows: Tensor, pool: int) -> Tensor:
        """(B, N) bool: does pool row `rows[j]` answer `queries[i]`?"""
        return self.among(queries, rows[None, :], pool)

    def among(self, queries: Tensor, rows: Tensor, pool: int) -> Tensor:
        """(B, N) bool: does pool row `rows[i, j]` answer `queries[i]`?"""
        if not hasattr(self, "_keys"):  # sorted keys, so no table of all pairs
            owner = torch.repeat_interleave(torch.arange(len(self.counts), device=self.counts.device), self.counts)
            self._keys = (owner * pool + self.rows).sort().values
        wanted = queries[:, None] * pool + rows
        place = torch.searchsorted(self._keys, wanted).clamp(max=len(self._keys) - 1)
        return self._keys[place] == wanted
