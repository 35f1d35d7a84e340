"""Stage 3: the generator (4.3, Eq. 9 to 11) on frozen z and codes, which are computed once; and what the decoder learns from.

It reads shifted items, or, as in the paper, augmented training questions (4.3.2). A question stands at some distance from its
answer. Training questions do not show it: earlier stages have pulled them to their answers. So no training question is shown. An
input is an item, or a point between items, moved by the offset of a *held-out* question whose answer lies nearby, scaled at
random, and as far again in any direction; its target is the item's ID. The second move keeps the decoder modest: there are few
honest offsets, they span little, and what they span is soon seen through. Without any question, offsets are random directions.
Most of these items are virtual, with an *invented* ID, so that IDs that nobody has yet can be written too: the first codes of an
item, then codes that are drawn evenly. Even codes have a second use: a decoder learns how likely a code is *a priori*, and what
is likely a priori is no better answer. With even codes log p says how well an ID fits the question, and nothing else. Knows
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
from genius.model.generator import SIZES, ByModality, Generator, GeneratorConfig
from genius.model.quantizer import ResidualQuantizer
from genius.ranking import nearest_rows
from genius.train.config import GeneratorStageConfig, ModelConfig
from genius.train.holdout import answer_mask, dense_hits, generator_hits
from genius.train.loop import Stage, step_seed
from genius.train.losses import code_loss
from genius.train.pairs import Draws, Order, Points, Positives, share

KEPT = 2  # codes that an invented ID has from an item: the modality and the first one
MOST_ITEMS = 500_000  # of a larger pool, so many are drawn to learn from
NEARBY = 8  # honest answers around an item whose offsets it is moved by
UNKNOWN = 0.8  # how far questions stand from their answers where no honest question says


class Offsets(NamedTuple):
    """How honest questions differ from their answers."""

    vectors: Tensor  # (P, D) question minus answer
    answers: Tensor  # (P, D) z of the answers
    modality: Tensor  # (P,) of the answers
    tasks: Tensor  # (P,) of the questions: what is asked with and for


def honest_offsets(questions: Tensor, tasks: Tensor, pairs: Tensor, pool: Points, modality: Tensor, seed: int) -> Offsets:
    """One random answer of each question (Q, D); `pairs` (P, 2) name rows of questions and of the pool (N, D)."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)).to(pairs.device)
    chosen = torch.full((len(questions),), -1, dtype=torch.long, device=pairs.device)
    chosen[pairs[order, 0]] = pairs[order, 1]  # the last one named stays
    asked = (chosen >= 0).nonzero()[:, 0]
    answers = chosen[asked]
    z = pool[answers]
    return Offsets(questions[asked] - z, z, modality[answers], tasks[asked])


class Directions:
    """Draws offsets for items: those of honest questions whose answers lie nearby, and ever new ones between two of them.

    Nearby, because a question is vague along what its answer's neighbours share: taken elsewhere the same offset is easily seen
    through, and a decoder that learns to see through it trusts z too far. New, because a few thousand offsets are soon known by
    heart.
    """

    def __init__(self, offsets: Offsets, pool: Tensor, modality: Tensor) -> None:
        """`pool` (N, D) and `modality` (N,) are the items that offsets will be drawn for."""
        self.offsets, self.near = offsets, torch.full((len(pool), NEARBY), -1, dtype=torch.long, device=pool.device)
        for kind in range(3):
            own, items = ((part == kind).nonzero()[:, 0] for part in (offsets.modality, modality))
            count = min(NEARBY, len(own))
            if count and len(items):
                self.near[items, :count] = own[nearest_rows(pool[items], offsets.answers[own], count)]
        lengths = offsets.vectors.norm(dim=1)
        self.length = lengths.mean() if len(lengths) else torch.tensor(UNKNOWN, device=pool.device)

    def draw(self, rows: Tensor, random: torch.Generator) -> Tensor:
        """(n, D) for items `rows` (n,)."""
        device, width = rows.device, self.offsets.vectors.shape[1]
        any_way = self.length * F.normalize(torch.randn(len(rows), width, generator=random, device=device), dim=1)
        if not len(self.offsets.vectors):
            return any_way
        near = self.near[rows]
        known = (near >= 0).sum(1)
        first, second = (near.gather(1, _pick(known.clamp(min=1), random)[:, None])[:, 0].clamp(min=0) for _ in range(2))
        vectors, tasks = self.offsets.vectors, self.offsets.tasks
        part = torch.rand(len(rows), 1, generator=random, device=device)
        part = torch.where((tasks[first] == tasks[second])[:, None], part, torch.zeros_like(part))
        one, other = vectors[first], vectors[second]
        length = torch.lerp(one.norm(dim=1, keepdim=True), other.norm(dim=1, keepdim=True), part)
        between = length * F.normalize(torch.lerp(one, other, part), dim=1)
        return torch.where((known > 0)[:, None], between, any_way)  # nobody asked for this kind: any direction


