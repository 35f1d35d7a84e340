"""A very small run that every test of this room can afford."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from genius.data.features import FeatureSet
from genius.data.synthetic import synthetic_features
from genius.train.config import RECIPES, RULES, RecipeName, TrainConfig, read_train_config
from genius.types import Modality

SMALL = {
    "model.width": 24,
    "model.projection": 32,
    "model.hidden": 32,
    "model.level_sizes": [3, 8, 8],
    "encoder.steps": 10,
    "encoder.batch": 32,
    "encoder.hidden": 16,
    "quantizer.steps": 10,
    "quantizer.batch": 32,
    "quantizer.kmeans_iterations": 3,
    "generator.steps": 10,
    "generator.batch": 16,
    "held_out": 0.1,
    "search.beams": 4,
    "run.log_every": 1,
    "run.patience": 50,  # weights are chosen, but no stage ends early
}


def small_config(output: Path, **changes: Any) -> TrainConfig:
    given = {name.replace("__", "."): value for name, value in changes.items()}
    off = {name for rule in RULES if rule.switch in given and rule.off(given[rule.switch]) for name in rule.ignored}
    values = {name: value for name, value in SMALL.items() if name not in off}
    return read_train_config("builtin:tiny", {**values, "output": str(output), **given})


def change_recipe(name: RecipeName = "default", **changes: Any) -> None:
    """Constants of a recipe for this test alone (the fixture `recipes_as_they_are` puts them back)."""
    RECIPES[name] = dataclasses.replace(RECIPES[name], **changes)


def small_data(seed: int = 0) -> FeatureSet:
    directions = ((Modality.TEXT, Modality.IMAGE), (Modality.IMAGE, Modality.TEXT), (Modality.TEXT, Modality.PAIR))
    return synthetic_features(120, 120, 16, directions=directions, seed=seed)
