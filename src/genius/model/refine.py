"""Codebooks that fit each other: residual k-means fits one level after the other, these fit what the levels say together.

Level by level a codebook does not know that later ones will mend its errors. Here the later levels' vectors are moved, and
codes chosen again, with all other levels in view: the same bits, a smaller error. Modality and first code stay: they are
what prefixes rank by. Knows a quantizer and vectors, no training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from genius.model.quantizer import ResidualQuantizer

FIRST = 2  # levels below keep their vectors and codes


@torch.no_grad()
def fit_together(quantizer: ResidualQuantizer, z: Tensor, codes: Tensor, sweeps: int = 3, prior: float = 0.5) -> None:
    """Move the code vectors to where the items (N, D) with these codes (N, M) want them, the other levels being as they are.

    `prior` is how many items a vector's old place counts as: codes of few items stay near what k-means said, so that
    items that come later lose nothing.
    """
    rest = z.float() - quantizer.decode(codes)
    counts: dict[int, Tensor] = {}
    for _ in range(sweeps):
        for level in reversed(range(FIRST, quantizer.config.levels)):
            book = quantizer.codebook(level)
            rows = quantizer.rows_of(level, codes[:, level], codes[:, 0])
            wanted = torch.zeros_like(book).index_add_(0, rows, rest + book[rows])
            counts[level] = torch.bincount(rows, minlength=len(book)).to(book)
            moved = (wanted + prior * book) / (counts[level][:, None] + prior)
            rest += book[rows] - moved[rows]
            book.copy_(moved)
    for level, count in counts.items():
        quantizer.set_codebook(level, quantizer.codebook(level), count)


def choose_again(quantizer: ResidualQuantizer, z: Tensor, codes: Tensor, sweeps: int = 1) -> Tensor:
    """Codes (N, M) -> codes whose reconstruction is nearer z: each level's nearest code, the other levels being as they are."""
    codes, modality = codes.clone(), codes[:, 0]
    rest = z.float() - quantizer.decode_prefix(codes)
    for _ in range(sweeps):
        for level in range(FIRST, quantizer.config.levels):
            rest = rest + quantizer.vectors(level, codes[:, level], modality)
            codes[:, level] = quantizer.pick(rest, level, modality)
            rest = rest - quantizer.vectors(level, codes[:, level], modality)
    return codes
