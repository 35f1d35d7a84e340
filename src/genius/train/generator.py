"""Stage 3: the generator (4.3, Eq. 9 to 11) on frozen z and codes, which are computed once; and its training inputs.

The decoder reads shifted items, or, as in the paper, augmented training queries (4.3.2). A query stands at some distance
from its positive. Training queries do not show that distance: earlier stages have pulled them to their positives.
So by default no training query is used. An input is an item, or a synthetic one, moved by the offset of a *held-out*
query whose positive lies nearby, scaled at random, and moved by the same length in a random direction; its target is the
item's ID. The random direction regularises: there are few held-out offsets, they span a small subspace, and a decoder
soon learns to undo them. Without any query, offsets are random directions.

Items are synthetic, with synthetic IDs (the first codes of an item, then codes drawn uniformly), so that IDs
which no item has yet can be generated too. Uniform codes also keep the decoder from learning how frequent a code is:
log p then says how well an ID fits the query and nothing else. Knows nothing of encoders; the quantizer is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.model.config import SIZES, GeneratorConfig
from genius.model.generator import ByModality, Generator
from genius.model.quantizer import ResidualQuantizer
from genius.ranking import nearest_rows
from genius.train.config import GeneratorStageConfig, ModelConfig
from genius.train.loop import Stage, step_seed
from genius.train.losses import code_losses
from genius.train.metrics import dense_hits, generator_hits, positive_mask
from genius.train.pairs import Draws, Order, Points, Positives, share

KEPT_CODES = 2  # codes that a synthetic ID takes from an item: the modality and the first one
MOST_ITEMS = 500_000  # drawn from a larger pool
NEARBY = 8  # held-out positives around an item whose offsets it is moved by
DEFAULT_DISTANCE = 0.8  # between queries and positives where nothing is held out


class Offsets(NamedTuple):
    """How held-out queries differ from their positives."""

    vectors: Tensor  # (P, D) query minus positive
    positives: Tensor  # (P, D) z of the positives
    modality: Tensor  # (P,) of the positives
    tasks: Tensor  # (P,) of the queries: modalities of query and target


def query_offsets(queries: Tensor, tasks: Tensor, pairs: Tensor, pool: Points, modality: Tensor, seed: int) -> Offsets:
    """Offsets of queries (Q, D) to one random positive each; `pairs` (P, 2) name rows of queries and of the pool."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)).to(pairs.device)
    chosen = torch.full((len(queries),), -1, dtype=torch.long, device=pairs.device)
    chosen[pairs[order, 0]] = pairs[order, 1]  # the last one written stays
    rows = (chosen >= 0).nonzero()[:, 0]
    positives = chosen[rows]
    z = pool[positives]
    return Offsets(queries[rows] - z, z, modality[positives], tasks[rows])


class Directions:
    """Draws offsets for items: those of held-out queries whose positives lie nearby, and new ones between two of them.

    Nearby, because a query is vague along what its positive's neighbours share; elsewhere the decoder easily learns to
    undo the same offset, and then trusts z too far. New, because a few thousand offsets are soon memorised.
    """

    def __init__(self, offsets: Offsets, pool: Tensor, modality: Tensor) -> None:
        """`pool` (N, D) and `modality` (N,) are the items that offsets will be drawn for."""
        self.offsets = offsets
        self.near = torch.full((len(pool), NEARBY), -1, dtype=torch.long, device=pool.device)
        for value in range(3):
            known = (offsets.modality == value).nonzero()[:, 0]
            items = (modality == value).nonzero()[:, 0]
            count = min(NEARBY, len(known))
            if count and len(items):
                self.near[items, :count] = known[nearest_rows(pool[items], offsets.positives[known], count)]
        self.length = torch.tensor(DEFAULT_DISTANCE, device=pool.device)
        if len(offsets.vectors):
            self.length = offsets.vectors.norm(dim=1).mean()

    def draw(self, rows: Tensor, random: torch.Generator) -> Tensor:
        """(n, D) for items `rows` (n,)."""
        vectors = self.offsets.vectors
        tasks = self.offsets.tasks
        directions = torch.randn(len(rows), vectors.shape[1], generator=random, device=rows.device)
        any_direction = self.length * F.normalize(directions, dim=1)
        if not len(vectors):
            return any_direction
        near = self.near[rows]
        known = (near >= 0).sum(1)
        first = near.gather(1, _pick(known.clamp(min=1), random)[:, None])[:, 0].clamp(min=0)
        second = near.gather(1, _pick(known.clamp(min=1), random)[:, None])[:, 0].clamp(min=0)
        part = torch.rand(len(rows), 1, generator=random, device=rows.device)
        part = torch.where((tasks[first] == tasks[second])[:, None], part, torch.zeros_like(part))
        first_vectors = vectors[first]
        other = vectors[second]
        length = torch.lerp(first_vectors.norm(dim=1, keepdim=True), other.norm(dim=1, keepdim=True), part)
        between = length * F.normalize(torch.lerp(first_vectors, other, part), dim=1)
        return torch.where((known > 0)[:, None], between, any_direction)  # no query wants this modality: any direction


