"""Stage 1, heads: contrastive training (Eq. 2 and 3) of small maps on top of frozen towers.

The towers' vectors come as a `FeatureSet`, extracted once. Whole towers are `genius.train.towers`. Knows nothing of
codes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.encoders.heads import Heads
from genius.features import Features
from genius.model.fusion import score_fusion
from genius.train.config import EncoderStageConfig
from genius.train.pairing import PairBatch, PairStage
from genius.train.validate import dense_hits, quick_hits


class HeadsStage(PairStage):
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
        super().__init__(data, validation, config, width, seed, device)
        self.config = config
        torch.manual_seed(seed)
        self.heads = Heads(data.queries.image.shape[1], data.queries.text.shape[1], width, config.hidden, config.dropout)

    def forward(self, batch: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        query, target = self._embed(self.queries[batch.rows]), self._embed(self.pool[batch.targets])
        wrong = None if batch.wrong is None else self._embed(self.pool[batch.wrong])
        with torch.autocast(query.device.type, enabled=False):  # similarities over a temperature need float32
            return self.contrast(batch, query, target, wrong, temperature=self.config.temperature)

    @torch.no_grad()
    def embed(self, features: Features, chunk: int = 8192) -> Tensor:
        was = self.heads.training
        self.heads.eval()
        parts = [score_fusion(self.heads(features[i : i + chunk])) for i in range(0, len(features), chunk)]
        self.heads.train(was)
        return torch.cat(parts)

    def _embed(self, towers: Features) -> Tensor:
        features = self.heads(towers)
        return F.normalize(
            score_fusion(Features(features.image.float(), features.text.float(), features.image_mask, features.text_mask)), dim=1
        )

    def validate(self) -> dict[str, float]:
        return {} if self.held_out is None else dense_hits(*self._honest(self.held_out), self.held_out)

    def quick(self) -> float | None:
        return None if self.held_out is None else quick_hits(*self._honest(self.held_out), self.held_out)

    def _honest(self, data: FeatureSet) -> tuple[Tensor, Tensor]:
        return score_fusion(self.heads.apply_chunked(data.queries)), score_fusion(self.heads.apply_chunked(data.pool))
