"""Pairs of queries and positives: which of them a step reads, and what the two contrastive stages do with them.

The examples of a step are a pure function of (seed, step): there is nothing to save, so resuming is exact. A step of a
contrastive stage is queries, one drawn positive each, and hard negatives once they are mined. Knows features, positives
and devices; what is trained, and by which loss, is each stage's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.features import Features
from genius.ranking import nearest_rows
from genius.train.config import PairConfig
from genius.train.loop import Stage, step_seed
from genius.train.losses import contrastive, gather_rows, once
from genius.train.metrics import mean_hits

LISTED = 24  # hard negatives kept per query; a step draws one at random, since a few are unlabelled positives
QUERIES_AT_MOST = 100_000  # mined per round on a GPU; a tenth of that on a CPU
POOL_AT_MOST = 200_000  # candidates per round
HELD = 4 << 30  # bytes of float32 vectors that are kept on the device as a whole
EMBEDDED = 8192  # rows that are embedded at once
MODALITY_TEMPERATURE = 0.1  # of the modality loss


class Order:
    """Endless shuffled epochs over `visits` (example numbers, some perhaps repeated), addressed by step."""

    def __init__(self, visits: Tensor, batch: int, seed: int) -> None:
        self.visits = visits
        self.count = len(visits)
        self.batch = batch
        self.seed = seed
        self._epoch = -1
        self._shuffled = torch.empty(0, dtype=torch.long)

    def places(self, step: int) -> Tensor:
        """(batch,) places in `visits` that this step reads. A batch may span two epochs."""
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
            self._epoch = epoch
            self._shuffled = torch.randperm(self.count, generator=generator)
        return self._shuffled


class Draws:
    """The (query, positive) rows of a step: one of a query's positives, drawn at every visit or fixed for all."""

    def __init__(self, order: Order, positives: Positives, fixed: bool, seed: int) -> None:
        self.order = order
        self.positives = positives
        self.fixed: Tensor | None = None  # (V,) a positive for every place
        if fixed:
            self.fixed = positives.draw(order.visits.to(positives.rows.device), seed)

    def __call__(self, step: int, micro: int, parts: int, seed: int) -> tuple[Tensor, Tensor]:
        """Rows of queries and of positives of micro-batch `micro` of `parts`: the whole batch, on every process."""
        device = self.positives.rows.device
        places = self.order.places(step).chunk(parts)[micro]
        rows = self.order.visits[places].to(device)
        if self.fixed is not None:
            return rows, self.fixed[places.to(device)]
        return rows, self.positives.draw(rows, seed)


def share(rows: Tensor, rank: int, world: int) -> Tensor:
    """This process's part of a batch."""
    if world == 1:
        return rows
    return rows.chunk(world)[rank]


class Positives:
    """All positives of every query in one flat table."""

    def __init__(self, pairs: Tensor, queries: int) -> None:
        order = pairs[:, 0].argsort(stable=True)
        self.rows = pairs[order, 1]  # (P,) pool rows, grouped by query
        self.counts = torch.bincount(pairs[:, 0], minlength=queries)  # (Q,)
        self.starts = self.counts.cumsum(0) - self.counts

    def to(self, device: torch.device) -> Positives:
        self.rows = self.rows.to(device)
        self.counts = self.counts.to(device)
        self.starts = self.starts.to(device)
        return self

    def draw(self, queries: Tensor, seed: int) -> Tensor:
        """One random positive of each query, a function of `seed`: (B,) pool rows."""
        counts = self.counts[queries]
        generator = torch.Generator(queries.device).manual_seed(seed)
        pick = (torch.rand(queries.shape, generator=generator, device=queries.device) * counts).long()
        return self.rows[self.starts[queries] + torch.minimum(pick, counts - 1)]

    def matches(self, queries: Tensor, rows: Tensor, pool: int) -> Tensor:
        """(B, N) bool: is pool row `rows[j]` a positive of `queries[i]`?"""
        return self.among(queries, rows[None, :], pool)

    def among(self, queries: Tensor, rows: Tensor, pool: int) -> Tensor:
        """(B, N) bool: is pool row `rows[i, j]` a positive of `queries[i]`?"""
        if not hasattr(self, "_keys"):  # sorted keys, so no table of all pairs
            owner = torch.repeat_interleave(torch.arange(len(self.counts), device=self.counts.device), self.counts)
            self._keys = (owner * pool + self.rows).sort().values
        pairs = queries[:, None] * pool + rows
        place = torch.searchsorted(self._keys, pairs).clamp(max=len(self._keys) - 1)
        return self._keys[place] == pairs


