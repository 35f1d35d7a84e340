"""Training pairs for the generator that need no labels: indexing pairs and virtual items.

The paper's decoder sees only (query -> target's ID) and memorises those IDs. Here every pool item teaches its own ID
from points around it (*indexing pairs*), and points between items teach the ID that the quantizer would give them
(*virtual items*), so that items added later are found too. Knows z, codes and offsets; nothing of decoders.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.between import neighbours, points_between
from genius.model.quantizer import ResidualQuantizer
from genius.train.config import GeneratorStageConfig


class Indexing:
    """Draws inputs around pool items. All tensors on one device."""

    def __init__(
        self,
        z: Tensor,  # (N, D) of the pool
        modality: Tensor,  # (N,)
        codes: Tensor,  # (N, M)
        offsets: Tensor,  # (P, D) query minus target, of training pairs
        offset_modality: Tensor,  # (P,) of those targets
        quantizer: ResidualQuantizer,
        config: GeneratorStageConfig,
        parts: Tensor | None = None,  # (2, N, D): z of the image alone and of the text alone
    ) -> None:
        self.z, self.modality, self.codes, self.quantizer, self.config, self.parts = z, modality, codes, quantizer, config, parts
        order = offset_modality.argsort(stable=True)
        self.offsets = F.normalize(offsets[order], dim=1)
        self.counts = torch.bincount(offset_modality, minlength=3)  # a shift belongs to the modality that it leads to
        self.starts = self.counts.cumsum(0) - self.counts
        self.near = neighbours(z, modality, config.neighbours) if config.virtual > 0 else None

    def items(self, count: int) -> tuple[Tensor, Tensor]:
        """Indexing pairs: (count, D) inputs and (count, M) codes."""
        rows = torch.randint(self.z.shape[0], (count,), device=self.z.device)
        return self.shift(self._start(rows), self.modality[rows]), self.codes[rows]

    @torch.no_grad()
    def virtual(self, count: int) -> tuple[Tensor, Tensor]:
        """Virtual items: between an item and a near one, a little noise, with the ID the quantizer gives."""
        assert self.near is not None
        rows = torch.randint(self.z.shape[0], (count,), device=self.z.device)
        mixed = points_between(self.z, self.near, rows)
        noise = F.normalize(torch.randn_like(mixed), dim=1) * self.config.virtual_noise * torch.rand_like(mixed[:, :1])
        points = F.normalize(mixed + noise, dim=1)
        modality = self.modality[rows]
        return self.shift(points, modality), self.quantizer.encode(points, modality)

    def shift(self, points: Tensor, modality: Tensor) -> Tensor:
        """Move unit vectors by a length in [0, shift], along a random direction or a real offset; unit length again."""
        count, config = points.shape[0], self.config
        direction = F.normalize(torch.randn_like(points), dim=1)
        if self.offsets.shape[0]:
            available = self.counts[modality]
            pick = self.starts[modality] + (torch.rand(count, device=points.device) * available).long().clamp(
                max=self.offsets.shape[0] - 1
            )
            real = (torch.rand(count, device=points.device) < config.real_offsets) & (available > 0)
            direction = torch.where(real[:, None], self.offsets[pick.clamp(max=self.offsets.shape[0] - 1)], direction)
        length = config.shift * torch.rand(count, 1, device=points.device)
        return F.normalize(points + length * direction, dim=1)

    def _start(self, rows: Tensor) -> Tensor:
        if self.parts is None:
            return self.z[rows]
        lost = (torch.rand(rows.shape, device=rows.device) < self.config.modality_dropout) & (self.modality[rows] == 2)
        which = torch.randint(2, rows.shape, device=rows.device)
        return torch.where(lost[:, None], self.parts[which, rows], self.z[rows])
