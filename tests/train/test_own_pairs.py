"""From a file of pairs with pictures to a model that answers: whole towers, heads on frozen towers, and as it is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from module_tower import ModuleTower
from train_fixtures import small_config

from genius.data.synthetic import COLOURS, SHAPES, SIZES, Thing
from genius.encoders.inputs import Pixels, Tokens
from genius.encoders.mini import MiniConfig, MiniEncoder
from genius.encoders.towers import Heads, TowersEncoder
from genius.errors import GeniusError
from genius.model.genius import Genius
from genius.train import train
from genius.train.config import EncoderStageConfig
from genius.train.encoder import TowersStage
from genius.types import Modality, Query, instruction_for


def word_tokens() -> Tokens:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", *COLOURS, *SHAPES, *SIZES, "a", "find", "image", "text"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokens(tokenizer, 16)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rng = random.Random(0)
    lines = []
    for number in range(24):
        thing = Thing(rng.choice(list(COLOURS)), rng.choice(SHAPES), rng.choice(list(SIZES)), number)
        thing.draw().save(tmp_path / f"{number}.png")
        lines.append({"query_text": thing.text, "target": "image", "image": f"{number}.png", "id": f"i{number}"})
        lines.append({"query_image": f"{number}.png", "target": "text", "text": thing.text})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = MiniConfig(
        width=16, image_size=32, image_stem=16, image_width=32, image_layers=1,
        text_vocabulary=64, text_length=16, text_width=32, text_layers=1, head_width=16,
    )  # fmt: skip
    MiniEncoder(config, word_tokens()).save(tmp_path / "encoder")
    return tmp_path / "encoder"


def test_whole_towers_learn_from_pairs(pairs: Path, encoder: Path, tmp_path: Path) -> None:
    from genius.data import open_collection
    from genius.encoders import load_encoder

    stage = TowersStage(
        open_collection(pairs), load_encoder(encoder), EncoderStageConfig(batch=16, steps=1), 0, torch.device("cpu")
    )
    stage.train()
    optimizer = torch.optim.AdamW(stage.parameters(), lr=2e-3)
    losses = []
    for step in range(25):
        loss, _ = stage(stage.batch(step, 0, 0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert all(p.grad is not None for p in stage.parameters())  # every weight of both towers


def towers_stage(pairs: Path, encoder: Path, validation: bool = False, **fields: int) -> TowersStage:
    from genius.data import open_collection
    from genius.encoders import load_encoder

    collection = open_collection(pairs)
    config = EncoderStageConfig(batch=16, steps=3, **fields)
    held_out = None
    if validation:
        held_out = collection
    return TowersStage(collection, load_encoder(encoder), config, 0, torch.device("cpu"), held_out)


def gradients(stage: TowersStage) -> list[torch.Tensor]:
    """Of the second step's loss."""
    stage.eval()  # without dropout
    stage.batch(0, 0, 0, 1)
    loss, _ = stage(stage.batch(1, 0, 0, 1))
    loss.backward()
    stage.finish()
    return [parameter.grad for parameter in stage.parameters()]


def test_gradients_in_chunks_are_those_of_the_whole_batch(pairs: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients(towers_stage(pairs, encoder))
    chunked_stage = towers_stage(pairs, encoder, chunk=3)
    sizes: list[int] = []
    encode = chunked_stage._images
    monkeypatch.setattr(chunked_stage, "_images", lambda tower, images: sizes.append(len(images)) or encode(tower, images))
    chunked = gradients(chunked_stage)
    assert max(sizes) == 3 and sum(sizes) == 2 * 16  # every image forwards, and once more for its gradient
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(whole, chunked, strict=True))


def test_processes_that_decode_ahead_do_not_change_a_step(pairs: Path, encoder: Path) -> None:
    here = gradients(towers_stage(pairs, encoder))
    elsewhere = gradients(towers_stage(pairs, encoder, workers=1))
    assert all(torch.equal(one, other) for one, other in zip(here, elsewhere, strict=True))


