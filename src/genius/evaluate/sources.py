"""What `genius eval` and `genius reproduce` are pointed at: a dataset on disk or features, made into a `FeatureSet`.

Features of a dataset are extracted once and kept in a cache whose name holds the encoder's and the data's
fingerprints: a changed model or file never meets old features.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from genius.data.collection import Collection, open_collection
from genius.data.extract import ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.data.sample import Sample
from genius.encoders.base import Encoder, PairEncoder
from genius.encoders.registry import load_encoder, resolve
from genius.errors import GeniusError
from genius.evaluate.methods.vectors import FeatureFusion
from genius.model.genius import Genius
from genius.model.heads import Heads

HEADS = "heads.safetensors"  # beside a model that was trained on frozen towers' features


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genius" / "features"


def load_features(
    source: str,
    model: Genius,
    model_uri: str,
    *,
    split: str = "test",
    cache: Path | None = None,
    seed: int = 0,
    queries: int = 0,
    candidates: int = 0,
    config: ExtractConfig | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> FeatureSet:
    """The feature set that `source` names, in the model's own width.

    `candidates` > 0 encodes only a sample of a dataset: so many items, the positives of its queries among them.
    """
    path = Path(source.removeprefix("features:"))
    if source.startswith("features:") or FeatureSet.is_folder(path):
        return fit_to_model(FeatureSet.load(path), model, model_uri)
    if model.encoder is None:
        raise GeniusError(f"the model {model_uri} has no encoder: give it a folder of features instead of {source}")
    collection = _collection(source, split, seed, queries, candidates)
    return _extract(model.encoder, collection, split, cache, config, progress)


def load_other(
    what: str,
    source: str,
    data: FeatureSet,
    *,
    split: str = "test",
    cache: Path | None = None,
    seed: int = 0,
    queries: int = 0,
    candidates: int = 0,
    device: str = "cpu",
    fusing: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> FeatureSet:
    """The same dataset through another encoder, for a dense baseline: `what` is an encoder's URI or its features.

    An encoder that fuses gives one vector an item (`fusing`: it must), any other its two; score fusion makes both
    comparable. `data` is what the run searches: the same queries and candidates in the same order, or nothing compares.
    """
    path = Path(what.removeprefix("features:"))
    if what.startswith("features:") or FeatureSet.is_folder(path):
        other = FeatureSet.load(path)
    elif source.startswith("features:") or FeatureSet.is_folder(Path(source)):
        raise GeniusError(
            f"{source} holds features, not pictures and texts: extract those of {what} too (genius features extract)"
        )
    else:
        encoder = load_encoder(what)
        if fusing and not isinstance(encoder, PairEncoder):
            raise GeniusError(f"{what} has two towers and fuses nothing itself: give it as --dense NAME={what}")
        if isinstance(encoder, nn.Module):
            encoder.to(device)
        config = ExtractConfig(fusion="feature" if isinstance(encoder, PairEncoder) else "towers")
        collection = _collection(source, split, seed, queries, candidates)
        other = _extract(encoder, collection, split, cache, config, progress)
    if other.query_ids != data.query_ids or other.pool_ids != data.pool_ids:
        raise GeniusError(f"{what}: these features are of other queries or candidates than the rest of the run")
    return other


def other_encoders(named: Mapping[str, str], source: str, data: FeatureSet, **options: Any) -> list[FeatureFusion]:
    """Row of a table -> encoder or features, as methods of an evaluation: CLIP-SF, CLIP-FF, BLIP-SF, BLIP-FF."""
    return [FeatureFusion(load_other(what, source, data, **options), label=name) for name, what in named.items()]


def _collection(source: str, split: str, seed: int, queries: int, candidates: int) -> Collection:
    collection = open_collection(source, split=split, seed=seed)
    return Sample(collection, queries=queries, candidates=candidates, seed=seed) if candidates else collection


def _extract(
    encoder: Encoder,
    collection: Collection,
    split: str,
    cache: Path | None,
    config: ExtractConfig | None,
    progress: Callable[[str, int, int], None] | None,
) -> FeatureSet:
    name = f"{collection.name}-{split}-{encoder.fingerprint()[:12]}-{collection.fingerprint()[:12]}"
    fused = "-fused" if config is not None and config.fusion == "feature" else ""
    folder = (cache or cache_folder()) / (name + fused)
    data = extract(encoder, collection, folder, config, progress)
    if data is None:
        raise GeniusError(f"other processes are still extracting into {folder}")
    return data


def fit_to_model(data: FeatureSet, model: Genius, model_uri: str) -> FeatureSet:
    """Features of frozen towers go through the model's heads; others must have its width already."""
    widths = {data.pool.image.shape[1], data.pool.text.shape[1]}
    if widths == {model.config.width}:
        return data
    heads = _read_heads(model_uri)
    if heads is None:
        raise GeniusError(f"features are {sorted(widths)} wide, the model expects {model.config.width} (and brings no {HEADS})")
    return replace(data, queries=heads.apply_chunked(data.queries), pool=heads.apply_chunked(data.pool))


def _read_heads(model_uri: str) -> Heads | None:
    path = resolve(model_uri) / HEADS
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        sizes = {name: int(value) for name, value in (file.metadata() or {}).items() if str(value).isdecimal()}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    heads = Heads(sizes["image_width"], sizes["text_width"], sizes["width"], sizes["hidden"])
    heads.load_state_dict(tensors)
    return heads.eval()
