"""CLIP, SigLIP and UniIR on tiny checkpoints in the real layouts, against transformers' own outputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius import GeniusError
from genius.encoders import load_encoder
from genius.encoders.checkpoints import clip_from_openai

transformers = pytest.importorskip("transformers")
TEXTS = ["A red bicycle.", "The same in blue.", "blue"]


def tiny_clip() -> Any:
    torch.manual_seed(0)
    text = {
        "vocab_size": 12, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 1,
        "max_position_embeddings": 9, "bos_token_id": 10, "eos_token_id": 11, "pad_token_id": 11,
    }  # fmt: skip
    vision = {
        "hidden_size": 128,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=48))
    for parameter in model.parameters():  # biases and norms start at 0 and 1: move them, or a swapped pair would not show
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def tiny_siglip() -> Any:
    torch.manual_seed(0)
    text = {
        "vocab_size": 12, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 9, "projection_size": 32, "bos_token_id": 10, "eos_token_id": 11, "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)).eval()


def write_folder(model: Any, kind: str, tokenizer_file: Path, folder: Path) -> Path:
    model.save_pretrained(folder)
    pad = "<|endoftext|>" if kind == "clip" else "<pad>"
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<unk>",
        pad_token=pad,
    ).save_pretrained(folder)
    if kind == "clip":
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as Processor

        Processor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    else:
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil as Processor

        Processor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def openai_state(model: Any) -> dict[str, torch.Tensor]:
    """A transformers CLIP written the way OpenAI names and joins its tensors."""
    theirs = model.state_dict()
    out = {
        "logit_scale": theirs["logit_scale"],
        "visual.proj": theirs["visual_projection.weight"].T.contiguous(),
        "text_projection": theirs["text_projection.weight"].T.contiguous(),
        "visual.class_embedding": theirs["vision_model.embeddings.class_embedding"],
        "visual.conv1.weight": theirs["vision_model.embeddings.patch_embedding.weight"],
        "visual.positional_embedding": theirs["vision_model.embeddings.position_embedding.weight"],
        "token_embedding.weight": theirs["text_model.embeddings.token_embedding.weight"],
        "positional_embedding": theirs["text_model.embeddings.position_embedding.weight"],
    }
    for part in ("weight", "bias"):
        out[f"visual.ln_pre.{part}"] = theirs[f"vision_model.pre_layrnorm.{part}"]
        out[f"visual.ln_post.{part}"] = theirs[f"vision_model.post_layernorm.{part}"]
        out[f"ln_final.{part}"] = theirs[f"text_model.final_layer_norm.{part}"]
        for tower, name, layers in (("vision_model", "visual.transformer", 3), ("text_model", "transformer", 2)):
            for i in range(layers):
                source, target = f"{tower}.encoder.layers.{i}", f"{name}.resblocks.{i}"
                joined = [theirs[f"{source}.self_attn.{x}_proj.{part}"] for x in "qkv"]
                out[f"{target}.attn.in_proj_{part}"] = torch.cat(joined)
                out[f"{target}.attn.out_proj.{part}"] = theirs[f"{source}.self_attn.out_proj.{part}"]
                out[f"{target}.ln_1.{part}"] = theirs[f"{source}.layer_norm1.{part}"]
                out[f"{target}.ln_2.{part}"] = theirs[f"{source}.layer_norm2.{part}"]
                out[f"{target}.mlp.c_fc.{part}"] = theirs[f"{source}.mlp.fc1.{part}"]
                out[f"{target}.mlp.c_proj.{part}"] = theirs[f"{source}.mlp.fc2.{part}"]
    return out


def reference(model: Any, kind: str, folder: Path, pictures: list[Image.Image]) -> tuple[torch.Tensor, torch.Tensor]:
    """What transformers' documented calls give."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padding = True if kind == "clip" else "max_length"
    ids = tokenizer(TEXTS, padding=padding, max_length=9, truncation=True, return_tensors="pt")
    inputs = {"input_ids": ids["input_ids"]} if kind == "siglip" else {k: ids[k] for k in ("input_ids", "attention_mask")}
    module = f"transformers.models.{kind}.image_processing_pil_{kind}"
    processor = getattr(
        __import__(module, fromlist=["x"]), {"clip": "CLIPImageProcessorPil", "siglip": "SiglipImageProcessorPil"}[kind]
    )
    pixels = torch.from_numpy(np.stack(processor.from_pretrained(folder)(pictures)["pixel_values"])).float()
    with torch.no_grad():
        image, text = model.get_image_features(pixel_values=pixels), model.get_text_features(**inputs)
    return (x if isinstance(x, torch.Tensor) else x.pooler_output for x in (image, text))  # type: ignore[return-value]


