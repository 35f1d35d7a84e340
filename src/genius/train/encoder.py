"""Stage 1, heads: contrastive training (Eq. 2 and 3) of small maps on top of frozen towers.

The towers' vectors come as a `FeatureSet`, extracted once. Whole towers are `genius.train.towers`. Knows nothing of
codes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.features import Features
from genius.model.fusion import score_fusion
from genius.model.heads import Heads
from genius.train.config import EncoderStageConfig
from genius.train.loop import Stage
from genius.train.losses import contrastive, gather_rows
from genius.train.sampling import Order, Positives, share, step_seed
from genius.train.validate import dense_hits


class HeadsStage(Stage):
    """Heads on frozen towers; the example is a query with one of its positives, drawn anew every time."""

    name = "encoder"

    def __init__(
        self,
        data: FeatureSet,
        validation: FeatureSet | None,
        width: int,
        config: EncoderStageConfig,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.config, self.held_out, self.seed = config, validation, seed
        torch.manual_seed(seed)
        self.heads = Heads(data.queries.image.shape[1], data.queries.text.shape[1], width, config.hidden, config.dropout)
        self.queries, self.pool = data.queries.to(device, torch.float32), data.pool.to(device, torch.float32)
        self.positives = Positives(data.pairs, len(data.queries)).to(device)
        self.order = Order(len(data.queries), config.batch, seed)
        self.spread = (
            self.pool.image[self.pool.image_mask].std(0) if self.pool.image_mask.any() else torch.zeros((), device=device),
            self.pool.text[self.pool.text_mask].std(0) if self.pool.text_mask.any() else torch.zeros((), device=device),
        )

    def batch(self, step: int, micro: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        rows = self.order(step).chunk(self.config.accumulate)[micro].to(self.queries.image.device)
        targets = self.positives.draw(
            rows, step_seed(self.seed, self.name, step, micro)
        )  # of the whole batch: the same on every process
        return share(rows, rank, world), share(targets, rank, world)

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        rows, targets = batch
        query, target = self._embed(self.queries[rows]), self._embed(self.pool[targets])
        positive = self.positives.matches(rows, gather_rows(targets), len(self.pool))
        with torch.autocast(query.device.type, enabled=False):  # similarities over a temperature need float32
            loss, accuracy = contrastive(
                query, target, temperature=self.config.temperature, positive=positive, symmetric=self.config.symmetric
            )
        return loss, {"accuracy": accuracy}

    def _embed(self, towers: Features) -> Tensor:
        if self.config.noise > 0:
            image = towers.image + self.config.noise * self.spread[0] * torch.randn_like(towers.image)
            text = towers.text + self.config.noise * self.spread[1] * torch.randn_like(towers.text)
            towers = Features(image, text, towers.image_mask, towers.text_mask)
        features = self.heads(towers)
        return F.normalize(
            score_fusion(Features(features.image.float(), features.text.float(), features.image_mask, features.text_mask)), dim=1
        )

    def validate(self) -> dict[str, float]:
        if self.held_out is None:
            return {}
        pool = score_fusion(self.heads.apply_chunked(self.held_out.pool))
        queries = score_fusion(self.heads.apply_chunked(self.held_out.queries))
        return dense_hits(queries, pool, self.held_out)
