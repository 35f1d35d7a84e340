"""A CLIP-shaped checkpoint that knows seven colours, and made-up photos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    torch.manual_seed(0)
    words = ["<unk>", "a", "photo", "of", "shoes", ".", *COLOURS]
    ends = ["<|startoftext|>", "<|endoftext|>"]
    table = {word: i for i, word in enumerate([*words, *ends])}
    shared = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    start, end = table[ends[0]], table[ends[1]]
    text = {**shared, "vocab_size": len(table), "max_position_embeddings": 12, "bos_token_id": start, "eos_token_id": end}
    vision = {**shared, "image_size": 32, "patch_size": 16}
    config = transformers.CLIPConfig(text_config={**text, "pad_token_id": end}, vision_config=vision, projection_dim=24)
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces = [(name, table[name]) for name in ends]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{ends[0]} $A {ends[1]}", special_tokens=pieces)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=ends[0],
        eos_token=ends[1],
        unk_token="<unk>",
        pad_token=ends[1],
        model_max_length=12,
    ).save_pretrained(folder)
    model = transformers.CLIPModel(config)
    model.save_pretrained(folder)
    mean = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
    crop = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "resample": 3}
    flags = {"do_resize": True, "do_center_crop": True, "do_normalize": True, "do_rescale": True, "do_convert_rgb": True}
    body = {**crop, **mean, **flags, "image_processor_type": "CLIPImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(body))
    _teach(folder, steps)
    return folder


def _teach(folder: Path, steps: int) -> None:
    from genius.encoders.registry import load_encoder

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
