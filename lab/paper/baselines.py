"""Generative baselines as methods: other identifiers, the same generator, the same training loop, the same search.

So that the paper's comparison with IRGen and GRACE is run, not quoted. As those systems do, the generator also learns
to memorise: every item's own embedding -> its id, the test pool's included (that needs no labels).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.evaluate.generative import BeamMethod, IdSource
from genius.evaluate.methods import Method
from genius.features import Features
from genius.files import write_whole
from genius.model.config import QuantizerConfig
from genius.model.generator import Generator
from genius.model.genius import Genius
from genius.model.quantizer import ResidualQuantizer, score_fusion
from genius.train.config import GeneratorStageConfig, ModelConfig, RunConfig
from genius.train.generator import Frozen
from genius.train.journal import METRICS, Journal
from genius.train.loop import LOOKS, Runtime, run_stage
from genius.train.pairs import EmbeddedRows, FeatureRows, Points
from lab.paper import identifiers
from lab.paper.identifiers import CHUNK, Identifiers
from lab.paper.watched import CurvesAreFlat, WatchedGenerator

BASELINES: dict[str, str] = {
    "irgen": "IRGen-style: residual ids by reconstruction only, no modality code",
    "grace-numeric": "GRACE-style: random numbers, digit by digit",
    "grace-atomic": "GRACE-style: a token of its own for every item",
    "grace-string": "GRACE-style: random strings, token by token",
    "grace-semantic": "GRACE-style: nearest words of a learned vocabulary",
    "grace-structured": "GRACE-style: path in a tree of clusters",
}
Say = Callable[[str], None]
SAMPLE = 400  # pairs and items behind each point of a curve


@dataclasses.dataclass(frozen=True, slots=True)
class BaselineConfig:
    """How a baseline's generator is trained."""

    steps: int = 3000  # optimizer steps
    batch: int = 256  # query pairs and memorised items a step
    lr: float = 1e-3
    seed: int = 0


def build_baselines(
    names: Sequence[str],
    model: Genius,  # the model under test: its generator's shape is used
    train: FeatureSet,
    test: FeatureSet,
    *,
    beams: Sequence[int] = (50,),
    steps: int = 3000,
    batch: int = 256,
    seed: int = 0,
    folder: Path | None = None,  # where trained baselines are kept, so that another call finds them; None: nowhere
    say: Say | None = None,
) -> list[Method]:
    """Train every named baseline and return its methods, one for each number of beams."""
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise GeniusError(f"unknown baseline {unknown[0]!r}; there are {', '.join(BASELINES)}")
    config = BaselineConfig(steps=steps, seed=seed, batch=max(1, min(batch, len(train.queries))))
    world = _World.of(model, train, test)
    out: list[Method] = []
    for name in names:
        ids, generator = _learn(name, world, model, config, folder, say or (lambda _: None))
        codes = ids.codes[world.test_rows.cpu().numpy()]
        source = IdSource(generator, ids.quantizer, codes, ids.level_sizes, world.test_queries, labelled=False)
        for count in beams:
            label = f"{name}@{count}" if len(beams) > 1 else name
            out.append(BeamMethod(label, source, count))
    return out


class JoinedRows:
    """Several `Points` in one numbering."""

    def __init__(self, parts: Sequence[Points], rows: Sequence[Tensor | None]) -> None:
        """Args:
        parts: Where vectors are.
        rows: Of each part those that count, (n,); None: all.
        """
        self.parts = parts
        self.rows = [torch.arange(len(part)) if chosen is None else chosen for part, chosen in zip(parts, rows, strict=True)]

    def __len__(self) -> int:
        return sum(len(chosen) for chosen in self.rows)

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        if isinstance(rows, slice):
            rows = torch.arange(len(self))[rows]
        rows = rows.cpu()
        found = []
        places = []
        start = 0
        for part, chosen in zip(self.parts, self.rows, strict=True):
            place = ((rows >= start) & (rows < start + len(chosen))).nonzero()[:, 0]
            if len(place):
                found.append(part[chosen[rows[place] - start]])
                places.append(place)
            start += len(chosen)
        if not found:
            return self.parts[0][rows]
        order = torch.cat(places).argsort()
        vectors = torch.cat(found)
        return vectors[order.to(vectors.device)]


def _fused(features: Features, device: torch.device) -> EmbeddedRows:
    """Score fusion by row: kept on the device while it is small, else computed for the rows that are read."""
    return EmbeddedRows(FeatureRows(features, device), score_fusion, features.image.shape[1])


