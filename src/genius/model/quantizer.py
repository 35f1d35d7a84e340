"""Fusion h(x, y): image and text vectors -> one unit vector z (paper 4.2.1). Quantizer: z -> codes, codes -> reconstruction
(4.2.2 - 4.2.3).

The layer shapes of fusion are CLIP4Cir's Combiner, as published, so that the published weights load one to one. The quantizer is
residual, with one codebook a level (`codebooks`): here z becomes codes, and training moves the codebooks by exponential averages.
Knows nothing of items, losses' weights or training loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.features import Features, check_finite
from genius.model.codebooks import (
    Codebooks,
    GradientEstimator,
    ModalityCode,
    QuantizerConfig,
    fit_codebooks,
    largest,
    nearest_as_published,
    nearness,
)


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """Sizes of the fusion module; the defaults are the published ones."""

    width: int = 768  # of the encoder's vectors and of z
    projection: int = 2560  # of each modality before they are joined
    hidden: int = 5120  # of the two MLPs after the join


class Fusion(nn.Module):
    """h(x, y) = lambda x + (1 - lambda) y + MLP([x; y]), lambda from a second MLP. Output has unit length."""

    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        self.config = config
        width, projection, hidden = config.width, config.projection, config.hidden
        self.project_text = nn.Linear(width, projection)
        self.project_image = nn.Linear(width, projection)
        self.mix_hidden = nn.Linear(2 * projection, hidden)
        self.mix_output = nn.Linear(hidden, width)
        self.balance_hidden = nn.Linear(2 * projection, hidden)
        self.balance_output = nn.Linear(hidden, 1)

    def forward(self, features: Features) -> Tensor:
        """(N, width) unit vectors. A missing modality enters as exact zeros (the biases still fire, as published)."""
        image, text = features.masked()
        joined = torch.cat([F.relu(self.project_text(text)), F.relu(self.project_image(image))], dim=1)
        balance = torch.sigmoid(self.balance_output(F.relu(self.balance_hidden(joined))))  # lambda, (N, 1)
        mixed = self.mix_output(F.relu(self.mix_hidden(joined)))
        return F.normalize(mixed + balance * text + (1 - balance) * image, dim=1)  # 4.2.1


def score_fusion(features: Features) -> Tensor:
    """The encoder's own embedding phi = psi_image + psi_text (Eq. 2), unit length: the dense baseline CLIP-SF."""
    image, text = features.masked()
    return F.normalize(image + text, dim=1)


__all__ = ["GradientEstimator", "ModalityCode", "Quantized", "QuantizerConfig", "ResidualQuantizer", "rotate_to"]


class Quantized(NamedTuple):
    """What one training pass through the quantizer gives."""

    codes: Tensor  # (N, M)
    vectors: Tensor  # (N, D) sum of the chosen codes; gradients pass to z
    residuals: list[Tensor]  # r_0 .. r_{M-1}, each (N, D), with gradients
    chosen: list[Tensor]  # e_1 .. e_M, each (N, D), detached


