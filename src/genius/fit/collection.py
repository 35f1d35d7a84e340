"""Codes and a small decoder for the vectors of one collection, without pairs.

The fusion is the plain sum of the encoder's vectors, picture and words weighing alike. Codebooks are k-means over the items. Of
the decoder only the temperatures and the kind of answer are learned, from invented items moved by the offsets of made-up
questions: what a decoder learns beyond that is worth little (docs/results/accuracy.md), and this takes seconds. What is kept of
exhaustive search is measured on made-up questions that the decoder has not learned from. Knows vectors; nothing of files.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.errors import GeniusError
from genius.features import Features
from genius.fit.questions import Questions
from genius.model.fitting import choose_level_sizes
from genius.model.fusion import Fusion, FusionConfig
from genius.model.generator import Generator
from genius.model.genius import Genius, GeniusConfig
from genius.model.knows import knows
from genius.model.quantizer import ResidualQuantizer
from genius.nearest import nearest_rows
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.config import GeneratorStageConfig, ModelConfig, RunConfig
from genius.train.generator import Frozen, GeneratorStage
from genius.train.loop import OneProcess, Runtime, run_stage
from genius.train.progress import Journal
from genius.train.quantizer import quantizer_config
from genius.train.shifted import Offsets

FOUND = 10  # answers of exhaustive search that are looked for
JUDGED = 200  # made-up questions that what is kept is measured on, at most
KEPT = ("default", "genius-r", "genius")  # searches that what is kept is measured of

Say = Callable[[str], None]


@dataclass(frozen=True)
class FitConfig:
    """How a collection is fitted. The defaults: docs/onramp.md."""

    decoder: str = "nano"  # it only has to tell kinds apart: nearness does the rest
    steps: int = 200  # of the decoder: two numbers a level and the kind are soon learned
    batch: int = 128
    lr: float = 5e-3
    largest_book: int = 2048  # codes of a level, at most
    sample: int = 50_000  # items that k-means sees, at most
    iterations: int = 10  # of k-means
    rerank: int = 2500  # items that the default search compares
    seed: int = 0


@dataclass
class Fit:
    """A model fitted to a collection, and what is known of how well."""

    model: Genius
    items: int
    kept: dict[str, float] = field(default_factory=dict)  # search -> share of the best FOUND of exhaustive search that it finds
    questions: int = 0  # made-up ones that this was measured on
    seconds: float = 0.0

    @property
    def scans(self) -> bool:
        """Whether the default search simply compares the question with every item."""
        return self.items <= SearchParams.of_model(self.model).rerank

    def lines(self) -> list[str]:
        """What people should know of it."""
        out = [f"codes and decoder fitted to {self.items:,} items in {self.seconds:.0f} s, without pairs"]
        if self.scans:
            out.append("so few items are simply compared one by one: every search is exhaustive")
        elif self.kept:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in self.kept.items())
            out.append(
                f"of the {FOUND} best answers of an exhaustive search ({self.questions} made-up questions) it finds: {shares}"
            )
        return out

    def to_dict(self) -> dict[str, Any]:
        values = {"items": self.items, "questions": self.questions, "found": FOUND, "kept": self.kept, "scans": self.scans}
        return {**values, "seconds": round(self.seconds, 1)}


def fit_collection(
    features: Features,
    questions: Questions | None = None,
    encoder: Encoder | None = None,
    encoder_uri: str | None = None,
    config: FitConfig | None = None,
    say: Say | None = None,
    quiet: bool = True,
) -> Fit:
    """Fit a model to a collection's features (N, W). `questions`: made up from the collection; None: random directions."""
    if not len(features):
        raise GeniusError("there is nothing to fit to: no item could be encoded")
    features.check()
    fusion = plain_fusion(features)
    z = embed(fusion, features)
    return fit_vectors(fusion, z, features.modality, questions, encoder, encoder_uri, config, say, quiet)


