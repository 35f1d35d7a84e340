"""What the two contrastive stages share: a step is queries, one drawn positive each, and hard negatives once they are known.

Knows features, positives and the order of examples; what is trained and by which loss is each stage's own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.features import Features
from genius.train.config import PairConfig
from genius.train.loop import Stage
from genius.train.losses import contrastive
from genius.train.processes import gather_rows, once
from genius.train.sampling import Draws, HardNegatives, Order, Positives, Rows, draw_seed, no_lists, share, step_seed

MODALITY_TEMPERATURE = 0.1  # of the loss that makes z say which modality it is


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