@dataclasses.dataclass(frozen=True, slots=True)
class _World:
    """Training and test items in one numbering, in the encoder's own space. Vectors of a large pool are read by row."""

    device: torch.device
    items: JoinedRows  # (N, D) train pool, then test items that are not in it
    queries: EmbeddedRows  # (Q, D) of training
    pairs: Tensor  # (P, 2) training pairs, rows of `items`
    test_queries: Tensor  # (Q', D)
    test_rows: Tensor  # (N',) row of every test item in `items`

    @classmethod
    def of(cls, model: Genius, train: FeatureSet, test: FeatureSet) -> _World:
        device = model.device
        place = {name: row for row, name in enumerate(train.pool_ids)}
        fresh = [row for row, name in enumerate(test.pool_ids) if name not in place]
        for row in fresh:
            place[test.pool_ids[row]] = len(place)
        parts = [_fused(train.pool, device), _fused(test.pool, device)]
        items = JoinedRows(parts, [None, torch.tensor(fresh, dtype=torch.long)])
        rows = torch.tensor([place[name] for name in test.pool_ids], device=device)
        return cls(device, items, _fused(train.queries, device), train.pairs, _fused(test.queries, device)[:], rows)


def _learn(
    name: str, world: _World, model: Genius, config: BaselineConfig, folder: Path | None, say: Say
) -> tuple[Identifiers, Generator]:
    """A baseline's identifiers and generator: trained, or read back where the same data and settings left them."""
    path = None if folder is None else folder / f"{name}-{_place(name, world, model, config)}.safetensors"
    if path is not None and path.is_file():
        say(f"{name}: already trained")
        return _read(path, model)
    ids = assign(name, world, model, config.seed)
    say(f"{name}: {len(ids.level_sizes)} codes an item; training its generator for {config.steps} steps")
    generator = train_generator(ids, world, model, config)
    if path is not None:
        _keep(path, ids, generator)
    return ids, generator


def _place(name: str, world: _World, model: Genius, config: BaselineConfig) -> str:
    """Changes with whatever decides the result."""
    digest = hashlib.sha256(f"{name}:{config}:{model.generator.config}:{model.config.quantizer.level_sizes}".encode())
    for points in (world.items, world.queries):
        for start in range(0, len(points), CHUNK):
            digest.update(points[start : start + CHUNK].cpu().contiguous().numpy().tobytes())
    digest.update(world.pairs.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _keep(path: Path, ids: Identifiers, generator: Generator) -> None:
    parts = {f"generator.{name}": value for name, value in generator.state_dict().items()}
    if ids.quantizer is not None:
        parts |= {f"quantizer.{name}": value for name, value in ids.quantizer.state_dict().items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in parts.items()}
    tensors["codes"] = torch.from_numpy(ids.codes)
    sizes = {"level_sizes": ",".join(map(str, ids.level_sizes))}
    write_whole(path, lambda target: save_file(tensors, target, metadata=sizes))


def _read(path: Path, model: Genius) -> tuple[Identifiers, Generator]:
    with safe_open(path, framework="pt") as file:
        sizes = tuple(int(size) for size in file.metadata()["level_sizes"].split(","))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def part(name: str) -> dict[str, Tensor]:
        return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}

    generator = Generator(dataclasses.replace(model.generator.config, level_sizes=sizes)).to(model.device)
    generator.load_state_dict(part("generator"))
    quantizer = None
    if stored := part("quantizer"):
        shape = QuantizerConfig(width=model.config.width, level_sizes=sizes, modality_code="none")
        quantizer = ResidualQuantizer(shape).to(model.device)
        quantizer.load_state_dict(stored)
    return Identifiers(tensors["codes"].numpy(), sizes, quantizer), generator.eval()


def assign(name: str, world: _World, model: Genius, seed: int) -> Identifiers:
    """The identifiers of a baseline for all items."""
    if name == "irgen":
        quantizer = model.config.quantizer
        return identifiers.residual(world.items, quantizer.width, tuple(quantizer.level_sizes[1:]), seed)
    if name == "grace-numeric":
        return identifiers.numeric(world.items, seed)
    if name == "grace-atomic":
        return identifiers.atomic(world.items, seed)
    if name == "grace-string":
        return identifiers.string(world.items, seed)
    if name == "grace-semantic":
        return identifiers.semantic(world.items, world.queries, seed)
    return identifiers.structured(world.items, seed)


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """A trained baseline, its curves, and its search."""

    ids: Identifiers
    world: _World
    stage: WatchedGenerator
    training: list[dict[str, Any]]  # lines of the journal

    def method(self, name: str, beams: int, reranker: str = "none") -> BeamMethod:
        """The search, named NAME@BEAMS; re-ranked NAME-r@BEAMS."""
        codes = self.ids.codes[self.world.test_rows.cpu().numpy()]
        source = IdSource(
            self.stage.generator, self.ids.quantizer, codes, self.ids.level_sizes, self.world.test_queries, labelled=False
        )
        label = f"{name}@{beams}" if reranker == "none" else f"{name}-r@{beams}"
        return BeamMethod(label, source, beams, reranker)


