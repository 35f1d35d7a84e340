"""Where training data comes from: a FeatureSet folder, a collection of pairs through an encoder, or code.

Knows the forms of `data` in a config, and which part of the encoder is trained before features are extracted. The
later stages only ever see features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.errors import GeniusError
from genius.features import Features
from genius.train.config import TrainConfig, that_trains, with_steps
from genius.train.loop import Runtime, finish, run_stage
from genius.types import Modality

SYNTHETIC = "synthetic:"
SYNTHETIC_SIZES = {"tiny": (1600, 1600, 48), "small": (12000, 9000, 96)}  # queries, pool, width


def check_source(config: TrainConfig) -> None:
    """One clear line for data that is not there, before a folder is made."""
    if not config.data:
        raise GeniusError("the config names no data: a FeatureSet folder, a file of pairs, or synthetic:tiny")
    if config.data.startswith(SYNTHETIC):
        if config.data.removeprefix(SYNTHETIC) not in SYNTHETIC_SIZES:
            raise GeniusError(f"no synthetic data {config.data!r}: use {', '.join(SYNTHETIC + size for size in SYNTHETIC_SIZES)}")
        return
    if not Path(config.data).exists():
        raise GeniusError(f"no such data: {config.data}")
    is_features = FeatureSet.is_folder(config.data)
    if is_features and config.encoder.train == "towers":
        raise GeniusError("encoder.train = 'towers' needs pictures and texts: a file of pairs, not a FeatureSet")
    if not is_features and config.encoder_uri is None:
        raise GeniusError(f"{config.data} holds pictures and texts: name an encoder_uri to read them with")


def load_source(config: TrainConfig, runtime: Runtime, folder: Path) -> tuple[FeatureSet, Encoder | None, TrainConfig]:
    """The training set in feature form, the encoder that made it (None: features only), and the config with what of that
    encoder is trained, where it left that open."""
    if config.data.startswith(SYNTHETIC):
        return synthetic(config.data.removeprefix(SYNTHETIC), config.seed), None, config
    if FeatureSet.is_folder(config.data):
        return FeatureSet.load(config.data), None, config
    return _from_collection(config, runtime, folder)


def synthetic(size: str, seed: int) -> FeatureSet:
    """A made-up set of four tasks, for a first run and for tests."""
    from genius.data.synthetic import synthetic_features

    queries, pool, width = SYNTHETIC_SIZES[size]
    image, text, pair = Modality.IMAGE, Modality.TEXT, Modality.PAIR
    directions = ((text, image), (image, text), (text, pair), (image, pair))
    return synthetic_features(queries, pool, width, directions=directions, seed=seed)


def _from_collection(config: TrainConfig, runtime: Runtime, folder: Path) -> tuple[FeatureSet, Encoder, TrainConfig]:
    """Pictures and texts -> (towers trained if asked) -> features, extracted once and kept for the next start."""
    from genius.data.datasets import open_collection
    from genius.data.extract import ExtractConfig, extract
    from genius.encoders.registry import load_encoder

    assert config.encoder_uri is not None  # `check_source`
    collection = open_collection(config.data, split="train", seed=config.seed)
    encoder = load_encoder(config.encoder_uri)
    if isinstance(encoder, torch.nn.Module):
        encoder.to(runtime.device)
    if config.encoder.train == "auto":  # heads are what an encoder of frozen towers has to train; others are used as they are
        chosen = "heads" if hasattr(encoder, "tower_images") else "none"
        config = that_trains(config, chosen)
    if config.encoder.train == "towers":
        from genius.train.encoder import TowersStage

        stage = TowersStage(collection, encoder, config.encoder, config.seed, runtime.device)
        loop = with_steps(config.encoder, stage.order.count)
        finish(stage, lambda: run_stage(stage, loop, runtime, folder / "encoder"), runtime, folder)
        stage.requires_grad_(False)
    reader: Any = Towers(encoder) if config.encoder.train == "heads" else encoder
    options = ExtractConfig(half=False, rank=runtime.rank, world=runtime.world)
    runtime.journal.note(f"features: {config.data} through {config.encoder_uri}")
    data = extract(reader, collection, folder / "features", options)
    runtime.accelerator.wait_for_everyone()
    data = data or extract(reader, collection, folder / "features", options)
    if data is None:
        raise GeniusError("feature extraction did not finish on every process")
    if config.encoder.train == "heads":
        data = dataclasses.replace(data, queries=reader.cut(data.queries), pool=reader.cut(data.pool))
    return data, encoder, config


class Towers:
    """An encoder of frozen towers seen before its heads, padded to one width so that features fit one file."""

    def __init__(self, encoder: Any) -> None:
        if not hasattr(encoder, "tower_images"):
            raise GeniusError("encoder.train = 'heads' needs an encoder of frozen towers; use 'none' or 'towers' with this one")
        self.encoder = encoder
        self.image_width, self.text_width = int(encoder.heads.image_width), int(encoder.heads.text_width)
        self.width = max(self.image_width, self.text_width)

    def encode_images(self, images: Sequence[Any]) -> Tensor:
        return F.pad(self.encoder.tower_images(images), (0, self.width - self.image_width))

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        return F.pad(self.encoder.tower_texts(texts), (0, self.width - self.text_width))

    def cut(self, padded: Features) -> Features:
        return Features(
            padded.image[:, : self.image_width], padded.text[:, : self.text_width], padded.image_mask, padded.text_mask
        )

    def save(self, directory: Path) -> None:
        raise GeniusError("towers are saved with their heads")

    def fingerprint(self) -> str:
        return str(self.encoder.fingerprint()) + "-towers"
