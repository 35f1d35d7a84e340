"""Stage 3: the generator (4.3, Eq. 9 to 11) on frozen z and codes, which are computed once.

The decoder reads shifted items (`genius.train.shifted`), or, as in the paper, augmented training questions (4.3.2). Knows
nothing of encoders; the quantizer is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.model.generator import SIZES, Generator, GeneratorConfig
from genius.model.nearness import ByModality
from genius.model.quantizer import ResidualQuantizer
from genius.ranking import nearest_rows
from genius.train.config import GeneratorStageConfig, ModelConfig
from genius.train.loop import Stage, step_seed
from genius.train.losses import code_loss
from genius.train.pairs import Draws, Order, Points, Positives, share
from genius.train.selection import answer_mask, dense_hits, generator_hits
from genius.train.shifted import Offsets, ShiftedItems

# What the decoder bends nearness by, |U h|^2, costs so many nats a unit. Without it a few thousand honest offsets are learned by
# heart, and every search by log p is worse, most of all for items that come later (docs/results/accuracy.md).
MODEST = 100.0
RIVALS = 32  # candidates of an honest question among which log p must rank its answer


def generator_config(model: ModelConfig) -> GeneratorConfig:
    return GeneratorConfig(
        width=model.width,
        level_sizes=model.level_sizes,
        prefix_tokens=model.prefix_tokens,
        normalizer="vocabulary" if model.constants.head == "table" else "level",  # the paper's is over all codes of all levels
        head=model.constants.head,
        **SIZES[model.decoder],  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Query augmentation (4.3.2). `linear` is Eq. 11, `scalar` the same at unit length, as questions are when they are
    searched with; `sqrt-per-dimension` is what the published code does, at unit length too."""

    form: Literal["questions", "linear", "scalar", "sqrt-per-dimension"] = "scalar"
    alpha: float = 2.0  # of Beta(alpha, alpha)

    def draw(self, rows: int, width: int, device: torch.device, seed: int) -> Tensor:
        """mu of a whole batch (B, 1) or (B, D), a function of `seed`: the same however many processes share it."""
        shape = (rows, width) if self.form == "sqrt-per-dimension" else (rows, 1)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            alpha = torch.full(shape, self.alpha, device=device)
            return torch.distributions.Beta(alpha, alpha).sample()

    def __call__(self, query: Tensor, target: Tensor, mu: Tensor) -> Tensor:
        """Interpolate unit vectors (B, D) by `mu` (`draw`)."""
        if self.form == "questions":
            return query
        mu = mu.to(query.dtype)
        if self.form == "sqrt-per-dimension":
            mixed = mu.sqrt() * query + (1 - mu).sqrt() * target
        else:
            mixed = mu * query + (1 - mu) * target  # Eq. 11
        return mixed if self.form == "linear" else F.normalize(mixed, dim=1)


@dataclass
class Frozen:
    """What the stage trains on: the outputs of the earlier stages, on the training device."""

    pool: Points  # (N, D) z
    modality: Tensor  # (N,)
    codes: Tensor  # (N, M)
    queries: Points | None = None  # (Q, D) z of the training questions, where they are what the decoder reads
    offsets: Offsets | None = None  # of honest questions


@dataclass
class Honest:
    """Questions to judge the decoder by, over the candidates it is judged on."""

    data: FeatureSet
    queries: Tensor  # (Q, D) z
    pool: Tensor  # (N', D) z
    codes: Tensor  # (N', M)


class Batch(NamedTuple):
    z: Tensor  # (B, D) inputs
    codes: Tensor  # (B, M) their IDs
    rows: ByModality  # which inputs are of which modality; empty: in any order