def _pick(among: Tensor, random: torch.Generator) -> Tensor:
    """(n,) a random whole number below each of `among` (n,)."""
    drawn = torch.rand(len(among), generator=random, device=among.device)
    return torch.minimum((drawn * among).long(), among - 1)


class ShiftedItems:
    """Draws training inputs. All tensors on one device; every batch has the same shape, modality after modality."""

    # An honest offset is scaled by a random number between these, and the item moved in any direction beside it, by this share
    # of its length. Chosen on held-out questions (docs/results/accuracy.md).
    shortest, longest, aside = 0.8, 1.4, 1.0

    def __init__(
        self,
        points: Points,  # (N, D) z of the items
        modality: Tensor,  # (N,)
        codes: Tensor,  # (N, M)
        offsets: Offsets | None,
        quantizer: ResidualQuantizer,
        virtual: float,  # share of the inputs that start from no item but from an invented one
        seed: int,
    ) -> None:
        self.virtual, device = virtual, codes.device
        random = torch.Generator(device).manual_seed(seed)
        some: Tensor | slice = slice(None)
        if len(points) > MOST_ITEMS:
            some = torch.randperm(len(points), generator=random, device=device)[:MOST_ITEMS]
        pool, modality, codes = points[some], modality[some], codes[some]
        self.z, self.codes, self.quantizer = pool, codes, quantizer
        self.rows = [(modality == kind).nonzero()[:, 0] for kind in range(3)]
        self.directions = Directions(offsets or Offsets(pool[:0], pool[:0], modality[:0], modality[:0]), pool, modality)

    def counts(self, batch: int) -> list[int]:
        """How many inputs of each modality a batch holds: as many of each that the pool has. A modality of few items is no
        worse an answer, so log p must not learn that it is rare."""
        held = torch.tensor([float(len(rows) > 0) for rows in self.rows])
        unit = 1 << max((batch // 16).bit_length() - 1, 0)  # so that several processes can have the same part of each
        each = (held / held.sum() * batch / unit).round().long().clamp(min=1) * unit * (held > 0)
        each[int(held.argmax())] += batch - int(each.sum())
        return [int(n) for n in each]

    def draw(self, batch: int, seed: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor, ByModality]:
        """Inputs (B, D), their IDs (B, M), and the rows of each modality: this process's part of a batch."""
        random = torch.Generator(self.z.device).manual_seed(seed)
        inputs, ids, blocks, start = [], [], [], 0
        for kind, count in enumerate(self.counts(batch)):
            if not count:
                continue
            if count % world:
                raise GeniusError(f"a batch of {batch} inputs does not divide among {world} processes: use a larger one")
            z, codes = self._of(kind, count, random)
            z, codes = z.chunk(world)[rank], codes.chunk(world)[rank]
            inputs.append(z)
            ids.append(codes)
            blocks.append((kind, slice(start, start + len(z))))
            start += len(z)
        return torch.cat(inputs), torch.cat(ids), blocks

    def _of(self, kind: int, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        device = self.z.device

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=random, device=device)

        rows = self.rows[kind]
        rows = rows[_pick(torch.full((count,), len(rows), device=device), random)]
        offsets = self.directions.draw(rows, random)
        z, ids = self._invented(self.codes[rows], random)
        virtual = uniform(count, 1) < self.virtual
        z, ids = torch.where(virtual, z, self.z[rows]), torch.where(virtual, ids, self.codes[rows])
        scale = self.shortest + (self.longest - self.shortest) * uniform(count, 1)
        aside = F.normalize(torch.randn(offsets.shape, generator=random, device=device), dim=1)
        moved = scale * (offsets + self.aside * offsets.norm(dim=1, keepdim=True) * aside)
        return F.normalize(z + moved, dim=1), ids

    def _invented(self, codes: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Made-up items (n, D) and their IDs (n, M): the first codes of an item, later ones drawn evenly."""
        ids = codes.clone()
        for level in range(KEPT, codes.shape[1]):
            size = self.quantizer.config.level_sizes[level]
            ids[:, level] = torch.randint(size, (len(codes),), generator=random, device=codes.device)
        return F.normalize(self.quantizer.decode_prefix(ids), dim=1), ids


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
            logs["bent"] = self.generator.codebook_head.bent(states)
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