def _pick(below: Tensor, random: torch.Generator) -> Tensor:
    """(n,) a random whole number below each of `below` (n,)."""
    drawn = torch.rand(len(below), generator=random, device=below.device)
    return torch.minimum((drawn * below).long(), below - 1)


class ShiftedItems:
    """Draws training inputs. All tensors on one device; every batch has the same shape, modality after modality."""

    # A held-out offset is scaled by a random number between `shortest` and `longest`, and a random direction of `noise`
    # times its length is added. Chosen on held-out queries (docs/results/accuracy.md).
    shortest = 0.8
    longest = 1.4
    noise = 1.0

    def __init__(
        self,
        points: Points,  # (N, D) z of the items
        modality: Tensor,  # (N,)
        codes: Tensor,  # (N, M)
        offsets: Offsets | None,
        quantizer: ResidualQuantizer,
        seed: int,
    ) -> None:
        device = codes.device
        random = torch.Generator(device).manual_seed(seed)
        sample: Tensor | slice = slice(None)
        if len(points) > MOST_ITEMS:
            sample = torch.randperm(len(points), generator=random, device=device)[:MOST_ITEMS]
        modality = modality[sample]
        self.quantizer = quantizer
        z = points[sample]
        self.codes = codes[sample]
        self.rows = [(modality == value).nonzero()[:, 0] for value in range(3)]
        if offsets is None:
            offsets = Offsets(z[:0], z[:0], modality[:0], modality[:0])
        self.directions = Directions(offsets, z, modality)

    def counts(self, batch: int) -> list[int]:
        """How many inputs of each modality a batch holds: equally many of each that the pool has.

        Items of a rare modality are as likely to be wanted, so log p must not learn that it is rare.
        """
        held = torch.tensor([float(len(rows) > 0) for rows in self.rows])
        unit = 1 << max((batch // 16).bit_length() - 1, 0)  # so that several processes can have the same part of each
        counts = (held / held.sum() * batch / unit).round().long().clamp(min=1) * unit * (held > 0)
        counts[int(held.argmax())] += batch - int(counts.sum())
        return [int(n) for n in counts]

    def draw(self, batch: int, seed: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor, ByModality]:
        """Inputs (B, D), their IDs (B, M), and the rows of each modality: this process's part of a batch."""
        random = torch.Generator(self.codes.device).manual_seed(seed)
        inputs = []
        ids = []
        blocks = []
        start = 0
        for modality, count in enumerate(self.counts(batch)):
            if not count:
                continue
            if count % world:
                raise GeniusError(f"a batch of {batch} inputs does not divide among {world} processes: use a larger one")
            z, codes = self._draw_modality(modality, count, random)
            inputs.append(z.chunk(world)[rank])
            ids.append(codes.chunk(world)[rank])
            blocks.append((modality, slice(start, start + count // world)))
            start += count // world
        return torch.cat(inputs), torch.cat(ids), blocks

    def _draw_modality(self, modality: int, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` inputs and IDs that start from items of one modality."""
        device = self.codes.device
        candidates = self.rows[modality]
        rows = candidates[_pick(torch.full((count,), len(candidates), device=device), random)]
        offsets = self.directions.draw(rows, random)
        z, ids = self._synthetic_items(self.codes[rows], random)
        scale = self.shortest + (self.longest - self.shortest) * torch.rand(count, 1, generator=random, device=device)
        direction = F.normalize(torch.randn(offsets.shape, generator=random, device=device), dim=1)
        moved = scale * (offsets + self.noise * offsets.norm(dim=1, keepdim=True) * direction)
        return F.normalize(z + moved, dim=1), ids

    def _synthetic_items(self, codes: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Synthetic items (n, D) and their IDs (n, M): the first codes of an item, later ones drawn uniformly."""
        ids = codes.clone()
        for level in range(KEPT_CODES, codes.shape[1]):
            size = self.quantizer.config.level_sizes[level]
            ids[:, level] = torch.randint(size, (len(codes),), generator=random, device=codes.device)
        return F.normalize(self.quantizer.decode_prefix(ids), dim=1), ids


# Penalty, in nats per unit, on the decoder's correction of the similarity, |U h|^2. Without it a few thousand held-out
# offsets are memorised, and every search by log p is worse, most of all for items added later (docs/results/accuracy.md).
CORRECTION_PENALTY = 100.0
CANDIDATES = 32  # of a validation query, among which log p ranks its positive
AT_CHANCE = 0.98  # share of ln K above which the decoder has learned nothing
CHANCE_AFTER = 0.25  # share of the steps after which that is reported


def generator_config(model: ModelConfig) -> GeneratorConfig:
    return GeneratorConfig(
        width=model.width,
        level_sizes=model.level_sizes,
        prefix_tokens=model.prefix_tokens,
        normalizer="vocabulary" if model.constants.head == "table" else "level",  # the paper: over all levels' codes
        head=model.constants.head,
        **SIZES[model.decoder],  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Query augmentation (4.3.2).

    `linear` is Eq. 11 as printed; `sqrt-per-dimension` is what the published code does, at unit length. `queries`: none.
    """

    form: Literal["queries", "linear", "sqrt-per-dimension"]
    alpha: float = 2.0  # of Beta(alpha, alpha)

    def draw(self, rows: int, width: int, device: torch.device, seed: int) -> Tensor:
        """mu of a whole batch (B, 1) or (B, D), a function of `seed`: the same however many processes share it."""
        shape = (rows, 1)
        if self.form == "sqrt-per-dimension":
            shape = (rows, width)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            alpha = torch.full(shape, self.alpha, device=device)
            return torch.distributions.Beta(alpha, alpha).sample()

    def __call__(self, query: Tensor, target: Tensor, mu: Tensor) -> Tensor:
        """Interpolate unit vectors (B, D) by `mu` (`draw`)."""
        if self.form == "queries":
            return query
        mu = mu.to(query.dtype)
        if self.form == "linear":
            return mu * query + (1 - mu) * target  # Eq. 11
        return F.normalize(mu.sqrt() * query + (1 - mu).sqrt() * target, dim=1)


@dataclass
class Frozen:
    """What the stage trains on: the outputs of the earlier stages, on the training device."""

    pool: Points  # (N, D) z
    modality: Tensor  # (N,)
    codes: Tensor  # (N, M)
    queries: Points | None = None  # (Q, D) z of the training queries, if the decoder reads them
    offsets: Offsets | None = None  # of held-out queries


@dataclass
class ValidationSet:
    """Held-out queries and the candidates they are ranked among."""

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
        validation: ValidationSet | None,
        quantizer: ResidualQuantizer,
        model: ModelConfig,
        config: GeneratorStageConfig,
        seed: int,
        beams: int = 20,
        generator: Generator | None = None,  # to train in place of one that `model` describes
    ) -> None:
        super().__init__()
        device = frozen.codes.device
        self.recipe = model.constants
        self.schedule = model.constants.generator
        self.config = config
        self.validation = validation
        self.beams = beams
        self.frozen = frozen
        self.seed = seed
        self.__dict__["quantizer"] = quantizer  # frozen: not a submodule, so in no checkpoint of this stage
        torch.manual_seed(seed)
        if generator is None:
            generator = Generator(generator_config(model), quantizer)
        self.generator = generator.to(device)
        if self.recipe.codebook_scale > 0:
            self.generator.init_from_codebooks(quantizer.codebooks, self.recipe.codebook_scale)
        self.items: ShiftedItems | None = None
        if config.inputs == "items":
            self.items = ShiftedItems(frozen.pool, frozen.modality, frozen.codes, frozen.offsets, quantizer, seed)
            return
        if frozen.queries is None:
            raise GeniusError(f"inputs = {config.inputs!r} needs the training queries")
        self.augment = Augmentation(config.inputs)
        self.positives = Positives(data.pairs, len(data.queries)).to(device)
        order = Order(data.visits(), config.batch, seed)
        self.draws = Draws(order, self.positives, self.recipe.positives == "fixed", seed)

    quantizer: ResidualQuantizer

    def batch(self, step: int, micro: int, rank: int, world: int) -> Batch:
        frozen = self.frozen
        seed = step_seed(self.seed, self.name, step, micro)
        if self.items is not None:
            return Batch(*self.items.draw(self.config.batch // self.accumulate, seed, rank, world))
        assert frozen.queries is not None
        rows, targets = self.draws(step, micro, self.accumulate, seed)
        mu = self.augment.draw(len(rows), self.quantizer.config.width, frozen.codes.device, seed)
        mu = share(mu, rank, world)
        rows = share(rows, rank, world)
        targets = share(targets, rank, world)
        return Batch(self.augment(frozen.queries[rows], frozen.pool[targets], mu), frozen.codes[targets], ())

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        states = self.generator.states(batch.z, batch.codes)
        log_p = self.generator.code_log_probs(batch.z, batch.codes, batch.rows or None, states)
        nats = code_losses(log_p, batch.codes)  # Eq. 10
        loss = nats.mean()  # Eq. 10 is their sum; the public code takes their mean
        first = min(1, len(nats) - 1)  # the first code after the modality
        with torch.no_grad():
            accuracy = code_accuracy(log_p, batch.codes)
        logs = {"ce": loss, "code1": accuracy[first], "codes": accuracy.mean(), "nats": nats[first:].mean()}
        if self.generator.config.head == "codebooks":
            logs["correction"] = self.generator.codebook_head.correction(states)
            loss = loss + CORRECTION_PENALTY * logs["correction"]
        return loss, logs

    def problems(self, progress: float, values: Mapping[str, float]) -> dict[str, str]:
        """A decoder that stays at chance."""
        sizes = self.quantizer.config.level_sizes[1:] or self.quantizer.config.level_sizes
        chance = sum(math.log(size) for size in sizes) / len(sizes)
        if progress < CHANCE_AFTER or values["nats"] < AT_CHANCE * chance:
            return {}
        line = (
            f"the decoder is at chance: {values['nats']:.2f} nats per code, guessing is {chance:.2f}. Recall stays 0. "
            "Try a higher generator.lr, more generator.steps, smaller or fewer model.level_sizes, or more training pairs"
        )
        return {"chance": line}

    def validate(self) -> dict[str, float]:
        """Cross-entropy and accuracy of each code on held-out queries, and the hit rates of their searches."""
        if self.validation is None:
            return {}
        held = self.validation
        pairs = held.data.pairs.to(held.pool.device)
        nats, accuracy = self._code_metrics(held.queries[pairs[:, 0]], held.codes[pairs[:, 1]])
        out = {"validation_ce": nats.mean().item()}
        for level in range(len(nats)):
            out[f"code{level}_nats"] = nats[level].item()
            out[f"code{level}_right"] = accuracy[level].item()
        out["held_out_queries"] = float(len(held.queries))
        out.update(dense_hits(held.queries, held.pool, held.data))
        out.update(generator_hits(self.generator, self.quantizer, held.codes, held.pool, held.queries, held.data, self.beams))
        return out

    @torch.no_grad()
    def _code_metrics(self, z: Tensor, codes: Tensor, chunk: int = 512) -> tuple[Tensor, Tensor]:
        """(M,) nats per code and (M,) accuracy, of queries (P, D) whose positives have these codes (P, M)."""
        nats = torch.zeros(codes.shape[1], device=z.device)
        right = torch.zeros(codes.shape[1], device=z.device)
        for i in range(0, len(z), chunk):
            part = codes[i : i + chunk]
            log_p = self.generator.code_log_probs(z[i : i + chunk], part)
            nats += len(part) * code_losses(log_p, part)
            right += len(part) * code_accuracy(log_p, part)
        return nats / max(len(z), 1), right / max(len(z), 1)

    def quick(self) -> float | None:
        """Mean reciprocal rank, by log p, of the first positive among the nearest candidates of dense search."""
        if self.validation is None:
            return None
        return self._reciprocal_rank(self.validation)

    @torch.no_grad()
    def _reciprocal_rank(self, held: ValidationSet, chunk: int = 64) -> float:
        nearest = nearest_rows(held.queries, held.pool, CANDIDATES)  # (Q, C)
        positives = positive_mask(nearest, held.data)
        total = 0.0
        for i in range(0, len(nearest), chunk):
            rows = nearest[i : i + chunk]
            positive = positives[i : i + chunk]
            z = held.queries[i : i + chunk].repeat_interleave(rows.shape[1], 0)
            log_p = self.generator(z, held.codes[rows.flatten()]).sum(1).view(rows.shape)
            best = log_p.masked_fill(~positive, -torch.inf).amax(1, keepdim=True)  # -inf: no positive among them
            total += (1 / (1 + (log_p > best).sum(1)) * positive.any(1)).sum().item()
        return total / max(len(nearest), 1)


def code_accuracy(log_p: Sequence[Tensor], codes: Tensor) -> Tensor:
    """(M,) share of codes (B, M) that are the most likely ones of their level."""
    shares = [(level.argmax(1) == codes[:, i]).float().mean() for i, level in enumerate(log_p)]
    return torch.stack(shares)
