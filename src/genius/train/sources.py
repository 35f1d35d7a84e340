"""Where training data comes from: a FeatureSet folder, a collection of pairs through an encoder, or code.

Knows the forms of `data` in a config; nothing of stages.
"""

from __future__ import annotations

from pathlib import Path

from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.errors import GeniusError
from genius.train.config import TrainConfig
from genius.train.loop import Runtime
from genius.types import Modality

SYNTHETIC = "synthetic:"
SYNTHETIC_SIZES = {"tiny": (1600, 1600, 48), "small": (12000, 9000, 96)}  # queries, pool, width


def load_source(config: TrainConfig, runtime: Runtime, folder: Path) -> tuple[FeatureSet, Encoder | None]:
    """The training set in feature form, and the encoder that made it (None: features only)."""
    if not config.data:
        raise GeniusError("the config names no data: a FeatureSet folder, a pairs file, or synthetic:tiny")
    if config.data.startswith(SYNTHETIC):
        return synthetic(config.data.removeprefix(SYNTHETIC), config.seed), None
    if not Path(config.data).exists():
        raise GeniusError(f"no such data: {config.data}")
    if FeatureSet.is_folder(config.data):
        return FeatureSet.load(config.data), None
    raise GeniusError(f"{config.data} is not a FeatureSet folder")


def synthetic(size: str, seed: int) -> FeatureSet:
    """A made-up set of four tasks, for a first run and for tests."""
    from genius.data.synthetic import synthetic_features

    if size not in SYNTHETIC_SIZES:
        raise GeniusError(f"no synthetic data of size {size!r}: use {', '.join(SYNTHETIC_SIZES)}")
    queries, pool, width = SYNTHETIC_SIZES[size]
    image, text, pair = Modality.IMAGE, Modality.TEXT, Modality.PAIR
    directions = ((text, image), (image, text), (text, pair), (image, pair))
    return synthetic_features(queries, pool, width, directions=directions, seed=seed)
