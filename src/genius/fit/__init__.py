"""A model for a collection without training pairs: codes and a small decoder fitted to the vectors of an encoder.

The fusion is the sum of the encoder's vectors, image and text weighted equally. Codebooks are k-means over the items. The
decoder learns only its temperatures and the target modality, from synthetic items shifted by the offsets of synthetic
queries (`synthetic_queries`): a decoder learns little beyond that (docs/results/accuracy.md), and this takes seconds. The
recall of each search relative to exhaustive search is measured on synthetic queries that the decoder was not trained on.
`folder` does all of it from files to an index (`genius index PHOTOS --encoder URI`).

A collection that is searched exhaustively uses neither codes nor decoder, so nothing is fitted to it until it grows or a fit
is requested (`unfitted_model`). Knows items, vectors and an encoder; nothing of files.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.encoders import load_encoder
from genius.encoders.base import Encoder, encode_items
from genius.encoders.objects import as_encoder
from genius.errors import GeniusError, counted
from genius.features import Features
from genius.fit.synthetic_queries import SyntheticQueries, synthesize_queries
from genius.model.codebooks import choose_level_sizes
from genius.model.config import FusionConfig, GeniusConfig
from genius.model.generator import Generator
from genius.model.genius import Genius
from genius.model.known_items import Knows, knows
from genius.model.quantizer import Fusion, ResidualQuantizer, build_quantizer
from genius.model.query_bank import QueryBank
from genius.model.unfitted import config_for, neutral_queries, unfitted_weights
from genius.pictures import LARGE, give_back
from genius.ranking import nearest_rows
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.search.scan import FEWEST_ITEMS, compared_whole
from genius.train.config import GeneratorStageConfig, ModelConfig, RunConfig
from genius.train.generator import Frozen, GeneratorStage, Offsets
from genius.train.journal import Journal
from genius.train.loop import Runtime, run_stage
from genius.train.quantizer import quantizer_config
from genius.types import Item

UNFITTED_SAMPLE = 1024  # items of which some become the code vectors of a model that is not fitted
FOUND = 10  # results of exhaustive search that a search should find
MEASURED_QUERIES = 200  # synthetic queries that this is measured on, at most
MEASURED_SEARCHES = ("default", "genius-r", "genius")

Say = Callable[[str], None]


@dataclass(frozen=True)
class FitConfig:
    """How a collection is fitted. The defaults: docs/onramp.md."""

    decoder: str = "nano"  # it only learns the target modality and temperatures; the similarity ranks codes
    steps: int = 200  # of the decoder: two numbers per level and the modality are soon learned
    batch: int = 128
    lr: float = 5e-3
    quantizer: str = "residual"  # name of a registered quantizer (`genius.model.quantizer.register`)
    largest_codebook: int = 2048  # codes of a level, at most
    sample: int = 50_000  # items that k-means reads, at most
    iterations: int = 10  # of k-means
    rerank: int = 2500  # items that the default search re-ranks
    seed: int = 0


@dataclass
class Fit:
    """A model fitted to a collection, and how well it fits."""

    model: Genius
    items: int
    kept: dict[str, float] = field(default_factory=dict)  # search -> recall@10 of exhaustive search
    queries: int = 0  # synthetic ones that this was measured on
    seconds: float = 0.0

    @property
    def exhaustive(self) -> bool:
        """Whether the default search compares the query with every item."""
        return compared_whole(self.items)

    def lines(self) -> list[str]:
        """What people should know of it."""
        out = [f"codes and decoder fitted to {counted(self.items, 'item')} in {self.seconds:.0f} s, without pairs"]
        if self.exhaustive:
            out.append(f"the default search compares all items; it is approximate from {FEWEST_ITEMS:,} items on")
        if self.kept:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in self.kept.items())
            out.append(f"recall@{FOUND} relative to exhaustive search, on {self.queries} synthetic queries: {shares}")
        return out

    def to_dict(self) -> dict[str, Any]:
        return {
            "items": self.items,
            "queries": self.queries,
            "found": FOUND,
            "kept": self.kept,
            "exhaustive": self.exhaustive,
            "seconds": round(self.seconds, 1),
        }


def fit_collection(
    features: Features,
    queries: SyntheticQueries | None = None,
    encoder: Encoder | None = None,
    encoder_uri: str | None = None,
    config: FitConfig | None = None,
    say: Say | None = None,
) -> Fit:
    """Fit a model to a collection's features.

    Args:
        features: (N) of the items.
        queries: Synthetic for the collection; None: offsets are random directions.
        encoder: Of the features; it becomes part of the model.
        encoder_uri: Its URI, which the model's config names.
        config: Sizes and steps.
        say: Called with one line per step of the fit.

    Raises:
        GeniusError: If there is no item.
    """
    if not len(features):
        raise GeniusError("there is nothing to fit to: no item could be encoded")
    features.check(features.width)
    fusion = sum_fusion(features)
    z = fusion.embed(features)
    return fit_vectors(fusion, z, features.modality, queries, encoder, encoder_uri, config, say)


def fit_vectors(
    fusion: Fusion,
    z: Tensor,
    modality: Tensor,
    queries: SyntheticQueries | None,
    encoder: Encoder | None,
    encoder_uri: str | None,
    config: FitConfig | None = None,
    say: Say | None = None,
) -> Fit:
    """Fit a model to vectors z (N, D) of items that `fusion` has made, and their modalities (N,).

    The other parameters are those of `fit_collection`.

    Args:
        fusion: What made the vectors.
        z: (N, D) vectors of the items.
        modality: (N,) of the items.
        queries: Synthetic for the collection; None: offsets are random directions.
        encoder: Of the features; it becomes part of the model.
        encoder_uri: Its URI, which the model's config names.
        config: Sizes and steps.
        say: Called with one line per step of the fit.
    """
    config = config or FitConfig()
    tell = say or (lambda _: None)
    started = time.monotonic()
    learn: SyntheticQueries | None = None
    held_out: SyntheticQueries | None = None
    if queries is not None and len(queries):
        learn, held_out = queries.split(config.seed)
    shape = _shape(z.shape[1], modality, config)
    several = len(modality.unique()) > 1  # one modality needs no codebooks of its own
    quantizer = build_quantizer(replace(quantizer_config(shape), modality_codebooks_from=int(several)))
    tell(f"codes for {counted(len(z), 'item')}: {' x '.join(map(str, shape.level_sizes))}")
    sample = torch.randperm(len(z), generator=torch.Generator().manual_seed(config.seed))[: config.sample].sort().values
    quantizer.initialise(z[sample], modality[sample], config.iterations, config.seed, together=1)
    codes = quantizer.encode(z, modality)
    offsets = None
    if learn is not None:
        offsets = synthetic_query_offsets(learn, fusion.embed(learn.features), z, modality)
    tell(f"decoder: {config.steps} steps")
    decoder = _fit_decoder(Frozen(z, modality, codes, offsets=offsets), quantizer, shape, config)
    body = GeniusConfig(
        fusion=fusion.config,
        quantizer=quantizer.config,
        generator=decoder.config,
        encoder=encoder_uri,
        search={"rerank": config.rerank},
        instructions=False,
    )
    model = Genius(body, encoder)
    model.fusion.load_state_dict(fusion.state_dict())
    model.quantizer.load_state_dict(quantizer.state_dict())
    model.generator.load_state_dict(decoder.state_dict())
    if queries is not None and len(queries):
        model.queries = QueryBank.of(
            fusion.embed(queries.features), queries.features.modality, queries.targets, seed=config.seed, real=False
        )
    fit = Fit(model, len(z))
    if held_out is not None and len(held_out):
        measured = fusion.embed(held_out.features[slice(0, MEASURED_QUERIES)])
        fit.kept = recall_of_searches(model, z, codes, measured)
        fit.queries = len(measured)
    fit.seconds = time.monotonic() - started
    about = fit.to_dict()
    if encoder_uri is not None:
        about["encoder"] = encoder_uri
    model.knows = replace(knows(quantizer.decode, z, modality, codes, "its own collection"), fit=about)
    give_back(LARGE)  # the memory of k-means and of the decoder's steps
    return fit


def unfitted_model(
    features: Features, encoder: Encoder | None = None, encoder_uri: str | None = None, config: FitConfig | None = None
) -> Genius:
    """A model for a collection that is compared whole: its vectors are those of a fitted one, and nothing is trained.

    Code vectors are a few of the items, so that items can be browsed by codes; the decoder's weights are random.
    `model.fitted` says so, and a refit makes a fitted model of it.

    Args:
        features: (N) of the items.
        encoder: Of the features; it becomes part of the model.
        encoder_uri: Its URI, which the model's config names.
        config: Its seed chooses the items.

    Raises:
        GeniusError: If there is no item.
    """
    if not len(features):
        raise GeniusError("there is nothing to index: no item could be encoded")
    config = config or FitConfig()
    features.check(features.width)
    fusion = sum_fusion(features)
    blank = config_for(features.width)
    model = Genius(replace(blank, encoder=encoder_uri), encoder)
    weights = unfitted_weights(blank, config.seed)
    model.network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    model.fusion.load_state_dict(fusion.state_dict())
    chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(config.seed))[:UNFITTED_SAMPLE]
    some = features[chosen]
    model.quantizer.initialise(fusion.embed(some), some.modality, 0, config.seed)
    model.queries = neutral_queries(features.width)
    about: dict[str, Any] = {"fitted": False, "items": len(features)}
    if encoder_uri is not None:
        about["encoder"] = encoder_uri
    model.knows = Knows(len(features), {}, "its own collection", about)
    return model


def sum_fusion(features: Features) -> Fusion:
    """A fusion whose z is the unit sum of the encoder's two vectors, weighted so that image and text count equally.

    Args:
        features: (N) of the items, from which the weights are measured.
    """
    fusion = Fusion(FusionConfig(features.width, 1, 1))
    for parameter in fusion.parameters():
        nn.init.zeros_(parameter)
    image, text = features.masked()
    if features.image_mask.any() and features.text_mask.any():
        image_length = image[features.image_mask].norm(dim=1).mean()
        text_length = text[features.text_mask].norm(dim=1).mean()
        if min(image_length, text_length) > 0:
            nn.init.constant_(fusion.balance_output.bias, math.log(image_length / text_length))
    return fusion.eval()


def _shape(width: int, modality: Tensor, config: FitConfig) -> ModelConfig:
    counts = torch.bincount(modality, minlength=3).tolist()
    # finer than for a trained model, whose codes must suit items added later: these are for the items that are there
    first, *sizes = choose_level_sizes(counts)
    level_sizes = (first, *(min(2 * size, config.largest_codebook) for size in sizes))
    return ModelConfig(width=width, level_sizes=level_sizes, quantizer=config.quantizer, decoder=config.decoder, prefix_tokens=2)


def synthetic_query_offsets(queries: SyntheticQueries, query_z: Tensor, z: Tensor, modality: Tensor) -> Offsets:
    """How synthetic queries differ from their positives; an unknown positive is the nearest item of the target modality.

    Args:
        queries: (Q) with their positives and targets.
        query_z: (Q, D) their embeddings.
        z: (N, D) of the items.
        modality: (N,) of the items.
    """
    positives = queries.positives.clone()
    for target in queries.targets.unique().tolist():
        unknown = ((positives < 0) & (queries.targets == target)).nonzero()[:, 0]
        candidates = (modality == target).nonzero()[:, 0]
        if len(unknown) and len(candidates):
            positives[unknown] = candidates[nearest_rows(query_z[unknown], z[candidates], 1)[:, 0]]
    known = (positives >= 0).nonzero()[:, 0]
    rows = positives[known]
    return Offsets(query_z[known] - z[rows], z[rows], modality[rows], queries.tasks[known])


def _fit_decoder(frozen: Frozen, quantizer: ResidualQuantizer, shape: ModelConfig, config: FitConfig) -> Generator:
    no_vectors = frozen.pool[:0]
    no_mask = torch.zeros(0, dtype=torch.bool)
    no_features = Features(no_vectors, no_vectors, no_mask, no_mask)
    no_data = FeatureSet(no_features, no_features, torch.empty(0, 2, dtype=torch.long), [], [])
    loop = GeneratorStageConfig(steps=config.steps, batch=config.batch, lr=config.lr)
    stage = GeneratorStage(no_data, frozen, None, quantizer, shape, loop, config.seed)
    stage.generator.codebook_head.residual_shift.requires_grad_(False)  # no correction of the similarity: it stays zero
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(torch.device("cpu"), Journal(Path(folder), quiet=True), config.seed, RunConfig(patience=0))
        run_stage(stage, loop, runtime, Path(folder) / stage.name)
    return stage.generator.eval()


@torch.no_grad()
def recall_of_searches(model: Genius, z: Tensor, codes: Tensor, queries: Tensor) -> dict[str, float]:
    """recall@10 of each search: the share of the best items of exhaustive search that it finds.

    Args:
        model: The fitted model.
        z: (N, D) vectors of the items.
        codes: (N, L) of the items.
        queries: Synthetic, held out.
    """
    best = nearest_rows(queries, z, FOUND).numpy()
    trie = CodeTrie.build(codes.numpy(), model.config.quantizer.level_sizes)
    engine = SearchEngine(model.generator, model.quantizer, trie, z)
    out = {}
    for name in MEASURED_SEARCHES:
        found = engine.search(queries, k=best.shape[1], params=SearchParams.of_model(model).named(name)).rows
        out[name] = round(float((found[:, :, None] == best[:, None]).any(1).mean()), 4)
    return out


class Unfitted:
    """An encoder without codes and decoder.

    Args:
        source: The URI of an encoder, or an object that encodes (`genius.encoders.objects.as_encoder`).
        device: Where an encoder that is a torch module runs.
    """

    def __init__(self, source: str | Path | object, device: str | torch.device = "cpu") -> None:
        self.encoder: Encoder
        self.uri: str | None = None  # None: an object
        if isinstance(source, str | Path):
            self.encoder = load_encoder(source)
            self.uri = settled(str(source))
        else:
            self.encoder = as_encoder(source)
        if isinstance(self.encoder, torch.nn.Module):
            self.encoder.to(device)

    def __repr__(self) -> str:
        name = self.uri or type(getattr(self.encoder, "source", self.encoder)).__name__
        return f"Unfitted({name!r}, {self.encoder.width} wide): .fit(items) makes a model of it"

    def fit(
        self, items: Iterable[Item], *, config: FitConfig | None = None, on_progress: Callable[[int], None] | None = None
    ) -> Genius:
        """A model whose codes and decoder are fitted to `items`; no pairs are needed.

        Items are encoded here and again when they are added to an index; `genius index --encoder` does it once.

        Args:
            items: The collection.
            config: Sizes and steps.
            on_progress: Called with the number of items that were encoded.

        Returns:
            The model; `model.knows.fit` says how much of exhaustive search it keeps.

        Raises:
            GeniusError: If no item can be encoded.
        """
        collection = [Item.of(item) for item in items]
        features, kept, problems = encode_items(self.encoder, collection, on_error="skip", on_progress=on_progress)
        if not len(features):
            reason = f": {problems[0]}" if problems else ""
            raise GeniusError(f"none of the {len(collection):,} items could be encoded{reason}")
        queries = synthesize_queries(self.encoder, [collection[row] for row in kept], (config or FitConfig()).seed)
        return fit_collection(features, queries, self.encoder, self.uri, config).model


def settled(uri: str) -> str:
    """The URI of an encoder as a model may name it from anywhere: paths are absolute.

    Args:
        uri: As it was given.
    """
    scheme, colon, location = uri.partition(":")
    if colon and scheme in ("hf-hub", "bundled"):
        return uri
    if not colon or scheme not in ("local-dir", "uniir"):
        scheme = "local-dir"
        location = uri
    return f"{scheme}:{Path(location).expanduser().absolute()}"
