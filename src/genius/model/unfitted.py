"""A model that saw no item: for vectors of the user's own, or to begin a fit with.

Flat search and the scan do not depend on its codes, which are random until they are fitted: only beam search, code prefixes and
`diverse` do. Written with numpy, so that making an index of vectors needs no torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from genius.config import to_dict
from genius.errors import GeniusError
from genius.files import write_json, write_whole
from genius.model.config import (
    CONFIG,
    FAST,
    FORMAT,
    SIZES,
    START_SCALE,
    FusionConfig,
    GeneratorConfig,
    GeniusConfig,
    QuantizerConfig,
)
from genius.model.graphs import WEIGHTS
from genius.model.query_bank import QueryBank
from genius.weight_arrays import write_digests

MAX_WIDTH = 16_384
UNFITTED_LEVELS = (3,) + (16,) * 8  # codes of a model that saw no item yet; a refit chooses others


def write_model(directory: Path, width: int, seed: int = 0) -> None:
    """Write the folder of a model without encoder for vectors of this width.

    Args:
        directory: Made if it is not there.
        width: Of the vectors.
        seed: Of the codebooks.

    Raises:
        GeniusError: If the width is not a whole number from 1 to 16,384.
    """
    config = config_for(width)
    weights = unfitted_weights(config, seed)
    directory.mkdir(parents=True, exist_ok=True)
    stored = save(weights, metadata={"format": "pt"})
    write_whole(directory / WEIGHTS, lambda path: path.write_bytes(stored))
    write_digests(directory, [WEIGHTS])
    neutral_queries(width).save(directory)
    write_json(directory / CONFIG, {"format": FORMAT, "model": to_dict(config)}, indent=2)


def config_for(width: int) -> GeniusConfig:
    """The config of such a model.

    Args:
        width: Of the vectors.

    Raises:
        GeniusError: If the width is not a whole number from 1 to 16,384.
    """
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= MAX_WIDTH:
        raise GeniusError(f"dim must be a whole number from 1 to {MAX_WIDTH:,}, got {width!r}")
    return GeniusConfig(
        fusion=FusionConfig(width, 1, 1),
        quantizer=QuantizerConfig(width, UNFITTED_LEVELS),
        generator=GeneratorConfig(
            width,
            UNFITTED_LEVELS,
            prefix_tokens=2,
            normalizer="level",
            head="codebooks",
            **SIZES["nano"],  # type: ignore[arg-type]
        ),
        instructions=False,
    )


def unfitted_weights(config: GeniusConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """Weights of a model that saw no item: a fusion of zeros, whose z is the unit sum of the two vectors, random codes that
    shrink from level to level, and a decoder that ranks codes by similarity.

    Args:
        config: Of `config_for`. Names and shapes are those of the torch modules (compared by a test).
        seed: Of what is random.
    """
    draw = np.random.default_rng(seed)
    width = config.width
    later = len(config.quantizer.level_sizes) - 1
    model_width = config.generator.d_model
    inner = config.generator.heads * config.generator.d_kv

    def random(*shape: int) -> NDArray[np.float32]:
        numbers: NDArray[np.float32] = (draw.normal(size=shape) * shape[-1] ** -0.5).astype(np.float32)
        return numbers

    weights: dict[str, NDArray[np.float32]] = {}
    fusion_inputs = {"project_text": width, "project_image": width, "mix_hidden": 2, "balance_hidden": 2, "balance_output": 1}
    for name, inputs in fusion_inputs.items():
        weights[f"fusion.{name}.weight"] = np.zeros((1, inputs), np.float32)
        weights[f"fusion.{name}.bias"] = np.zeros(1, np.float32)
    weights["fusion.mix_output.weight"] = np.zeros((width, 1), np.float32)
    weights["fusion.mix_output.bias"] = np.zeros(width, np.float32)
    for level, size in enumerate(config.quantizer.level_sizes):
        codes = random(size, width) * np.float32(0.5**level)
        weights[f"quantizer.codes_{level}"] = codes
        weights[f"quantizer.sums_{level}"] = codes.copy()
        weights[f"quantizer.sizes_{level}"] = np.ones(size, np.float32)
        weights[f"quantizer.unused_{level}"] = np.zeros(size, np.float32)
    head = "generator.codebook_head"
    weights[f"{head}.start"] = random(model_width)
    weights[f"{head}.log_scale"] = np.full(later, START_SCALE / FAST, np.float32)
    weights[f"{head}.norm_weight"] = np.full(later, 1 / FAST, np.float32)
    weights[f"{head}.modality_in.weight"] = random(3, model_width)
    weights[f"{head}.modality_out.weight"] = random(3, model_width)
    weights[f"{head}.modality_out.bias"] = np.zeros(3, np.float32)
    for level in range(later):
        if level < later - 1:  # the last code is never read
            weights[f"{head}.read.{level}.weight"] = random(model_width, width) * np.float32(2.0 ** (level + 1) * width**0.5)
            weights[f"{head}.read.{level}.bias"] = np.zeros(model_width, np.float32)
        weights[f"{head}.residual_shift.{level}.weight"] = np.zeros((width, model_width), np.float32)
        weights[f"{head}.residual_shift.{level}.bias"] = np.zeros(width, np.float32)
    weights["generator.prefix.weight"] = random(config.generator.prefix_tokens * model_width, width)
    weights["generator.prefix.bias"] = np.zeros(config.generator.prefix_tokens * model_width, np.float32)
    weights["generator.prefix_norm.weight"] = np.ones(model_width, np.float32)
    weights["generator.position_bias.weight"] = random(config.generator.buckets, config.generator.heads)
    weights["generator.final_norm.weight"] = np.ones(model_width, np.float32)
    for layer in range(config.generator.layers):
        block = f"generator.blocks.{layer}"
        for part in ("self", "cross"):
            for name in "qkv":
                weights[f"{block}.{part}_attention.{name}.weight"] = random(inner, model_width)
            weights[f"{block}.{part}_attention.o.weight"] = random(model_width, inner)
        for part in ("self", "cross", "ff"):
            weights[f"{block}.{part}_norm.weight"] = np.ones(model_width, np.float32)
        weights[f"{block}.ff_in.weight"] = random(config.generator.d_ff, model_width)
        weights[f"{block}.ff_out.weight"] = random(model_width, config.generator.d_ff)
    return weights


def neutral_queries(width: int) -> QueryBank:
    """Stands for queries of which nothing is known: every modality is equally likely, no item has a bias.

    Args:
        width: Of the vectors.
    """
    none = np.empty(0, np.int64)
    vectors = np.empty((0, width), np.float32)
    return QueryBank(vectors, none, none, np.zeros((3, width), np.float32), np.zeros(3, np.float32), real=False)
