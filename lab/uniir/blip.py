"""UniIR's BLIP-SF and BLIP-FF (`blip_sf_large.pth`, `blip_ff_large.pth`): BLIP's ViT-L and BERT, at 224 pixels.

As published: pictures are squashed to 224 x 224 (no crop), CLIP's mean and deviation; texts are cut at 100 tokens of
BERT's uncased tokenizer. BLIP-SF projects both class tokens, and the sum of the two is the embedding (features keep
them apart, as for CLIP-SF). BLIP-FF reads the text with cross-attention into all states of the image and takes BERT's
pooler; the first token stays [CLS], although BLIP itself would write [ENC] there.

The files also hold momentum copies, queues, a temperature, and for BLIP-SF cross-attention that nothing calls: skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from PIL import Image
from torch import Tensor, nn

from genius.encoders import write_spec
from genius.encoders.inputs import Pixels
from genius.encoders.transformers_dual import import_transformers, load_tokenizer
from genius.errors import GeniusError, said
from genius.weight_files import (
    build,
    depth,
    fingerprint,
    grid_side,
    heads,
    load_exactly,
    read_tensors,
    reading_sizes,
    refuse_unknown,
)
from lab.uniir.clip_ff import FusingEncoder

WEIGHTS = "blip.safetensors"
TEXT_LENGTH = 100  # `tokenizer_max_length` of UniIR's configs; the checkpoint does not say
CROSSED = "text.encoder.layer.0.crossattention.self.key.weight"
SKIPPED = re.compile(
    r"(visual_encoder_m|text_encoder_m|vision_proj_m|text_proj_m)\..+"
    r"|(query|cand|idx|new_ptr)_queue|temp|text_encoder\.embeddings\.position_ids"
)
# UniIR's name -> transformers' name; BERT's layers are called the same in both
NAMES = [
    (r"^visual_encoder\.cls_token$", "vision.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
    (r"^visual_encoder\.blocks\.(\d+)\.norm(\d)\.", r"vision.encoder.layers.\1.layer_norm\2."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.qkv\.", r"vision.encoder.layers.\1.self_attn.qkv."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision.encoder.layers.\1.self_attn.projection."),
    (r"^visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision.encoder.layers.\1.mlp."),
    (r"^visual_encoder\.norm\.", "vision.post_layernorm."),
    (r"^text_encoder\.", "text."),
    (r"^(vision|text)_proj\.", r"\1_proj."),
]


class BlipEncoder(nn.Module):
    """What BLIP-SF and BLIP-FF share: towers, tokenizer, pixels, files."""

    family: ClassVar[str]
    title: ClassVar[str]
    width: int

    def __init__(self, state: dict[str, Tensor], tokenizer: Any, where: str) -> None:
        """`state` in transformers' names (`rename`); all sizes are read off it."""
        super().__init__()
        self.tokenizer = tokenizer
        transformers = import_transformers()
        with reading_sizes(where, self.title):
            vision, text = _vision(state, where), _text(state, where)
            pooled = "text.pooler.dense.weight" in state
        shapes = {name: tensor.shape for name, tensor in state.items()}
        self.vision: Any = build(lambda: transformers.BlipVisionModel(vision), shapes, where)
        self.text: Any = build(lambda: transformers.BlipTextModel(text, add_pooling_layer=pooled), shapes, where)
        with reading_sizes(where, self.title):
            self._heads(state)
        load_exactly(self, state, where, self.title)
        self.pixels = Pixels(size=self.vision.config.image_size, fit="squash")
        self.length = min(TEXT_LENGTH, int(self.text.config.max_position_embeddings))
        self.eval().requires_grad_(False)

    @classmethod
    def from_state(cls, state: dict[str, Tensor], tokenizer: Any, where: str) -> Self:
        """The published state dict -> the encoder."""
        return cls(rename(state, where, cls.title), tokenizer, where)

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> Self:
        """Read a folder that `save` wrote."""
        path = Path(directory) / WEIGHTS
        if not path.is_file():
            raise GeniusError(f"{directory} has no {WEIGHTS}: it is not a {cls.family} encoder")
        try:
            tokenizer = load_tokenizer(Path(directory))
        except Exception as error:  # the library raises many kinds
            raise GeniusError(f"cannot read the tokenizer in {directory}: {said(error)}") from None
        return cls(read_tensors(path), tokenizer, str(path))

    def save(self, directory: Path) -> None:
        from safetensors.torch import save_file

        Path(directory).mkdir(parents=True, exist_ok=True)
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items() if not name.endswith("position_ids")}
        save_file(weights, Path(directory) / WEIGHTS)
        self.tokenizer.save_pretrained(directory)
        write_spec(Path(directory), self.family)

    def fingerprint(self) -> str:
        probe = self.tokenizer(["The quick brown fox, 42!"], truncation=True, max_length=self.length)["input_ids"]
        settings = {"family": self.family, "pixels": self.pixels.to_preprocessor(), "tokenizer": [list(map(int, probe[0]))]}
        return fingerprint(self.state_dict(), settings)

    @property
    def device(self) -> torch.device:
        return cast(Tensor, self.vision.post_layernorm.weight).device

    def prepare_image(self, picture: Image.Image) -> Image.Image:
        return self.pixels.prepare(picture)

    def _heads(self, state: dict[str, Tensor]) -> None:
        """Layers after the towers, and `width`."""
        raise NotImplementedError

    def _image_states(self, pixels: Tensor) -> Tensor:
        """(n, patches + 1, vision width), after the last norm; not `pooler_output`, which transformers norms twice."""
        return cast(Tensor, self.vision(pixel_values=pixels.to(self.device)).last_hidden_state)

    def _tokens(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Padded to the longest of the batch: padding is masked, so UniIR's full length gives the same first token."""
        out = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.length, return_tensors="pt", return_attention_mask=True
        )
        return {name: out[name].to(self.device) for name in ("input_ids", "attention_mask")}


