"""What the decoder learns from: items, and points between items, moved away by the offsets of honest questions.

A question stands at some distance from its answer. Training questions do not show it: earlier stages have pulled them to their
answers. So no training question is shown. An input is an item moved by the offset of a *held-out* question whose answer lies
nearby, scaled at random, and as far again in any direction; its target is the item's ID. The second move keeps the decoder
modest: there are few honest offsets, they span little, and what they span is soon seen through.
Most of these items are virtual, with an *invented* ID, so that IDs that nobody has yet can be written too: the first codes of
an item, then codes that are drawn evenly. Even codes have a second use: a decoder learns how likely a code is *a priori*, and
what is likely a priori is no better answer. With even codes log p says how well an ID fits the question, and nothing else.
Without any question, offsets are random directions. Knows z, codes and offsets; nothing of decoders.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import GeniusError
from genius.model.nearness import ByModality
from genius.model.quantizer import ResidualQuantizer
from genius.ranking import nearest_rows
from genius.train.pairs import Points

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