# Hard negatives are candidates that the current vectors rank high for a training query and that are not its positives. Negatives
# of the batch are other queries' positives and hardly ever the nearest ones: the title of the very product whose photo is wanted.


def mining_steps(rounds: int, steps: int) -> set[int]:
    """When hard negatives are mined: evenly spread over the steps, not at the very start."""
    return {round(steps * (i + 1) / (rounds + 1)) for i in range(rounds)}


@torch.no_grad()
def nearest_negatives(
    query_rows: Tensor, queries: Tensor, pool_rows: Tensor, candidates: Tensor, positives: Positives, pool: int
) -> Tensor:
    """(n, LISTED) int32 rows of the nearest candidates that are no positives, -1 where there are fewer.

    Args:
        query_rows: (n,) rows of the queries.
        queries: (n, D) their unit vectors.
        pool_rows: (m,) rows of the candidates.
        candidates: (m, D) their unit vectors.
        positives: Of all queries.
        pool: Size of the whole pool.
    """
    most = min(len(pool_rows), LISTED + 8)
    lists = torch.full((len(query_rows), LISTED), -1, dtype=torch.int32, device=query_rows.device)
    for part in torch.arange(len(query_rows), device=query_rows.device).split(1024):
        nearest = pool_rows[nearest_rows(queries[part], candidates, most)]  # (n, most)
        positive = positives.among(query_rows[part], nearest, pool)
        order = positive.long().argsort(dim=1, stable=True)[:, :LISTED]  # negatives first, nearest first
        best = nearest.gather(1, order).masked_fill(positive.gather(1, order), -1)
        lists[part, : best.shape[1]] = best.to(lists.dtype)
    return lists


def draw_negatives(lists: Tensor, instead: Tensor, seed: int) -> Tensor:
    """(B,) one of each query's list (B, LISTED); where it holds none there, the pool row of `instead`."""
    generator = torch.Generator(lists.device).manual_seed(seed)
    column = torch.randint(lists.shape[1], instead.shape, generator=generator, device=lists.device)
    picked = lists.gather(1, column[:, None])[:, 0].long()
    return torch.where(picked >= 0, picked, instead)


class FeatureRows:
    """Features by row, float32 on `device` when read: kept there while they are few, else left on the disk.

    M-BEIR's candidates are 17 GB in half precision and 34 GB in single; a step needs some megabytes of them.
    """

    def __init__(self, features: Features, device: torch.device) -> None:
        self.device = device
        self.whole = 4 * len(features) * (features.image.shape[1] + features.text.shape[1]) <= HELD
        self.features = features
        if self.whole:
            self.features = features.to(device, torch.float32)
        self.modality = features.modality.to(device)  # (N,)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor | slice) -> Features:
        if self.whole:
            return self.features[rows]
        if isinstance(rows, Tensor):
            rows = rows.to(self.features.image.device)
        return self.features[rows].to(self.device, torch.float32)


