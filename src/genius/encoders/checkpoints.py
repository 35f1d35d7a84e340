"""Checkpoints in other layouts than transformers': UniIR's CLIP-SF (`uniir:FILE`), and CLIP as open_clip publishes it.

Both are OpenAI's CLIP layout, whose sizes are read from the tensors, and give a `ClipEncoder`. A UniIR file is read by
`genius.torch_file`, and has no tokenizer: it is searched next to the file, then on a hub. A tokenizer without the model's special
token is passed over, because its ids would mean other words. open_clip models with towers of timm or a language model, or with
another pooling, are refused.

UniIR's other models, the paper's baselines CLIP-FF, BLIP-SF and BLIP-FF, are refused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.encoders.inputs import CLIP_MEAN, CLIP_STD, Pixels
from genius.encoders.transformers_dual import ClipEncoder, import_transformers
from genius.errors import GeniusError, said
from genius.files import read_json
from genius.torch_file import read_checkpoint
from genius.weight_files import build, check_fit, depth, grid_side, heads, read_tensors, reading_sizes

CLIP_HUB = "openai/clip-vit-large-patch14"
END = "<|endoftext|>"
CONFIG = "open_clip_config.json"
WEIGHTS = ("open_clip_model.safetensors", "model.safetensors")
OTHER_TOWERS = {"timm_model_name": "timm", "hf_model_name": "a language model"}
OTHER_WAYS = {
    "pool_type": ("tok", "argmax"),
    "attentional_pool": (False,),
    "no_ln_pre": (False,),
    "embed_cls": (False,),
    "no_causal_mask": (False,),
}


class UniirCheckpoint:
    """`uniir:FILE`. Not an encoder itself: `load` returns the one in the file."""

    @staticmethod
    def load(directory: Path, spec: dict[str, Any]) -> ClipEncoder:
        """Read the checkpoint at `directory`: a file, or a folder with exactly one `.pth`."""
        path = Path(directory)
        if path.is_dir():
            files = sorted(path.glob("*.pth"))
            if len(files) != 1:
                raise GeniusError(f"{path} holds {len(files)} .pth files; name the UniIR checkpoint itself")
            path = files[0]
        state = {name.removeprefix("clip_model."): tensor for name, tensor in read_checkpoint(path).items()}
        if any(name.startswith(("visual_encoder.", "t5_layers.")) for name in state):
            raise GeniusError(f"{path} holds UniIR's BLIP or CLIP-FF, a baseline of the paper; of UniIR's models CLIP-SF is read")
        model = clip_from_openai(state, str(path))
        return ClipEncoder(model, clip_tokenizer(path.parent), Pixels(size=model.config.vision_config.image_size))


def clip_tokenizer(folder: Path) -> Any:
    """OpenAI's: `tokenizer.json`, or `vocab.json` with `merges.txt`, in the folder or in its `clip` or `tokenizer`."""
    for place in (folder / "clip", folder / "tokenizer", folder):
        for path in (place / "tokenizer.json", place / "vocab.json"):
            if not path.is_file():
                continue
            try:
                if END in _words(path):
                    return _read_tokenizer(path)
            except Exception as error:  # the library raises bare Exceptions
                raise GeniusError(f"cannot read the tokenizer {path}: {said(error)}") from None
    try:
        return import_transformers().AutoTokenizer.from_pretrained(CLIP_HUB, trust_remote_code=False)
    except (OSError, ValueError):
        files = "tokenizer.json or vocab.json"
        raise GeniusError(f"the checkpoint needs the tokenizer of {CLIP_HUB}: put its {files} next to it, in {folder}") from None


def _words(path: Path) -> set[str]:
    """The vocabulary of the file itself: a tokenizer object would already hold the special tokens that were passed to it."""
    if path.name == "tokenizer.json":
        from tokenizers import Tokenizer

        return set(Tokenizer.from_file(str(path)).get_vocab())
    return set(json.loads(path.read_text(encoding="utf-8")))


def _read_tokenizer(path: Path) -> Any:
    transformers = import_transformers()
    if (path.parent / "tokenizer_config.json").is_file():  # a folder of transformers: it says all by itself
        return transformers.AutoTokenizer.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
    if path.name == "vocab.json":
        return transformers.CLIPTokenizer.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token="<|startoftext|>", eos_token=END, pad_token=END, unk_token=END
    )


