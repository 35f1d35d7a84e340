"""Small checkpoints in the layouts of UniIR's published models, and what those models compute, in plain torch.

Names, shapes and arithmetic follow the published modules (OpenAI's CLIP, timm's ViT, BLIP's BERT, T5's encoder), written
out by hand from the checkpoint's own names: nothing here goes through the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

State = dict[str, Tensor]
SIZE, PATCH, POSITIONS = 32, 8, 17  # 4 x 4 patches and the class token
CONTEXT, VOCABULARY = 9, 12  # of CLIP's text tower and the test tokenizer
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "bicycle", "the", "same", "in", "blue", "."]
BERT_LENGTH = 14  # positions: fewer than 100, so texts are cut here
CLIP_WORDS = ["<pad>", "<unk>", "a", "red", "bicycle", "the", "same", "in", "blue", ".", "<|startoftext|>", "<|endoftext|>"]


class Maker:
    """Random tensors by name: weights around 0, norms around 1."""

    def __init__(self, seed: int) -> None:
        self.random, self.state = torch.Generator().manual_seed(seed), State()

    def add(self, name: str, *shape: int, near: float = 0.0) -> None:
        self.state[name] = near + 0.15 * torch.randn(shape, generator=self.random)

    def linear(self, name: str, to: int, of: int, bias: bool = True) -> None:
        self.add(f"{name}.weight", to, of)
        if bias:
            self.add(f"{name}.bias", to)

    def norm(self, name: str, width: int) -> None:
        self.add(f"{name}.weight", width, near=1.0)
        self.add(f"{name}.bias", width)


# -- CLIP-FF -------------------------------------------------------------------------------------------------------

CLIP_VISION, CLIP_WIDTH, MIXER_HEADS, MIXER_KEY = 128, 64, 3, 8


def clip_ff() -> State:
    make = Maker(1)
    make.add("clip_model.positional_embedding", CONTEXT, CLIP_WIDTH)
    make.add("clip_model.logit_scale")
    make.add("clip_model.visual.class_embedding", CLIP_VISION)
    make.add("clip_model.visual.positional_embedding", POSITIONS, CLIP_VISION)
    make.add("clip_model.visual.proj", CLIP_VISION, CLIP_WIDTH)
    make.add("clip_model.visual.conv1.weight", CLIP_VISION, 3, PATCH, PATCH)
    make.norm("clip_model.visual.ln_pre", CLIP_VISION)
    make.norm("clip_model.visual.ln_post", CLIP_VISION)
    for tower, width in (("visual.transformer", CLIP_VISION), ("transformer", CLIP_WIDTH)):
        for layer in range(2):
            block = f"clip_model.{tower}.resblocks.{layer}"
            make.add(f"{block}.attn.in_proj_weight", 3 * width, width)
            make.add(f"{block}.attn.in_proj_bias", 3 * width)
            make.linear(f"{block}.attn.out_proj", width, width)
            make.norm(f"{block}.ln_1", width)
            make.linear(f"{block}.mlp.c_fc", 4 * width, width)
            make.linear(f"{block}.mlp.c_proj", width, 4 * width)
            make.norm(f"{block}.ln_2", width)
    make.add("clip_model.token_embedding.weight", VOCABULARY, CLIP_WIDTH)
    make.norm("clip_model.ln_final", CLIP_WIDTH)
    for layer in range(2):
        attention, forward = (f"t5_layers.block.{layer}.layer.{part}" for part in (0, 1))
        for name in "qkv":
            make.linear(f"{attention}.SelfAttention.{name}", MIXER_HEADS * MIXER_KEY, CLIP_WIDTH, bias=False)
        make.linear(f"{attention}.SelfAttention.o", CLIP_WIDTH, MIXER_HEADS * MIXER_KEY, bias=False)
        if layer == 0:
            make.add(f"{attention}.SelfAttention.relative_attention_bias.weight", 32, MIXER_HEADS)
        make.add(f"{attention}.layer_norm.weight", CLIP_WIDTH, near=1.0)
        make.linear(f"{forward}.DenseReluDense.wi", 80, CLIP_WIDTH, bias=False)
        make.linear(f"{forward}.DenseReluDense.wo", CLIP_WIDTH, 80, bias=False)
        make.add(f"{forward}.layer_norm.weight", CLIP_WIDTH, near=1.0)
    make.add("t5_layers.final_layer_norm.weight", CLIP_WIDTH, near=1.0)
    return make.state


def clip_ff_reference(state: State, pixels: Tensor, texts: Sequence[str]) -> Tensor:
    """pixels (n, 3, S, S), zeros where there is no picture; texts, empty where there is none."""
    s = {name.removeprefix("clip_model."): tensor for name, tensor in state.items()}
    ids = torch.zeros(len(texts), CONTEXT, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        words = [CLIP_WORDS.index(w) if w in CLIP_WORDS else 1 for w in split(text, lower=False)][: CONTEXT - 2]
        row[: len(words) + 2] = torch.tensor([10, *words, 11])
    x = s["token_embedding.weight"][ids] + s["positional_embedding"]
    causal = torch.ones(CONTEXT, CONTEXT).tril().bool()
    text = norm(s, "ln_final", _openai_blocks(s, "transformer", x, causal))
    x = F.conv2d(pixels, s["visual.conv1.weight"], stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([s["visual.class_embedding"].expand(len(x), 1, -1), x], 1) + s["visual.positional_embedding"]
    x = _openai_blocks(s, "visual.transformer", norm(s, "visual.ln_pre", x), None)
    image = norm(s, "visual.ln_post", x) @ s["visual.proj"]
    return _t5(s, torch.cat([text, image], 1)).mean(1)


def _openai_blocks(s: State, name: str, x: Tensor, mask: Tensor | None) -> Tensor:
    for layer in range(2):
        b = f"{name}.resblocks.{layer}"
        y = F.linear(norm(s, f"{b}.ln_1", x), s[f"{b}.attn.in_proj_weight"], s[f"{b}.attn.in_proj_bias"])
        q, k, v = y.chunk(3, -1)
        x = x + linear(s, f"{b}.attn.out_proj", attend(q, k, v, x.shape[-1] // 64, mask))
        y = linear(s, f"{b}.mlp.c_fc", norm(s, f"{b}.ln_2", x))
        x = x + linear(s, f"{b}.mlp.c_proj", y * torch.sigmoid(1.702 * y))
    return x


def _t5(s: State, x: Tensor) -> Tensor:
    length = x.shape[1]
    distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    buckets = torch.tensor([[_bucket(int(d)) for d in row] for row in distance])
    bias = s["t5_layers.block.0.layer.0.SelfAttention.relative_attention_bias.weight"][buckets].permute(2, 0, 1)
    for layer in range(2):
        b = f"t5_layers.block.{layer}.layer"
        y = rms(x, s[f"{b}.0.layer_norm.weight"])
        q, k, v = (y @ s[f"{b}.0.SelfAttention.{name}.weight"].T for name in "qkv")
        q = q * math.sqrt(MIXER_KEY)  # T5 does not scale its scores: undo what `attend` will do
        x = x + attend(q, k, v, MIXER_HEADS, bias) @ s[f"{b}.0.SelfAttention.o.weight"].T
        y = F.relu(rms(x, s[f"{b}.1.layer_norm.weight"]) @ s[f"{b}.1.DenseReluDense.wi.weight"].T)
        x = x + y @ s[f"{b}.1.DenseReluDense.wo.weight"].T
    return rms(x, s["t5_layers.final_layer_norm.weight"])


def _bucket(distance: int) -> int:
    """T5's 32 buckets: 16 for each direction, of which 8 are exact and 8 grow up to 128."""
    side, far = (16 if distance > 0 else 0), abs(distance)
    if far < 8:
        return side + far
    return side + min(15, 8 + int(math.log(far / 8) / math.log(128 / 8) * 8))


