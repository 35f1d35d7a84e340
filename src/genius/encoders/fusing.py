"""Encoders that fuse features themselves: one vector for a picture, a text, or both (CLIP-FF, BLIP-FF).

What they share is how a missing half is filled in. UniIR trained them with a blank for it, not with a mask: a text
alone is read beside a picture of zeros (after normalisation: the mean colour), a picture alone beside an empty text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from genius.encoders.pixels import Pixels
from genius.errors import GeniusError


class FusingEncoder:
    """`encode_pairs` with gaps, and the two single calls made from it. A subclass is also an nn.Module."""

    width: int
    pixels: Pixels

    def _fuse(self, pixels: Tensor, rows: Tensor, texts: Sequence[str]) -> Tensor:
        """pixels (p, 3, S, S) and rows (n,), which of them belongs to each of n texts, on the CPU -> (n, width)."""
        raise NotImplementedError

    @torch.no_grad()
    def encode_pairs(self, images: Sequence[Image.Image | None], texts: Sequence[str]) -> Tensor:
        """n pictures with n texts -> (n, width) float32 on the CPU, raw. A picture may be None, a text empty."""
        if len(images) != len(texts):
            raise GeniusError(f"{len(images)} pictures with {len(texts)} texts: one of each for every item")
        if not images:
            return torch.empty(0, self.width)
        present = [picture for picture in images if picture is not None]
        pixels, rows = self.pixels(present), torch.zeros(len(images), dtype=torch.long)
        if len(present) < len(images):  # one blank for all that have none
            pixels = torch.cat([pixels, torch.zeros(1, 3, self.pixels.size, self.pixels.size)])
        there = torch.tensor([picture is not None for picture in images])
        rows[there], rows[~there] = torch.arange(len(present)), len(present)
        return self._fuse(pixels, rows, texts).float().cpu()

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures, each beside an empty text -> (n, width)."""
        return self.encode_pairs(images, [""] * len(images))

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts, each beside a blank picture -> (n, width)."""
        return self.encode_pairs([None] * len(texts), texts)