class OpenClipFolder:
    """Not an encoder itself: `load` gives the `ClipEncoder` that the folder holds."""

    @staticmethod
    def load(directory: Path, spec: dict[str, Any]) -> ClipEncoder:
        where = f"cannot load the open_clip encoder at {directory}"
        body = read_json(directory / CONFIG, 1 << 20)
        try:
            model = body["model_cfg"]
            pixels = body.get("preprocess_cfg", {})
            vision = dict(model["vision_cfg"])
            text = dict(model["text_cfg"])
            _refuse_others(vision, text, pixels, where)
            attention = (int(vision["width"]) // int(vision.get("head_width", 64)), int(text["heads"]))
            picture = Pixels(
                size=int(vision["image_size"]),
                filter=pixels.get("interpolation", "bicubic"),
                fit="squash" if pixels.get("resize_mode") == "squash" else "crop",
                mean=tuple(pixels.get("mean", CLIP_MEAN)),
                std=tuple(pixels.get("std", CLIP_STD)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GeniusError(f"{where}: {CONFIG}: the field {error} is missing or invalid") from None
        weights = next((directory / name for name in WEIGHTS if (directory / name).is_file()), None)
        if weights is None:
            raise GeniusError(f"{where}: {WEIGHTS[0]} is missing; other weight formats are not supported")
        # a text tower of its own class has its names under "text."
        state = {name.removeprefix("text."): tensor for name, tensor in read_tensors(weights).items() if name != "logit_bias"}
        activation = "gelu"
        if model.get("quick_gelu", False):
            activation = "quick_gelu"
        return ClipEncoder(clip_from_openai(state, str(weights), activation, attention), clip_tokenizer(directory), picture)


def _refuse_others(vision: dict[str, Any], text: dict[str, Any], pixels: dict[str, Any], where: str) -> None:
    for settings in (vision, text):
        for name, owner in OTHER_TOWERS.items():
            if settings.get(name):
                raise GeniusError(
                    f"{where}: a tower is {owner}'s {settings[name]}; only open_clip's own transformers are supported"
                )
        for name, known in OTHER_WAYS.items():
            if settings.get(name, known[0]) not in known:
                raise GeniusError(f"{where}: {name} = {settings[name]!r} is not supported")
    if not isinstance(vision.get("layers"), int):
        raise GeniusError(f"{where}: ResNet image towers are not supported, only vision transformers")
    if pixels.get("resize_mode", "shortest") not in ("shortest", "squash"):
        raise GeniusError(f"{where}: resize_mode = {pixels['resize_mode']!r} is not supported")


# -- OpenAI's layout as a transformers `CLIPModel` ----------------------------------------------------------------

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


def clip_from_openai(
    state: dict[str, Tensor],
    where: str = "the checkpoint",
    activation: str = "quick_gelu",
    attention: tuple[int, int] | None = None,
) -> Any:
    """OpenAI-layout CLIP weights -> a transformers `CLIPModel`. All sizes are read from the tensors.

    Args:
        state: Tensors by name.
        where: Begins errors.
        activation: Of the MLPs, by transformers' name.
        attention: Heads of the image tower and of the text tower; None: one per 64 channels, as OpenAI's.

    Raises:
        GeniusError: If the tensors are not a whole CLIP with a vision transformer.
    """
    transformers = import_transformers()
    if "visual.conv1.weight" not in state or "visual.class_embedding" not in state:
        content = f"no CLIP and no BLIP ({len(state)} tensors, first: {next(iter(state), '')})"
        if any(name.startswith("visual.layer1") for name in state):
            content = "a ResNet CLIP"
        raise GeniusError(f"{where} holds {content}; UniIR's models have a vision transformer in OpenAI's or BLIP's layout")
    unknown = [name for name in state if not OPENAI_NAMES.fullmatch(name)]
    if unknown:
        raise GeniusError(f"{where} is not OpenAI's CLIP: {len(unknown)} tensors unknown (first: {unknown[0]})")
    with reading_sizes(where, "a whole CLIP"):
        config = _config(transformers, state, where, activation, attention)
        mapped = _map(state)
    shapes = {name: tensor.shape for name, tensor in mapped.items()}
    model = build(lambda: transformers.CLIPModel(config), shapes, where)
    check_fit(model, shapes, where)
    model.load_state_dict(mapped)
    return model


def _config(transformers: Any, state: dict[str, Tensor], where: str, activation: str, attention: tuple[int, int] | None) -> Any:
    vision_width, _, patch, _ = state["visual.conv1.weight"].shape
    grid = grid_side(state["visual.positional_embedding"].shape[0], where)
    vocabulary, text_width = state["token_embedding.weight"].shape
    shared = {"hidden_act": activation, "layer_norm_eps": 1e-5}
    seeing, reading = attention or (heads(vision_width, where), heads(text_width, where))
    vision = {
        "hidden_size": vision_width,
        "intermediate_size": state["visual.transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": depth(state, r"visual\.transformer\.resblocks\.(\d+)\."),
        "num_attention_heads": seeing,
        "image_size": grid * patch,
        "patch_size": patch,
        **shared,
    }
    text = {
        "vocab_size": vocabulary,
        "hidden_size": text_width,
        "intermediate_size": state["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": depth(state, r"transformer\.resblocks\.(\d+)\."),
        "num_attention_heads": reading,
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
            block = f"{theirs}.resblocks.{layer}"
            target = f"{ours}.layers.{layer}"
            for part in ("weight", "bias"):
                for old, new in BLOCK.items():
                    out[f"{target}.{new}.{part}"] = state[f"{block}.{old}.{part}"]
                for name, tensor in zip("qkv", state[f"{block}.attn.in_proj_{part}"].chunk(3), strict=True):
                    out[f"{target}.self_attn.{name}_proj.{part}"] = tensor
    return {name: tensor.detach().float().contiguous() for name, tensor in out.items()}
