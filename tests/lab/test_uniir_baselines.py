"""UniIR's CLIP-FF, BLIP-SF and BLIP-FF: small checkpoints in the published layouts against the published arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from uniir_layouts import (
    BLIP_JOINT,
    BLIP_TEXT,
    CLIP_WIDTH,
    State,
    blip,
    blip_ff_reference,
    blip_sf_reference,
    clip_ff,
    clip_ff_reference,
    pixels_of,
    write_checkpoint,
)

import lab.uniir  # noqa: F401 - registers the encoders
from genius import GeniusError, Item, Modality, Query
from genius.encoders import load_encoder
from genius.encoders.base import Encoder, PairEncoder, encode_items, encode_queries
from genius.model.quantizer import score_fusion

pytest.importorskip("transformers")
TEXTS = ["a red bicycle.", "the same in blue.", "blue"]
FUSING = ["clip_ff", "blip_ff"]
ALL = [*FUSING, "blip_sf"]


def state_of(kind: str) -> State:
    return clip_ff() if kind == "clip_ff" else blip(kind.removeprefix("blip_"))


def reference(kind: str, state: State, pictures: list[Image.Image | None], texts: list[str]) -> torch.Tensor:
    if kind == "clip_ff":
        return clip_ff_reference(state, pixels_of(pictures, "crop"), texts)
    return blip_ff_reference(state, pixels_of(pictures, "squash"), texts)


def load(kind: str, folder: Path, tokenizer_file: Path, state: State | None = None) -> Any:
    state = state_of(kind) if state is None else state
    path = write_checkpoint(state, folder / f"{kind}_large.pth", tokenizer_file if kind == "clip_ff" else None)
    return load_encoder(f"uniir:{path}")


@pytest.mark.parametrize("kind", FUSING)
def test_a_fused_vector_is_the_published_one(
    kind: str, tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    """Image alone, text alone, both: alone and in one mixed batch."""
    encoder, state = load(kind, tmp_path / "u", tokenizer_file), state_of(kind)
    assert isinstance(encoder, Encoder) and isinstance(encoder, PairEncoder)
    assert encoder.width == (CLIP_WIDTH if kind == "clip_ff" else BLIP_TEXT)
    mixed: list[tuple[Image.Image | None, str]] = [
        (pictures[0], TEXTS[0]), (pictures[1], ""), (None, TEXTS[1]), (pictures[2], TEXTS[2]), (None, "blue"), (pictures[0], ""),
    ]  # fmt: skip
    images, texts = [image for image, _ in mixed], [text for _, text in mixed]
    expected = reference(kind, state, images, texts)
    found = encoder.encode_pairs(images, texts)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    for row, (image, text) in enumerate(mixed):  # whoever else is in the batch
        torch.testing.assert_close(encoder.encode_pairs([image], [text])[0], found[row], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode_images([pictures[1], pictures[0]]), expected[[1, 5]], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode_texts([TEXTS[1], "blue"]), expected[[2, 4]], atol=2e-5, rtol=1e-4)
    # the three ways to see the first item are three vectors
    seen = encoder.encode_pairs([pictures[0], pictures[0], None], [TEXTS[0], "", TEXTS[0]])
    assert torch.pdist(seen).min() > 1e-2


def test_blip_sf_gives_the_two_projected_class_tokens(tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]) -> None:
    encoder = load("blip_sf", tmp_path / "u", tokenizer_file)
    image, text = blip_sf_reference(blip("sf"), pixels_of(pictures, "squash"), TEXTS)
    assert encoder.width == BLIP_JOINT and not isinstance(encoder, PairEncoder)
    torch.testing.assert_close(encoder.encode_images(pictures), image, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode_texts(TEXTS), text, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.encode_texts(TEXTS[2:]), text[2:], atol=2e-5, rtol=1e-4)  # padding is not read
    items = [Item("0", image=pictures[0], text=TEXTS[0]), Item("1", image=pictures[1]), Item("2", text=TEXTS[2] + ".")]
    dotted = blip_sf_reference(blip("sf"), pixels_of(pictures, "squash"), [TEXTS[0], "", "Blue."])[1]
    raw = torch.stack([image[0] + dotted[0], image[1], dotted[2]])  # UniIR adds the raw vectors, then compares by cosine
    torch.testing.assert_close(
        score_fusion(encode_items(encoder, items)[0]), torch.nn.functional.normalize(raw), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("kind", ALL)
def test_long_texts_are_cut_with_their_end_kept(kind: str, tmp_path: Path, tokenizer_file: Path) -> None:
    encoder, text = load(kind, tmp_path / "u", tokenizer_file), "red blue " * 200
    if kind == "blip_sf":
        expected = blip_sf_reference(blip("sf"), pixels_of([None], "squash"), [text])[1]
    else:
        expected = reference(kind, state_of(kind), [None], [text])
    torch.testing.assert_close(encoder.encode_texts([text]), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", FUSING)
def test_items_and_queries_through_the_pipeline(
    kind: str, tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    """Features keep the masks; score fusion of them is the joint vector, whatever the modality."""
    encoder = load(kind, tmp_path / "u", tokenizer_file)
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    items = [
        Item("pair", image=pictures[0], text="the same"),
        Item("broken", image=str(tmp_path / "bad.png"), text="red"),
        Item("image", image=pictures[1]),
        Item("text", text="a red bicycle"),
    ]
    features, kept, problems = encode_items(encoder, items, batch_size=3, on_error="skip")
    assert kept == [0, 2, 3] and len(problems) == 1 and problems[0].startswith("broken: ")
    assert features.modality.tolist() == [Modality.PAIR, Modality.IMAGE, Modality.TEXT]
    joint = encoder.encode_pairs([pictures[0], pictures[1], None], ["The same.", "", "A red bicycle."])
    torch.testing.assert_close(score_fusion(features), torch.nn.functional.normalize(joint), atol=2e-5, rtol=1e-4)
    with pytest.raises(GeniusError, match=r"bad\.png"):
        encode_items(encoder, items)
    asked = encode_queries(encoder, [Query(image=pictures[2], instruction="the same in blue")])
    torch.testing.assert_close(
        score_fusion(asked),
        torch.nn.functional.normalize(encoder.encode_pairs([pictures[2]], ["The same in blue."])),
        atol=2e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize("kind", ALL)
def test_nothing_and_unequal_numbers(kind: str, tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]) -> None:
    encoder = load(kind, tmp_path / "u", tokenizer_file)
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, encoder.width)
    if kind in FUSING:
        with pytest.raises(GeniusError, match="2 pictures with 1 texts"):
            encoder.encode_pairs(pictures[:2], ["one"])


@pytest.mark.parametrize("kind", ALL)
def test_saving_keeps_vectors_and_fingerprint(
    kind: str, tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    first = load(kind, tmp_path / "u", tokenizer_file)
    first.save(tmp_path / "copy")
    second: Any = load_encoder(f"local-dir:{tmp_path / 'copy'}")
    assert type(second) is type(first) and second.fingerprint() == first.fingerprint()
    assert torch.equal(second.encode_images(pictures), first.encode_images(pictures))
    assert torch.equal(second.encode_texts(TEXTS), first.encode_texts(TEXTS))
    last = second.mixer if kind == "clip_ff" else second.text
    list(last.parameters())[-1].data.view(-1)[0] += 1e-3  # the mixer's last norm; the pooler; BERT's last norm
    assert second.fingerprint() != first.fingerprint()
    weights = "mixer.safetensors" if kind == "clip_ff" else "blip.safetensors"
    (tmp_path / "copy" / weights).unlink()
    with pytest.raises(GeniusError, match=f"{weights} is missing: digests.json lists it"):
        load_encoder(tmp_path / "copy")
    (tmp_path / "copy" / "digests.json").unlink()
    with pytest.raises(GeniusError, match=f"has no {weights}"):
        load_encoder(tmp_path / "copy")


def test_momentum_copies_queues_and_unused_attention_change_nothing(
    tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    state = blip("sf")
    for name in state:
        if "_m." in name or "queue" in name or "crossattention" in name:
            state[name] = torch.zeros_like(state[name])
    changed = load("blip_sf", tmp_path / "b", tokenizer_file, state)
    assert changed.fingerprint() == load("blip_sf", tmp_path / "a", tokenizer_file).fingerprint()


@pytest.mark.parametrize("kind", ALL)
def test_any_of_them_may_stand_under_a_model(
    kind: str, tmp_path: Path, tokenizer_file: Path, pictures: list[Image.Image]
) -> None:
    from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
    from genius.model.genius import Genius

    encoder = load(kind, tmp_path / "u", tokenizer_file)
    width, sizes = encoder.width, (3, 4, 4)
    parts = FusionConfig(width, 32, 32), QuantizerConfig(width, sizes), GeneratorConfig(width, sizes, layers=1, d_model=32)
    model = Genius(GeniusConfig(*parts), encoder)
    items = [Item("p", image=pictures[0], text="red"), Item("i", image=pictures[1]), Item("t", text="blue")]
    model.save_pretrained(tmp_path / "model")
    again = Genius.from_pretrained(tmp_path / "model")
    assert again.fingerprint() == model.fingerprint()
    first, second = model.embed_items(items), again.embed_items(items)
    assert torch.equal(first.z, second.z) and first.modality.tolist() == [Modality.PAIR, Modality.IMAGE, Modality.TEXT]
    torch.testing.assert_close(first.z[0], model.embed_items(items[:1]).z[0], atol=1e-5, rtol=1e-4)


def drop(state: State, name: str) -> State:
    return {key: tensor for key, tensor in state.items() if key != name}


def grown(state: State, name: str) -> State:
    return {**state, name: torch.cat([state[name], state[name]])}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("blip_ff", lambda s: drop(s, "visual_encoder.blocks.1.mlp.fc2.bias"), "1 tensors missing, 0 unknown .*layers.1.mlp.fc2"),
        ("blip_ff", lambda s: drop(s, "text_encoder.pooler.dense.weight"), "BLIP-FF: tensor 'text.pooler.*' is missing"),
        ("blip_ff", lambda s: {n: t for n, t in s.items() if "crossatt" not in n}, "crossattention.self.key.weight' is missing"),
        ("blip_ff", lambda s: {**s, "itm_head.weight": torch.zeros(2, 3)}, "1 tensors unknown .first: itm_head.weight"),
        ("blip_ff", lambda s: grown(s, "text_encoder.pooler.dense.bias"), r"another shape .first: text.pooler.*bias, .256,."),
        ("blip_sf", lambda s: drop(s, "text_proj.bias"), "BLIP-SF: 1 tensors missing, 0 unknown .first: text_proj.bias"),
        ("blip_sf", lambda s: {**s, "text_decoder.cls.bias": torch.zeros(2)}, "BLIP-SF: 1 tensors unknown"),
        ("blip_sf", lambda s: drop(s, "visual_encoder.patch_embed.proj.weight"), "patch_embedding.weight' is missing"),
        ("blip_sf", lambda s: grown(s, "text_encoder.embeddings.LayerNorm.bias"), "another shape"),
        ("clip_ff", lambda s: drop(s, "t5_layers.block.1.layer.0.layer_norm.weight"), "CLIP-FF: 1 tensors missing, 0 unknown"),
        ("clip_ff", lambda s: drop(s, "t5_layers.block.0.layer.0.SelfAttention.q.weight"), "CLIP-FF: tensor .* is missing"),
        ("clip_ff", lambda s: {**s, "t5_layers.block.0.layer.2.wi": torch.zeros(1)}, "CLIP-FF: 0 tensors missing, 1 unknown"),
        ("clip_ff", lambda s: drop(s, "clip_model.visual.ln_post.bias"), "not a whole CLIP: tensor 'visual.ln_post.bias'"),
        ("clip_ff", lambda s: {**s, "head.weight": torch.zeros(1)}, "OpenAI's CLIP: 1 tensors unknown .first: head.weight"),
        ("clip_ff", lambda s: grown(s, "clip_model.visual.positional_embedding"), "34 image positions, which is no square"),
    ],
)  # fmt: skip
def test_foreign_checkpoints_are_refused_in_one_line(
    kind: str, change: Any, message: str, tmp_path: Path, tokenizer_file: Path
) -> None:
    with pytest.raises(GeniusError, match=message) as caught:
        load(kind, tmp_path / "u", tokenizer_file, change(state_of(kind)))
    assert "\n" not in str(caught.value) and f"{kind}_large.pth" in str(caught.value)


def test_the_unused_embedding_of_some_t5_versions_is_left_out(tmp_path: Path, tokenizer_file: Path) -> None:
    plain = load("clip_ff", tmp_path / "a", tokenizer_file)
    more = load("clip_ff", tmp_path / "b", tokenizer_file, {**clip_ff(), "t5_layers.embed_tokens.weight": torch.zeros(5, 64)})
    assert more.fingerprint() == plain.fingerprint()


def test_a_blip_checkpoint_reads_tokenizer_json_too(tmp_path: Path, pictures: list[Image.Image]) -> None:
    from tokenizers import BertWordPieceTokenizer

    path = write_checkpoint(blip("ff"), tmp_path / "a" / "blip_ff_large.pth")
    first: Any = load_encoder(f"uniir:{path.parent}")  # a folder with one .pth names it as well
    BertWordPieceTokenizer(str(path.parent / "vocab.txt"), lowercase=True).save(str(path.parent / "tokenizer.json"))
    (path.parent / "vocab.txt").unlink()
    second: Any = load_encoder(f"uniir:{path}")
    assert second.fingerprint() == first.fingerprint()
    assert torch.equal(second.encode_pairs(pictures, TEXTS), first.encode_pairs(pictures, TEXTS))


def test_clip_and_blip_checkpoints_share_a_folder(tmp_path: Path, tokenizer_file: Path) -> None:
    """The other model's tokenizer is passed over: its ids would mean other words."""
    folder = tmp_path / "u"
    blip_path = write_checkpoint(blip("ff"), folder / "blip_ff_large.pth")  # vocab.txt
    clip_path = write_checkpoint(clip_ff(), folder / "clip_ff_large.pth", tokenizer_file)  # tokenizer.json
    assert load_encoder(f"uniir:{blip_path}").tokenizer.get_vocab()["bicycle"] == 7  # type: ignore[attr-defined]
    assert load_encoder(f"uniir:{clip_path}").tokenizer.get_vocab()["bicycle"] == 4  # type: ignore[attr-defined]
    (folder / "clip").mkdir()
    (folder / "tokenizer.json").rename(folder / "clip" / "tokenizer.json")
    assert load_encoder(f"uniir:{clip_path}").tokenizer.get_vocab()["bicycle"] == 4  # type: ignore[attr-defined]
    with pytest.raises(GeniusError, match=r"holds 2 \.pth files"):
        load_encoder(f"uniir:{folder}")


@pytest.mark.parametrize("kind", ["clip_ff", "blip_sf"])
def test_a_checkpoint_without_its_tokenizer_says_what_to_put_there(
    kind: str, tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def offline(*args: Any, **options: Any) -> None:
        raise OSError("no hub here")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", offline)
    wrong = None if kind == "clip_ff" else tokenizer_file  # the other model's
    path = write_checkpoint(state_of(kind), tmp_path / "u" / "x.pth", wrong)
    with pytest.raises(GeniusError, match=r"needs the tokenizer of .* next to it"):
        load_encoder(f"uniir:{path}")
    (path.parent / "tokenizer.json").write_text("{broken")
    with pytest.raises(GeniusError, match="cannot read the tokenizer"):
        load_encoder(f"uniir:{path}")
