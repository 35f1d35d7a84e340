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