class ResidualQuantizer(Codebooks):
    """M codebooks, nearest neighbour on residuals (Eq. 4-6), moved by exponential averages, not by gradients."""

    # -- inference ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, z: Tensor, modality: Tensor | None = None) -> Tensor:
        """(N, D) unit vectors -> (N, M) int64 codes. `modality` (N,) is required when level 0 says it."""
        self._check(z, modality)
        codes = torch.empty(len(z), self.config.levels, dtype=torch.long, device=z.device)
        for kind in range(3) if self.config.own_books_from else (None,):
            rows = (
                torch.arange(len(z), device=z.device) if kind is None or modality is None else (modality == kind).nonzero()[:, 0]
            )
            if not len(rows):
                continue
            choice = _Choice(self, kind, len(rows))
            for part in rows.split(choice.at_once):
                codes[part] = choice(z.index_select(0, part).float(), None if modality is None else modality[part])
            del choice  # its tables go before the next one's come
        return codes

    def _check(self, z: Tensor, modality: Tensor | None) -> None:
        if z.ndim != 2 or z.shape[1] != self.config.width:
            raise GeniusError(f"vectors have shape {tuple(z.shape)}, expected (N, {self.config.width})")
        check_finite(z, "vectors")
        if self.config.labelled:
            if modality is None:
                raise GeniusError("this quantizer's first code is the modality: pass `modality`")
            if modality.shape != (z.shape[0],) or (modality.numel() and not ((modality >= 0) & (modality < 3)).all()):
                raise GeniusError("modality must hold one of 0, 1, 2 for every vector")

    # -- training ----------------------------------------------------------------------------------------------

    def quantize(self, z: Tensor, modality: Tensor | None = None) -> Quantized:
        """Codes of `z` (N, D) with a gradient path, for the losses. Does not move the codebooks."""
        residual, total = z, torch.zeros_like(z)
        codes, residuals, chosen = [], [], []
        for level in range(self.config.levels):
            code = self.pick(residual.detach(), level, modality)
            vector = self.vectors(level, code, modality)
            codes.append(code)
            residuals.append(residual)
            chosen.append(vector)
            total = total + self._pass_gradient(residual, vector, level)
            residual = residual - vector
        return Quantized(torch.stack(codes, 1), total, residuals, chosen)

    def _pass_gradient(self, residual: Tensor, vector: Tensor, level: int) -> Tensor:
        if level == 0 and self.config.labelled:
            return vector  # told, not chosen by the residual: a constant
        return rotate_to(residual, vector) if self.config.gradient == "rotation" else residual + (vector - residual).detach()

    @torch.no_grad()
    def update(self, codes: Tensor, residuals: list[Tensor], gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        """Move the codebooks towards the mean of what they were chosen for (EMA, 4.2.4).

        Sums are taken over all processes, so that every process holds the same codebooks. `gather`: rows of all processes in the
        order in which one process would have them, so that dead codes are put where one process puts them.
        """
        counts = [torch.zeros_like(self.get_buffer(f"sizes_{b}")) for b in range(self.books)]
        sums = [torch.zeros_like(self.get_buffer(f"sums_{b}")) for b in range(self.books)]
        for level, residual in enumerate(residuals):
            book, rows = self._book(level), self.rows_of(level, codes[:, level], codes[:, 0])
            counts[book].index_add_(0, rows, torch.ones_like(rows, dtype=counts[book].dtype))
            sums[book].index_add_(0, rows, residual.detach().to(sums[book].dtype))
        if _several_processes():
            for tensor in (*counts, *sums):
                dist.all_reduce(tensor)
        for book in range(self.books):
            if book == 0 and self.config.modality_code == "classifier":
                continue  # its vectors stay zero: the label takes no part in the residuals
            blocks = (
                enumerate([self._block(book, kind) for kind in range(3)]) if self.config.own_books(book) else [(-1, slice(None))]
            )
            for kind, block in blocks:
                dead = self._move(book, block, counts[book][block], sums[book][block]).nonzero()[:, 0]
                if len(dead):  # the same on every process
                    everyone, kinds = gather(residuals[book].detach()), gather(codes[:, 0])
                    own = everyone[kinds == kind]
                    self._revive(book, block, dead, own if len(own) else everyone)

    def _move(self, book: int, block: slice, counts: Tensor, sums: Tensor) -> Tensor:
        """Move one codebook, or one modality's block of it; which of its codes are dead."""
        decay, eps = self.config.decay, self.config.epsilon
        sizes, averages = self.get_buffer(f"sizes_{book}")[block], self.get_buffer(f"sums_{book}")[block]
        sizes.lerp_(counts, 1 - decay)
        averages.lerp_(sums, 1 - decay)
        total = sizes.sum()
        smoothed = (sizes + eps) / (total + sizes.numel() * eps) * total
        fresh = averages / smoothed[:, None]
        vectors, unused = self.get_buffer(f"codes_{book}")[block], self.get_buffer(f"unused_{book}")[block]
        unused.add_(1).masked_fill_(counts > 0, 0)
        if self.config.published_revival:
            vectors.copy_(fresh)
            dead = sizes < 2 if book > 0 or self.config.modality_code == "none" else torch.zeros_like(sizes, dtype=torch.bool)
        else:
            # a code that got nothing keeps its place: decaying averages would pull it to the origin
            vectors.copy_(torch.where((counts > 0)[:, None], fresh, vectors))
            expected = sizes.numel() / counts.sum().clamp(min=1)  # steps between two uses of an average code
            dead = unused > self.config.patience * expected.clamp(min=1)
            if book == 0 and self.config.labelled:
                dead = torch.zeros_like(dead)  # an absent modality is absent, not dead
        return dead

    def _revive(self, book: int, block: slice, rows: Tensor, residual: Tensor) -> None:
        """Put dead codes on random residuals (n, D) of this step; the first process draws for all."""
        if residual.shape[0] == 0:
            return
        picks = residual[torch.randint(residual.shape[0], (len(rows),), device=residual.device)].float()
        if _several_processes():
            dist.broadcast(picks, src=0)
        sizes = self.get_buffer(f"sizes_{book}")[block]
        weight = 2.0 if self.config.published_revival else sizes.mean().clamp(min=1e-3)
        self.get_buffer(f"codes_{book}")[block][rows] = picks  # slices are views: this writes into the buffers
        self.get_buffer(f"sums_{book}")[block][rows] = picks * weight
        sizes[rows] = weight
        self.get_buffer(f"unused_{book}")[block][rows] = 0

    def initialise(
        self, z: Tensor, modality: Tensor | None = None, iterations: int = 20, seed: int = 0, together: int = 0, between: int = 0
    ) -> None:
        """k-means on a large sample, level after level (the paper: on the first batch). `together`: so many sweeps that fit the
        later levels to each other. `between`: a modality with fewer vectors a code also learns from points between them."""
        self._check(z, modality)
        fit_codebooks(self, z, modality, iterations, seed, together, between)

    @torch.no_grad()
    def statistics(self, codes: Tensor) -> list[dict[str, float]]:
        """Per level: share of codes used, perplexity of their distribution; and how many IDs collide up to it."""
        out = []
        for level, size in enumerate(self.config.level_sizes):
            counts = torch.bincount(codes[:, level], minlength=size).float()
            p = counts / counts.sum().clamp(min=1)
            perplexity = torch.exp(-(p * p.clamp(min=1e-12).log()).sum()).item()
            distinct = torch.unique(codes[:, : level + 1], dim=0).shape[0]
            out.append(
                {
                    "usage": (counts > 0).float().mean().item(),
                    "perplexity": perplexity,
                    "collisions": 1.0 - distinct / max(codes.shape[0], 1),
                }
            )
        return out


SCORES = 2**21  # of codes that are held at a time, on a CPU
TABLED = 2**24  # products of codes with codes that are computed beforehand, at most: 64 MB


class _Choice:
    """Chooses the codes of items that share their books: level after level, then again in view of the others (`encode_sweeps`).

    A code that is chosen again moves what is left for the other levels, and so the score of every code there: by its product with
    the code that goes less that with the one that comes. So scores are kept and moved, and most items, which change no code, cost
    a comparison a level. For many items these products are computed beforehand.
    """

    def __init__(self, quantizer: Codebooks, modality: int | None, items: int) -> None:
        config, levels = quantizer.config, range(quantizer.config.levels)
        books = [quantizer.codebook(level) if modality is None else quantizer.book_of(level, modality) for level in levels]
        again = levels[config.settled :] if config.encode_sweeps else levels[:0]
        scores = sum(len(books[level]) for level in again)
        self.config, self.books, self.again = config, books, again
        self.halves = [book.square().sum(1) / 2 for book in books]
        self.at_once = max(1, SCORES * (1 if books[0].device.type == "cpu" else 32) // max(scores, *map(len, books)))
        # to compute them takes as long as one sweep over so many items takes without
        tabled = 0 < scores <= items and scores**2 <= TABLED
        self.starts = dict(zip(again, itertools.accumulate((len(books[level]) for level in again), initial=0), strict=False))
        joined = torch.cat([books[level] for level in again]) if tabled else books[0]
        self.tables = {level: joined @ books[level].T for level in again} if tabled else {}  # (codes of all levels, K)

    def __call__(self, z: Tensor, modality: Tensor | None) -> Tensor:
        """Codes (n, M) of vectors (n, D)."""
        rest, codes, scores, left = z, [], {}, {}
        for level, book in enumerate(self.books):
            if level in self.again:
                scores[level] = nearness(rest, book, self.halves[level])
            if level == 0 and self.config.labelled:
                assert modality is not None
                code = modality.long()
            elif self.config.modality_code == "nearest":
                code = nearest_as_published(rest, book)
            else:
                code = largest(scores[level] if level in scores else nearness(rest, book, self.halves[level]))
            codes.append(code)
            left[level] = rest = rest - F.embedding(code, book)  # Eq. 6
        for level in self.again[:-1]:  # so far the scores of a level take those before it into account
            scores[level] -= self._later(level, codes, left[level], rest)
        self._choose_again(codes, scores)
        return torch.stack(codes, dim=1)

    def _choose_again(self, codes: list[Tensor], scores: dict[int, Tensor]) -> None:
        """Change codes (n,) of the levels that have scores (n, K)."""
        for _ in range(self.config.encode_sweeps):
            final = True
            for level in self.again:
                own = scores[level].gather(1, codes[level][:, None])[:, 0]
                rows = (scores[level].amax(1) > own).nonzero()[:, 0]
                if not len(rows):
                    continue
                final, old, new = False, codes[level][rows], largest(scores[level].index_select(0, rows))
                codes[level][rows] = new
                for other in self.again:
                    if other != level:
                        scores[other].index_add_(0, rows, self._moved(level, old, new, other))
            if final:
                break

    def _later(self, level: int, codes: list[Tensor], left: Tensor, rest: Tensor) -> Tensor:
        """(n, K) products of the level's codes with the sum of the later ones: what it left (n, D) less what the last one did."""
        if not self.tables:
            return (left - rest) @ self.books[level].T
        rows = torch.stack([codes[other] + self.starts[other] for other in self.again if other > level], 1)
        return F.embedding_bag(rows, self.tables[level], mode="sum")

    def _moved(self, level: int, old: Tensor, new: Tensor, other: int) -> Tensor:
        """(n, K) by how much the other level's scores grow when codes (n,) of a level become new ones."""
        if not self.tables:
            return (F.embedding(old, self.books[level]) - F.embedding(new, self.books[level])) @ self.books[other].T
        start, table = self.starts[level], self.tables[other]
        return F.embedding(old + start, table) - F.embedding(new + start, table)


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rotate_to(source: Tensor, target: Tensor) -> Tensor:
    """`target` in value; backwards, the rotation and scaling that take source to target (arXiv 2410.06424)."""
    norm_s, norm_t = source.norm(dim=-1, keepdim=True).clamp(min=1e-6), target.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    u, q = (source / norm_s).detach(), (target / norm_t).detach()
    w = F.normalize(u + q, dim=-1)
    rotated = source - 2 * (source * w).sum(-1, keepdim=True) * w + 2 * (source * u).sum(-1, keepdim=True) * q
    out: Tensor = rotated * (norm_t / norm_s).detach()
    return out
