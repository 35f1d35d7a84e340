"""No decoder at all: codes written by nearness alone, 2 r.c - |c|^2 with r what is left of z. The row a generator must beat.

Summed over all levels this is |z|^2 - |z - reconstruction|^2, so with beams for everything it ranks by the distance to the
reconstruction. Nothing is near a modality, so all three compete equally. Knows codebooks; has nothing to remember.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.model.quantizer import ResidualQuantizer
from genius.search.decoder import Memory


class NoDecoder:
    """A `genius.search.decoder.Writer` without a decoder."""

    def __init__(self, quantizer: ResidualQuantizer) -> None:
        self.quantizer = quantizer
        self.level_sizes = quantizer.config.level_sizes

    def start(self, z: Tensor) -> Memory:
        return Memory(z, [], [])

    def run(self, codes: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        queries, beams, length = codes.shape
        return memory.z.new_zeros(queries, beams, length + 1, 0), memory

    def mass(self, hidden: Tensor) -> None:
        return None

    def log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor, mass: Tensor | None = None) -> Tensor:
        """Not a probability: how near every next code is."""
        rest = memory.z.float().repeat_interleave(codes.shape[1], 0)
        flat = codes.flatten(0, 1)
        if level:
            rest = rest - self.quantizer.decode_prefix(flat)
        return self.quantizer.closeness(level, rest, flat[:, 0] if level else None)

    def path_log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor) -> Tensor:
        total = torch.zeros(codes.shape[:2], device=codes.device)
        for now in range(level, codes.shape[2]):
            near = self.log_p(now, hidden, memory, codes[:, :, :now])
            total += near.gather(1, codes[:, :, now].reshape(-1, 1)).view(codes.shape[:2])
        return total
