"""The last codes by nearness: the decoder writes the first ones, the codebooks say which IDs below them fit the query best.

A residual code's last levels say little that a decoder could learn and much that geometry knows: every ID below the
beams competes with log p so far + w * cosine(z, reconstruction), from its codes alone, and the best B go on as beams.
Knows beams, tries and codebooks; no stored vectors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.quantizer import ResidualQuantizer
from genius.search.state import Beams
from genius.search.views import Forest

AT_ONCE = 65_536  # reconstructions held at a time


class Nearness:
    """Cosine of queries and reconstructions, by codes."""

    def __init__(self, quantizer: ResidualQuantizer, device: torch.device) -> None:
        books = [book.detach().to(device, torch.float32) for book in quantizer.codebooks]
        self.table = torch.cat(books)  # (sum of K, D): one table, so that a reconstruction is one bag of rows
        sizes = torch.tensor([len(book) for book in books], device=device)
        self.starts = sizes.cumsum(0) - sizes
        config = quantizer.config
        own = [size * config.own_books(level) for level, size in enumerate(config.level_sizes)]
        self.steps = torch.tensor(own, device=device)  # rows between one modality's codebook and the next one's

    def cosine(self, z: Tensor, owner: Tensor, codes: Tensor) -> Tensor:
        """z (Q, D), owner (C,) row of z, codes (C, M) -> (C,) z . r / |r| with r the reconstruction."""
        parts = []
        for i in range(0, len(codes), AT_ONCE):
            part = codes[i : i + AT_ONCE]
            rebuilt = F.embedding_bag(part + self.starts + part[:, :1] * self.steps, self.table, mode="sum")
            dots = (z[owner[i : i + AT_ONCE]] * rebuilt).sum(1)
            parts.append(dots / rebuilt.norm(dim=1).clamp(min=1e-12))
        return torch.cat(parts) if parts else z.new_zeros(0)


def finish_by_nearness(found: Beams, forest: Forest, nearness: Nearness, z: Tensor, beams: int, weight: float) -> Beams:
    """Beams of any depth -> the best `beams` full IDs below them. z (G, D) belongs to the rows of `found`."""
    group, width = found.scores.shape
    levels = len(forest.level_sizes)
    leaves, tail = forest.leaves(found.level, found.lo.flatten(1), found.hi.flatten(1))
    owner = leaves.row // width
    prefix = found.codes.flatten(0, 1)[leaves.row]
    codes = torch.cat([prefix, tail], 1)  # (C, M)
    worth = found.scores.flatten()[leaves.row] + weight * nearness.cosine(z, owner, codes)
    counts = torch.bincount(owner, minlength=group)
    start = counts.cumsum(0) - counts
    most = int(counts.max()) if group else 0
    table = torch.full((group, max(most, 1)), -torch.inf, device=worth.device)
    table[owner, torch.arange(len(owner), device=owner.device) - start[owner]] = worth
    scores, best = table.topk(min(beams, table.shape[1]), dim=1)
    missing = best >= counts[:, None]
    at = (start[:, None] + best).masked_fill(missing, 0)
    return Beams(
        queries=found.queries,
        level=levels,
        codes=codes[at].masked_fill(missing[:, :, None], 0),
        scores=scores,
        lo=leaves.lo[:, at].masked_fill(missing, 0),
        hi=leaves.hi[:, at].masked_fill(missing, 0),
        items=leaves.items[at].masked_fill(missing, 0),
        residual=None,
        pending=found.pending[:, :0],
        memory=None,
    )
