"""Nearest code and k-means, chunked so that memory stays bounded on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(vectors: Tensor, centres: Tensor, chunk: int = 16384) -> Tensor:
    """(N,) index of the centre of least squared distance (Eq. 5): argmax of 2 v.c - |c|^2."""
    half = centres.square().sum(1) / 2
    if vectors.shape[0] <= chunk:
        return (vectors @ centres.T - half).argmax(1)
    return torch.cat([(v @ centres.T - half).argmax(1) for v in vectors.split(chunk)])


def nearest_as_published(vectors: Tensor, centres: Tensor) -> Tensor:
    """`nearest` with the published order of operations, so that near-ties round the same way."""
    squared = vectors.square().sum(1, keepdim=True) + centres.square().sum(1) + vectors @ centres.T * -2
    return squared.clamp(min=0).sqrt().argmin(1)


def kmeans(
    vectors: Tensor, size: int, *, iterations: int = 20, seed: int = 0, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from random distinct rows, or from `start` (size, D); empty clusters are moved into the largest ones.

    Returns (size, D) centres and (size,) counts. With fewer rows than centres the surplus centres are slightly
    moved copies, so that every code stays a valid, distinct vector.
    """
    n, _ = vectors.shape
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    if n < size:
        order = torch.cat([order, torch.randint(n, (size - n,), generator=generator)])
    centres = vectors[order[:size].to(vectors.device)].clone().float()
    scale = vectors.float().std(dim=0).mean().clamp(min=1e-6)
    if n < size:
        noise = torch.randn(size - n, vectors.shape[1], generator=generator).to(centres)
        centres[n:] += 0.1 * scale * noise
    if start is not None:
        centres = start.to(vectors.device).clone().float()
    counts = torch.ones(size, device=vectors.device)
    before: Tensor | None = None
    for _ in range(iterations):
        labels = nearest(vectors.float(), centres)
        if before is not None and torch.equal(labels, before):
            break  # nothing moves any more
        counts = torch.bincount(labels, minlength=size).float()
        sums = torch.zeros_like(centres).index_add_(0, labels, vectors.float())
        centres = torch.where((counts > 0)[:, None], sums / counts.clamp(min=1)[:, None], centres)
        empty = (counts == 0).nonzero()[:, 0]
        before = labels
        if empty.numel() and n > size:
            donors = counts.topk(empty.numel()).indices  # split the largest clusters
            noise = torch.randn(empty.numel(), vectors.shape[1], generator=generator).to(centres)
            centres[empty] = centres[donors] + 0.05 * scale * noise
            before = None
    return centres, counts
