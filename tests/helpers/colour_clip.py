"""A CLIP-shaped checkpoint that knows seven colours, and made-up photos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clip_shape import TINY, write_clip_shape
from PIL import Image

COLOURS = {
    "red": (220, 30, 30), "green": (30, 180, 40), "blue": (30, 50, 220), "yellow": (235, 220, 40),
    "black": (15, 15, 15), "white": (245, 245, 245), "purple": (150, 40, 180),
}  # fmt: skip


def photo(colour: str, seed: int, side: int = 48) -> Image.Image:
    """A coloured ground, some noise, a lighter or darker patch."""
    rng = np.random.default_rng(seed)
    pixels = np.array(COLOURS[colour], float) + rng.normal(0, 18, (side, side, 3))
    x, y = rng.integers(0, side - 16, 2)
    pixels[y : y + 16, x : x + 16] += rng.normal(0, 40)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_clip(folder: Path, steps: int = 60) -> Path:
    """Train a tiny CLIP on colours, and write it as `transformers` does."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    write_clip_shape(folder, ["a", "photo", "of", "shoes", ".", *COLOURS], TINY, TINY, side=32, patch=16, width=24)
    _teach(folder, steps)
    return folder


def _teach(folder: Path, steps: int) -> None:
    from genius.encoders import load_encoder

    encoder: Any = load_encoder(f"local-dir:{folder}")
    encoder.requires_grad_(True).train()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
    names = list(COLOURS)
    ids = encoder.tokenizer(
        [f"a photo of {name}." if i % 2 else f"{name}." for i, name in enumerate(names)], padding=True, return_tensors="pt"
    )
    for step in range(steps):
        pixels = encoder.pixels([photo(name, 10_000 + step) for name in names])
        images = torch.nn.functional.normalize(encoder._pool_images(pixels), dim=1)
        texts = torch.nn.functional.normalize(encoder._pool_texts(ids["input_ids"], ids["attention_mask"]), dim=1)
        scores = 10 * images @ texts.T
        right = torch.arange(len(names))
        loss = torch.nn.functional.cross_entropy(scores, right) + torch.nn.functional.cross_entropy(scores.T, right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    encoder.model.eval().save_pretrained(folder)