# -- BLIP ----------------------------------------------------------------------------------------------------------

BLIP_VISION, BLIP_TEXT, BLIP_JOINT, BLIP_LAYERS = 192, 128, 48, 2


def blip(kind: str) -> State:
    """`sf` or `ff`, with all that the training leaves in the file: momentum copies, queues, temperature."""
    make = Maker(2)
    for copy in ("", "_m"):
        v, t = f"visual_encoder{copy}", f"text_encoder{copy}"
        make.add(f"{v}.cls_token", 1, 1, BLIP_VISION)
        make.add(f"{v}.pos_embed", 1, POSITIONS, BLIP_VISION)
        make.add(f"{v}.patch_embed.proj.weight", BLIP_VISION, 3, PATCH, PATCH)
        make.add(f"{v}.patch_embed.proj.bias", BLIP_VISION)
        for layer in range(BLIP_LAYERS):
            block = f"{v}.blocks.{layer}"
            make.norm(f"{block}.norm1", BLIP_VISION)
            make.linear(f"{block}.attn.qkv", 3 * BLIP_VISION, BLIP_VISION)
            make.linear(f"{block}.attn.proj", BLIP_VISION, BLIP_VISION)
            make.norm(f"{block}.norm2", BLIP_VISION)
            make.linear(f"{block}.mlp.fc1", 4 * BLIP_VISION, BLIP_VISION)
            make.linear(f"{block}.mlp.fc2", BLIP_VISION, 4 * BLIP_VISION)
        make.norm(f"{v}.norm", BLIP_VISION)
        make.state[f"{t}.embeddings.position_ids"] = torch.arange(BERT_LENGTH)[None]
        make.add(f"{t}.embeddings.word_embeddings.weight", len(BERT_WORDS) + 2, BLIP_TEXT)  # [DEC] and [ENC] come after the words
        make.add(f"{t}.embeddings.position_embeddings.weight", BERT_LENGTH, BLIP_TEXT)
        make.norm(f"{t}.embeddings.LayerNorm", BLIP_TEXT)
        for layer in range(BLIP_LAYERS):
            for part, width in (("attention", BLIP_TEXT), ("crossattention", BLIP_VISION)):
                block = f"{t}.encoder.layer.{layer}.{part}"
                make.linear(f"{block}.self.query", BLIP_TEXT, BLIP_TEXT)
                make.linear(f"{block}.self.key", BLIP_TEXT, width)
                make.linear(f"{block}.self.value", BLIP_TEXT, width)
                make.linear(f"{block}.output.dense", BLIP_TEXT, BLIP_TEXT)
                make.norm(f"{block}.output.LayerNorm", BLIP_TEXT)
            block = f"{t}.encoder.layer.{layer}"
            make.linear(f"{block}.intermediate.dense", 4 * BLIP_TEXT, BLIP_TEXT)
            make.linear(f"{block}.output.dense", BLIP_TEXT, 4 * BLIP_TEXT)
            make.norm(f"{block}.output.LayerNorm", BLIP_TEXT)
        if kind == "ff":
            make.linear(f"{t}.pooler.dense", BLIP_TEXT, BLIP_TEXT)
        else:
            make.linear(f"vision_proj{copy}", BLIP_JOINT, BLIP_VISION)
            make.linear(f"text_proj{copy}", BLIP_JOINT, BLIP_TEXT)
    make.add("temp")
    make.add("query_queue", 8, 10)
    make.add("cand_queue", 8, 10)
    make.state["idx_queue"], make.state["new_ptr_queue"] = torch.full((1, 10), -100), torch.zeros(1, dtype=torch.long)
    return make.state


