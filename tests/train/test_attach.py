"""A model trained on features gets the encoder they came from, and only that one; then it searches pictures and texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fake_encoder
import pytest
import torch
from typer.testing import CliRunner

from genius.cli import app
from genius.data.extract import ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.data.mbeir import MBeir
from genius.errors import GeniusError
from genius.model.genius import Genius
from genius.train import train
from genius.train.config import read_train_config
from genius.train.sources import attach_encoder, join_heads
from lab.mbeir.shapes import write_synthetic_mbeir

SHORT: dict[str, Any] = {
    "model.width": 32, "model.level_sizes": [3, 8, 8], "encoder.train": "none", "quantizer.steps": 2, "quantizer.batch": 16,
    "generator.steps": 2, "generator.batch": 16, "held_out": 0.0, "device": "cpu", "quantizer.kmeans_iterations": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, two encoders on disk, features of the first, and a model trained on them."""
    fake_encoder.register()
    place = tmp_path_factory.mktemp("attach")
    root = write_synthetic_mbeir(place / "M-BEIR", rows=("mscoco_task0", "webqa_task2"), candidates=12, queries=6)
    for name, encoder in (("right", fake_encoder.FakeEncoder(32)), ("wrong", fake_encoder.FakeEncoder(32, seed=1))):
        encoder.save(place / name)
    fake_encoder.FakeEncoder(16).save(place / "narrow")
    extract(fake_encoder.FakeEncoder(32), MBeir(root, split="train"), place / "features", ExtractConfig())
    config = read_train_config("builtin:tiny", {**SHORT, "output": str(place / "bare"), "data": str(place / "features")})
    train(config, quiet=True)
    return place


@pytest.fixture
def bare(place: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place / "bare", tmp_path / "model"))


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


def test_without_an_encoder_a_dataset_is_refused_and_with_one_it_works(place: Path, bare: Path, tmp_path: Path) -> None:
    data = f"mbeir:{place / 'M-BEIR'}"
    assert "has no encoder" in call("eval", str(bare), data, "--methods", "dense", code=2)
    said = call("attach", str(bare), str(place / "right"), "--features", str(place / "features"))
    assert "width 32, the features' stamp" in said
    report = json.loads(
        call("eval", str(bare), data, "--methods", "dense", "--bootstrap", "10", "--cache", str(tmp_path / "c"), "--json")
        .strip()
        .splitlines()[-1]
    )
    assert {entry["task"] for entry in report["results"]} == {"mscoco_task0", "webqa_task2"}
    pictures = place / "M-BEIR" / "mbeir_images" / "mscoco_images"
    call("index", str(pictures), "-o", str(tmp_path / "i"), "--model", str(bare))
    assert ".jpg" in call("search", str(tmp_path / "i"), "--text", "a red circle", "-k", "2")
    assert "has an encoder already" in call("attach", str(bare), str(place / "right"), code=2)


def test_another_encoder_is_noticed(place: Path, bare: Path) -> None:
    with pytest.raises(GeniusError, match="is 16 wide"):
        attach_encoder(bare, str(place / "narrow"))
    with pytest.raises(GeniusError, match="made by another encoder"):
        attach_encoder(bare, str(place / "wrong"), features=place / "features")
    assert not (bare / "encoder").exists()  # a refused one leaves nothing
    assert attach_encoder(bare, str(place / "right")) == ["width 32"]
    assert isinstance(Genius.from_pretrained(bare).encoder, fake_encoder.FakeEncoder)


def test_training_on_features_stores_the_encoder_it_is_told(place: Path, tmp_path: Path) -> None:
    common = {**SHORT, "data": str(place / "features")}
    config = read_train_config("builtin:tiny", {**common, "output": str(tmp_path / "m"), "encoder_uri": str(place / "right")})
    train(config, quiet=True)
    assert Genius.from_pretrained(tmp_path / "m").encoder is not None
    config = read_train_config("builtin:tiny", {**common, "output": str(tmp_path / "n"), "encoder_uri": str(place / "wrong")})
    with pytest.raises(GeniusError, match="made by another encoder"):
        train(config, quiet=True)
    assert not (tmp_path / "n" / "training" / "config.json").exists()  # said before hours are spent


def test_heads_need_towers_to_sit_on(place: Path) -> None:
    from genius.encoders.towers import Heads

    with pytest.raises(GeniusError, match="has no towers"):
        join_heads(fake_encoder.FakeEncoder(32), Heads(32, 32, 16))
    data = FeatureSet.load(place / "features")
    assert data.pool.image.dtype == torch.float16
