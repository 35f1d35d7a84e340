"""Points between items: what could still come. Training on them keeps room for items that are added later.

Knows vectors and modalities; whoever asks gives the points their IDs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.nearest import nearest_rows


def neighbours(z: Tensor, modality: Tensor, count: int, limit: int = 100_000) -> Tensor:
    """(N, count) near items of the same modality. Beyond `limit` items, near among a fixed random sample."""
    near = torch.empty(z.shape[0], count, dtype=torch.long, device=z.device)
    for kind in modality.unique().tolist():
        rows = (modality == kind).nonzero()[:, 0]
        others = rows
        if rows.numel() > limit:
            others = rows[torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(0))[:limit].to(rows.device)]
        k = min(count + 1, others.numel())
        found = others[nearest_rows(z[rows], z[others], k)[:, min(1, k - 1) :]]  # the first is the item itself
        near[rows] = found[:, torch.arange(count, device=z.device) % found.shape[1]]
    return near


def points_between(z: Tensor, near: Tensor, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
    """(n, D) somewhere between each of the items `rows` (n,) and one of its `near` (N, count); not normalised."""
    column = torch.randint(near.shape[1], rows.shape, device=z.device, generator=random)
    return torch.lerp(z[rows], z[near[rows, column]], torch.rand(len(rows), 1, device=z.device, generator=random))
