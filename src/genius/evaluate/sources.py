"""What `genius eval` and `genius reproduce` are pointed at: a dataset on disk or features, made into a `FeatureSet`.

Features of a dataset are extracted once and kept in a cache whose name holds the encoder's and the data's
fingerprints: a changed model or file never meets old features.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from safetensors import safe_open

from genius.data.collection import open_collection
from genius.data.extract import ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.data.sample import Sample
from genius.encoders.registry import resolve
from genius.errors import GeniusError
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
    collection = open_collection(source, split=split, seed=seed)
    if candidates:
        collection = Sample(collection, queries=queries, candidates=candidates, seed=seed)
    name = f"{collection.name}-{split}-{model.encoder.fingerprint()[:12]}-{collection.fingerprint()[:12]}"
    folder = (cache or cache_folder()) / name
    data = extract(model.encoder, collection, folder, config, progress)
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