def naflex_folder(folder: Path, *, most: int = 30, **vision: Any) -> Any:
    """A SigLIP 2 NaFlex in the published layout: Gemma's tokenizer in small, which gives no attention mask."""
    from tokenizers import Tokenizer, models, normalizers, processors
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    torch.manual_seed(0)
    text = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 24, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    tower = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4,
        "num_patches": 16, **vision,
    }  # fmt: skip
    model = transformers.Siglip2Model(transformers.Siglip2Config(text_config=text, vision_config=tower)).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    letters = [chr(number) for number in range(33, 127)]
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", *letters]
    tokenizer = Tokenizer(models.BPE({word: row for row, word in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        padding_side="right", model_input_names=["input_ids"],
    ).save_pretrained(folder)  # fmt: skip
    Siglip2ImageProcessorPil(patch_size=tower["patch_size"], max_num_patches=most).save_pretrained(folder)
    return model


def shaped(*sizes: tuple[int, int]) -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


def test_naflex_agrees_with_transformers(tmp_path: Path) -> None:
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    model = naflex_folder(tmp_path)
    pictures = shaped((40, 60), (64, 64), (90, 30), (7, 301), (3, 2), (500, 1))
    texts = ["A red Bicycle.", "the same in BLUE", "blue"]
    processor = transformers.Siglip2Processor(
        Siglip2ImageProcessorPil.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    )
    inputs = processor(images=pictures, patch_size=4, max_num_patches=30, return_tensors="pt")  # its own defaults: 16, 256
    ids = processor(text=[text.lower() for text in texts], padding="max_length", max_length=24, return_tensors="pt")
    assert set(ids) == {"input_ids"}
    with torch.no_grad():
        image = model.get_image_features(**inputs).pooler_output
        text = model.get_text_features(**ids).pooler_output
    encoder = load_encoder(f"local-dir:{tmp_path}")
    assert encoder.width == 32
    torch.testing.assert_close(encoder.encode_images(pictures), image, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode_texts(texts), text, atol=1e-5, rtol=1e-4)
    # prepared before, alone or in a batch: the same vector
    prepared = [encoder.prepare_image(picture) for picture in pictures]
    torch.testing.assert_close(encoder.encode_images(prepared[2:3]), image[2:3], atol=1e-5, rtol=1e-4)
    assert encoder.encode_images([]).shape == (0, 32)


def test_naflex_is_saved_and_read_again_and_transformers_reads_it(tmp_path: Path) -> None:
    naflex_folder(tmp_path / "theirs", most=21)
    encoder = load_encoder(tmp_path / "theirs")
    encoder.save(tmp_path / "ours")
    again = load_encoder(tmp_path / "ours")
    pictures = shaped((50, 20))
    assert again.fingerprint() == encoder.fingerprint()
    assert torch.equal(again.encode_images(pictures), encoder.encode_images(pictures))
    assert transformers.AutoModel.from_pretrained(tmp_path / "ours").config.model_type == "siglip2"
    naflex_folder(tmp_path / "more", most=22)
    assert load_encoder(tmp_path / "more").fingerprint() != encoder.fingerprint()


def test_naflex_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    naflex_folder(tmp_path / "headless", vision_use_head=False)
    with pytest.raises(GeniusError, match="no pooling head"):
        load_encoder(tmp_path / "headless")
    naflex_folder(tmp_path / "patches")
    path = tmp_path / "patches" / "preprocessor_config.json"
    for changes, line in (({"patch_size": 8}, "patches of 8 pixels"), ({"max_num_patches": 10**9}, "at most 4096")):
        settings = json.loads(path.read_text())
        path.write_text(json.dumps(settings | changes))
        with pytest.raises(GeniusError, match=line):
            load_encoder(tmp_path / "patches")
        path.write_text(json.dumps(settings))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_transformers_folder_loads_and_agrees(
    kind: str, tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    model = tiny_clip() if kind == "clip" else tiny_siglip()
    folder = write_folder(model, kind, tokenizer_file, tmp_path / "model")
    encoder = load_encoder(f"local-dir:{folder}")
    image, text = reference(model, kind, folder, pictures)
    assert encoder.width == image.shape[1] == text.shape[1]
    torch.testing.assert_close(encoder.encode_images(pictures), image, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode_texts(TEXTS), text, atol=1e-5, rtol=1e-4)
    # alone or in a batch, a text is the same vector
    torch.testing.assert_close(encoder.encode_texts(TEXTS[2:]), text[2:], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_saving_keeps_vectors_and_fingerprint(
    kind: str, tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    model = tiny_clip() if kind == "clip" else tiny_siglip()
    first = load_encoder(write_folder(model, kind, tokenizer_file, tmp_path / "model"))
    first.save(tmp_path / "copy")
    second = load_encoder(tmp_path / "copy")
    assert second.fingerprint() == first.fingerprint()
    assert torch.equal(second.encode_images(pictures), first.encode_images(pictures))
    assert torch.equal(second.encode_texts(TEXTS), first.encode_texts(TEXTS))
    next(iter(second.model.parameters())).data.view(-1)[0] += 1e-3  # type: ignore[attr-defined]
    assert second.fingerprint() != first.fingerprint()


def test_long_texts_are_cut_and_empty_batches_are_empty(tmp_path: Path, tokenizer_file: Path) -> None:
    encoder = load_encoder(write_folder(tiny_clip(), "clip", tokenizer_file, tmp_path / "model"))
    assert torch.isfinite(encoder.encode_texts(["blue " * 500])).all()
    assert encoder.encode_texts([]).shape == encoder.encode_images([]).shape == (0, 48)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "it has no tokenizer: put its tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot load the clip encoder"),
        (lambda folder: _without_unknown_words(folder / "tokenizer.json"), "cannot load the clip encoder"),
    ],
)
def test_a_tokenizer_that_is_missing_or_broken_gets_one_line(
    tmp_path: Path, tokenizer_file: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = write_folder(tiny_clip(), "clip", tokenizer_file, tmp_path / "model")
    spoil(folder)
    with pytest.raises(GeniusError, match=said) as caught:
        load_encoder(folder)
    assert "\n" not in str(caught.value)


def _without_unknown_words(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    few = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "red": 1}, unk_token="<|nothing|>"))
    few.pre_tokenizer = pre_tokenizers.Whitespace()
    few.save(str(path))


def test_uniir_checkpoint_equals_the_clip_it_was_made_from(
    tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    model = tiny_clip()
    clip = load_encoder(write_folder(model, "clip", tokenizer_file, tmp_path / "clip"))
    folder = tmp_path / "uniir"
    folder.mkdir()
    state = {f"clip_model.{name}": tensor.half() for name, tensor in openai_state(model).items()}
    torch.save({"model": state, "optimizer": {"state": {}}, "epoch": 3}, folder / "clip_sf_large.pth")
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    encoder = load_encoder(f"uniir:{folder / 'clip_sf_large.pth'}")
    torch.testing.assert_close(encoder.encode_images(pictures), clip.encode_images(pictures), atol=2e-2, rtol=1e-2)  # fp16 file
    torch.testing.assert_close(encoder.encode_texts(TEXTS), clip.encode_texts(TEXTS), atol=2e-2, rtol=1e-2)
    encoder.save(tmp_path / "converted")  # an ordinary CLIP folder
    again = load_encoder(tmp_path / "converted")
    assert torch.equal(again.encode_images(pictures), encoder.encode_images(pictures))


def test_openai_layout_maps_exactly(pictures: list[Image.Image]) -> None:
    model = tiny_clip()
    mapped = clip_from_openai(openai_state(model)).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(mapped[name], tensor), name


class Trap:
    """Unpickling one of these would leave a mark."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path.touch, (Path("trap-was-sprung"),))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": openai_state(tiny_clip()), "config": Trap()}, tmp_path / "clip_sf.pth")
    with pytest.raises(GeniusError, match="it calls builtins"):
        load_encoder(f"uniir:{tmp_path / 'clip_sf.pth'}")
    assert not (tmp_path / "trap-was-sprung").exists()


def test_incomplete_or_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    state = openai_state(tiny_clip())
    with pytest.raises(GeniusError, match="ResNet"):
        clip_from_openai({"visual.layer1.0.conv1.weight": torch.zeros(1)})
    del state["visual.transformer.resblocks.1.mlp.c_fc.bias"]
    with pytest.raises(GeniusError, match="missing"):
        clip_from_openai(state)
    torch.save({"model": {"x": torch.zeros(2)}}, tmp_path / "x.pth")
    with pytest.raises(GeniusError, match="no CLIP"):
        load_encoder(tmp_path / "x.pth")


def test_the_attention_is_never_taken_from_a_config(tmp_path: Path, tokenizer_file: Path) -> None:
    """transformers would fetch native code for a name such as this one."""
    folder = write_folder(tiny_clip(), "clip", tokenizer_file, tmp_path / "clip")
    body = json.loads((folder / "config.json").read_text())
    for part in (body, body["text_config"], body["vision_config"]):
        part["_attn_implementation"] = part["attn_implementation"] = "owner/kernel"
    (folder / "config.json").write_text(json.dumps(body))
    config = load_encoder(folder).model.config  # type: ignore[attr-defined]
    assert {part._attn_implementation for part in (config, config.text_config, config.vision_config)} == {"sdpa"}