class BlipSfEncoder(BlipEncoder):
    """Two towers: the projected class tokens. Score fusion (Eq. 2) adds them, as everywhere."""

    family = "blip-sf"
    title = "UniIR's BLIP-SF"

    def _heads(self, state: dict[str, Tensor]) -> None:
        self.width = state["vision_proj.weight"].shape[0]
        self.vision_proj = nn.Linear(self.vision.config.hidden_size, self.width)
        self.text_proj = nn.Linear(self.text.config.hidden_size, self.width)

    @classmethod
    def from_state(cls, state: dict[str, Tensor], tokenizer: Any, where: str) -> Self:
        return super().from_state({n: t for n, t in state.items() if ".crossattention." not in n}, tokenizer, where)

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures -> (n, width) float32 on the CPU, raw."""
        if not images:
            return torch.empty(0, self.width)
        states = self._image_states(self.pixels(images))
        return cast(Tensor, self.vision_proj(states[:, 0])).float().cpu()

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU, raw."""
        if not texts:
            return torch.empty(0, self.width)
        states = self.text(**self._tokens(texts)).last_hidden_state  # no image: cross-attention is never entered
        return cast(Tensor, self.text_proj(states[:, 0])).float().cpu()


class BlipFfEncoder(FusingEncoder, BlipEncoder):
    """One vector for a picture, a text, or both: BERT's pooler over [CLS], which looks at the image in every layer."""

    family = "blip-ff"
    title = "UniIR's BLIP-FF"

    def _heads(self, state: dict[str, Tensor]) -> None:
        self.width = state["text.pooler.dense.weight"].shape[0]
        _ = state[CROSSED]  # without it the image would never be looked at

    def _fuse(self, pixels: Tensor, rows: Tensor, texts: Sequence[str]) -> Tensor:
        states = self._image_states(pixels)[rows.to(self.device)]  # (n, patches + 1, vision width); a blank is attended to, too
        return cast(Tensor, self.text(**self._tokens(texts), encoder_hidden_states=states).pooler_output)


def rename(state: dict[str, Tensor], where: str, what: str) -> dict[str, Tensor]:
    """UniIR's names -> ours. Momentum copies and queues are left out; a name of no part of the model is refused."""
    out: dict[str, Tensor] = {}
    strangers: list[str] = []
    for name, tensor in state.items():
        if SKIPPED.fullmatch(name):
            continue
        for pattern, target in NAMES:
            if re.match(pattern, name):
                out[re.sub(pattern, target, name)] = tensor.detach().float()
                break
        else:
            strangers.append(name)
    refuse_unknown(strangers, where, what)
    return out


def _vision(state: dict[str, Tensor], where: str) -> Any:
    transformers = import_transformers()
    width, _, patch, _ = state["vision.embeddings.patch_embedding.weight"].shape
    return transformers.BlipVisionConfig(
        hidden_size=width,
        intermediate_size=state["vision.encoder.layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=depth(state, r"vision\.encoder\.layers\.(\d+)\."),
        num_attention_heads=heads(width, where),
        image_size=grid_side(state["vision.embeddings.position_embedding"].shape[1], where) * patch,
        patch_size=patch,
        hidden_act="gelu",
        layer_norm_eps=1e-6,  # of BLIP's ViT; transformers' default is another
    )


def _text(state: dict[str, Tensor], where: str) -> Any:
    transformers = import_transformers()
    vocabulary, width = state["text.embeddings.word_embeddings.weight"].shape
    return transformers.BlipTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        encoder_hidden_size=state[CROSSED].shape[1] if CROSSED in state else width,
        intermediate_size=state["text.encoder.layer.0.intermediate.dense.weight"].shape[0],
        num_hidden_layers=depth(state, r"text\.encoder\.layer\.(\d+)\."),
        num_attention_heads=heads(width, where),
        max_position_embeddings=state["text.embeddings.position_embeddings.weight"].shape[0],
        hidden_act="gelu",
        layer_norm_eps=1e-12,
        bos_token_id=None,  # of the caption writer, which is not in these files
        eos_token_id=None,
        sep_token_id=None,
        is_decoder=CROSSED in state,  # only says whether there is cross-attention: the text is read both ways
    )
