"""From an encoder and a collection to a model, without a single pair: codes and a small decoder for the vectors of one
collection. `folder` does all of it from files to an index (`genius index PHOTOS --encoder URI`).

The fusion is the plain sum of the encoder's vectors, picture and words weighing alike. Codebooks are k-means over the items. Of
the decoder only the temperatures and the kind of answer are learned, from invented items moved by the offsets of made-up
questions: what a decoder learns beyond that is worth little (docs/results/accuracy.md), and this takes seconds. What is kept of
exhaustive search is measured on made-up questions that the decoder has not learned from.

Questions are made up out of the collection, where nobody has asked any yet. Words: parts of captions and texts, file names and
tags that say something, and a list of everyday words. Pictures: cut-outs of the collection's own. Knows items, vectors and an
encoder; nothing of files.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.encoders import load_encoder
from genius.encoders.base import Encoder, encode_items, encode_queries
from genius.encoders.objects import as_encoder
from genius.errors import GeniusError, counted
from genius.features import Features
from genius.model.codebooks import choose_level_sizes
from genius.model.config import GeniusConfig, knows
from genius.model.generator import Generator
from genius.model.genius import Genius
from genius.model.quantizer import Fusion, FusionConfig, ResidualQuantizer
from genius.pictures import LARGE, give_back, loaded
from genius.ranking import nearest_rows
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.config import GeneratorStageConfig, ModelConfig, RunConfig
from genius.train.generator import Frozen, GeneratorStage, Offsets
from genius.train.journal import Journal
from genius.train.loop import OneProcess, Runtime, run_stage
from genius.train.quantizer import quantizer_config
from genius.types import Item, Modality, Query, name_of

MOST = 400  # questions of each sort
SIDE = 400  # pixels of a cut-out: more than encoders see
CUT = (0.5, 0.9)  # sides of a cut-out, as a share of the picture's
CAPTION, NAME, EVERYDAY, PICTURE = range(4)  # sorts of questions
WORDS = (
    "a dog", "a cat", "a bird", "a horse", "a flower", "a tree", "a forest", "mountains", "the sea", "a beach", "a river",
    "snow", "the sky at sunset", "a street at night", "a city", "a house", "a bridge", "a church", "a kitchen",
    "a living room", "a bedroom", "an office", "a garden", "a car", "a bicycle", "a train", "an aeroplane", "a boat",
    "a child", "a baby", "a woman smiling", "a man with a beard", "a group of people", "a crowd", "a wedding",
    "a birthday cake", "a party", "people eating", "food on a plate", "a cup of coffee", "fruit", "vegetables", "bread",
    "a glass of wine", "black shoes", "a red dress", "a blue shirt", "a hat", "a watch", "a handbag", "a ring", "glasses",
    "a book", "a page of text", "a map", "a chart", "a screenshot", "a computer", "a telephone", "a guitar",
    "a football game", "running", "swimming", "skiing", "a tent", "a fire", "fireworks", "the moon", "clouds", "rain",
    "a statue", "a painting", "a drawing", "a sign", "a door", "a window", "a chair", "a table", "a lamp", "a bottle",
    "a toy", "a teddy bear", "a clock", "an insect", "a butterfly", "fish", "a cow", "sheep", "an elephant", "something red",
    "something green", "something yellow", "black and white", "a close-up", "a view from above", "a pattern", "a machine",
    "a tool", "medicine", "a letter",
)  # fmt: skip
FOUND = 10  # answers of exhaustive search that are looked for
JUDGED = 200  # made-up questions that what is kept is measured on, at most
KEPT = ("default", "genius-r", "genius")  # searches that what is kept is measured of

Say = Callable[[str], None]


@dataclass(frozen=True)
class Questions:
    """Made-up questions as features."""

    features: Features  # (Q)
    answers: Tensor  # (Q,) rows of the collection; -1: nobody knows
    wanted: Tensor  # (Q,) kind of item asked for
    tasks: Tensor  # (Q,) the sort of question

    def __len__(self) -> int:
        return len(self.answers)

    def take(self, rows: Tensor) -> Questions:
        return Questions(self.features[rows], self.answers[rows], self.wanted[rows], self.tasks[rows])

    def split(self, seed: int) -> tuple[Questions, Questions]:
        """Half to learn from, half to judge by."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        half = len(order) // 2
        return self.take(order[half:]), self.take(order[:half])


def make_up(
    encoder: Encoder, items: Sequence[Item], seed: int = 0, on_progress: Callable[[int], None] | None = None
) -> Questions:
    """Questions about `items`, which are the rows of the collection."""
    rng = random.Random(seed)
    asked: list[tuple[Query, int, Modality, int]] = []
    for row, words in _few([(i, w) for i, item in enumerate(items) if (w := part_of(item.text, rng))], rng):
        asked.append((Query(text=words), row, items[row].modality, CAPTION))
    for row, words in _few([(i, w) for i, item in enumerate(items) if item.image is not None and (w := name_of(item))], rng):
        asked.append((Query(text=words), row, items[row].modality, NAME))
    kinds = {item.modality for item in items}
    for words in WORDS:
        asked += [(Query(text=words), -1, kind, EVERYDAY) for kind in (Modality.IMAGE, Modality.PAIR) if kind in kinds]
    for row, picture in _cut_outs(items, rng):
        asked.append((Query(image=picture), row, items[row].modality, PICTURE))
    features = encode_queries(encoder, [query for query, *_ in asked], batch_size=32, on_progress=on_progress)
    numbers = torch.tensor([(row, int(kind), sort) for _, row, kind, sort in asked], dtype=torch.long).view(-1, 3)
    asked.clear()
    give_back(LARGE)  # the cut-outs: else what follows, fitting above all, comes on top of them
    return Questions(features, *numbers.unbind(1))


def _few(values: list[tuple[int, str]], rng: random.Random) -> list[tuple[int, str]]:
    return rng.sample(values, min(MOST, len(values)))


def part_of(text: str | None, rng: random.Random) -> str | None:
    """Some words in a row of a text, about as many as people ask with."""
    words = (text or "").split()[:200]
    if not words:
        return None
    count = min(len(words), rng.randint(2, 6))
    start = rng.randint(0, len(words) - count)
    return " ".join(words[start : start + count])


def _cut_outs(items: Sequence[Item], rng: random.Random) -> list[tuple[int, Image.Image]]:
    pictured = [i for i, item in enumerate(items) if item.image is not None]
    out = []
    for row in sorted(rng.sample(pictured, min(MOST // 2, len(pictured)))):
        image = items[row].image
        assert image is not None
        try:
            with loaded(image, least=SIDE) as picture:
                out.append((row, cut_out(picture, rng)))
        except GeniusError:
            continue  # it was there a moment ago
    return out


def cut_out(picture: Image.Image, rng: random.Random) -> Image.Image:
    """A part of a picture, perhaps mirrored."""
    width, height = (max(1, round(side * rng.uniform(*CUT))) for side in picture.size)
    left, top = rng.randint(0, picture.width - width), rng.randint(0, picture.height - height)
    part = picture.crop((left, top, left + width, top + height))
    part.thumbnail((SIDE, SIDE))  # many are held at a time
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else part


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
        out = [f"codes and decoder fitted to {counted(self.items, 'item')} in {self.seconds:.0f} s, without pairs"]
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
    tell(f"codes for {counted(len(z), 'item')}: {' x '.join(map(str, shape.level_sizes))}")
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
    give_back(LARGE)  # what k-means and the decoder's steps took
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
    stage.generator.codebook_head.bend.requires_grad_(False)  # stays zero: nearness, its temperatures and the kind
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
