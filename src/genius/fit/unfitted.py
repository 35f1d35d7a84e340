"""`Genius.from_encoder(uri).fit(items)`: an encoder on its way to becoming a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from genius.encoders.base import Encoder, encode_items
from genius.encoders.registry import load_encoder
from genius.errors import GeniusError
from genius.features import Features
from genius.fit.collection import Fit, FitConfig, Say, fit_collection
from genius.fit.questions import Questions, make_up
from genius.model.genius import Genius
from genius.types import Item


class Unfitted:
    """An encoder without codes and decoder."""

    def __init__(self, uri: str, device: str | torch.device = "cpu") -> None:
        self.encoder: Encoder = load_encoder(uri)
        if isinstance(self.encoder, torch.nn.Module):
            self.encoder.to(device)
        self.uri = settled(uri)

    def __repr__(self) -> str:
        return f"Unfitted({self.uri!r}, {self.encoder.width} wide): .fit(items) makes a model of it"

    def fit(
        self, items: Iterable[Item], *, config: FitConfig | None = None, on_progress: Callable[[int], None] | None = None
    ) -> Genius:
        """A model whose codes and decoder are fitted to `items`; no pairs are needed.

        What it keeps of exhaustive search stands in `model.knows.fit`. Items are encoded here and again when they are added to an
        index; `genius index --encoder` does it once.
        """
        collection = [Item.of(item) for item in items]
        features, kept, problems = encode_items(self.encoder, collection, on_error="skip", on_progress=on_progress)
        if not len(features):
            raise GeniusError(f"none of the {len(collection):,} items could be encoded{': ' + problems[0] if problems else ''}")
        questions = make_up(self.encoder, [collection[row] for row in kept], (config or FitConfig()).seed)
        return self.fit_features(features, questions, config).model

    def fit_features(
        self, features: Features, questions: Questions | None, config: FitConfig | None = None, say: Say | None = None
    ) -> Fit:
        """The same for items that are encoded already."""
        return fit_collection(features, questions, self.encoder, self.uri, config, say)


def settled(uri: str) -> str:
    """The URI of an encoder as a model may name it from anywhere: paths are absolute."""
    scheme, colon, rest = uri.partition(":")
    if colon and scheme in ("hf-hub", "bundled"):
        return uri
    path = Path(rest if colon and scheme in ("local-dir", "uniir") else uri).expanduser().absolute()
    return f"{scheme if colon and scheme == 'uniir' else 'local-dir'}:{path}"
