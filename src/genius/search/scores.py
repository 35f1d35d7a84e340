"""What a step is worth: log p of the generator and the geometric term, for true children only.

Knows the decoder and the codebooks, nothing of tries or beams: it is given flat lists of (row, code).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer
from genius.search.decoder import Decoder
from genius.search.params import Normalizer

# Of |c|^2 in the geometric term. Items are ranked by inner products (0), codes stand for the middle of their items (1, squared
# distance): half-way fewer items need to be looked at than with either (docs/results/accuracy.md).
NORM = 0.5


class Scorer:
    """Adds up to three things: a decoder's log p, a weight for geometry, or geometry alone."""

    def __init__(
        self,
        decoder: Decoder | None,
        quantizer: ResidualQuantizer | None,
        level_sizes: Sequence[int],
        geometry: float = 0.0,
        normalizer: Normalizer = "model",
    ) -> None:
        """`decoder` None: geometry alone."""
        if decoder is None and quantizer is None:
            raise GeniusError("a search needs the generator, or the quantizer for geometry alone")
        if geometry > 0 and quantizer is None:
            raise GeniusError("the geometric term needs the quantizer")
        self.decoder, self.level_sizes = decoder, tuple(level_sizes)
        self.weight = geometry if decoder is not None else None
        self.modality_weight = modality_weight(decoder, quantizer, geometry)
        chosen = decoder.config.normalizer if decoder is not None and normalizer == "model" else normalizer
        self.normalizer: str = chosen
        self.books = None if decoder is not None and geometry == 0 else quantizer

    @property
    def geometric(self) -> bool:
        return self.books is not None

    @property
    def unary_is_free(self) -> bool:
        """Whether a step with one choice always adds 0."""
        return self.decoder is not None and self.normalizer == "children" and self.books is None

    def children(
        self,
        level: int,
        hidden: Tensor | None,
        residual: Tensor | None,
        row: Tensor,
        code: Tensor,
        mass: Tensor | None = None,
        modality: Tensor | None = None,
    ) -> Tensor:
        """Worth of each child (C,), given its beam's hidden state (R, d), residual (R, D), first code `modality` (R,; None at
        level 0) and, if known, `mass` (R,)."""
        total: Tensor | None = None
        if self.decoder is not None:
            assert hidden is not None
            total = self._log_p(level, hidden, row, code, mass) * (self.modality_weight if level == 0 else 1.0)
        if self.books is not None:
            assert residual is not None
            near = geometric_term(self.books, self.weight, level, residual, modality)[row, code]
            total = near if total is None else total + near
        assert total is not None
        return total

    def mass(self, hidden: Tensor) -> Tensor | None:
        """The whole table's log normaliser of states (R, d), where it is used: one reading of the table for all of them."""
        return self.decoder.log_normalizer(hidden) if self.decoder is not None and self.normalizer == "vocabulary" else None

    def _log_p(self, level: int, hidden: Tensor, row: Tensor, code: Tensor, mass: Tensor | None) -> Tensor:
        assert self.decoder is not None
        logits = self.decoder.level_logits(hidden, level)  # (R, K)
        if self.normalizer == "vocabulary":
            mass = self.decoder.log_normalizer(hidden, level, logits) if mass is None else mass
            return logits[row, code] - mass[row]
        if self.normalizer == "level":
            return logits[row, code] - logits.logsumexp(1)[row]
        chosen = logits[row, code]  # over the valid children alone
        highest = torch.full((len(hidden),), -torch.inf, device=logits.device).scatter_reduce(0, row, chosen, "amax")
        mass = torch.zeros_like(highest).index_add(0, row, (chosen - highest[row]).exp())
        return chosen - (highest + mass.log())[row]

    def tails(
        self, level: int, hidden: Tensor | None, residual: Tensor | None, codes: Tensor, modality: Tensor | None = None
    ) -> Tensor:
        """Worth of finishing on unary paths: codes (R, L) from `level` on, hidden (R, L, d), first codes (R,) -> (R,)."""
        rows, length = codes.shape
        total = torch.zeros(rows, device=codes.device)
        if self.decoder is not None and self.normalizer != "children":
            assert hidden is not None
            heads = [self.decoder.level_head(level + step)[codes[:, step]].float() for step in range(length)]
            log_p = (hidden.float() * torch.stack(heads, 1)).sum(2)  # (R, L)
            if self.normalizer == "vocabulary":
                log_p -= self.decoder.log_normalizer(hidden.reshape(rows * length, -1)).view(rows, length)
            else:
                logits = (self.decoder.level_logits(hidden[:, step], level + step) for step in range(length))
                log_p -= torch.stack([own.logsumexp(1) for own in logits], 1)
            if level == 0:
                log_p[:, 0] *= self.modality_weight
            total += log_p.sum(1)
        if self.books is not None:
            assert residual is not None
            for step in range(length):
                term = geometric_term(self.books, self.weight, level + step, residual, modality)
                total += term.gather(1, codes[:, step : step + 1])[:, 0]
                residual = residual - self.books.vectors(level + step, codes[:, step], modality)
                modality = codes[:, 0] if level + step == 0 else modality
        return total


def modality_weight(decoder: object | None, quantizer: ResidualQuantizer | None, geometry: float) -> float:
    """Of log p of a first code that says the modality. Nothing is near a modality, so that beside later codes, whose log p is
    joined by w times nearness, its log p alone would say too little: it counts 1 + w times."""
    told = decoder is not None and quantizer is not None and quantizer.config.labelled
    return 1.0 + geometry if told else 1.0


def geometric_term(
    quantizer: ResidualQuantizer, weight: float | None, level: int, residual: Tensor, modality: Tensor | None
) -> Tensor:
    """w * zscore(2 r.c - |c|^2 / 2) for every code: (R, K). `weight` None: no log p beside it, so 2 r.c - |c|^2 as it is."""
    if weight is None:
        return quantizer.closeness(level, residual, modality)
    return weight * zscore(quantizer.closeness(level, residual, modality, NORM))


def zscore(values: Tensor) -> Tensor:
    """Over the level's codes, so that a beam with one child still says how good that child is."""
    centred = values - values.mean(1, keepdim=True)
    return centred / centred.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)
