"""Converts the published GENIUS checkpoints to a `Genius` model.

The files hold optimizer state and an OmegaConf object besides the weights; `genius.torch_file` reads the weights and runs no
code. Sizes are read from the tensors, so a checkpoint of any shape converts, and the model is no larger than its tensors.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.torch_file import read_checkpoint
from genius.weight_files import build, check_fit, reading_sizes


def convert_official(quantizer: str | Path, generator: str | Path) -> Genius:
    """Convert a published quantizer and generator.

    Args:
        quantizer: `rq_clip_large.pth`.
        generator: `GENIUS_t5small.pth`, trained with this quantizer.

    Returns:
        A model without an encoder, with the published behaviour.

    Raises:
        GeniusError: If a file is not a published checkpoint, or the two do not belong together.
    """
    rq = read_checkpoint(quantizer)
    gen = read_checkpoint(generator)
    _same_quantizer(rq, gen, generator)
    with reading_sizes(f"{quantizer} with {generator}", "a published GENIUS checkpoint pair"):
        config = _config(rq, gen)
        weights = {**_fusion(rq), **_codebooks(rq), **_decoder(gen, config.generator.layers)}
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    model = build(lambda: Genius(config), shapes, f"{quantizer} with {generator}")
    check_fit(model.network, shapes, f"{quantizer} with {generator}")
    model.network.load_state_dict(weights)
    return model


def _same_quantizer(rq: dict[str, Tensor], gen: dict[str, Tensor], path: str | Path) -> None:
    """A generator is of use only with the quantizer that it was trained with; another gives recall 0 without an error."""
    for name, tensor in rq.items():
        copy = gen.get(f"quantizer.{name}")
        if copy is None or not name.endswith(("weight", "bias", "_codebook.embed")):
            continue
        if copy.shape != tensor.shape or not torch.allclose(copy.float(), tensor.float(), atol=1e-5):
            raise GeniusError(f"{path} was trained with another quantizer than the one given ({name} differs)")


def _config(rq: dict[str, Tensor], gen: dict[str, Tensor]) -> GeniusConfig:
    projection, width = rq["encoder.text_projection_layer.weight"].shape
    levels = _count(rq, r"residual_rq\.layers\.(\d+)\.")
    sizes = tuple(rq[f"residual_rq.layers.{i}._codebook.embed"].shape[1] for i in range(levels))
    bias = gen["id_generator.decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    inner, d_model = gen["id_generator.decoder.block.0.layer.0.SelfAttention.q.weight"].shape
    return GeniusConfig(
        fusion=FusionConfig(width, projection, rq["encoder.combiner_layer.weight"].shape[0]),
        quantizer=QuantizerConfig(width, sizes, modality_code="nearest", published_revival=True),
        generator=GeneratorConfig(
            width,
            sizes,
            d_model=d_model,
            layers=_count(gen, r"id_generator\.decoder\.block\.(\d+)\."),
            heads=bias.shape[1],
            d_kv=inner // bias.shape[1],
            d_ff=gen["id_generator.decoder.block.0.layer.2.DenseReluDense.wi.weight"].shape[0],
            prefix_tokens=gen["embed_projector.0.weight"].shape[0] // d_model,
            buckets=bias.shape[0],
        ),
        rerank_embedding="score-fusion",
        search={"rerank": 0, "reranker": "none"},
    )


def _count(state: dict[str, Tensor], pattern: str) -> int:
    numbers = [int(m.group(1)) for m in (re.match(pattern, name) for name in state) if m]
    if not numbers:
        raise KeyError(pattern)
    return max(numbers) + 1


_FUSION = {
    "project_text": "text_projection_layer",
    "project_image": "image_projection_layer",
    "mix_hidden": "combiner_layer",
    "mix_output": "output_layer",
    "balance_hidden": "dynamic_scalar.0",
    "balance_output": "dynamic_scalar.3",
}


def _fusion(rq: dict[str, Tensor]) -> dict[str, Tensor]:
    names = [(ours, theirs, part) for ours, theirs in _FUSION.items() for part in ("weight", "bias")]
    return {f"fusion.{ours}.{part}": rq[f"encoder.{theirs}.{part}"] for ours, theirs, part in names}


def _codebooks(rq: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for level in range(_count(rq, r"residual_rq\.layers\.(\d+)\.")):
        codebook = f"residual_rq.layers.{level}._codebook"
        out[f"quantizer.codes_{level}"] = rq[f"{codebook}.embed"][0]
        out[f"quantizer.sizes_{level}"] = rq[f"{codebook}.cluster_size"][0]
        out[f"quantizer.sums_{level}"] = rq[f"{codebook}.embed_avg"][0]
        out[f"quantizer.unused_{level}"] = torch.zeros_like(out[f"quantizer.sizes_{level}"])
    return out


def _decoder(gen: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    t5 = "id_generator.decoder"
    out = {
        "generator.tokens.weight": gen["id_generator.shared.weight"],
        "generator.prefix.weight": gen["embed_projector.0.weight"],
        "generator.prefix.bias": gen["embed_projector.0.bias"],
        "generator.prefix_norm.weight": gen["id_generator.encoder.final_layer_norm.weight"],
        "generator.position_bias.weight": gen[f"{t5}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"],
        "generator.final_norm.weight": gen[f"{t5}.final_layer_norm.weight"],
    }
    for i in range(layers):
        theirs = f"{t5}.block.{i}.layer"
        ours = f"generator.blocks.{i}"
        for matrix in "qkvo":
            out[f"{ours}.self_attention.{matrix}.weight"] = gen[f"{theirs}.0.SelfAttention.{matrix}.weight"]
            out[f"{ours}.cross_attention.{matrix}.weight"] = gen[f"{theirs}.1.EncDecAttention.{matrix}.weight"]
        out[f"{ours}.ff_in.weight"] = gen[f"{theirs}.2.DenseReluDense.wi.weight"]
        out[f"{ours}.ff_out.weight"] = gen[f"{theirs}.2.DenseReluDense.wo.weight"]
        for norm, position in (("self_norm", 0), ("cross_norm", 1), ("ff_norm", 2)):
            out[f"{ours}.{norm}.weight"] = gen[f"{theirs}.{position}.layer_norm.weight"]
    return out
