"""What `genius eval` and `python -m lab reproduce` are pointed at: a dataset on disk, or a folder of features.

Features of a dataset are extracted once and kept in a cache whose name holds the encoder's and the data's
fingerprints: a changed model or file never meets old features.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from genius.data import open_collection
from genius.data.collection import Collection, Sample
from genius.data.extract import ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.encoders import load_encoder, resolve
from genius.encoders.base import Encoder
from genius.encoders.towers import HEADS, read_heads
from genius.errors import GeniusError
from genius.evaluate.methods import OtherEncoder
from genius.model.genius import Genius


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genius" / "features"


@dataclass(frozen=True)
class Source:
    """A dataset on disk, or a folder of features: which part of it is read, and how."""

    name: str  # mbeir:DIR, coco:DIR, features:DIR, ... or a path
    split: str = "test"
    seed: int = 0  # of the instructions' wordings and of the sample
    queries: int = 0  # with `candidates`: only so many queries of each task; 0: all
    candidates: int = 0  # > 0: encode only a sample, so many items, the positives of its queries among them
    cache: Path | None = None  # where extracted features are kept; None: `cache_folder()`
    device: str = "cpu"  # of other encoders; the model's own is where the model is
    progress: Callable[[str, int, int], None] | None = None
    encoding: ExtractConfig = field(default_factory=ExtractConfig)  # precision, batches and processes of the encoder
    note: Callable[[str], None] | None = None  # called with a line before anything is encoded

    def collection(self) -> Collection:
        whole = open_collection(self.name, split=self.split, seed=self.seed)
        if not self.candidates:
            return whole
        return Sample(whole, queries=self.queries, candidates=self.candidates, seed=self.seed)

    def extract(self, encoder: Encoder) -> FeatureSet:
        """Features by `encoder`, from the cache where they are there."""
        collection = self.collection()
        name = f"{collection.name}-{self.split}-{encoder.fingerprint()[:12]}-{collection.fingerprint()[:12]}"
        encoding = self.encoding
        if encoding.precision != "fp32":
            name += f"-{encoding.precision}"
        folder = (self.cache or cache_folder()) / name
        if self.note is not None and not FeatureSet.is_folder(folder):
            how = f"{encoding.precision}, batches of {encoding.batch_size}, {encoding.workers or 'no'} worker processes"
            self.note(
                f"encoding {self.name} on one device ({how}) into {folder}. A large dataset takes hours: see --precision, "
                "--workers and --encode-batch, or extract features once, on several GPUs with --shard "
                "(genius features extract), and give their folder in place of the dataset"
            )
        data = extract(encoder, collection, folder, encoding, self.progress)
        if data is None:
            raise GeniusError(f"other processes are still extracting into {folder}")
        return data


def features_folder(name: str) -> Path | None:
    """The folder, where `name` says features rather than a dataset or an encoder."""
    path = Path(name.removeprefix("features:"))
    if name.startswith("features:") or FeatureSet.is_folder(path):
        return path
    return None


def load_features(source: Source, model: Genius, model_uri: str) -> FeatureSet:
    """The feature set that `source` names, in the model's own width."""
    folder = features_folder(source.name)
    if folder is not None:
        return fit_to_model(FeatureSet.load(folder), model, model_uri)
    if model.encoder is None:
        raise GeniusError(f"the model {model_uri} has no encoder: give it a folder of features instead of {source.name}")
    return source.extract(model.encoder)


def load_other(uri: str, source: Source, data: FeatureSet) -> FeatureSet:
    """The same dataset through another encoder, for a dense baseline: `uri` is an encoder's URI or its features.

    `data` is what the run searches: the same queries and candidates in the same order, or nothing compares.
    """
    folder = features_folder(uri)
    if folder is not None:
        other = FeatureSet.load(folder)
    elif features_folder(source.name) is not None:
        raise GeniusError(
            f"{source.name} holds features, not pictures and texts: extract those of {uri} too (genius features extract)"
        )
    else:
        encoder = load_encoder(uri)
        if isinstance(encoder, nn.Module):
            encoder.to(source.device)
        other = source.extract(encoder)
    if other.query_ids != data.query_ids or other.pool_ids != data.pool_ids:
        raise GeniusError(f"{uri}: these features belong to other queries or candidates than this evaluation")
    return other


def other_encoders(named: Mapping[str, str], source: Source, data: FeatureSet) -> list[OtherEncoder]:
    """Row of a table -> encoder or features, as methods of an evaluation: CLIP-SF, CLIP-FF, BLIP-SF, BLIP-FF."""
    return [OtherEncoder(load_other(uri, source, data), label=name) for name, uri in named.items()]


def fit_to_model(data: FeatureSet, model: Genius, model_uri: str) -> FeatureSet:
    """Features of frozen towers go through the model's heads; others must have its width already."""
    widths = {data.pool.image.shape[1], data.pool.text.shape[1]}
    if widths == {model.config.width}:
        return data
    heads = read_heads(resolve(model_uri) / HEADS)
    if heads is None:
        raise GeniusError(
            f"features are {sorted(widths)} wide, the model expects {model.config.width} and has no heads ({HEADS})"
        )
    return replace(data, queries=heads.apply_chunked(data.queries), pool=heads.apply_chunked(data.pool))
