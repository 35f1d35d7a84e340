"""A tiny deterministic encoder and model for tests: no weights to train, no network, milliseconds to build.

Pictures -> a projection of their 4 x 4 thumbnail; texts -> a projection of a hashed bag of words. Alike inputs
get alike vectors. It saves and loads through the registry once `register()` was called.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from genius import encoders as registry
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank

WORDS = 97


def register() -> None:
    """Let `Genius.from_pretrained` read what `FakeEncoder.save` wrote (in this process)."""
    registry.FAMILIES["fake"] = "fake_encoder:FakeEncoder"


class FakeEncoder:
    """Implements the Encoder protocol."""

    def __init__(self, width: int = 32, seed: int = 0) -> None:
        self.width, self.seed = width, seed
        draw = torch.Generator().manual_seed(seed)
        self.image_map = torch.randn(48, width, generator=draw)
        self.text_map = torch.randn(WORDS, width, generator=draw)

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        pixels = np.stack(
            [np.asarray(i.convert("RGB").resize((4, 4), Image.Resampling.BOX), np.float32).reshape(-1) for i in images]
        )
        return torch.from_numpy(pixels / 127.5 - 1) @ self.image_map

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        counts = torch.zeros(len(texts), WORDS)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()) or [""]:
                counts[row, int(hashlib.md5(word.encode()).hexdigest(), 16) % WORDS] += 1
        return counts @ self.text_map

    def save(self, directory: Path) -> None:
        registry.write_spec(directory, "fake", {"width": self.width, "seed": self.seed})

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> FakeEncoder:
        return cls(spec["width"], spec["seed"])

    def fingerprint(self) -> str:
        return hashlib.sha256(f"fake-{self.width}-{self.seed}".encode()).hexdigest()


def fake_model(width: int = 32, levels: tuple[int, ...] = (3, 16, 16, 16), seed: int = 0, **options: Any) -> Genius:
    """An untrained but complete Genius over the fake encoder; the same arguments give the same fingerprint.

    Its decoder knows nothing about modalities, so a probe that finds all equally likely takes its place: similarity decides.
    """
    torch.manual_seed(seed)
    config = GeniusConfig(
        fusion=FusionConfig(width=width, projection=32, hidden=32),
        quantizer=QuantizerConfig(width=width, level_sizes=levels),
        generator=GeneratorConfig(width=width, level_sizes=levels, d_model=32, layers=1, heads=2, d_kv=16, d_ff=64),
        **options,
    )
    model = Genius(config, FakeEncoder(width, seed))
    every = np.zeros(width, np.int64)
    no_weight = np.zeros((3, width), np.float32)
    model.queries = QueryBank(np.eye(width, dtype=np.float32), every, every, no_weight, no_weight[:, 0], real=False)
    return model
