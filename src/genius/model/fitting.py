"""Codebooks from vectors: k-means level after level (the paper: on the first batch), and what is done beyond it.

Three things beyond the paper, each off where the quantizer's config or the caller says so: the first codes of all modalities
start alike; a modality of few items learns its later codes from points between its items too, so that codes do not know
these items by heart and no others; later levels are fitted to each other at the end. Knows a quantizer and vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.between import neighbours, points_between
from genius.model.kmeans import kmeans
from genius.model.refine import FIRST, fit_together

if TYPE_CHECKING:
    from genius.model.quantizer import ResidualQuantizer

NEIGHBOURS = 8  # of an item, towards which points between items lie


@torch.no_grad()
def fit_codebooks(
    quantizer: ResidualQuantizer, z: Tensor, modality: Tensor | None, iterations: int, seed: int, together: int, between: int
) -> None:
    """Set every codebook from z (N, D). See `ResidualQuantizer.initialise`."""
    z, real = z.float(), len(z)
    residual, kinds = z, modality
    if between and modality is not None and quantizer.config.own_books_from:
        points, more = _between_few(quantizer, z, modality, between, seed)
        residual, kinds = torch.cat([z, points]), torch.cat([modality, more])
    codes = []
    for level in range(quantizer.config.levels):
        seen = real if level < FIRST else len(residual)
        if not (quantizer.config.shared and level > 1):
            _fit_level(quantizer, level, residual[:seen], None if kinds is None else kinds[:seen], iterations, seed + level)
        codes.append(quantizer.pick(residual, level, kinds))
        residual = residual - quantizer.vectors(level, codes[-1], kinds)
    if together and real and not quantizer.config.shared:
        fit_together(quantizer, z, torch.stack(codes, 1)[:real], together)


def _between_few(quantizer: ResidualQuantizer, z: Tensor, modality: Tensor, between: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (P, D) and modalities (P,) that bring each modality to `between` vectors a code of the later levels."""
    size = max(quantizer.config.level_sizes[FIRST:], default=0)
    points, kinds = [z[:0]], [modality[:0]]
    random = torch.Generator(z.device).manual_seed(seed)
    for kind in range(3):
        own = z[modality == kind]
        missing = between * size - len(own)
        if missing <= 0 or len(own) < max(size, 2):  # fewer than codes: it learns from all modalities
            continue
        near = neighbours(own, torch.zeros(len(own), device=z.device), NEIGHBOURS)
        rows = torch.randint(len(own), (missing,), device=z.device, generator=random)
        points.append(F.normalize(points_between(own, near, rows, random), dim=1))
        kinds.append(torch.full((missing,), kind, dtype=modality.dtype, device=z.device))
    return torch.cat(points), torch.cat(kinds)


def _fit_level(
    quantizer: ResidualQuantizer, level: int, residual: Tensor, modality: Tensor | None, iterations: int, seed: int
) -> None:
    config, size = quantizer.config, quantizer.config.level_sizes[level]
    if level == 0 and config.modality_code == "classifier":
        return
    if level == 0 and config.labelled:
        assert modality is not None
        centres = quantizer.codebook(0).clone()
        for kind in range(3):
            if (modality == kind).any():
                centres[kind] = residual[modality == kind].mean(0)
        counts = torch.bincount(modality, minlength=3).float()
    elif config.own_books(level):
        assert modality is not None
        # the first code is what a decoder learns: it starts alike for all, so that it says much the same in every modality
        start = kmeans(residual, size, iterations=iterations, seed=seed)[0] if level == 1 else None
        own = [residual[modality == kind] for kind in range(3)]
        # a modality of fewer items than codes learns from all: what comes later of it must find codes too
        few = [len(vectors) < size for vectors in own]
        everyone = kmeans(residual, size, iterations=iterations, seed=seed, start=start) if any(few) else None
        fitted = [
            everyone if lacking and everyone else kmeans(vectors, size, iterations=iterations, seed=seed, start=start)
            for vectors, lacking in zip(own, few, strict=True)
        ]
        centres, counts = (torch.cat(parts) for parts in zip(*fitted, strict=True))
    else:
        centres, counts = kmeans(residual, size, iterations=iterations, seed=seed)
    quantizer.set_codebook(level, centres, counts)
