"""Names of weights, today and in files of earlier versions, first values of some, and the fingerprint that is made of weights.
Needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from genius.features import module_of
from genius.model.config import GeniusConfig, identity

FAST = 20.0  # a_l and b_l are read as this times a parameter: Adam then moves them as fast as two numbers a level may move
START_SCALE = 2.5  # log a_l before training
HEAD = "codebook_head."  # prefix of the weights of `CodebookHead`
# names of weights today -> in the first release, whose files are still read and whose names fingerprints are made of
FIRST_NAMES = {f"{HEAD}residual_shift.": "nearness.bend.", HEAD: "nearness."}
OTHER_NAMES = {f"{HEAD}bend.": f"{HEAD}residual_shift."}  # names of versions in between -> today
SCALES = (f"{HEAD}log_scale", f"{HEAD}norm_weight")
"""Weights that were one number per level before every modality had its own."""


def current_name(name: str) -> str:
    """Today's name of a weight, by the one it has in a file of any version."""
    for today, first in FIRST_NAMES.items():
        name = name.replace(first, today)
    for other, today in OTHER_NAMES.items():
        name = name.replace(other, today)
    return name


def first_name(name: str) -> str:
    """The name that a weight had in the first version: fingerprints are made of these, and must not change."""
    for today, first in FIRST_NAMES.items():
        name = name.replace(today, first)
    return name


def as_one_number(name: str, weight: Any, modalities: int) -> Any:
    """A weight as it was when all modalities shared one number, if they do not differ: fingerprints must not change.

    Args:
        name: Of today.
        weight: A tensor or an array.
        modalities: That have numbers of their own.
    """
    if not name.endswith(SCALES):
        return weight
    by_modality = weight.reshape(-1, modalities)
    if bool((by_modality == by_modality[:, :1]).all()):
        return by_modality[:, 0]
    return weight


def model_fingerprint(config: GeniusConfig, weights: Mapping[str, Any], encoder: str | None) -> str:
    """32 hex digits over the configuration and every weight.

    Args:
        config: Of the model.
        weights: By name, tensors or arrays.
        encoder: The encoder's fingerprint; None without one.
    """
    digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode())
    modalities = 1
    if config.generator.head == "codebooks" and config.quantizer.modality_codebooks_from:
        modalities = 3
    for name, weight in sorted(((first_name(name), weight) for name, weight in weights.items()), key=lambda entry: entry[0]):
        digest.update(name.encode())
        digest.update(_raw_bytes(as_one_number(current_name(name), weight, modalities)))
    if encoder is not None:
        digest.update(encoder.encode())
    return digest.hexdigest()[:32]


def _raw_bytes(weight: Any) -> bytes:
    if isinstance(weight, np.ndarray):
        return weight.tobytes()
    tensor = weight.detach().cpu().contiguous()
    raw: bytes = tensor.view(module_of(tensor).uint8).numpy().tobytes()
    return raw
