"""Pairs of questions and answers: which of them a step reads, and what the two contrastive stages do with them.

Which examples a step sees is a pure function of (seed, step): nothing to save, so resuming is exact. A step of a contrastive
stage is queries, one drawn positive each, and hard negatives once they are known. Knows features, positives and devices; what is
trained and by which loss is each stage's own.
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

LISTED = 24  # wrong candidates kept per query; a step draws one of them at random, since a few are answers nobody noted
QUERIES_AT_MOST, POOL_AT_MOST = 100_000, 200_000  # looked at per round on a GPU; a tenth of the queries on a CPU
HELD = 4 << 30  # bytes of float32 vectors that are kept on the device as a whole
EMBEDDED = 8192  # rows that are embedded at once
MODALITY_TEMPERATURE = 0.1  # of the loss that makes z say which modality it is


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


class HardNegatives:
    """What the current vectors rank high for a training query without being an answer: lists (Q, LISTED), -1 where none is known.

    In-batch negatives are other queries' answers, and hardly ever the one candidate that is nearest and wrong: the title of the
    very product whose photo is asked for, say. The lists are made anew a few times while a stage trains.
    """

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


class Rows:
    """Features by row, float32 on `device` whenever they are asked for: kept there while they are few, else left on the disk.

    M-BEIR's candidates are 17 GB in half precision and 34 GB in single, on every card; a step needs some megabytes of them.
    """

    def __init__(self, features: Features, device: torch.device) -> None:
        whole = 4 * len(features) * (features.image.shape[1] + features.text.shape[1]) <= HELD
        self.features = features.to(device, torch.float32) if whole else features
        self.device, self.whole = device, whole
        self.modality = features.modality.to(device)  # (N,)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor | slice) -> Features:
        if self.whole:
            return self.features[rows]
        place = rows.to(self.features.image.device) if isinstance(rows, Tensor) else rows
        return self.features[place].to(self.device, torch.float32)


class Points(Protocol):
    """z by row, on the training device: a tensor, or what makes the rows that are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor: ...


class Embedded:
    """z (N, D) of `rows`: made once and kept while it is small, else made anew of the rows that are asked for."""

    def __init__(self, rows: Rows, embed: Callable[[Features], Tensor], width: int) -> None:
        self.rows, self.embed = rows, embed
        self.kept = self[:] if 4 * len(rows) * width <= HELD else None

    kept: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        if self.kept is not None:
            return self.kept[rows]
        wanted = torch.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return torch.cat([self.embed(self.rows[part]) for part in wanted.split(EMBEDDED)])


class PairBatch(NamedTuple):
    rows: Tensor  # (B,) query numbers
    targets: Tensor  # (B,) pool rows, one positive of each
    wrong: Tensor | None  # (B,) pool rows near each query that do not answer it


class PairStage(Stage):
    """Queries and pool within reach of the training device (`Rows`), positives on it."""

    wrong_lists: Tensor  # (Q, L) int32, a buffer: a resumed run goes on with the lists it had

    def __init__(
        self,
        data: FeatureSet,
        validation: FeatureSet | None,
        config: PairConfig,
        width: int,
        seed: int,
        device: torch.device,
        kept: bool = False,  # whether a question keeps the answer that was drawn for it
    ) -> None:
        super().__init__()
        self.held_out, self.seed = validation, seed
        self.queries, self.pool = Rows(data.queries, device), Rows(data.pool, device)
        self.positives = Positives(data.pairs, len(data.queries)).to(device)
        self.draws = Draws(Order(data.visits(), config.batch, seed), self.positives, kept, seed)
        self.modality_weight = config.modality_weight
        if config.modality_weight > 0:
            start = torch.randn(3, width, generator=torch.Generator().manual_seed(seed))
            self.modality_means = nn.Parameter(start)  # a direction for each kind of answer
        self.hard = HardNegatives(config.hard_negatives, config.steps) if config.hard_negatives > 0 else None
        if self.hard is not None:
            self.register_buffer("wrong_lists", no_lists(len(data.queries)))

    @abstractmethod
    def embed(self, features: Features) -> Tensor:
        """Unit vectors of any number of rows, without gradients."""

    def embed_rows(self, source: Rows, rows: Tensor, chunk: int = 8192) -> Tensor:
        """Unit vectors of some rows, a part at a time."""
        return torch.cat([self.embed(source[part]) for part in rows.split(chunk)])

    def before_step(self, step: int) -> None:
        hard = self.hard
        if hard is not None and step in hard.at:
            once(lambda: self._mine(hard, step), lambda: [self.wrong_lists])

    def _mine(self, hard: HardNegatives, step: int) -> None:
        size, device = len(self.pool), self.pool.device
        asked, kept = hard.sample(len(self.queries), size, device, self.seed + step)
        vectors = self.embed_rows(self.queries, asked), self.embed_rows(self.pool, kept)
        hard.mine(self.wrong_lists, asked, vectors[0], kept, vectors[1], self.positives, size)

    def batch(self, step: int, micro: int, rank: int, world: int) -> PairBatch:
        rows, targets = self.drawn(step, micro)
        wrong = None
        if self.hard is not None and step >= min(self.hard.at):
            wrong = share(
                self.hard.draw(self.wrong_lists, rows, targets, draw_seed(self.seed, self.name, step, micro)), rank, world
            )
        return PairBatch(share(rows, rank, world), share(targets, rank, world), wrong)

    def drawn(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Questions and one answer of each, of the whole micro-batch."""
        return self.draws(step, micro, self.accumulate, step_seed(self.seed, self.name, step, micro))

    def contrast(
        self,
        batch: PairBatch,
        query: Tensor,
        target: Tensor,
        wrong: Tensor | None,
        *,
        temperature: float,
        symmetric: bool = True,
        all_positives: bool = True,
        weight: float = 1.0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """L_cl (Eq. 3) of unit vectors: all positives known, hard negatives beside the batch's own; plus the modality loss.
        Returns the sum, L_cl `weight` times in it, and what to log: each loss by itself. The modality loss has its own weight."""
        size = len(self.pool)
        positive = self.positives.matches(batch.rows, gather_rows(batch.targets), size) if all_positives else None
        answers = None
        if batch.wrong is not None:  # where no wrong one is known the query's own answer stands in: it must not count
            answers = self.positives.matches(batch.rows, gather_rows(batch.wrong), size)
        loss, accuracy = contrastive(
            query, target, temperature=temperature, positive=positive, symmetric=symmetric, more=wrong, more_positive=answers
        )
        logs = {"cl": loss, "accuracy": accuracy}
        loss = weight * loss
        if self.modality_weight > 0:
            logs["modality"] = self.modality_loss(query, target, self.pool.modality[batch.targets])
            loss = loss + self.modality_weight * logs["modality"]
        return loss, logs

    def modality_loss(self, query: Tensor, target: Tensor, modality: Tensor) -> Tensor:
        """z says which kind of thing it is, or asks for: cross-entropy over three directions.

        Training pairs alone do not teach it: a training query is nearer to its answer than to the same thing in another
        modality anyway, but an unseen product's title is nearer to the title than to the photo that was asked for.
        """
        directions = F.normalize(self.modality_means, dim=1).T / MODALITY_TEMPERATURE
        both = F.cross_entropy(query @ directions, modality) + F.cross_entropy(target @ directions, modality)
        return both / 2