class Points(Protocol):
    """z by row, on the training device: a tensor, or something that computes the rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor: ...


class EmbeddedRows:
    """z (N, D) of `rows`: computed once and kept while it is small, else computed for the rows that are read."""

    kept: Tensor | None = None

    def __init__(self, rows: FeatureRows, embed: Callable[[Features], Tensor], width: int) -> None:
        self.rows = rows
        self.embed = embed
        if 4 * len(rows) * width <= HELD:
            self.kept = self[:]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        if self.kept is not None:
            return self.kept[rows]
        if isinstance(rows, slice):
            rows = torch.arange(len(self))[rows]
        return torch.cat([self.embed(self.rows[part]) for part in rows.split(EMBEDDED)])


class PairBatch(NamedTuple):
    rows: Tensor  # (B,) query numbers
    targets: Tensor  # (B,) pool rows, one positive of each
    negatives: Tensor | None  # (B,) pool rows near each query that are not its positives


class PairStage(Stage):
    """A contrastive stage: queries and pool by row (`FeatureRows`), positives on the training device."""

    wrong_lists: Tensor  # (Q, LISTED) int32 hard negatives, a buffer: a resumed run continues with the lists it had

    def __init__(
        self,
        data: FeatureSet,
        validation: FeatureSet | None,
        config: PairConfig,
        width: int,
        seed: int,
        device: torch.device,
        fixed: bool = False,  # whether a query keeps the positive that was drawn for it
    ) -> None:
        super().__init__()
        self.held_out = validation
        self.seed = seed
        self.queries = FeatureRows(data.queries, device)
        self.pool = FeatureRows(data.pool, device)
        self.positives = Positives(data.pairs, len(data.queries)).to(device)
        self.draws = Draws(Order(data.visits(), config.batch, seed), self.positives, fixed, seed)
        self.modality_weight = config.modality_weight
        if config.modality_weight > 0:
            start = torch.randn(3, width, generator=torch.Generator().manual_seed(seed))
            self.modality_means = nn.Parameter(start)  # a direction for each target modality
        self.mined_at = mining_steps(config.hard_negatives, config.steps)
        if self.mined_at:
            self.register_buffer("wrong_lists", torch.full((len(data.queries), LISTED), -1, dtype=torch.int32))

    @abstractmethod
    def embed(self, features: Features) -> Tensor:
        """Unit vectors of any number of rows, without gradients."""

    def embed_rows(self, source: FeatureRows, rows: Tensor, chunk: int = 8192) -> Tensor:
        """Unit vectors of some rows, a part at a time."""
        return torch.cat([self.embed(source[part]) for part in rows.split(chunk)])

    def quick(self) -> float | None:
        if self.held_out is None:
            return None
        return mean_hits(self.embed(self.held_out.queries), self.embed(self.held_out.pool), self.held_out)

    def before_step(self, step: int) -> None:
        if step in self.mined_at:
            once(lambda: self._mine(step), lambda: [self.wrong_lists])

    def _mine(self, step: int) -> None:
        device = self.pool.device
        random = torch.Generator().manual_seed(self.seed + step)
        limit = QUERIES_AT_MOST if device.type == "cuda" else QUERIES_AT_MOST // 10
        query_rows = torch.randperm(len(self.queries), generator=random)[:limit].to(device)
        pool_rows = torch.randperm(len(self.pool), generator=random)[:POOL_AT_MOST].to(device)
        queries = self.embed_rows(self.queries, query_rows)
        candidates = self.embed_rows(self.pool, pool_rows)
        found = nearest_negatives(query_rows, queries, pool_rows, candidates, self.positives, len(self.pool))
        self.wrong_lists[query_rows] = found

    def batch(self, step: int, micro: int, rank: int, world: int) -> PairBatch:
        rows, targets = self.drawn(step, micro)
        negatives = None
        if self.mined_at and step >= min(self.mined_at):
            seed = step_seed(self.seed, self.name, step, micro) + 1  # another one than draws the positives
            negatives = share(draw_negatives(self.wrong_lists[rows], targets, seed), rank, world)
        return PairBatch(share(rows, rank, world), share(targets, rank, world), negatives)

    def drawn(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Queries and one positive of each, of the whole micro-batch."""
        return self.draws(step, micro, self.accumulate, step_seed(self.seed, self.name, step, micro))

    def contrast(
        self,
        batch: PairBatch,
        query: Tensor,
        target: Tensor,
        negatives: Tensor | None,
        *,
        temperature: float,
        symmetric: bool = True,
        all_positives: bool = True,
        weight: float = 1.0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """L_cl (Eq. 3) of unit vectors, and the modality loss.

        Args:
            batch: Which rows the vectors are of.
            query: (B, D) queries.
            target: (B, D) their positives.
            negatives: (B, D) hard negatives, in addition to the batch's own; None: not mined yet.
            temperature: tau of Eq. 3.
            symmetric: Average both directions.
            all_positives: Whether all known positives count; False: only the drawn one.
            weight: Of L_cl in the sum. The modality loss has its own.

        Returns:
            The weighted sum, and each loss by itself to log.
        """
        size = len(self.pool)
        positive = None
        if all_positives:
            positive = self.positives.matches(batch.rows, gather_rows(batch.targets), size)
        more_positive = None
        if batch.negatives is not None:  # where none is known the query's own positive stands in: it must not count
            more_positive = self.positives.matches(batch.rows, gather_rows(batch.negatives), size)
        loss, accuracy = contrastive(
            query,
            target,
            temperature=temperature,
            positive=positive,
            symmetric=symmetric,
            more=negatives,
            more_positive=more_positive,
        )
        logs = {"cl": loss, "accuracy": accuracy}
        loss = weight * loss
        if self.modality_weight > 0:
            logs["modality"] = self.modality_loss(query, target, self.pool.modality[batch.targets])
            loss = loss + self.modality_weight * logs["modality"]
        return loss, logs

    def modality_loss(self, query: Tensor, target: Tensor, modality: Tensor) -> Tensor:
        """z encodes the modality it has or wants: cross-entropy over three directions.

        Training pairs alone do not teach it: a training query is nearer to its positive than to the same thing in
        another modality anyway, but an unseen product's title is nearer to the title than to the wanted photo.
        """
        directions = F.normalize(self.modality_means, dim=1).T / MODALITY_TEMPERATURE
        both = F.cross_entropy(query @ directions, modality) + F.cross_entropy(target @ directions, modality)
        return both / 2
