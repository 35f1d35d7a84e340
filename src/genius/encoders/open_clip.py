"""CLIP as open_clip publishes it: `open_clip_config.json` beside `open_clip_model.safetensors`.

The weights have OpenAI's names, so they become a `transformers` CLIP as UniIR's do, and behave as a `ClipEncoder` once read.
Models whose towers come from elsewhere (timm, a language model) or pool in another way are refused in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genius.encoders.pixels import CLIP_MEAN, CLIP_STD, Pixels
from genius.encoders.transformers_dual import ClipEncoder
from genius.encoders.uniir import clip_tokenizer
from genius.encoders.uniir_clip import clip_from_openai
from genius.errors import GeniusError
from genius.files import read_json
from genius.weight_files import read_tensors

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


class OpenClipFolder:
    """Not an encoder itself: `load` gives the `ClipEncoder` that the folder holds."""

    @staticmethod
    def load(directory: Path, spec: dict[str, Any]) -> ClipEncoder:
        where = f"cannot load the open_clip encoder at {directory}"
        body = read_json(directory / CONFIG, 1 << 20)
        try:
            model, pixels = body["model_cfg"], body.get("preprocess_cfg", {})
            vision, text = dict(model["vision_cfg"]), dict(model["text_cfg"])
            _refuse_others(vision, text, pixels, where)
            heads = (int(vision["width"]) // int(vision.get("head_width", 64)), int(text["heads"]))
            picture = Pixels(
                size=int(vision["image_size"]),
                filter=pixels.get("interpolation", "bicubic"),
                fit="squash" if pixels.get("resize_mode") == "squash" else "crop",
                mean=tuple(pixels.get("mean", CLIP_MEAN)),
                std=tuple(pixels.get("std", CLIP_STD)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GeniusError(f"{where}: {CONFIG} lacks or spoils {error}") from None
        weights = next((directory / name for name in WEIGHTS if (directory / name).is_file()), None)
        if weights is None:
            raise GeniusError(f"{where}: {WEIGHTS[0]} is missing; other kinds of weights are not read")
        # a text tower of its own class has its names under "text."
        state = {name.removeprefix("text."): tensor for name, tensor in read_tensors(weights).items() if name != "logit_bias"}
        activation = "quick_gelu" if model.get("quick_gelu", False) else "gelu"
        return ClipEncoder(clip_from_openai(state, str(weights), activation, heads), clip_tokenizer(directory), picture)


def _refuse_others(vision: dict[str, Any], text: dict[str, Any], pixels: dict[str, Any], where: str) -> None:
    for settings in (vision, text):
        for name, owner in OTHER_TOWERS.items():
            if settings.get(name):
                raise GeniusError(f"{where}: a tower is {owner}'s {settings[name]}; only open_clip's own transformers are read")
        for name, known in OTHER_WAYS.items():
            if settings.get(name, known[0]) not in known:
                raise GeniusError(f"{where}: {name} = {settings[name]!r} is not read")
    if not isinstance(vision.get("layers"), int):
        raise GeniusError(f"{where}: a ResNet is not read, only vision transformers")
    if pixels.get("resize_mode", "shortest") not in ("shortest", "squash"):
        raise GeniusError(f"{where}: resize_mode = {pixels['resize_mode']!r} is not read")
