"""UniIR's CLIP-FF (`clip_ff_large.pth`): CLIP's token states, mixed by a small T5 encoder and averaged to one vector.

As published: the text tower gives its 77 states after the last norm (no projection: UniIR deletes it), the image tower its 257
states after the last norm, projected. Text first, then image, go through a two-layer T5 stack with relative positions and no
mask, and the mean over all 334 outputs is the item's vector. So padding counts: a text is padded to its full length with id 0,
as OpenAI's tokenizer does, not with the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from PIL import Image
from torch import Tensor

from genius.encoders.inputs import Pixels
from genius.encoders.openai_clip import clip_from_openai
from genius.encoders.transformers_dual import ClipEncoder, import_transformers
from genius.errors import GeniusError
from genius.weight_files import build, depth, load_exactly, read_tensors, reading_sizes

MIXER = "mixer.safetensors"  # beside the files of an ordinary CLIP folder
PREFIX = "t5_layers."


class FusingEncoder:
    """One vector for a picture, a text, or both (CLIP-FF, BLIP-FF): `encode_pairs` with gaps, and two single calls made from it.

    UniIR trained them with a blank for a missing half, not with a mask: a text alone is read beside a picture of zeros (after
    normalisation: the mean colour), a picture alone beside an empty text. A subclass is also an nn.Module.
    """

    width: int
    pixels: Pixels

    def _fuse(self, pixels: Tensor, rows: Tensor, texts: Sequence[str]) -> Tensor:
        """pixels (p, 3, S, S) and rows (n,), which of them belongs to each of n texts, on the CPU -> (n, width)."""
        raise NotImplementedError

    @torch.no_grad()
    def encode_pairs(self, images: Sequence[Image.Image | None], texts: Sequence[str]) -> Tensor:
        """n pictures with n texts -> (n, width) float32 on the CPU, raw. A picture may be None, a text empty."""
        if len(images) != len(texts):
            raise GeniusError(f"{len(images)} pictures with {len(texts)} texts: one of each for every item")
        if not images:
            return torch.empty(0, self.width)
        present = [picture for picture in images if picture is not None]
        pixels, rows = self.pixels(present), torch.zeros(len(images), dtype=torch.long)
        if len(present) < len(images):  # one blank for all that have none
            pixels = torch.cat([pixels, torch.zeros(1, 3, self.pixels.size, self.pixels.size)])
        there = torch.tensor([picture is not None for picture in images])
        rows[there], rows[~there] = torch.arange(len(present)), len(present)
        return self._fuse(pixels, rows, texts).float().cpu()

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures, each beside an empty text -> (n, width)."""
        return self.encode_pairs(images, [""] * len(images))

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts, each beside a blank picture -> (n, width)."""
        return self.encode_pairs([None] * len(texts), texts)


class ClipFfEncoder(FusingEncoder, ClipEncoder):
    """One vector for a picture, a text, or both. Raw; search compares by cosine, as UniIR does."""

    family = "clip-ff"

    def __init__(self, model: Any, tokenizer: Any, pixels: Pixels, mixer: Any) -> None:
        super().__init__(model, tokenizer, pixels)
        self.mixer = mixer
        if model.config.text_config.hidden_size != self.width or mixer.config.d_model != self.width:
            raise GeniusError("CLIP-FF needs text states, projected image states and mixer of one width")
        self.eval().requires_grad_(False)

    @classmethod
    def from_state(cls, state: dict[str, Tensor], tokenizer: Any, where: str) -> Self:
        """The published state dict -> the encoder."""
        towers = {name: tensor for name, tensor in state.items() if not name.startswith(PREFIX)}
        if "token_embedding.weight" in towers:  # transformers' CLIP wants the projection that UniIR deleted; it is not used
            towers.setdefault("text_projection", torch.eye(towers["token_embedding.weight"].shape[1]))
        model = clip_from_openai(towers, where)
        mixer = mixer_from_state({n.removeprefix(PREFIX): t for n, t in state.items() if n.startswith(PREFIX)}, where)
        return cls(model, tokenizer, Pixels(size=model.config.vision_config.image_size), mixer)

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> Self:
        """Read a folder that `save` wrote."""
        clip = ClipEncoder.load(directory, spec)
        path = Path(directory) / MIXER
        if not path.is_file():
            raise GeniusError(f"{directory} has no {MIXER}: it is not a CLIP-FF encoder")
        return cls(clip.model, clip.tokenizer, clip.pixels, mixer_from_state(read_tensors(path), str(path)))

    def save(self, directory: Path) -> None:
        from safetensors.torch import save_file

        Path(directory).mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in self.mixer.state_dict().items()}, Path(directory) / MIXER)
        super().save(directory)

    def _weights(self) -> dict[str, Tensor]:
        return {**super()._weights(), **{f"mixer.{name}": tensor for name, tensor in self.mixer.state_dict().items()}}

    def _fuse(self, pixels: Tensor, rows: Tensor, texts: Sequence[str]) -> Tensor:
        vision = self.model.vision_model
        states = vision(pixel_values=pixels.to(self.device)).last_hidden_state  # (p, patches + 1, vision width)
        image = self.model.visual_projection(vision.post_layernorm(states))  # (p, patches + 1, D)
        distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}  # pictures alone share the empty one
        text = self.model.text_model(input_ids=self._ids(list(distinct))).last_hidden_state  # (t, length, D), causal
        which = torch.tensor([distinct[one] for one in texts])
        joined = torch.cat([text[which.to(self.device)], image[rows.to(self.device)]], dim=1)  # (n, length + patches + 1, D)
        return cast(Tensor, self.mixer(inputs_embeds=joined).last_hidden_state.mean(dim=1))

    def _ids(self, texts: list[str]) -> Tensor:
        """(n, length) ids: start, text, end, then zeros."""
        out = torch.zeros(len(texts), self._length(), dtype=torch.long)
        for row, ids in zip(out, self.tokenizer(texts, truncation=True, max_length=self._length())["input_ids"], strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return out.to(self.device)


def mixer_from_state(state: dict[str, Tensor], where: str) -> Any:
    """UniIR's T5 stack. Sizes are read off the tensors; the rest is T5's default (ReLU, 32 buckets up to distance 128)."""
    transformers = import_transformers()
    from transformers.models.t5.modeling_t5 import T5Stack

    state = {name: tensor.detach().float() for name, tensor in state.items() if name != "embed_tokens.weight"}  # never read
    attention = "block.0.layer.0.SelfAttention"
    with reading_sizes(where, "UniIR's CLIP-FF"):
        buckets, number = state[f"{attention}.relative_attention_bias.weight"].shape
        inner, width = state[f"{attention}.q.weight"].shape
        hidden = state["block.0.layer.1.DenseReluDense.wi.weight"].shape[0]
        head = inner // number
    config = transformers.T5Config(
        vocab_size=2,  # no ids are read; T5 wants room for its two special ones
        d_model=width,
        d_kv=head,
        d_ff=hidden,
        num_layers=depth(state, r"block\.(\d+)\."),
        num_heads=number,
        relative_attention_num_buckets=buckets,
        is_encoder_decoder=False,
        use_cache=False,
    )
    mixer = build(lambda: T5Stack(config), {name: tensor.shape for name, tensor in state.items()}, where)
    mixer.embed_tokens = None  # states come in, not ids
    load_exactly(mixer, state, where, "UniIR's CLIP-FF")
    return mixer.eval()