def test_whole_towers_are_validated(pairs: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert towers_stage(pairs, encoder).quick() is None  # nothing is held out
    stage = towers_stage(pairs, encoder, validation=True).eval()
    held = stage.held_out
    assert held is not None
    words = [text for _, text in held.items if text][:3]
    vectors = stage.embed([(None, text) for text in words])
    assert torch.allclose(vectors, torch.nn.functional.normalize(stage.encoder.encode_texts(words), dim=1), atol=1e-5)
    pictures = [content for content in held.items if content[0] is not None][:2]
    assert stage.embed(pictures).norm(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
    stage.finish()
    answers = torch.zeros(len(held.queries), len(held.items))
    answers[held.data.pairs[:, 0], held.data.pairs[:, 1]] = 1.0
    perfect = {id(held.queries): answers, id(held.items): torch.eye(len(held.items))}
    monkeypatch.setattr(stage, "embed", lambda contents: perfect[id(contents)])
    assert stage.quick() == 1.0 and stage.validate()["dense_hit@1"] == 1.0
    perfect[id(held.queries)] = -answers
    assert stage.quick() == 0.0


def test_pairs_to_model_with_trained_towers(pairs: Path, encoder: Path, tmp_path: Path) -> None:
    config = small_config(
        tmp_path / "model", data=str(pairs), encoder_uri=str(encoder), encoder__train="towers", model__width=16,
        encoder__steps=3, encoder__batch=16, quantizer__steps=3, quantizer__batch=16, generator__steps=3, generator__batch=8,
    )  # fmt: skip
    trained = train(config, quiet=True)
    model = Genius.from_pretrained(str(tmp_path / "model"))  # brings its trained encoder along
    assert model.fingerprint() == trained.model.fingerprint()
    untrained = MiniEncoder.load(encoder, json.loads((encoder / "encoder.json").read_text()))
    assert model.encoder is not None and model.encoder.fingerprint() != untrained.fingerprint()
    assert model.embed_queries([Query(text="a small red circle")]).z.shape == (1, 16)
    usual = model.embed_queries([Query(text="a small red circle", instruction=instruction_for(Modality.TEXT, Modality.IMAGE))]).z
    worded = model.embed_queries([Query(text="a small red circle", instruction="Some snapshots, please.")]).z
    assert torch.allclose(worded, usual)  # its training data had the usual wordings, and the model says so
    assert train(config, quiet=True).model.fingerprint() == trained.model.fingerprint()  # a second call trains nothing


def test_heads_need_an_encoder_of_towers(pairs: Path, encoder: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path / "model", data=str(pairs), encoder_uri=str(encoder), encoder__train="heads")
    with pytest.raises(GeniusError, match="needs an encoder of frozen towers"):
        train(config, quiet=True)


def test_heads_train_on_towers_of_two_widths(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 20))
    text = torch.nn.Embedding(64, 12)
    towers = TowersEncoder(
        ModuleTower(image, 20),
        ModuleTower(text, 12),
        Heads(20, 12, 16, 8),
        Pixels(16),
        word_tokens(),
    )
    monkeypatch.setattr("genius.train.sources.load_encoder", lambda uri: towers)
    monkeypatch.setattr(TowersEncoder, "save", lambda self, directory: None)
    before = towers.fingerprint()
    short = {"encoder__steps": 3, "encoder__batch": 16, "quantizer__steps": 3, "quantizer__batch": 16, "encoder__hidden": 8}
    config = small_config(tmp_path / "model", data=str(pairs), encoder_uri="towers", model__width=16, generator__steps=2, **short)
    trained = train(config, quiet=True)
    assert trained.heads is not None and (trained.heads.image_width, trained.heads.text_width) == (20, 12)
    assert towers.fingerprint() != before  # the encoder got the trained heads
