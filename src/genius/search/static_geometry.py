"""The geometric term with fixed shapes: `scores.py`'s, without anything that a CUDA graph cannot record.

Which codebook a row reads depends on its modality, a value; so all three are read and the row is masked out of two.
Knows codebooks and residuals; no decoder, no trie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.model.quantizer import ResidualQuantizer
from genius.search.scores import NORM, geometric_term, zscore


class StaticGeometry:
    """Residuals of beams, and what is near them."""

    def __init__(self, quantizer: ResidualQuantizer, weight: float, device: torch.device) -> None:
        self.quantizer, self.weight = quantizer, weight
        self.kinds = torch.arange(3, device=device)

    def term(self, level: int, residual: Tensor, modality: Tensor | None) -> Tensor | None:
        """residual (R, D), first codes (R,) or None at level 0 -> (R, K), to be added to log p; None: nothing."""
        config = self.quantizer.config
        if level == 0 and config.labelled:
            return None  # the modality is told, not near
        if modality is None or not config.own_books(level):
            return geometric_term(self.quantizer, self.weight, level, residual, modality)
        book = self.quantizer.codebook(level)
        mine = (modality[:, None] == self.kinds).float()  # (R, 3)
        near = -NORM * (mine @ book.square().sum(1).view(3, -1))
        for kind, own in enumerate(book.view(3, -1, book.shape[1])):
            near = torch.addmm(near, residual * mine[:, kind : kind + 1], own.T, alpha=2.0)
        return self.weight * zscore(near)