def blip_image_states(s: State, pixels: Tensor) -> Tensor:
    v = "visual_encoder"
    x = F.conv2d(pixels, s[f"{v}.patch_embed.proj.weight"], s[f"{v}.patch_embed.proj.bias"], stride=PATCH)
    x = torch.cat([s[f"{v}.cls_token"].expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1) + s[f"{v}.pos_embed"]
    for layer in range(BLIP_LAYERS):
        b = f"{v}.blocks.{layer}"
        q, k, value = linear(s, f"{b}.attn.qkv", norm(s, f"{b}.norm1", x, 1e-6)).chunk(3, -1)
        x = x + linear(s, f"{b}.attn.proj", attend(q, k, value, BLIP_VISION // 64, None))
        x = x + linear(s, f"{b}.mlp.fc2", F.gelu(linear(s, f"{b}.mlp.fc1", norm(s, f"{b}.norm2", x, 1e-6))))
    return norm(s, f"{v}.norm", x, 1e-6)


def blip_text_states(s: State, texts: Sequence[str], image: Tensor | None) -> Tensor:
    """Padded to the full length, as UniIR does; (n, length, width)."""
    ids = torch.zeros(len(texts), BERT_LENGTH, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        words = [BERT_WORDS.index(w) if w in BERT_WORDS else 1 for w in split(text)][: BERT_LENGTH - 2]
        row[: len(words) + 2] = torch.tensor([2, *words, 3])
    mask = ((ids == 0) * -10000.0)[:, None, None, :]
    t = "text_encoder.embeddings"
    x = s[f"{t}.word_embeddings.weight"][ids] + s[f"{t}.position_embeddings.weight"]
    x = norm(s, f"{t}.LayerNorm", x, 1e-12)
    for layer in range(BLIP_LAYERS):
        b = f"text_encoder.encoder.layer.{layer}"
        x = _bert_attention(s, f"{b}.attention", x, x, mask)
        if image is not None:
            x = _bert_attention(s, f"{b}.crossattention", x, image, None)
        y = F.gelu(linear(s, f"{b}.intermediate.dense", x))
        x = norm(s, f"{b}.output.LayerNorm", linear(s, f"{b}.output.dense", y) + x, 1e-12)
    return x


def _bert_attention(s: State, name: str, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
    q = linear(s, f"{name}.self.query", x)
    k, v = linear(s, f"{name}.self.key", source), linear(s, f"{name}.self.value", source)
    y = linear(s, f"{name}.output.dense", attend(q, k, v, BLIP_TEXT // 64, mask))
    return norm(s, f"{name}.output.LayerNorm", y + x, 1e-12)


def blip_sf_reference(s: State, pixels: Tensor, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    image, text = blip_image_states(s, pixels)[:, 0], blip_text_states(s, texts, None)[:, 0]
    return linear(s, "vision_proj", image), linear(s, "text_proj", text)


def blip_ff_reference(s: State, pixels: Tensor, texts: Sequence[str]) -> Tensor:
    return torch.tanh(linear(s, "text_encoder.pooler.dense", blip_text_states(s, texts, blip_image_states(s, pixels))[:, 0]))


# -- what all share ------------------------------------------------------------------------------------------------


def linear(s: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, s[f"{name}.weight"], s[f"{name}.bias"])


def norm(s: State, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], s[f"{name}.weight"], s[f"{name}.bias"], eps)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def split(text: str, lower: bool = True) -> list[str]:
    return (text.lower() if lower else text).replace(".", " .").split()


def pixels_of(pictures: Sequence[Image.Image | None], fit: str) -> Tensor:
    """torchvision's published transforms, by hand; zeros for no picture."""
    rows = []
    for picture in pictures:
        if picture is None:
            rows.append(torch.zeros(3, SIZE, SIZE))
            continue
        if fit == "squash":
            small = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        else:  # shorter side, then the centre
            w, h = picture.size
            scaled = picture.resize((SIZE, int(SIZE * h / w)) if w <= h else (int(SIZE * w / h), SIZE), Image.Resampling.BICUBIC)
            left, top = (scaled.width - SIZE) // 2, (scaled.height - SIZE) // 2
            small = scaled.crop((left, top, left + SIZE, top + SIZE))
        values = torch.from_numpy(np.asarray(small, dtype=np.float32) / 255)
        rows.append(((values - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1))
    return torch.stack(rows)


def write_checkpoint(state: State, path: Path, tokenizer: Path | None = None) -> Path:
    """A .pth as UniIR's training saves it, with the tokenizer's file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rest: dict[str, Any] = {"optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "scheduler": {}, "epoch": 19, "scaler": {}}
    torch.save({"model": state, **rest}, path)
    if tokenizer is not None:
        (path.parent / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    else:
        (path.parent / "vocab.txt").write_text("\n".join(BERT_WORDS) + "\n", encoding="utf-8")
    return path
