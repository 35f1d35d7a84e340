"""`ShapesEncoder`: a fixed encoder for the synthetic world, so that every command runs without weights or downloads.

It recognises a drawn thing by comparing it with all drawings and embeds it as the sum of its words' vectors; a text
is the sum of its words' vectors. Pictures and texts therefore agree by construction: it measures plumbing, not vision.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from genius.data.synthetic import COLOURS, SHAPES, SIZES, Thing
from genius.errors import GeniusError


class ShapesEncoder:
    """Implements `genius.encoders.base.Encoder`."""

    def __init__(self, width: int = 64) -> None:
        self.width = width
        self._words: dict[str, Tensor] = {}
        self._things = [Thing(c, s, z, 4) for c in COLOURS for s in SHAPES for z in SIZES]
        self._templates = torch.stack([_pixels(thing.draw()) for thing in self._things])  # (things, 3072)

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        pixels = torch.stack([_pixels(image) for image in images])
        nearest = torch.cdist(pixels, self._templates).argmin(1).tolist()
        faint = pixels[:, : self.width] * 0.05 if self.width <= pixels.shape[1] else torch.zeros(len(images), self.width)
        rows = [self._sum(self._things[i].text) for i in nearest]
        return torch.stack(rows) + faint + 0.3 * self._word("<image>")

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self._sum(text) for text in texts]) + 0.3 * self._word("<text>")

    def save(self, directory: Path) -> None:
        raise GeniusError("the encoder of the synthetic world has no weights to save")

    def fingerprint(self) -> str:
        return hashlib.sha256(f"shapes:{self.width}".encode()).hexdigest()[:32]

    def _sum(self, text: str) -> Tensor:
        words = [w for w in re.findall(r"[a-z]+", text.lower()) if w not in ("a", "the", "in", "for", "this")]
        if not words:
            return torch.zeros(self.width)
        known = {*COLOURS, *SHAPES, *SIZES}
        return torch.stack([self._word(w) * (1.0 if w in known else 0.2) for w in words]).sum(0)

    def _word(self, word: str) -> Tensor:
        if word not in self._words:
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
            self._words[word] = torch.randn(self.width, generator=torch.Generator().manual_seed(seed))
        return self._words[word]


def _pixels(image: Image.Image) -> Tensor:
    small = np.asarray(image.convert("RGB").resize((32, 32)), dtype=np.float32) / 255
    return torch.from_numpy(1 - small).reshape(-1)