class GeneratorStage(Stage):
    """The decoder. Everything else is constant."""

    name = "generator"
    fixed_shapes = True

    def __init__(
        self,
        data: FeatureSet,
        frozen: Frozen,
        honest: Honest | None,
        quantizer: ResidualQuantizer,
        model: ModelConfig,
        config: GeneratorStageConfig,
        seed: int,
        beams: int = 20,
        generator: Generator | None = None,  # to train in place of one that `model` describes
    ) -> None:
        super().__init__()
        device = frozen.codes.device
        self.recipe, self.schedule = model.constants, model.constants.generator
        self.config, self.honest, self.beams, self.frozen, self.seed = config, honest, beams, frozen, seed
        self.__dict__["quantizer"] = quantizer  # frozen: not a submodule, so in no checkpoint of this stage
        torch.manual_seed(seed)
        self.generator = (Generator(generator_config(model), quantizer) if generator is None else generator).to(device)
        if self.recipe.codebook_scale > 0:
            self.generator.init_from_codebooks(quantizer.codebooks, self.recipe.codebook_scale)
        self.items: ShiftedItems | None = None
        if config.inputs == "items":
            self.items = ShiftedItems(frozen.pool, frozen.modality, frozen.codes, frozen.offsets, quantizer, config.virtual, seed)
            return
        if frozen.queries is None:
            raise GeniusError(f"inputs = {config.inputs!r} needs the training questions")
        self.augment = Augmentation(config.inputs)
        self.positives = Positives(data.pairs, len(data.queries)).to(device)
        self.draws = Draws(Order(data.visits(), config.batch, seed), self.positives, self.recipe.answers == "kept", seed)

    quantizer: ResidualQuantizer

    def batch(self, step: int, micro: int, rank: int, world: int) -> Batch:
        config, frozen = self.config, self.frozen
        seed = step_seed(self.seed, self.name, step, micro)
        if self.items is not None:
            return Batch(*self.items.draw(config.batch // self.accumulate, seed, rank, world))
        assert frozen.queries is not None
        rows, targets = self.draws(step, micro, self.accumulate, seed)
        mu = share(self.augment.draw(len(rows), self.quantizer.config.width, frozen.codes.device, seed), rank, world)
        rows, targets = share(rows, rank, world), share(targets, rank, world)
        return Batch(self.augment(frozen.queries[rows], frozen.pool[targets], mu), frozen.codes[targets], ())

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        states = self.generator.states(batch.z, batch.codes)
        log_p = self.generator.code_log_probs(batch.z, batch.codes, batch.rows or None, states)
        loss = code_loss(log_p, batch.codes, self.recipe.reduction)  # Eq. 10
        with torch.no_grad():
            right = torch.stack([(lp.argmax(1) == batch.codes[:, i]).float().mean() for i, lp in enumerate(log_p)])
        logs = {"ce": loss, "code1": right[min(1, len(right) - 1)], "codes": right.mean()}
        if self.generator.config.head == "codebooks":
            logs["bent"] = self.generator.nearness.bent(states)
            loss = loss + MODEST * logs["bent"]
        return loss, logs

    def validate(self) -> dict[str, float]:
        """Cross-entropy and accuracy of each code on honest questions, and what their searches find."""
        if self.honest is None:
            return {}
        honest, out = self.honest, {}
        pairs = honest.data.pairs.to(honest.pool.device)
        nats, right = self._judge(honest.queries[pairs[:, 0]], honest.codes[pairs[:, 1]])
        out["honest_ce"] = nats.mean().item()
        for level in range(len(nats)):
            out[f"code{level}_nats"], out[f"code{level}_right"] = nats[level].item(), right[level].item()
        out.update(dense_hits(honest.queries, honest.pool, honest.data))
        parts = (self.generator, self.quantizer, honest.codes, honest.pool, honest.queries)
        out.update(generator_hits(*parts, honest.data, self.beams))
        return out

    @torch.no_grad()
    def _judge(self, z: Tensor, codes: Tensor, chunk: int = 512) -> tuple[Tensor, Tensor]:
        """(M,) nats a code and (M,) share of codes foretold, of questions (P, D) whose answers have these codes (P, M)."""
        nats, right = (torch.zeros(codes.shape[1], device=z.device) for _ in range(2))
        for i in range(0, len(z), chunk):
            part = codes[i : i + chunk]
            for level, log_p in enumerate(self.generator.code_log_probs(z[i : i + chunk], part)):
                nats[level] -= log_p.gather(1, part[:, level : level + 1]).sum()
                right[level] += (log_p.argmax(1) == part[:, level]).sum()
        return nats / max(len(z), 1), right / max(len(z), 1)

    def quick(self) -> float | None:
        """Mean reciprocal rank, by log p, of the first answer among the candidates that dense search puts first."""
        if self.honest is None:
            return None
        return self._reciprocal_rank(self.honest)

    @torch.no_grad()
    def _reciprocal_rank(self, honest: Honest, chunk: int = 64) -> float:
        near = nearest_rows(honest.queries, honest.pool, RIVALS)  # (Q, C)
        answers = answer_mask(near, honest.data)
        total = 0.0
        for i in range(0, len(near), chunk):
            rows, right = near[i : i + chunk], answers[i : i + chunk]
            z = honest.queries[i : i + chunk].repeat_interleave(rows.shape[1], 0)
            log_p = self.generator(z, honest.codes[rows.flatten()]).sum(1).view(rows.shape)
            best = log_p.masked_fill(~right, -torch.inf).amax(1, keepdim=True)  # -inf: no answer among them, worth nothing
            total += (1 / (1 + (log_p > best).sum(1)) * right.any(1)).sum().item()
        return total / max(len(near), 1)
