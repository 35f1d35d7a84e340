"""Where training data comes from, and the encoder that belongs to it: a FeatureSet folder, pairs through an encoder, or code.

Knows the forms of `data` in a config, and which part of the encoder is trained before features are extracted. The later
stages only see features. A model that was trained on features or converted from published files gets its encoder by
`attach_encoder`, which checks that the features came from it: widths must fit, and the stamp that extraction left must
name the same weights. The encoder is then joined with the heads that training left next to the model, and stored in the
model's folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from genius.data import open_collection
from genius.data.extract import STAMP, ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.data.synthetic import synthetic_features
from genius.encoders import load_encoder
from genius.encoders.base import Encoder
from genius.encoders.towers import HEADS, Heads, read_heads
from genius.errors import GeniusError
from genius.model.genius import ENCODER, Genius
from genius.train.config import TrainConfig, that_trains, with_steps
from genius.train.encoder import TowersStage
from genius.train.loop import Runtime, finish, run_stage, wait_for_all
from genius.train.losses import rank, world_size
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
        raise GeniusError("encoder.train = 'towers' needs images and texts: a file of pairs, not a FeatureSet")
    if not is_features and config.encoder_uri is None:
        raise GeniusError(f"{config.data} holds images and texts: name an encoder_uri to read them with")


def load_source(config: TrainConfig, runtime: Runtime, folder: Path) -> tuple[FeatureSet, Encoder | None, TrainConfig]:
    """The training set as features, the encoder that made it (None: features only), and the config with what of that
    encoder is trained, where it left that open."""
    if config.data.startswith(SYNTHETIC):
        return synthetic(config.data.removeprefix(SYNTHETIC), config.seed), None, config
    if FeatureSet.is_folder(config.data):
        return FeatureSet.load(config.data), None, config
    return _from_collection(config, runtime, folder)


def features_folder(config: TrainConfig, folder: Path) -> Path:
    """Where the features of a run are: its data, or what was extracted of it below `folder`."""
    if FeatureSet.is_folder(config.data):
        return Path(config.data)
    return folder / "features"


def synthetic(size: str, seed: int) -> FeatureSet:
    """A synthetic set of four tasks, for a first run and for tests."""
    queries, pool, width = SYNTHETIC_SIZES[size]
    directions = (
        (Modality.TEXT, Modality.IMAGE),
        (Modality.IMAGE, Modality.TEXT),
        (Modality.TEXT, Modality.PAIR),
        (Modality.IMAGE, Modality.PAIR),
    )
    return synthetic_features(queries, pool, width, directions=directions, seed=seed)


def _from_collection(config: TrainConfig, runtime: Runtime, folder: Path) -> tuple[FeatureSet, Encoder, TrainConfig]:
    """Images and texts -> (towers trained if the config says so) -> features, extracted once and kept."""
    assert config.encoder_uri is not None  # `check_source`
    collection = open_collection(config.data, split="train", seed=config.seed)
    encoder = load_encoder(config.encoder_uri)
    if isinstance(encoder, torch.nn.Module):
        encoder.to(runtime.device)
    if config.encoder.train == "auto":  # encoders of frozen towers train heads; others are used as they are
        chosen = "none"
        if hasattr(encoder, "tower_images"):
            chosen = "heads"
        config = that_trains(config, chosen)
    if config.encoder.train == "towers":
        stage = TowersStage(collection, encoder, config.encoder, config.seed, runtime.device)
        loop = with_steps(config.encoder, stage.order.count)
        finish(stage, lambda: run_stage(stage, loop, runtime, folder / "encoder"), runtime, folder)
        stage.requires_grad_(False)
    reader: Any = encoder
    if config.encoder.train == "heads":
        reader = TowersAlone(encoder)
    options = ExtractConfig(half=False, rank=rank(), world=world_size())
    runtime.journal.note(f"features: {config.data} through {config.encoder_uri}")
    data = extract(reader, collection, folder / "features", options)
    wait_for_all()
    data = data or extract(reader, collection, folder / "features", options)
    if data is None:
        raise GeniusError("feature extraction did not finish on every process")
    return data, encoder, config


class TowersAlone:
    """An encoder of frozen towers before its heads: vectors of two widths."""

    def __init__(self, encoder: Any) -> None:
        if not hasattr(encoder, "tower_images"):
            raise GeniusError("encoder.train = 'heads' needs an encoder of frozen towers; use 'none' or 'towers' with this one")
        self.encode_images = encoder.tower_images
        self.encode_texts = encoder.tower_texts
        self.widths = (int(encoder.heads.image_width), int(encoder.heads.text_width))
        self._encoder = encoder

    def fingerprint(self) -> str:
        return str(self._encoder.fingerprint()) + "-towers"


def check_made_by(encoder: Encoder, data: FeatureSet, folder: Path | None, uri: str) -> bool:
    """Refuse features of another encoder, by their widths and by the stamp that extraction leaves in their folder.

    Args:
        encoder: The encoder.
        data: The features.
        folder: Where they are; None: in memory.
        uri: Names the encoder in errors.

    Returns:
        Whether there is a stamp.
    """
    widths = (data.pool.image.shape[1], data.pool.text.shape[1])
    expected = {(encoder.width, encoder.width)}
    towers = getattr(encoder, "heads", None)
    if towers is not None:  # features of its towers, where heads come later
        expected.add((int(towers.image_width), int(towers.text_width)))
    if widths not in expected:
        raise GeniusError(
            f"the encoder {uri} is {encoder.width} wide, the features {widths[0]} and {widths[1]}: they are not its own"
        )
    if folder is None or not (folder / STAMP).is_file():
        return False
    try:
        made_by = str(json.loads((folder / STAMP).read_text(encoding="utf-8"))["encoder"])
    except (OSError, ValueError, KeyError, TypeError):
        raise GeniusError(f"cannot read {folder / STAMP}") from None
    if made_by.removesuffix("-towers") != encoder.fingerprint():
        raise GeniusError(f"the features in {folder} were made by another encoder than {uri}")
    return True


def join_heads(encoder: Encoder, heads: Heads) -> None:
    """Put trained heads on an encoder of frozen towers."""
    towers: Any = encoder
    encoder_heads = getattr(towers, "heads", None)
    if encoder_heads is None or (encoder_heads.image_width, encoder_heads.text_width) != (heads.image_width, heads.text_width):
        problem = "has no towers"
        if encoder_heads is not None:
            problem = f"has towers of {encoder_heads.image_width} and {encoder_heads.text_width}"
        raise GeniusError(
            f"the model's heads are for towers of width {heads.image_width} and {heads.text_width}, but this encoder {problem}"
        )
    device = next(encoder_heads.parameters()).device
    towers.heads = heads.to(device).eval().requires_grad_(False)
    towers.width = heads.width


def attach_encoder(folder: str | Path, uri: str, *, features: str | Path | None = None) -> list[str]:
    """Store an encoder in a model's folder.

    Args:
        folder: The model folder; it has no encoder yet.
        uri: The encoder: a folder, hf-hub:NAME, uniir:FILE or bundled:NAME.
        features: Features that the model was trained on; the encoder that made them must be this one.

    Returns:
        What was checked, in words.

    Raises:
        GeniusError: If the encoder does not fit the model or the features.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise GeniusError(f"no model folder at {folder}: an encoder is stored in the model's own folder")
    model = Genius.from_pretrained(folder)
    if model.encoder is not None:
        raise GeniusError(f"the model {folder} has an encoder already")
    encoder = load_encoder(uri)
    checked = [f"width {encoder.width}"]
    if features is not None and check_made_by(encoder, FeatureSet.load(features), Path(features), uri):
        checked.append("the features' stamp")
    heads = read_heads(folder / HEADS)
    if heads is not None:
        join_heads(encoder, heads)
    Genius(model.config, encoder)  # refuses another width
    _store(encoder, folder)
    return checked


def _store(encoder: Encoder, folder: Path) -> None:
    """Write the encoder's folder whole or not at all: a model with half an encoder would not load."""
    unfinished = folder / f"{ENCODER}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    encoder.save(unfinished)
    unfinished.rename(folder / ENCODER)
