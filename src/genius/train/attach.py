"""An encoder for a model that was trained on features or converted from published files.

The encoder is checked against what there is (`genius.data.probe`), joined with the heads that training left beside the model, and
stored in the model's folder, so that the model searches pictures and texts from then on, wherever it is copied to.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from genius.data.features import FeatureSet
from genius.data.opening import open_collection
from genius.data.probe import check_rows, check_stamp, check_widths
from genius.encoders.base import Encoder
from genius.encoders.heads import HEADS, Heads, read_heads
from genius.encoders.registry import load_encoder
from genius.errors import GeniusError
from genius.model.genius import ENCODER, Genius


def encoder_of_features(uri: str, data: FeatureSet, folder: Path | None) -> Encoder:
    """The encoder that a run on features names, before hours are spent: its widths fit, and the features are not another's."""
    encoder = load_encoder(uri)
    check_widths(encoder, data.pool.image.shape[1], data.pool.text.shape[1], uri)
    if folder is not None:
        check_stamp(encoder, folder, uri)
    return encoder


def join_heads(encoder: Encoder, heads: Heads) -> None:
    """Put trained heads on an encoder of frozen towers."""
    towers: Any = encoder
    own = getattr(towers, "heads", None)
    if own is None or (own.image_width, own.text_width) != (heads.image_width, heads.text_width):
        raise GeniusError(
            f"the model's heads are made for towers of width {heads.image_width} and {heads.text_width}, and this encoder "
            + ("has none to put them on" if own is None else f"has towers of {own.image_width} and {own.text_width}")
        )
    device = next(own.parameters()).device
    towers.heads, towers.width = heads.to(device).eval().requires_grad_(False), heads.width


def attach_encoder(
    folder: str | Path, uri: str, *, features: str | Path | None = None, data: str = "", split: str = "test"
) -> list[str]:
    """Store the encoder that `uri` names in the model's folder. Returns what was checked, in words."""
    folder = Path(folder)
    if not folder.is_dir():
        raise GeniusError(f"no model folder at {folder}: an encoder is stored in the model's own folder")
    model = Genius.from_pretrained(folder)
    if model.encoder is not None:
        raise GeniusError(f"the model {folder} has an encoder already")
    encoder = load_encoder(uri)
    checked = []
    known = None if features is None else FeatureSet.load(features)
    if known is not None:
        check_widths(encoder, known.pool.image.shape[1], known.pool.text.shape[1], uri)
        if check_stamp(encoder, Path(str(features)), uri):
            checked.append("the features' stamp")
    if data:
        if known is None:
            raise GeniusError("to encode rows again, name the features they are compared with, too")
        reader = _Bare(encoder) if known.pool.image.shape[1] != encoder.width else encoder
        rows = check_rows(reader, known, open_collection(data, split=split), uri)
        checked.append(f"{rows} rows encoded again")
    heads = read_heads(folder / HEADS)
    if heads is not None:
        join_heads(encoder, heads)
    Genius(model.config, encoder)  # refuses another width
    checked.insert(0, f"width {encoder.width}")
    _store(encoder, folder)
    return checked


class _Bare:
    """An encoder of frozen towers without its heads, for features that were taken before them."""

    def __init__(self, encoder: Any) -> None:
        self.encoder, self.width = encoder, int(encoder.heads.image_width)
        if self.width != int(encoder.heads.text_width):
            raise GeniusError("towers of two widths cannot be encoded again here: leave --data out")

    def encode_images(self, images: Any) -> torch.Tensor:
        return self.encoder.tower_images(images)  # type: ignore[no-any-return]

    def encode_texts(self, texts: Any) -> torch.Tensor:
        return self.encoder.tower_texts(texts)  # type: ignore[no-any-return]

    def save(self, directory: Path) -> None:
        raise NotImplementedError

    def fingerprint(self) -> str:
        return str(self.encoder.fingerprint())


def _store(encoder: Encoder, folder: Path) -> None:
    """Whole or not at all: a model with half an encoder would not load."""
    unfinished = folder / f"{ENCODER}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    encoder.save(unfinished)
    unfinished.rename(folder / ENCODER)