def train_baseline(
    name: str,
    model: Genius,
    train: FeatureSet,
    test: FeatureSet,
    config: BaselineConfig,
    validation: FeatureSet,
    until_flat: bool = False,
    limit: float = math.inf,
) -> Baseline:
    """A baseline with its curves.

    Args:
        name: One of `BASELINES`.
        model: Its generator's shape is used.
        train: Queries and pool of training.
        test: Its pool is memorised, too.
        config: How the generator is trained.
        validation: Unseen queries of the curve, with positives in the pool of `train` or `test`.
        until_flat: Train until the curves are flat, at most `config.steps`.
        limit: Seconds before the rate comes down, where they are not flat earlier.
    """
    world = _World.of(model, train, test)
    ids = assign(name, world, model, config.seed)
    stage = third_stage(ids, world, model, config)
    stage.watch(_samples(ids, world, train, test, validation))
    stage.until_flat = until_flat
    stage.limit = limit
    return Baseline(ids, world, stage, run_third(stage, config))


def _samples(
    ids: Identifiers, world: _World, train: FeatureSet, test: FeatureSet, validation: FeatureSet
) -> dict[str, tuple[Tensor, Tensor]]:
    """What the curves are about: training queries, items (the test pool's included), unseen queries, with their codes."""
    device = world.device
    random = torch.Generator().manual_seed(0)
    codes = torch.from_numpy(ids.codes).to(device)

    def some(count: int) -> Tensor:
        return torch.randperm(count, generator=random)[:SAMPLE]

    pairs = world.pairs[some(len(world.pairs))].to(device)
    items = some(len(world.items)).to(device)
    place = {item: row for row, item in enumerate(train.pool_ids)}
    unseen = validation.pairs[some(len(validation.pairs))]
    rows = torch.tensor([place[validation.pool_ids[row]] for row in unseen[:, 1].tolist()], device=device)
    queries = _fused(validation.queries, device)[unseen[:, 0]]
    return {
        "training queries": (world.queries[pairs[:, 0]], codes[pairs[:, 1]]),
        "items": (world.items[items], codes[items]),
        "unseen queries": (queries, codes[rows]),
    }


def train_generator(ids: Identifiers, world: _World, model: Genius, config: BaselineConfig) -> Generator:
    """The generator of the model's own shape, trained by the project's own loop on other identifiers."""
    stage = third_stage(ids, world, model, config)
    run_third(stage, config)
    return stage.generator


def third_stage(ids: Identifiers, world: _World, model: Genius, config: BaselineConfig) -> WatchedGenerator:
    """Stage 3 on other identifiers: every item is a query for its own ID, too."""
    device = model.device
    none = torch.zeros(len(world.items), dtype=torch.long, device=device)
    asked = JoinedRows([world.queries, world.items], [None, None])
    own = torch.arange(len(world.items))
    pairs = torch.cat([world.pairs, torch.stack([len(world.queries) + own, own], 1).to(world.pairs)])
    frozen = Frozen(world.items, none, torch.from_numpy(ids.codes).to(device), asked)
    settings = GeneratorStageConfig(
        steps=config.steps,
        batch=config.batch,
        lr=config.lr,
        inputs="queries",  # augmented ones (4.3.2) are GENIUS's own, not theirs
    )
    shape = dataclasses.replace(model.generator.config, level_sizes=ids.level_sizes, head="table")
    books = ids.quantizer or ResidualQuantizer(
        QuantizerConfig(width=shape.width, level_sizes=_two(ids.level_sizes), modality_code="none")
    )
    # the stage reads pairs and counts only: vectors are in `frozen`
    questions, items = (_blank(len(part)) for part in (asked, world.items))
    data = FeatureSet(questions, items, pairs.cpu(), [str(i) for i in range(len(questions))], [str(i) for i in range(len(items))])
    torch.manual_seed(config.seed)
    generator = Generator(shape)
    return WatchedGenerator(data, frozen, None, books, ModelConfig(), settings, config.seed, generator=generator)


def run_third(stage: WatchedGenerator, config: BaselineConfig) -> list[dict[str, Any]]:
    """Train the stage; the lines of its journal. A stage with samples looks at them."""
    looks = LOOKS + 1 if hasattr(stage, "samples") else 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = RunConfig(patience=looks, average=0.0, log_every=max(1, config.steps // LOOKS))
        device = stage.frozen.codes.device
        runtime = Runtime(device, Journal(folder, quiet=True), config.seed, run)
        with suppress(CurvesAreFlat), stage.own_rate():
            run_stage(stage, stage.config, runtime, folder / "checkpoint")
        written = (folder / METRICS).read_text(encoding="utf-8") if (folder / METRICS).exists() else ""
        lines = [json.loads(line) for line in written.splitlines()]
    stage.eval()
    if looks and (not stage.looks or stage.looks[-1] != stage.step + 1):
        with torch.no_grad():
            stage.quick()  # what it has when it was ended
    return [{name: line[name] for name in ("step", "nats", "code1", "codes")} for line in lines if "loss" in line]


def _blank(count: int) -> Features:
    empty, there = torch.zeros(count, 1), torch.ones(count, dtype=torch.bool)
    return Features(empty, empty, there, there)


def _two(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """At least two levels, for configs that ask for them (a pool of ten numbers has one digit)."""
    return sizes if len(sizes) > 1 else (*sizes, 1)
