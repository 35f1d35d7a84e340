"""Stage 3: the generator (4.3, Eq. 9 to 11) on frozen z and codes, which are computed once.

An example is a query pair (augmented, 4.3.2); indexing pairs and virtual items (`genius.train.indexing`) come on top.
Knows nothing of encoders; the quantizer is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.features import Features
from genius.model.generator import SIZES, Augmentation, Generator, GeneratorConfig
from genius.model.quantizer import ResidualQuantizer
from genius.train.config import GeneratorStageConfig, ModelConfig
from genius.train.indexing import Indexing
from genius.train.loop import Stage
from genius.train.losses import prefix_ranking, soft_target_loss
from genius.train.sampling import Order, Positives, share, step_seed
from genius.train.validate import dense_hits, generator_hits, nearest_rows

SOFT_LIMIT = 8  # positives of one query that a step looks at


def generator_config(model: ModelConfig) -> GeneratorConfig:
    return GeneratorConfig(
        width=model.width,
        level_sizes=model.level_sizes,
        prefix_tokens=model.prefix_tokens,
        dropout=model.dropout,
        normalizer=model.normalizer,
        **SIZES[model.decoder],
    )


@dataclass
class Frozen:
    """What the stage trains on: the outputs of the earlier stages, on the training device."""

    queries: Tensor  # (Q, D) z
    queries_without_text: Tensor | None  # (Q, D) z of the picture alone (modality dropout)
    two_parts: Tensor  # (Q,) bool
    pool: Tensor  # (N, D) z
    pool_parts: Tensor | None  # (2, N, D)
    modality: Tensor  # (N,)
    codes: Tensor  # (N, M)


class Batch(NamedTuple):
    z: Tensor  # (R, D) inputs
    codes: Tensor  # (R, P, M) candidate IDs, the fed one first
    weights: Tensor  # (R, P)
    queries: int  # how many of the rows are query pairs; they come first
    rows: Tensor  # (B,) query numbers


class GeneratorStage(Stage):
    """The decoder. Everything else is constant."""

    name = "generator"
    fixed_shapes = True

    def __init__(
        self,
        data: FeatureSet,
        validation: FeatureSet | None,
        frozen: Frozen,
        validation_z: Tensor | None,
        quantizer: ResidualQuantizer,
        model: ModelConfig,
        config: GeneratorStageConfig,
        seed: int,
        beams: int = 20,
    ) -> None:
        super().__init__()
        device = frozen.pool.device
        self.config, self.held_out, self.held_out_z, self.beams = config, validation, validation_z, beams
        self.frozen, self.seed = frozen, seed
        self.__dict__["quantizer"] = quantizer  # frozen: not a submodule, so in no checkpoint of this stage
        torch.manual_seed(seed)
        self.generator = Generator(generator_config(model)).to(device)
        if config.codebook_scale > 0 and quantizer.config.own_books_from:
            raise GeniusError("codebook_scale needs one codebook a level for all modalities: set model.own_books_from = 0")
        if config.codebook_scale > 0:
            self.generator.init_from_codebooks(quantizer.codebooks, config.codebook_scale)
        self.augment = Augmentation(config.augmentation, config.alpha, config.keep)
        self.positives = Positives(data.pairs, len(data.queries)).to(device)
        self.order = Order(len(data.queries), config.batch, seed)
        self.near: Tensor | None = None
        if config.distill_weight > 0 or config.ranking_weight > 0:
            self.near = nearest_rows(frozen.queries, frozen.pool, config.distill_candidates)
        pairs = data.pairs.to(device)
        if pairs.shape[0] > 500_000:
            pairs = pairs[torch.randperm(pairs.shape[0], generator=torch.Generator().manual_seed(seed))[:500_000].to(device)]
        offsets = frozen.queries[pairs[:, 0]] - frozen.pool[pairs[:, 1]]
        modality = frozen.modality[pairs[:, 1]]
        self.indexing = Indexing(
            frozen.pool, frozen.modality, frozen.codes, offsets, modality, quantizer, config, frozen.pool_parts
        )

    def batch(self, step: int, micro: int, rank: int, world: int) -> Batch:
        config, frozen = self.config, self.frozen
        rows = self.order(step).chunk(config.accumulate)[micro].to(frozen.pool.device)
        targets = share(self.positives.draw(rows, step_seed(self.seed, self.name, step, micro)), rank, world)
        rows = share(rows, rank, world)
        z = frozen.queries[rows]
        if frozen.queries_without_text is not None:
            lost = (torch.rand(rows.shape, device=rows.device) < config.modality_dropout) & frozen.two_parts[rows]
            z = torch.where(lost[:, None], frozen.queries_without_text[rows], z)
        z = self.augment(z, frozen.pool[targets])  # Eq. 11
        if config.soft_positives:
            table, real = self.positives.table(rows, targets, SOFT_LIMIT)
        else:
            table, real = targets[:, None], torch.ones_like(targets[:, None], dtype=torch.bool)
        codes, weights = frozen.codes[table], real.float()
        inputs, ids = [z], []
        if (count := round(config.indexing * len(rows))) > 0:
            shifted, own = self.indexing.items(count)
            inputs.append(shifted)
            ids.append(own)
        if (count := round(config.virtual * len(rows))) > 0:
            shifted, own = self.indexing.virtual(count)
            inputs.append(shifted)
            ids.append(own)
        if ids:
            extra = torch.cat(ids)[:, None].expand(-1, codes.shape[1], -1)
            codes = torch.cat([codes, extra])
            worth = torch.zeros(extra.shape[:2], device=z.device)
            worth[:, 0] = 1
            weights = torch.cat([weights, worth])
        return Batch(torch.cat(inputs), codes, weights, len(rows), rows)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        fed = batch.codes[:, 0]
        log_p = self.generator.code_log_probs(batch.z, fed)
        loss = soft_target_loss(log_p, batch.codes, batch.weights, self.config.label_smoothing)  # Eq. 10
        with torch.no_grad():
            right = torch.stack(
                [(lp[: batch.queries].argmax(1) == fed[: batch.queries, i]).float().mean() for i, lp in enumerate(log_p)]
            )
        logs = {"ce": loss, "code1": right[min(1, len(right) - 1)], "codes": right.mean()}
        if self.near is not None:
            extra, more = self._teacher(batch, log_p)
            loss = loss + extra
            logs.update(more)
        return loss, logs

    def _teacher(self, batch: Batch, log_p: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses that follow the dense ranking of each query's nearest items."""
        config, frozen, n = self.config, self.frozen, batch.queries
        assert self.near is not None
        near = self.near[batch.rows]  # (B, C) pool rows, best first
        total, logs = batch.z.new_zeros(()), {}
        if config.distill_weight > 0:
            scores = (frozen.pool[near] @ frozen.queries[batch.rows][:, :, None])[:, :, 0] / config.distill_temperature
            # the fed ID leads with a weight too small to matter unless no neighbour shares its prefix
            codes = torch.cat([batch.codes[:n, :1], frozen.codes[near]], 1)
            weights = torch.cat([torch.full_like(scores[:, :1], 1e-4), scores.softmax(1)], 1)
            logs["distill"] = soft_target_loss([lp[:n] for lp in log_p], codes, weights)
            total = total + config.distill_weight * logs["distill"]
        if config.ranking_weight > 0:
            wrong = ~(near[:, :, None] == self.positives.table(batch.rows, near[:, 0], SOFT_LIMIT)[0][:, None, 1:]).any(2)
            pick = (torch.rand_like(wrong, dtype=torch.float) * wrong).argmax(1)
            codes = frozen.codes[near.gather(1, pick[:, None])[:, 0]]
            fed = batch.codes[:n, 0]
            positive = torch.stack([lp[:n].gather(1, fed[:, i : i + 1])[:, 0] for i, lp in enumerate(log_p)], 1)
            differs = (codes != fed).cumsum(1) > 0
            logs["ranking"] = prefix_ranking(positive, self.generator(batch.z[:n], codes), differs, config.ranking_margin)
            total = total + config.ranking_weight * logs["ranking"]
        return total, logs

    def validate(self) -> dict[str, float]:
        if self.held_out is None or self.held_out_z is None:
            return {}
        out = dense_hits(self.held_out_z, self.frozen.pool, self.held_out)
        out.update(
            generator_hits(
                self.generator, self.quantizer, self.frozen.codes, self.frozen.pool, self.held_out_z, self.held_out, self.beams
            )
        )
        return out

    quantizer: ResidualQuantizer


@torch.no_grad()
def freeze(stage_embed: object, data: FeatureSet, quantizer: ResidualQuantizer, dropout: bool) -> Frozen:
    """z and codes of everything, once. `stage_embed` maps Features to z."""
    embed = stage_embed
    assert callable(embed)
    pool = embed(data.pool)
    modality = data.pool.modality.to(pool.device)
    two = data.queries.image_mask & data.queries.text_mask
    alone = parts = None
    if dropout:
        has = data.queries.image_mask
        query = Features(data.queries.image, data.queries.text, has, data.queries.text_mask & ~has)
        alone = embed(query)
        item = data.pool
        keep_image = Features(item.image, item.text, item.image_mask, item.text_mask & ~item.image_mask)
        keep_text = Features(item.image, item.text, item.image_mask & ~item.text_mask, item.text_mask)
        parts = torch.stack([embed(keep_image), embed(keep_text)])
    codes = quantizer.encode(pool, modality)
    return Frozen(embed(data.queries), alone, two.to(pool.device), pool, parts, modality, codes)
