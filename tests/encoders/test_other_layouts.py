"""Encoders as other libraries write them: open_clip's folders and `sentence-transformers`' folders give a CLIP's own vectors."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from colour_clip import COLOURS, photo, write_clip
from safetensors.torch import load_file, save_file
from torch import Tensor

from genius import Genius, GeniusError, Index, Item
from genius.encoders import load_encoder
from genius.encoders.checkpoints import BLOCK
from genius.encoders.objects import as_encoder
from genius.fit import FitConfig

PICTURES = [photo(colour, 3) for colour in COLOURS]
TEXTS = [f"a photo of {colour}." for colour in COLOURS]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip"), steps=2)


def same(a: Any, b: Any) -> bool:
    pictures = torch.allclose(a.encode_images(PICTURES), b.encode_images(PICTURES), atol=1e-5)
    return pictures and torch.allclose(a.encode_texts(TEXTS), b.encode_texts(TEXTS), atol=1e-5)


def write_open_clip(clip: Path, folder: Path, **changes: Any) -> Path:
    """The same weights under OpenAI's names, and open_clip's description of them."""
    folder.mkdir()
    shutil.copy(clip / "tokenizer.json", folder)
    weights = load_file(clip / "model.safetensors")
    back = {ours: theirs for theirs, ours in BLOCK.items()}
    state: dict[str, Tensor] = {
        "logit_scale": weights["logit_scale"],
        "visual.proj": weights["visual_projection.weight"].T,
        "text_projection": weights["text_projection.weight"].T,
        "visual.class_embedding": weights["vision_model.embeddings.class_embedding"],
        "visual.conv1.weight": weights["vision_model.embeddings.patch_embedding.weight"],
        "visual.positional_embedding": weights["vision_model.embeddings.position_embedding.weight"],
        "token_embedding.weight": weights["text_model.embeddings.token_embedding.weight"],
        "positional_embedding": weights["text_model.embeddings.position_embedding.weight"],
    }
    norms = {"vision_model.pre_layrnorm": "visual.ln_pre", "vision_model.post_layernorm": "visual.ln_post"}
    for ours, theirs in {**norms, "text_model.final_layer_norm": "ln_final"}.items():
        state |= {f"{theirs}.{part}": weights[f"{ours}.{part}"] for part in ("weight", "bias")}
    for tower, prefix in (("vision_model", "visual.transformer"), ("text_model", "transformer")):
        block, target = f"{tower}.encoder.layers.0", f"{prefix}.resblocks.0"
        for part in ("weight", "bias"):
            state |= {f"{target}.{theirs}.{part}": weights[f"{block}.{ours}.{part}"] for ours, theirs in back.items()}
            parts = [weights[f"{block}.self_attn.{name}_proj.{part}"] for name in "qkv"]
            state[f"{target}.attn.in_proj_{part}"] = torch.cat(parts)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "open_clip_model.safetensors")
    vision = {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16}
    text = {"context_length": 12, "vocab_size": 15, "width": 32, "heads": 2, "layers": 1}
    model = {"embed_dim": 24, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    for name, value in changes.items():
        part, _, key = name.partition("__")
        (model[part] if key else model)[key or part] = value  # type: ignore[index]
    pixels = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, "preprocess_cfg": pixels}))
    return folder


def test_open_clip_gives_the_vectors_of_the_same_clip(clip: Path, tmp_path: Path) -> None:
    own, theirs = load_encoder(clip), load_encoder(write_open_clip(clip, tmp_path / "oc"))
    assert same(own, theirs)
    theirs.save(tmp_path / "saved")
    assert same(own, load_encoder(tmp_path / "saved"))
    other = load_encoder(write_open_clip(clip, tmp_path / "gelu", quick_gelu=False))  # the activation is read
    assert not same(own, other)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vision_cfg__timm_model_name": "vit_base"}, "a tower is timm's vit_base"),
        ({"text_cfg__hf_model_name": "roberta-base"}, "a language model's roberta-base"),
        ({"vision_cfg__layers": [3, 4, 6, 3]}, "ResNet image towers are not supported"),
        ({"vision_cfg__pool_type": "avg"}, "pool_type = 'avg' is not supported"),
        ({"text_cfg": {}}, "the field 'heads' is missing or invalid"),
        ({"vision_cfg": 3}, "missing or invalid"),
        ({"vision_cfg__width": "wide"}, "missing or invalid"),
    ],
)
def test_an_open_clip_that_is_not_read_is_named_in_one_line(
    clip: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(GeniusError, match=re.escape(said)) as error:
        load_encoder(write_open_clip(clip, tmp_path / "oc", **changes))
    assert "\n" not in str(error.value)


def test_open_clip_without_safetensors(clip: Path, tmp_path: Path) -> None:
    folder = write_open_clip(clip, tmp_path / "oc")
    (folder / "open_clip_model.safetensors").unlink()
    with pytest.raises(GeniusError, match="is missing; other weight formats are not supported"):
        load_encoder(folder)


def modules(folder: Path, *kinds: str) -> Path:
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if kind == "here" else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


@pytest.mark.parametrize("behind", [(), ("Normalize",)])
def test_sentence_transformers_folders_give_the_vectors_of_their_clip(
    clip: Path, tmp_path: Path, behind: tuple[str, ...]
) -> None:
    folder = modules(tmp_path / "st", "CLIPModel", *behind)
    shutil.copytree(clip, folder / "0_CLIPModel")
    assert same(load_encoder(clip), load_encoder(folder))


def test_a_folder_that_sentence_transformers_itself_wrote(clip: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    try:
        whole = library.SentenceTransformer(str(clip), device="cpu")
        whole.save(str(tmp_path / "theirs"))
    except Exception as error:  # a release that reads no plain CLIP folder
        pytest.skip(f"this release cannot write one: {error}")
    assert same(load_encoder(clip), load_encoder(tmp_path / "theirs"))


def bert(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: modules(p, "Transformer", "Pooling"), "reads texts only"),
        (lambda p: modules(p, "CLIPModel", "Dense"), "a Dense layer after its towers"),
        (lambda p: modules(p), "lists no modules"),
        (lambda p: modules(bert(p), "here"), "reads texts only: choose an encoder with an image tower"),
        (bert, "reads texts only: choose an encoder with an image tower"),
    ],
)
def test_models_that_see_no_pictures_are_named_in_one_line(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(GeniusError, match=said) as error:
        load_encoder(make(tmp_path / "m"))
    assert "\n" not in str(error.value)


def test_a_sentence_transformer_of_texts_and_images(clip: Path, tmp_path: Path) -> None:
    """An object of the library over a CLIP-shaped checkpoint: texts and images, and the vectors are the library's."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    source = library.SentenceTransformer(str(clip), device="cpu")
    encoder = as_encoder(source)
    theirs = torch.as_tensor(source.encode(["a red thing"]))
    assert torch.allclose(encoder.encode_texts(["a red thing"]), theirs, atol=1e-5)
    images = torch.as_tensor(source.encode(PICTURES[:2]))
    assert torch.allclose(encoder.encode_images(PICTURES[:2]), images, atol=1e-5)
    items = [Item(colour, image=picture) for colour, picture in zip(COLOURS, PICTURES, strict=True)]
    model = Genius.from_encoder(source).fit(items, config=FitConfig(steps=5))  # type: ignore[call-arg]
    index = Index(tmp_path / "i.genius", model)
    index.add(items)
    first = next(iter(COLOURS))
    assert index.search(image=PICTURES[0], target="image", k=1)[0].id == first