def fit_vectors(
    fusion: Fusion,
    z: Tensor,
    modality: Tensor,
    questions: Questions | None,
    encoder: Encoder | None,
    encoder_uri: str | None,
    config: FitConfig | None = None,
    say: Say | None = None,
    quiet: bool = True,
) -> Fit:
    """The same for vectors (N, D) of items that a fusion has made already, and their kinds (N,)."""
    config, tell, started = config or FitConfig(), say or (lambda _: None), time.monotonic()
    learn, judge = (None, None) if questions is None or not len(questions) else questions.split(config.seed)
    shape = _shape(z.shape[1], modality, config)
    several = len(modality.unique()) > 1  # one kind needs no books of its own
    quantizer = ResidualQuantizer(replace(quantizer_config(shape), own_books_from=int(several)))
    tell(f"codes for {len(z):,} items: {' x '.join(map(str, shape.level_sizes))}")
    some = _some(len(z), config.sample, config.seed)
    quantizer.initialise(z[some], modality[some], config.iterations, config.seed, together=1)
    codes = quantizer.encode(z, modality)
    offsets = None if learn is None else _offsets(learn, embed(fusion, learn.features), z, modality)
    tell(f"decoder: {config.steps} steps")
    decoder = _decoder(Frozen(z, modality, codes, offsets=offsets), quantizer, shape, config, quiet)
    body = GeniusConfig(
        fusion.config, quantizer.config, decoder.config, encoder_uri, search={"rerank": config.rerank}, instructions=False
    )
    model = Genius(body, encoder)
    for own, fitted in ((model.fusion, fusion), (model.quantizer, quantizer), (model.generator, decoder)):
        own.load_state_dict(fitted.state_dict())
    fit = Fit(model, len(z))
    if judge is not None and len(judge):
        asked = embed(fusion, judge.features[slice(0, JUDGED)])
        fit.kept, fit.questions = kept(model, z, codes, asked), len(asked)
    fit.seconds = time.monotonic() - started
    about = fit.to_dict() | ({} if encoder_uri is None else {"encoder": encoder_uri})
    model.knows = replace(knows(quantizer, z, modality, codes, "its own collection"), fit=about)
    return fit


def plain_fusion(features: Features) -> Fusion:
    """z is the unit sum of the encoder's two vectors, weighed so that pictures and words count alike."""
    fusion = Fusion(FusionConfig(features.width, 1, 1))
    for parameter in fusion.parameters():
        nn.init.zeros_(parameter)
    sizes = [
        part[mask].norm(dim=1).mean()
        for part, mask in zip(features.masked(), (features.image_mask, features.text_mask), strict=True)
    ]
    if features.image_mask.any() and features.text_mask.any() and min(sizes) > 0:
        nn.init.constant_(fusion.balance_output.bias, math.log(sizes[0] / sizes[1]))
    return fusion.eval()


@torch.no_grad()
def embed(fusion: Fusion, features: Features, chunk: int = 8192) -> Tensor:
    return torch.cat([fusion(features[slice(i, i + chunk)].to("cpu", torch.float32)) for i in range(0, len(features), chunk)])


def _shape(width: int, modality: Tensor, config: FitConfig) -> ModelConfig:
    counts = torch.bincount(modality, minlength=3).tolist()
    # finer than for a trained model, whose codes must suit what comes later: these are for the items that are there
    kind, *codes = choose_level_sizes(counts)
    sizes = (kind, *(min(2 * size, config.largest_book) for size in codes))
    return ModelConfig(width=width, level_sizes=sizes, decoder=config.decoder, prefix_tokens=2)


def _some(count: int, most: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values


def _offsets(questions: Questions, asked: Tensor, z: Tensor, modality: Tensor) -> Offsets:
    """How made-up questions differ from their answers; where nobody knows the answer, it is the nearest item of the kind."""
    answers = questions.answers.clone()
    for kind in questions.wanted.unique().tolist():
        rows = ((answers < 0) & (questions.wanted == kind)).nonzero()[:, 0]
        own = (modality == kind).nonzero()[:, 0]
        if len(rows) and len(own):
            answers[rows] = own[nearest_rows(asked[rows], z[own], 1)[:, 0]]
    known = (answers >= 0).nonzero()[:, 0]
    rows = answers[known]
    return Offsets(asked[known] - z[rows], z[rows], modality[rows], questions.tasks[known])


def _decoder(frozen: Frozen, quantizer: ResidualQuantizer, shape: ModelConfig, config: FitConfig, quiet: bool) -> Generator:
    no, none = frozen.pool[:0], torch.zeros(0, dtype=torch.bool)
    nobody = Features(no, no, none, none)
    nothing = FeatureSet(nobody, nobody, torch.empty(0, 2, dtype=torch.long), [], [])
    loop = GeneratorStageConfig(steps=config.steps, batch=config.batch, lr=config.lr)
    stage = GeneratorStage(nothing, frozen, None, quantizer, shape, loop, config.seed)
    stage.generator.nearness.bend.requires_grad_(False)  # stays zero: nearness, its temperatures and the kind
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(OneProcess(), Journal(Path(folder), quiet=quiet), config.seed, RunConfig(patience=0))
        run_stage(stage, loop, runtime, Path(folder) / stage.name)
    return stage.generator.eval()


@torch.no_grad()
def kept(model: Genius, z: Tensor, codes: Tensor, asked: Tensor) -> dict[str, float]:
    """The share of the best items of exhaustive search that each search finds as well."""
    best = nearest_rows(asked, z, FOUND)
    trie = CodeTrie.build(codes.numpy(), model.config.quantizer.level_sizes)
    engine = SearchEngine(model.generator, model.quantizer, trie, z)
    out = {}
    for name in KEPT:
        found = engine.search(asked, k=best.shape[1], params=SearchParams.of_model(model).named(name)).rows
        out[name] = round((found[:, :, None] == best[:, None]).any(1).float().mean().item(), 4)
    return out
