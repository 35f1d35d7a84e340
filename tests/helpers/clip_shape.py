"""A checkpoint that has the files and the shape of a CLIP, with random weights: for tests of the way and for measuring memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENDS = ["<|startoftext|>", "<|endoftext|>"]
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
BASE_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
BASE_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
LAYERS = 12


def write_clip_shape(
    folder: Path,
    words: Sequence[str],
    text: dict[str, int],
    vision: dict[str, int],
    side: int,
    patch: int,
    width: int,
    length: int = 12,
    vocabulary: int = 0,
) -> None:
    """Write a folder as `transformers` does. `vocabulary`: rows of the word table, at least as many as there are words."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    table = {word: i for i, word in enumerate(["<unk>", *words, *ENDS])}
    start, end = (table[name] for name in ENDS)
    tokenizer: Any = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces = [(name, table[name]) for name in ENDS]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{ENDS[0]} $A {ENDS[1]}", special_tokens=pieces)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=ENDS[0],
        eos_token=ENDS[1],
        unk_token="<unk>",
        pad_token=ENDS[1],
        model_max_length=length,
    ).save_pretrained(folder)
    own = {"vocab_size": max(vocabulary, len(table)), "max_position_embeddings": length, "bos_token_id": start}
    config = transformers.CLIPConfig(
        text_config={**text, **own, "eos_token_id": end, "pad_token_id": end},
        vision_config={**vision, "image_size": side, "patch_size": patch},
        projection_dim=width,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    mean = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
    crop = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}, "resample": 3}
    flags = {"do_resize": True, "do_center_crop": True, "do_normalize": True, "do_rescale": True, "do_convert_rgb": True}
    body = {**crop, **mean, **flags, "image_processor_type": "CLIPImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(body), encoding="utf-8")


def write_clip_base(folder: Path, layers: int = LAYERS) -> None:
    """As large as openai/clip-vit-base-patch32: 151 million numbers. With fewer `layers` only the time and the weights shrink."""
    text, vision = ({**shape, "num_hidden_layers": layers} for shape in (BASE_TEXT, BASE_VISION))
    write_clip_shape(folder, ["a", "photo", "of"], text, vision, 224, 32, 512, 77, 49_408)
