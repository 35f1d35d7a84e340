"""A synthetic M-BEIR with all 16 rows, its features, and a small model trained on them, made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from shapes_encoder import ShapesEncoder

from genius.data.extract import ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.data.mbeir import MBeir
from genius.model.genius import Genius
from lab.mbeir.shapes import write_synthetic_mbeir

QUICK: dict[str, Any] = {
    "quantizer.steps": 2, "quantizer.batch": 64, "generator.steps": 2, "generator.batch": 64, "held_out": 0.0,
    "quantizer.kmeans_iterations": 2, "device": "cpu",
}  # fmt: skip


@dataclass(frozen=True)
class World:
    root: Path  # the dataset
    train: Path  # features
    test: Path
    model: Path  # trained a little, no encoder
    quick: dict[str, Any]  # changes that make any training config finish in a second; the model it gives is of no use


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from genius.train import train
    from genius.train.config import read_train_config

    place = tmp_path_factory.mktemp("world")
    root = write_synthetic_mbeir(place / "M-BEIR", candidates=14, queries=8, splits=("train", "test"))
    for split in ("train", "test"):
        extract(ShapesEncoder(32), MBeir(root, split=split), place / split, ExtractConfig(half=False, check=False))
    changes = {
        "output": str(place / "model"), "model.width": 32, "model.level_sizes": [3, 16, 16, 16], "encoder.train": "none",
        "quantizer.steps": 24, "quantizer.batch": 64, "generator.steps": 30, "generator.batch": 32, "held_out": 0.0,
        "device": "cpu",
    }  # fmt: skip
    config = read_train_config("builtin:tiny", changes)
    train(config, FeatureSet.load(place / "train"), quiet=True)
    return World(root, place / "train", place / "test", place / "model", QUICK)


@pytest.fixture
def seeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of the small world with an encoder, so that datasets can be named."""
    real = Genius.from_pretrained

    def with_encoder(source: str, **options: Any) -> Genius:
        model = real(source, **options)
        model.__dict__["encoder"] = ShapesEncoder(32)
        return model

    monkeypatch.setattr(Genius, "from_pretrained", with_encoder)
