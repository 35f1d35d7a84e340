"""UniIR's checkpoints: which of the four models a file holds, and the reader of CLIP-SF.

CLIP-SF (`clip_sf_large.pth`) is the encoder under the published GENIUS; CLIP-FF, BLIP-SF and BLIP-FF are the paper's other
dense baselines (`uniir_clip_ff`, `uniir_blip`). A file is a pickle of the model and its optimizer; it is read without
running anything (`genius.torch_file`) and mapped onto `transformers`' classes.

CLIP-SF is OpenAI's CLIP in its own layout and behaves as a `ClipEncoder` once read: `save` writes an ordinary CLIP
folder. Score fusion (Eq. 2) is not here: features keep both vectors.

The text rules (instruction + text, capital first, full stop last) are `genius.instructions`, for all encoders.
The checkpoints have no tokenizer; `uniir_tokenizers` finds one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.blueprint import build
from genius.encoders.base import Encoder
from genius.encoders.pixels import Pixels
from genius.encoders.transformers_dual import ClipEncoder, import_transformers
from genius.encoders.uniir_tokenizers import bert_tokenizer, clip_tokenizer
from genius.encoders.weights import depth, grid_side, heads, load_exactly, reading_sizes, refuse_strangers
from genius.errors import GeniusError
from genius.torch_file import read_checkpoint

# OpenAI's name -> transformers' name, inside one transformer block
BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
OPENAI_NAMES = re.compile(
    r"(visual\.)?transformer\.resblocks\.\d+\.(attn\.in_proj_|(ln_[12]|attn\.out_proj|mlp\.c_fc|mlp\.c_proj)\.)(weight|bias)"
    r"|(visual\.ln_pre|visual\.ln_post|ln_final)\.(weight|bias)|visual\.(class_embedding|conv1\.weight|proj)"
    r"|(visual\.)?positional_embedding|token_embedding\.weight|text_projection|logit_scale"
    r"|input_resolution|context_length|vocab_size"  # numbers that OpenAI's own files carry along
)


class UniirCheckpoint:
    """`uniir:FILE`. Not an encoder itself: `load` gives the one that the file holds."""

    @staticmethod
    def load(directory: Path, spec: dict[str, Any]) -> Encoder:
        """Read the checkpoint file at `directory` (a file, or a folder with exactly one `.pth`)."""
        from genius.encoders.uniir_blip import BlipFfEncoder, BlipSfEncoder
        from genius.encoders.uniir_clip_ff import PREFIX, ClipFfEncoder

        path = Path(directory)
        if path.is_dir():
            found = sorted(path.glob("*.pth"))
            if len(found) != 1:
                raise GeniusError(f"{path} holds {len(found)} .pth files; name the UniIR checkpoint itself")
            path = found[0]
        state = {name.removeprefix("clip_model."): tensor for name, tensor in read_checkpoint(path).items()}
        if any(name.startswith("visual_encoder.") for name in state):
            family = BlipSfEncoder if "vision_proj.weight" in state else BlipFfEncoder
            return family.from_state(state, bert_tokenizer(path.parent), str(path))
        if any(name.startswith(PREFIX) for name in state):
            return ClipFfEncoder.from_state(state, clip_tokenizer(path.parent), str(path))
        model = clip_from_openai(state, str(path))
        return ClipEncoder(model, clip_tokenizer(path.parent), Pixels(size=model.config.vision_config.image_size))


def clip_from_openai(state: dict[str, Tensor], where: str = "the checkpoint") -> Any:
    """OpenAI-layout CLIP weights -> a transformers `CLIPModel`. All sizes are read off the tensors."""
    transformers = import_transformers()
    if "visual.conv1.weight" not in state or "visual.class_embedding" not in state:
        resnet = any(name.startswith("visual.layer1") for name in state)
        kind = "a ResNet CLIP" if resnet else f"no CLIP and no BLIP ({len(state)} tensors, first: {next(iter(state), '')})"
        raise GeniusError(f"{where} holds {kind}; UniIR's models have a vision transformer in OpenAI's or BLIP's layout")
    refuse_strangers((name for name in state if not OPENAI_NAMES.fullmatch(name)), where, "OpenAI's CLIP")
    with reading_sizes(where, "a whole CLIP"):
        config = _config(transformers, state, where)
        mapped = _map(state)
    model = build(lambda: transformers.CLIPModel(config), {name: tensor.shape for name, tensor in mapped.items()}, where)
    load_exactly(model, mapped, where, "OpenAI's CLIP")
    return model


def _config(transformers: Any, state: dict[str, Tensor], where: str) -> Any:
    vision_width, _, patch, _ = state["visual.conv1.weight"].shape
    grid = grid_side(state["visual.positional_embedding"].shape[0], where)
    vocabulary, text_width = state["token_embedding.weight"].shape
    shared = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
    vision = {
        "hidden_size": vision_width,
        "intermediate_size": state["visual.transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": depth(state, r"visual\.transformer\.resblocks\.(\d+)\."),
        "num_attention_heads": heads(vision_width, where),
        "image_size": grid * patch,
        "patch_size": patch,
        **shared,
    }
    text = {
        "vocab_size": vocabulary,
        "hidden_size": text_width,
        "intermediate_size": state["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": depth(state, r"transformer\.resblocks\.(\d+)\."),
        "num_attention_heads": heads(text_width, where),
        "max_position_embeddings": state["positional_embedding"].shape[0],
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,  # the largest id: OpenAI finds the end of the text by argmax
        "pad_token_id": vocabulary - 1,
        **shared,
    }
    return transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=state["text_projection"].shape[1])


def _map(state: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {
        "logit_scale": state.get("logit_scale", torch.tensor(4.6052)),
        "visual_projection.weight": state["visual.proj"].T,
        "text_projection.weight": state["text_projection"].T,
        "vision_model.embeddings.class_embedding": state["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": state["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": state["visual.positional_embedding"],
        "text_model.embeddings.token_embedding.weight": state["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": state["positional_embedding"],
    }
    # "pre_layrnorm" is transformers' own spelling
    norms = {
        "visual.ln_pre": "vision_model.pre_layrnorm",
        "visual.ln_post": "vision_model.post_layernorm",
        "ln_final": "text_model.final_layer_norm",
    }
    for theirs, ours in norms.items():
        for part in ("weight", "bias"):
            out[f"{ours}.{part}"] = state[f"{theirs}.{part}"]
    for theirs, ours in (("visual.transformer", "vision_model.encoder"), ("transformer", "text_model.encoder")):
        for layer in range(depth(state, re.escape(theirs) + r"\.resblocks\.(\d+)\.")):
            block, target = f"{theirs}.resblocks.{layer}", f"{ours}.layers.{layer}"
            for part in ("weight", "bias"):
                for old, new in BLOCK.items():
                    out[f"{target}.{new}.{part}"] = state[f"{block}.{old}.{part}"]
                for name, tensor in zip("qkv", state[f"{block}.attn.in_proj_{part}"].chunk(3), strict=True):
                    out[f"{target}.self_attn.{name}_proj.{part}"] = tensor
    return {name: tensor.detach().float().contiguous() for name, tensor in out.items()}
