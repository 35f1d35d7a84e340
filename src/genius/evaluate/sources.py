"""What `genius eval`, `genius features` and `python -m lab reproduce` are pointed at: a dataset on disk, or files of features.

Features of a dataset are extracted once and kept in a cache whose name holds the encoder's and the data's
fingerprints: a changed model or file never meets old features. Files in the published formats become IDs of a pool, and the best
IDs for every query, without pictures and without an index on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from genius.data import open_collection
from genius.data.collection import Collection, Sample
from genius.data.extract import ExtractConfig, extract
from genius.data.features import CANDIDATES_PER_DATASET, QUERIES_PER_DATASET, FeatureSet, read_published
from genius.encoders import load_encoder, resolve
from genius.encoders.base import Encoder, PairEncoder
from genius.encoders.towers import HEADS, read_heads
from genius.errors import GeniusError
from genius.evaluate.methods import FeatureFusion
from genius.files import reading, write_whole
from genius.model.genius import Genius
from genius.search import CodeTrie
from genius.search.beam import beam_search

Codes = npt.NDArray[np.int64]


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

    def collection(self) -> Collection:
        whole = open_collection(self.name, split=self.split, seed=self.seed)
        if not self.candidates:
            return whole
        return Sample(whole, queries=self.queries, candidates=self.candidates, seed=self.seed)

    def extract(self, encoder: Encoder, config: ExtractConfig | None = None) -> FeatureSet:
        """Features by `encoder`, from the cache where they are there."""
        collection = self.collection()
        name = f"{collection.name}-{self.split}-{encoder.fingerprint()[:12]}-{collection.fingerprint()[:12]}"
        if config is not None and config.fusion == "feature":
            name += "-fused"
        folder = (self.cache or cache_folder()) / name
        data = extract(encoder, collection, folder, config, self.progress)
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


def load_other(uri: str, source: Source, data: FeatureSet, *, fusing: bool = False) -> FeatureSet:
    """The same dataset through another encoder, for a dense baseline: `uri` is an encoder's URI or its features.

    An encoder that fuses gives one vector an item (`fusing`: it must), any other its two; score fusion makes both
    comparable. `data` is what the run searches: the same queries and candidates in the same order, or nothing compares.
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
        if fusing and not isinstance(encoder, PairEncoder):
            raise GeniusError(f"{uri} has two towers and does not fuse them: use --dense NAME={uri}")
        if isinstance(encoder, nn.Module):
            encoder.to(source.device)
        config = ExtractConfig(fusion="towers")
        if isinstance(encoder, PairEncoder):
            config = ExtractConfig(fusion="feature")
        other = source.extract(encoder, config)
    if other.query_ids != data.query_ids or other.pool_ids != data.pool_ids:
        raise GeniusError(f"{uri}: these features belong to other queries or candidates than this evaluation")
    return other


def other_encoders(named: Mapping[str, str], source: Source, data: FeatureSet) -> list[FeatureFusion]:
    """Row of a table -> encoder or features, as methods of an evaluation: CLIP-SF, CLIP-FF, BLIP-SF, BLIP-FF."""
    return [FeatureFusion(load_other(uri, source, data), label=name) for name, uri in named.items()]


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


def encode_file(model: Genius, features: Path, output: Path) -> Codes:
    """Codes of every row of a published feature file, saved as `output` (.npy, int64)."""
    rows, _ = read_published(features, CANDIDATES_PER_DATASET)
    if len(rows) == 0:
        raise GeniusError(f"{features} holds no rows")
    codes: Codes = model.encode(rows).cpu().numpy()
    write_whole(output, lambda path: _save(path, lambda file: np.save(file, codes)))
    return codes


def read_codes(path: Path, model: Genius) -> Codes:
    """Codes saved by `encode_file` (or the published index), checked against the model."""
    with reading(f"{path} as codes", ValueError, EOFError):
        codes = np.load(path, allow_pickle=False)
    if not isinstance(codes, np.ndarray) or not np.issubdtype(codes.dtype, np.integer):
        raise GeniusError(f"{path} does not hold one array of integers")
    if codes.shape[0] == 0:
        raise GeniusError(f"{path} holds no candidates")
    codes = codes.astype(np.int64)
    model.quantizer.check_codes(torch.from_numpy(codes))
    return codes


def search_file(
    model: Genius,
    queries: Path,
    codes: Path,
    output: Path,
    *,
    beams: int = 50,
    batch: int = 64,
    progress: Callable[[Iterable[int]], Iterable[int]] = lambda steps: steps,
) -> int:
    """Exact constrained beam search for every query: `codes` (Q, beams, M) int64, `scores` (Q, beams) float32."""
    rows, _ = read_published(queries, QUERIES_PER_DATASET)
    if len(rows) == 0:
        raise GeniusError(f"{queries} holds no queries")
    trie = CodeTrie.build(read_codes(codes, model), model.config.quantizer.level_sizes)
    out_codes = np.full((len(rows), beams, model.config.quantizer.levels), -1, dtype=np.int64)
    out_scores = np.full((len(rows), beams), -np.inf, dtype=np.float32)
    for start in progress(range(0, len(rows), batch)):
        z, _ = model.embed(rows[start : start + batch])
        beams_found = beam_search(model.generator, trie, z, beams)
        n = beams_found.codes.shape[1]
        out_codes[start : start + batch, :n] = beams_found.codes.cpu().numpy()
        out_scores[start : start + batch, :n] = beams_found.scores.cpu().numpy()
    write_whole(output, lambda path: _save(path, lambda file: np.savez(file, codes=out_codes, scores=out_scores)))
    return len(rows)


def _save(path: Path, write: Callable[[Any], None]) -> None:
    """Through a file object: numpy would add its own ending to a name."""
    with path.open("wb") as file:
        write(file)
