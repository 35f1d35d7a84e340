"""Stage 2: fusion and codebooks (4.2.4, Eq. 7 and 8), with L_cl once more on the codes' reconstructions.

Codebooks move by exponential averages and k-means, the fusion by gradients. Knows nothing of decoders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.features import Features
from genius.model.config import FusionConfig, QuantizerConfig
from genius.model.quantizer import Fusion, ResidualQuantizer, build_quantizer
from genius.train.config import ModelConfig, QuantizerStageConfig
from genius.train.losses import gather_halves, once, reconstruction_loss, residual_loss
from genius.train.metrics import dense_hits
from genius.train.pairs import FeatureRows, PairBatch, PairStage

KMEANS_SAMPLE = 200_000  # vectors for k-means (the whole training set below that)
# When codebooks are fitted again at the end of the stage:
JOINT_SWEEPS = 3  # sweeps that fit the later levels' codebooks to each other
VECTORS_PER_CODE = 8  # a modality with fewer items also learns its later codes from points between them
# Modality and two codes: after them most IDs are distinct, so beams are chosen by them. The second code must be near by
# itself, not only after later codes have corrected it, and is therefore not chosen again.
SETTLED = 3
COLLAPSED = 0.1  # perplexity of a level below this share of its codebook is a collapse
SAMPLE = 8192  # items whose codes are counted for that


def quantizer_config(model: ModelConfig) -> QuantizerConfig:
    """The quantizer of a recipe."""
    given = model.modality_code in ("given", "classifier")
    return QuantizerConfig(
        width=model.width,
        level_sizes=model.level_sizes,
        modality_code=model.modality_code,
        shared=model.shared,
        gradient=model.constants.gradient,
        published_revival=model.constants.published_revival,
        family=model.quantizer,
        encode_sweeps=model.encode_sweeps,
        settled=SETTLED,
        modality_codebooks_from=int(model.constants.modality_codebooks and given and not model.shared),
    )


class QuantizerStage(PairStage):
    """Fusion h and the residual quantizer on pairs of encoder features."""

    name = "quantizer"

    def __init__(
        self,
        data: FeatureSet,
        validation: FeatureSet | None,
        model: ModelConfig,
        config: QuantizerStageConfig,
        seed: int,
        device: torch.device,
    ) -> None:
        if config.contrastive_weight == 0:
            config = dataclasses.replace(config, hard_negatives=0)  # they take part in L_cl alone
        self.recipe = model.constants
        fixed = self.recipe.positives == "fixed"
        super().__init__(data, validation, config, model.width, seed, device, fixed=fixed)
        self.config = config
        self.schedule = self.recipe.quantizer
        torch.manual_seed(seed)
        self.fusion = Fusion(FusionConfig(model.width, model.projection, model.hidden))
        if self.recipe.start_from_sum:
            nn.init.zeros_(self.fusion.mix_output.weight)  # z = normalised (image + text) / 2: the encoder's own embedding
            nn.init.zeros_(self.fusion.mix_output.bias)
            nn.init.zeros_(self.fusion.balance_output.weight)
            nn.init.zeros_(self.fusion.balance_output.bias)
        self.quantizer = build_quantizer(quantizer_config(model))
        self.first_quantized = round(config.quantize_from * config.steps)
        self.step = 0

    # -- a step --------------------------------------------------------------------------------------------------

    def before_step(self, step: int) -> None:
        super().before_step(step)
        self.step = step
        if step == self.first_quantized:
            self.initialise()

    def forward(self, batch: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        parts = [self.queries[batch.rows], self.pool[batch.targets]]
        if batch.negatives is not None:
            parts.append(self.pool[batch.negatives])
        z = self.fusion(Features.cat(parts)).float()
        with torch.autocast(z.device.type, enabled=False):
            return self.losses(z, batch)

    def losses(self, z: Tensor, batch: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 8 on `z` (2B or 3B, D): B queries, their B targets, perhaps B hard negatives, which take part in L_cl alone.
        A query's modality code is its target's."""
        config = self.config
        recipe = self.recipe
        size = len(batch.rows)
        query = z[:size]
        target = z[size : 2 * size]
        negatives = None if batch.negatives is None else z[2 * size :]
        loss, logs = self.contrast(
            batch,
            query,
            target,
            negatives,
            temperature=config.temperature,
            symmetric=recipe.symmetric,
            all_positives=recipe.all_positives,
            weight=config.contrastive_weight,
        )
        modality = self.pool.modality[batch.targets]
        if self.step < self.first_quantized:
            return loss, logs
        quantized = self.quantizer.quantize(z[: 2 * size], modality.repeat(2))
        q_hat, c_hat = quantized.vectors.chunk(2)
        rq = residual_loss(quantized.residuals, quantized.chosen)
        mse = reconstruction_loss(q_hat, c_hat)
        loss = loss + config.rq_weight * rq + config.mse_weight * mse  # Eq. 8
        logs.update(rq=rq, mse=mse)
        if config.codes_weight > 0 and config.contrastive_weight > 0:  # without L_cl there is none on codes either
            negatives_hat = None
            if negatives is not None and batch.negatives is not None:
                decoded = self.quantizer.quantize(negatives, self.pool.modality[batch.negatives]).vectors
                negatives_hat = F.normalize(decoded, dim=1)
            ranking, _ = self.contrast(
                batch,
                query,
                F.normalize(c_hat, dim=1),
                negatives_hat,
                temperature=config.temperature,
                symmetric=False,
                all_positives=recipe.all_positives,
            )
            loss = loss + config.codes_weight * ranking
            logs["codes"] = ranking
        if self.training:
            self.quantizer.update(quantized.codes, quantized.residuals, gather_halves)
        return loss, logs

    # -- codebooks -----------------------------------------------------------------------------------------------

    def embed(self, features: Features) -> Tensor:
        return self.fusion.embed(features)

    def initialise(self, pool_only: bool = False) -> None:
        """Fit the codebooks, in one process for all."""
        once(lambda: self._fit(pool_only), self.quantizer.buffers)

    @torch.no_grad()
    def _fit(self, pool_only: bool) -> None:
        """k-means, level after level: on a sample of the pool and the queries with their targets' modality, or, as in
        the paper, on the first batch."""
        if self.recipe.kmeans_from == "first-batch" and not pool_only:
            drawn = [self.drawn(self.step, micro) for micro in range(self.accumulate)]
            rows, targets = (torch.cat(parts) for parts in zip(*drawn, strict=True))
            z = torch.cat([self.embed_rows(self.queries, rows), self.embed_rows(self.pool, targets)])
            modality = self.pool.modality[targets].repeat(2)
            self.quantizer.initialise(z, modality, self.config.kmeans_iterations, self.seed)
            return
        size = len(self.pool)
        device = self.pool.device
        count = size
        if not pool_only:
            count += len(self.queries)
        picked = torch.arange(count)
        if count > KMEANS_SAMPLE:  # drawn before anything is embedded: z of everything would not fit on a GPU
            picked = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))[:KMEANS_SAMPLE]
        picked = picked.to(device)
        items = (picked < size).nonzero()[:, 0]
        queries = (picked >= size).nonzero()[:, 0]
        z = torch.empty(len(picked), self.fusion.config.width, device=device)
        modality = torch.empty(len(picked), dtype=torch.long, device=device)
        z[items] = self.embed_rows(self.pool, picked[items])
        modality[items] = self.pool.modality[picked[items]]
        if len(queries):
            rows = picked[queries] - size
            z[queries] = self.embed_rows(self.queries, rows)
            modality[queries] = self.pool.modality[self.positives.rows[self.positives.starts[rows]]]
        sweeps = 0
        vectors_per_code = 0
        if pool_only and self.recipe.refit:
            sweeps = JOINT_SWEEPS
            vectors_per_code = VECTORS_PER_CODE
        self.quantizer.initialise(
            z,
            modality,
            self.config.kmeans_iterations,
            self.seed,
            sweeps,
            vectors_per_code,
        )

    @torch.no_grad()
    def codes(self, rows: FeatureRows, chunk: int = 8192) -> Tensor:
        """(N, M) IDs in passes: z of one part at a time."""
        parts = [slice(i, i + chunk) for i in range(0, len(rows), chunk)]
        return torch.cat([self.quantizer.encode(self.embed(rows[part]), rows.modality[part]) for part in parts])

    def finish(self) -> None:
        """After the last step: fit the codebooks once more, to the pool's embeddings."""
        if self.recipe.refit or self.config.steps <= self.first_quantized:
            self.initialise(pool_only=True)

    def validate(self) -> dict[str, float]:
        """Dense hit rates, those of the codes' reconstructions, and the statistics of every level."""
        out: dict[str, float] = {}
        codes = self.codes(self.pool)
        for level, values in enumerate(self.quantizer.statistics(codes)):
            out.update({f"level{level}_{name}": value for name, value in values.items()})
        out["distinct_ids"] = torch.unique(codes, dim=0).shape[0] / max(codes.shape[0], 1)
        if self.held_out is None:
            return out
        queries = self.embed(self.held_out.queries)
        pool = self.embed(self.held_out.pool)
        codes = self.quantizer.encode(pool, self.held_out.pool.modality.to(pool.device))
        out.update(dense_hits(queries, pool, self.held_out))
        out.update(dense_hits(queries, nn.functional.normalize(self.quantizer.decode(codes), dim=1), self.held_out, "codes"))
        return out

    def problems(self, progress: float, values: Mapping[str, float]) -> dict[str, str]:
        """A collapse of the codebooks."""
        if self.step < self.first_quantized and progress < 1:
            return {}  # not fitted yet
        return self.collapsed()

    @torch.no_grad()
    def collapsed(self) -> dict[str, str]:
        """A level that uses few of its codes, counted on a sample of the pool."""
        rows = torch.linspace(0, len(self.pool) - 1, min(SAMPLE, len(self.pool)), device=self.pool.device).long()
        codes = self.quantizer.encode(self.embed_rows(self.pool, rows), self.pool.modality[rows])
        return collapsed_levels(self.quantizer, codes)


def collapsed_levels(quantizer: ResidualQuantizer, codes: Tensor) -> dict[str, str]:
    """A line for the first level after the modality whose codes (N, M) use less than a tenth of its codebook."""
    first = int(quantizer.config.labelled)
    for level, values in enumerate(quantizer.statistics(codes)):
        usable = min(quantizer.config.level_sizes[level], len(codes))
        if level < first or values["perplexity"] >= COLLAPSED * usable:
            continue
        line = (
            f"the quantizer has collapsed: level {level} uses {values['perplexity']:.0f} of {usable:,} codes (perplexity). "
            "Different items get equal IDs. Try a lower quantizer.lr, quantizer.rq_weight and quantizer.mse_weight, "
            "a larger quantizer.batch, or smaller model.level_sizes"
        )
        return {"collapse": line}
    return {}
