"""The paper's recipes at their own code sizes: curves, every number of beams, the learned first code, baselines.

    python -m lab.paper.published OUT.json --fashion FEATURES --icons FEATURES     (FEATURES: lab.fashion.data, lab.icons.vectors)

Parts (`--parts`, in order of importance, which is the order in which they are trained):
published  `builtin:published` at modality + 8 x 4096, three seeds of stage 3 on one stage 2
paper      `builtin:paper` at the same sizes
modality   the first code learned (K1 = 3), given, predicted by a classifier or left out, with equally many content codes
size       number of products x codes per level
baselines  GRACE's and IRGen's identifiers and GENIUS' own under one decoder, on a part of the products and of the icons
tables     shared codebooks, 8192 x 17
purity     stage 2 alone with a learned first code, three seeds
little     for a CPU, with `--products 1000`: GRACE's and IRGen's identifiers, first codes, shared and more
           codebooks, each trained until its curves are flat

No item that answers a test query is in the pool while anything of GENIUS is trained. Heads make features of one width where the
towers have two; they are trained once for each data set. The JSON is written after every row, and a second call with the same
output and `--work` goes on. `--scale` divides all steps, for a trial on a CPU.

All parts but `published` train stage 3 until its curves are flat (`lab.paper.watched`), for so many seconds at most. Several
processes, each with its own output, share the rows with `--claims FOLDER`; `python -m lab.paper.published_report` joins outputs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import shlex
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.config import to_dict
from genius.data.features import FeatureSet
from genius.evaluate import EvalConfig, Evaluation, evaluate
from genius.model.config import GeniusConfig, QuantizerConfig
from genius.model.generator import Generator
from genius.model.genius import Genius
from genius.search import CodeTrie
from genius.search.beam import beam_search
from genius.train import loop
from genius.train.config import TrainConfig, read_train_config
from genius.train.generator import Frozen, ValidationSet, generator_config
from genius.train.handover import assemble, freeze, through_heads
from genius.train.holdout import Split
from genius.train.loop import LOOKS, training_device
from genius.train.quantizer import QuantizerStage
from lab import provenance
from lab.accuracy import summaries, without
from lab.paper.baselines import BaselineConfig, train_baseline
from lab.paper.parts import HEADS_WIDTH, HELD_OUT, Parts, parts_of, train_stage, trained_heads, trained_once, with_local_pools
from lab.paper.survival import survival
from lab.paper.watched import WatchedGenerator

LARGE = (3,) + (4096,) * 8  # the paper's codes: modality + 8 x 4096
BEAMS = (1, 5, 10, 30, 50)
VALIDATION_QUERIES = 600
SAMPLE = 400  # pairs and items behind each point of a curve
TEST_QUERIES = 800  # of each task, evenly spread
RATE_QUERIES = 128  # decoded to measure the rate
RATE_BATCH = 32
RESAMPLES = 1000  # behind the interval of a mean
FEWEST_QUERIES = 20  # of a task of a small set: with fewer it has no say in a mean
SURVIVAL = 200  # queries of each task whose positives are followed through the beams
AT_ONCE = 512  # queries searched together
HEADS: dict[str, Any] = {
    "encoder.train": "heads",
    "encoder.steps": 500,
    "encoder.batch": 1024,
    "encoder.hard_negatives": 0,
    "encoder.modality_weight": 0.0,
}
# What differs from the recipes' files, which are for 1.1 million queries and several GPUs.
COMMON: dict[str, Any] = {"run.patience": LOOKS + 1, "model.width": HEADS_WIDTH}
STAGES: dict[str, dict[str, Any]] = {
    "builtin:published": {
        "quantizer.steps": 800,
        "quantizer.kmeans_iterations": 100,
        "generator.steps": 6000,
        "generator.batch": 512,
        "generator.lr": 3e-4,
    },
    "builtin:paper": {
        "quantizer.steps": 1500,
        "quantizer.batch": 1024,
        "quantizer.lr": 2e-4,
        "generator.steps": 6000,
        "generator.batch": 512,
        "generator.lr": 3e-4,
    },
}
LITTLE: dict[str, Any] = {
    "model.projection": 256,
    "model.hidden": 256,
    "model.prefix_tokens": 8,
    "model.decoder": "nano",
    "model.level_sizes": [3, 32, 32, 32, 32],
    "encoder.steps": 300,
    "encoder.batch": 512,
    "quantizer.steps": 200,
    "quantizer.batch": 128,
    "quantizer.lr": 5e-4,
    "quantizer.kmeans_iterations": 20,
    "generator.steps": 1600,
    "generator.batch": 64,
    "generator.lr": 1e-3,
}
LITTLE_PRODUCTS = 500
ON_CPU = "little"  # the part for a CPU
SMALL: dict[str, Any] = {
    "model.decoder": "mini",
    "quantizer.steps": 400,
    "quantizer.batch": 2048,
    "generator.steps": 4000,
    "generator.batch": 512,
    "generator.lr": 1e-3,
}
BASELINE_NAMES = ("grace-structured", "grace-atomic", "irgen", "grace-semantic", "grace-numeric", "grace-string")
BASELINE_PRODUCTS = 6000  # of fashion, so that identifiers can be memorised within the time
BASELINE_PART = 8  # one icon in so many, likewise
PRODUCTS = (24_000, 12_000, 6_000, 3_000)
CODES = (64, 256, 1024, 4096)


@dataclass(frozen=True)
class Row:
    """One model to train and search with."""

    part: str
    name: str
    data: str  # fashion or icons
    seed: int = 0  # of stage 3
    base: str = "builtin:published"
    changes: dict[str, Any] = field(default_factory=dict)
    earlier_seed: int = 0  # of stage 2
    products: int = 0  # of fashion, the first so many; 0: all
    baseline: str = ""
    beams: tuple[int, ...] = (30,)
    part_of_pool: int = 1  # one item in so many
    limit: float = math.inf  # seconds of stage 3 before its rate comes down, where its curves are not flat earlier

    @property
    def until_flat(self) -> bool:
        """Whether stage 3 ends when its curves are flat."""
        return self.part != "published"

    @property
    def key(self) -> str:
        return f"{self.part} | {self.name} | {self.data} | {self.seed}"


def rows_of(parts: tuple[str, ...], sets: tuple[str, ...]) -> list[Row]:
    """All rows of some parts, the most important first."""
    known = {
        "published": _published_rows,
        "paper": _paper_rows,
        "modality": _modality_rows,
        "size": _size_rows,
        "baselines": _baseline_rows,
        "tables": _table_rows,
        "purity": _purity_rows,
        "little": _little_rows,
    }
    return [row for part in parts for row in known[part](sets)]


def _published_rows(sets: tuple[str, ...]) -> list[Row]:
    return [Row("published", "published 4096 x 9", data, seed, beams=BEAMS) for seed in range(3) for data in sets]


def _paper_rows(sets: tuple[str, ...]) -> list[Row]:
    return [Row("paper", "paper 4096 x 9", data, base="builtin:paper", beams=BEAMS, limit=240) for data in sets]


def _modality_rows(sets: tuple[str, ...]) -> list[Row]:
    """Equally many content codes in each; a quarter of the products, so that curves can flatten within the time."""
    out = []
    for count in (4, 3):
        for seed in range(3):
            for code in ("nearest", "given", "none", "classifier"):
                sizes = [256] * count if code == "none" else [3] + [256] * count
                changes = {**SMALL, "model.level_sizes": sizes, "model.modality_code": code}
                out.append(
                    Row(
                        "modality",
                        f"{code} + {count}",
                        sets[0],
                        seed,
                        changes=changes,
                        earlier_seed=seed,
                        products=BASELINE_PRODUCTS,
                        limit=60,
                    )
                )
    return out


def _size_rows(sets: tuple[str, ...]) -> list[Row]:
    """The corners of the table first."""
    if "fashion" not in sets:
        return []
    places = [(products, size) for products in range(len(PRODUCTS)) for size in range(len(CODES))]
    places.sort(key=lambda place: (place[0] in (1, 2)) + (place[1] in (1, 2)))
    return [
        Row(
            "size",
            f"{PRODUCTS[products]:,} products, {CODES[size]} codes",
            "fashion",
            changes={**SMALL, "model.level_sizes": [3] + [CODES[size]] * 4},
            products=PRODUCTS[products],
            limit=50,
        )
        for products, size in places
    ]


def _baseline_rows(sets: tuple[str, ...]) -> list[Row]:
    changes = {**SMALL, "model.level_sizes": [3] + [256] * 4}
    shared: dict[str, Any] = {"changes": changes, "products": BASELINE_PRODUCTS, "beams": (30, 50), "limit": 110}
    out = []
    for data in sets:
        part = 1 if data == "fashion" else BASELINE_PART
        out += [Row("baselines", "nearest + 4", data, part_of_pool=part, **shared)]
        out += [Row("baselines", name, data, baseline=name, part_of_pool=part, **shared) for name in BASELINE_NAMES]
    return out


def _purity_rows(sets: tuple[str, ...]) -> list[Row]:
    changes = {**SMALL, "model.level_sizes": [3] + [256] * 4, "model.modality_code": "nearest"}
    return [
        Row("purity", "nearest + 4, stage 2", data, seed, changes=changes, earlier_seed=seed)
        for seed in range(3)
        for data in sets
    ]


def _little_rows(sets: tuple[str, ...]) -> list[Row]:
    """The rows that say most first."""
    data = sets[0]

    def row(name: str, seed: int, beams: tuple[int, ...] = (30,), **changes: Any) -> Row:
        named = {f"model.{field}": value for field, value in changes.items()}
        changes = {**LITTLE, **named}
        return Row("little", name, data, seed, changes=changes, earlier_seed=seed, products=LITTLE_PRODUCTS, beams=beams)

    def first_code(code: str, count: int, seed: int) -> Row:
        sizes = [32] * count if code == "none" else [3] + [32] * count
        beams = (30, 50) if (code, count, seed) == ("nearest", 4, 0) else (30,)  # it stands beside the baselines, too
        return row(f"{code} + {count}", seed, beams, level_sizes=sizes, modality_code=code)

    baselines = [
        Row("little", name, data, changes=LITTLE, products=LITTLE_PRODUCTS, baseline=name, beams=(50,)) for name in BASELINE_NAMES
    ]
    out = []
    for seed in range(3):
        out.append(first_code("nearest", 4, seed))
        if not seed:
            out += baselines
        out += [first_code("given", 4, seed), first_code("none", 4, seed)]
        out.append(row("nearest + 4, shared", seed, shared=True))
        out.append(row("nearest + 8 of 64", seed, level_sizes=[3] + [64] * 8))
        out += [first_code(code, 3, seed) for code in ("nearest", "given", "none")]
    return out


def _table_rows(sets: tuple[str, ...]) -> list[Row]:
    """The supplement's Table 6."""
    return [
        Row("tables", "4096 x 9, shared", sets[0], changes={"model.shared": True}, beams=(30, 50), limit=200),
        Row("tables", "8192 x 17", sets[0], changes={"model.level_sizes": [3] + [8192] * 16}, limit=200),
    ]


# -- data ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What all jobs share."""

    features: dict[str, Path]
    work: Path
    scale: float = 1.0  # all steps are divided by it
    decoder: str = ""  # another size of the decoder, for a trial
    codes: int = 0  # at most so many per level, for a trial; 0: as the rows say
    fields: dict[str, Any] = field(default_factory=dict)  # of every config, for a trial
    queries: int = TEST_QUERIES
    products: int | None = None  # of fashion, the first so many; None: all
    patience: float = 1.0  # all limits of time are multiplied by it


def prepared(settings: Settings, row: Row, device: torch.device) -> Parts:
    """A row's data in features of one width. The first process makes it, the others read it."""
    data = row.data

    def make() -> Mapping[str, Any]:
        parts = parts_of(data, settings.features[data], settings.products, VALIDATION_QUERIES)
        pool = parts.train.pool
        width = int(settings.fields.get("model.width", HEADS_WIDTH))
        if pool.image.shape[1] == pool.text.shape[1] == width:
            return _stored(parts)
        config = _config(settings, replace(row, changes={name: row.changes[name] for name in row.changes if name in HEADS}))
        heads = trained_heads(parts, config, replace(config.run, patience=LOOKS + 1), 0, device)
        return _stored(parts.map(lambda part: through_heads(heads, part)))

    path = settings.work / f"parts-{data}-{settings.products or 'all'}.pt"
    return _restored(trained_once(path, make))


def _stored(parts: Parts) -> dict[str, Any]:
    """Parts as tensors, numbers and lists, which `torch.load` reads without pickled classes."""
    out: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        part: FeatureSet = getattr(parts, name)
        for kind in ("queries", "pool"):
            features = getattr(part, kind)
            out[f"{name}.{kind}"] = [features.image.half(), features.text.half(), features.image_mask, features.text_mask]
        out[name] = [part.pairs, part.query_ids, part.pool_ids, part.tasks, part.names, part.pools]
    return out


def _restored(stored: Mapping[str, Any]) -> Parts:
    from genius.features import Features

    made = {}
    for name in ("train", "validation", "test"):
        both = []
        for kind in ("queries", "pool"):
            image, text, image_mask, text_mask = stored[f"{name}.{kind}"]
            both.append(Features(image.float(), text.float(), image_mask, text_mask))
        pairs, query_ids, pool_ids, tasks, names, pools = stored[name]
        made[name] = FeatureSet(both[0], both[1], pairs, query_ids, pool_ids, tasks, names, pools)
    return Parts(**made)


def narrowed(parts: Parts, row: Row) -> Parts:
    """The part of the data that a row is about."""
    if row.part_of_pool > 1:
        parts = parts.map(lambda part: without(part, torch.tensor([not kept(name, row.part_of_pool) for name in part.pool_ids])))
        parts = replace(parts, test=with_local_pools(parts.test))
    if row.products and row.data == "fashion":
        count = len(parts.test.pool) // 3  # photos, titles and pairs of all products
        parts = parts.map(lambda part: without(part, torch.tensor([int(name) % count >= row.products for name in part.pool_ids])))
    if row.part == ON_CPU:
        asked = torch.bincount(parts.test.tasks)[parts.test.tasks]
        parts = replace(parts, test=parts.test.take_queries((asked >= FEWEST_QUERIES).nonzero()[:, 0]))
    return parts


def kept(name: str, part: int) -> bool:
    """Whether an item is one of the one in `part` that are kept; the same in every process."""
    return zlib.crc32(name.encode()) % part == 0


# -- training ------------------------------------------------------------------------------------------------------


def _config(settings: Settings, row: Row) -> TrainConfig:
    values = {**COMMON, **HEADS, **STAGES[row.base], **row.changes, **settings.fields, "seed": row.seed, "output": "-"}
    if settings.decoder:
        values["model.decoder"] = settings.decoder
    for name, value in values.items():
        if name.endswith(".steps"):
            values[name] = max(LOOKS, round(value / settings.scale))
    if settings.codes:
        sizes = values.get("model.level_sizes", LARGE)
        values["model.level_sizes"] = [min(size, settings.codes) for size in sizes[:5]]
    values["run.log_every"] = max(1, values["generator.steps"] // LOOKS)
    values["held_out"] = HELD_OUT
    return read_train_config(row.base, values)


def samples_of(data: FeatureSet, frozen: Frozen, held: ValidationSet) -> dict[str, tuple[Tensor, Tensor]]:
    """What the curve of GENIUS is about: training queries, items, and unseen queries, with the codes of their positives."""
    random = torch.Generator().manual_seed(0)
    device = frozen.codes.device
    assert frozen.queries is not None
    pairs = data.pairs[torch.randperm(len(data.pairs), generator=random)[:SAMPLE]].to(device)
    items = torch.randperm(len(frozen.codes), generator=random)[:SAMPLE].to(device)
    unseen = held.data.pairs[torch.randperm(len(held.data.pairs), generator=random)[:SAMPLE]].to(device)
    return {
        "training queries": (frozen.queries[pairs[:, 0]], frozen.codes[pairs[:, 1]]),
        "items": (frozen.pool[items], frozen.codes[items]),
        "unseen queries": (held.queries[unseen[:, 0]], held.codes[unseen[:, 1]]),
    }


def second_stage(settings: Settings, row: Row, config: TrainConfig, parts: Parts, device: torch.device) -> QuantizerStage:
    """Stage 2, trained once for all rows that share it; the last weights."""
    stage = QuantizerStage(parts.train, parts.validation, config.model, config.quantizer, row.earlier_seed, device)

    def train() -> Mapping[str, Tensor]:
        train_stage(stage, config, replace(config.run, patience=0), row.earlier_seed)
        return stage.state_dict()

    shared = {name: value for name, value in to_dict(config).items() if name in ("model", "quantizer")}
    mark = hashlib.sha256(json.dumps([row.base, shared, row.products], sort_keys=True).encode()).hexdigest()[:12]
    path = settings.work / f"second-{row.data}-{row.earlier_seed}-{mark}.pt"
    stage.load_state_dict(trained_once(path, train))
    return stage.to(device).eval()


def run_row(settings: Settings, row: Row) -> dict[str, Any]:
    """Train and measure one row."""
    loop.CHECKPOINT_SECONDS = math.inf  # nothing here goes on in the middle of a stage
    start = time.monotonic()
    device = training_device()
    parts = narrowed(prepared(settings, row, device), row)
    seconds = {"data": time.monotonic() - start}
    about = {
        "train": {"queries": len(parts.train.queries), "pairs": len(parts.train.pairs), "pool": len(parts.train.pool)},
        "test": {"queries": len(parts.test.queries), "pool": len(parts.test.pool)},
    }

    run = run_genius
    if row.baseline:
        run = run_baseline
    found = run(settings, row, parts, device, seconds)
    seconds["all"] = time.monotonic() - start
    took = {name: round(value, 1) for name, value in seconds.items()}
    return {"part": row.part, "row": row.name, "data": row.data, "seed": row.seed, **about, **found, "seconds": took}


@dataclass(frozen=True)
class Trained:
    """Stages 2 and 3 of a row, and what is known of their training."""

    config: TrainConfig
    second: QuantizerStage
    third: WatchedGenerator
    about: dict[str, Any]


def train_genius(settings: Settings, row: Row, parts: Parts, device: torch.device, seconds: dict[str, float]) -> Trained:
    """Train stages 2 and 3 of a row. Seconds are added to `seconds`."""
    config = _config(settings, row)
    begun = time.monotonic()
    second = second_stage(settings, row, config, parts, device)
    seconds["stage 2"] = time.monotonic() - begun
    begun = time.monotonic()
    split = Split(parts.train, None, parts.validation, "answers")
    frozen, held = freeze(second, split, config)
    assert held is not None
    third = WatchedGenerator(parts.train, frozen, held, second.quantizer, config.model, config.generator, row.seed)
    third.watch(samples_of(parts.train, frozen, held))
    third.until_flat = row.until_flat
    third.limit = row.limit * settings.patience
    out: dict[str, Any] = {
        "config": {name: to_dict(config)[name] for name in ("model", "quantizer", "generator")},
        "base": row.base,
        "quantizer": quantizer_report(second, parts.test),
    }
    if row.part == "purity":
        return Trained(config, second, third, out)
    with third.own_rate():
        lines = train_stage(third, config, replace(config.run, patience=LOOKS + 1), row.seed)
    seconds["stage 3"] = time.monotonic() - begun
    out |= {"looks": third.looks, "validation": [round(value, 4) for value in third.values], "curve": third.curve}
    out |= {"flat at": third.flat_at, "late at": third.late_at, "steps": third.looks[-1]}
    out["training"] = [
        {"step": line["step"], **{name: round(line[name], 4) for name in ("nats", "codes", "code1") if name in line}}
        for line in lines
        if "loss" in line
    ]
    out["warnings"] = [line["warning"] for line in lines if "warning" in line]
    return Trained(config, second, third, out)


def run_genius(settings: Settings, row: Row, parts: Parts, device: torch.device, seconds: dict[str, float]) -> dict[str, Any]:
    trained = train_genius(settings, row, parts, device, seconds)
    config, second, third, out = trained.config, trained.second, trained.third, trained.about
    if row.part == "purity":
        return out
    begun = time.monotonic()
    model = assemble(config, second, third)
    out["last"] = measured(model, parts.test, row, ("universal",), settings.queries, codes=True)
    if row.part == ON_CPU:
        codes = model.encode(parts.test.pool)
        z = model.embed(parts.test.queries)[0]
        sizes = config.model.level_sizes
        out["queries per second of one thread"] = decoding_rate(model.generator, codes, sizes, z, row.beams[-1])
        seconds["search"] = time.monotonic() - begun
        return out
    beams = max(row.beams)
    out["survival"] = {"beams": beams, "levels": survival(model, parts.test, beams, SURVIVAL)}
    out["best step"] = third.looks[max(range(len(third.looks)), key=lambda i: (third.values[i], -i))]
    if row.part == "baselines" and out["best step"] != out["steps"]:
        third.load_state_dict(third.best)
        best = assemble(config, second, third)
        out["best"] = measured(best, parts.test, row, ("universal",), settings.queries)
    if row.part in ("published", "paper"):
        thirty = replace(row, beams=(30,))
        out["last"]["local"] = measured(model, parts.test, thirty, ("local",), settings.queries)
        fused = assemble(config, second, third)
        fused.config = replace(fused.config, rerank_embedding="fused")
        out["last"]["fused"] = measured(fused, parts.test, thirty, ("universal",), settings.queries)
        if out["best step"] != out["steps"]:
            third.load_state_dict(third.best)
            best = assemble(config, second, third)
            out["best"] = measured(best, parts.test, thirty, ("universal",), settings.queries)
    seconds["search"] = time.monotonic() - begun
    return out


@torch.no_grad()
def quantizer_report(second: QuantizerStage, test: FeatureSet) -> dict[str, Any]:
    """How the codes of the whole pool are used, and how well the first one tells the modality."""
    modality = test.pool.modality.to(next(second.parameters()).device)
    codes = second.quantizer.encode(second.embed(test.pool), modality)
    levels = [{name: round(value, 4) for name, value in level.items()} for level in second.quantizer.statistics(codes)]
    out: dict[str, Any] = {"levels": levels, "distinct": round(len(torch.unique(codes, dim=0)) / len(codes), 4)}
    if second.quantizer.config.level_sizes[0] == 3:
        table = torch.zeros(3, 3, dtype=torch.long, device=modality.device)
        table.index_put_((modality.long(), codes[:, 0]), torch.ones_like(modality.long()), accumulate=True)
        out["confusion"] = table.tolist()  # rows: image, text, image-text pair; columns: first code
        out["purity"] = round(table.amax(0).sum().item() / len(codes), 4)
    return out


def measured(
    model: Genius,
    test: FeatureSet,
    row: Row,
    pools: tuple[str, ...],
    queries: int,
    codes: bool = False,
    extra: list[Any] | None = None,
) -> dict[str, Any]:
    """method -> hit@5, share of dense, and how often a positive is among the candidates."""
    methods: tuple[str, ...] = ("dense",)
    if codes:
        methods += ("codes", "score-fusion")
    if not row.baseline:
        methods += ("genius", "genius-r")
    fixed: dict[str, Any] = {"pools": pools, "depth": 10, "bootstrap": 0, "reference": "", "batch": AT_ONCE}
    config = EvalConfig(methods=methods, beams=row.beams, queries=queries, **fixed)
    found = evaluate(model, test, config, extra=extra or [])
    out: dict[str, Any] = {}
    for method, values in summaries(found):
        results = [result for result in found.results if result.method == method]
        out[method] = values
        out[method]["queries"] = sum(result.queries for result in results)
        reached = [result.candidate_recall for result in results if result.candidate_recall is not None]
        out[method]["interval"] = mean_interval(found, method)
        if reached:
            out[method]["candidate_recall"] = round(sum(reached) / len(reached), 4)
    return out


def mean_interval(found: Evaluation, method: str) -> list[float]:
    """95 % interval of the mean hit@5 over tasks: the queries of each task resampled."""
    random = np.random.default_rng(0)
    means = []
    for (_, name, _), hits in found.main_values.items():
        if name == method:
            picks = random.integers(0, len(hits), (RESAMPLES, len(hits)))
            means.append(hits[picks].mean(1))
    low, high = np.quantile(np.mean(means, axis=0), [0.025, 0.975])
    return [round(float(low), 4), round(float(high), 4)]


def run_baseline(settings: Settings, row: Row, parts: Parts, device: torch.device, seconds: dict[str, float]) -> dict[str, Any]:
    """Other identifiers under a decoder of the same shape, for the whole pool: these systems memorise every item."""
    config = _config(settings, row)
    width = parts.test.pool.image.shape[1]
    shape = generator_config(config.model)
    blank = GeniusConfig(
        fusion=replace(GeniusConfig().fusion, width=width, projection=8, hidden=8),
        quantizer=QuantizerConfig(width=width, level_sizes=shape.level_sizes),
        generator=shape,
        rerank_embedding="score-fusion",
    )
    model = Genius(blank).to(device)
    third = config.generator
    batch = min(third.batch, len(parts.train.queries))
    begun = time.monotonic()
    trained = train_baseline(
        row.baseline,
        model,
        parts.train,
        parts.test,
        BaselineConfig(steps=third.steps, batch=batch, lr=third.lr, seed=row.seed),
        parts.validation,
        row.until_flat,
        row.limit * settings.patience,
    )
    seconds["training"] = time.monotonic() - begun
    begun = time.monotonic()
    methods = [trained.method(row.baseline, beams, reranker) for beams in row.beams for reranker in ("none", "embeddings")]
    found = measured(model, parts.test, row, ("universal",), settings.queries, extra=methods)
    seconds["search"] = time.monotonic() - begun
    stage = trained.stage
    out = {
        "config": {"steps": third.steps, "batch": batch, "lr": third.lr, "level_sizes": list(trained.ids.level_sizes)},
        "steps": stage.looks[-1],
        "looks": stage.looks,
        "curve": stage.curve,
        "training": trained.training,
        "flat at": stage.flat_at,
        "late at": stage.late_at,
        "best step": stage.looks[max(range(len(stage.looks)), key=lambda i: (stage.values[i], -i))],
        "last": found,
    }
    if row.part == ON_CPU:
        codes = torch.from_numpy(trained.ids.codes[trained.world.test_rows.cpu().numpy()])
        out["queries per second of one thread"] = decoding_rate(
            stage.generator, codes, trained.ids.level_sizes, trained.world.test_queries, row.beams[-1]
        )
    elif out["best step"] != out["steps"]:
        stage.load_state_dict(stage.best)
        methods = [trained.method(row.baseline, row.beams[-1], reranker) for reranker in ("none", "embeddings")]
        out["best"] = measured(model, parts.test, row, ("universal",), settings.queries, extra=methods)
    return out


@torch.no_grad()
def decoding_rate(generator: Generator, codes: Tensor, sizes: tuple[int, ...], queries: Tensor, beams: int) -> float:
    """Queries per second of processor time, decoded in batches: other programs on the machine do not count."""
    trie = CodeTrie.build(codes.cpu().numpy(), sizes)
    sample = queries[torch.linspace(0, len(queries) - 1, RATE_QUERIES).long()]
    beam_search(generator, trie, sample[:RATE_BATCH], beams)
    begun = time.process_time()
    for part in sample.split(RATE_BATCH):
        beam_search(generator, trie, part, beams)
    return round(len(sample) / (time.process_time() - begun), 1)


# -- all jobs ------------------------------------------------------------------------------------------------------


class Results:
    """What is known so far, as JSON."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = json.loads(path.read_text(encoding="utf-8"))["lines"]

    def keys(self) -> set[str]:
        """Of all rows."""
        return {f"{line['part']} | {line['row']} | {line['data']} | {line['seed']}" for line in self.lines}

    def add(self, entry: dict[str, Any]) -> None:
        """Add a row, or replace it by what is known of it now."""
        key = [entry[name] for name in ("part", "row", "data", "seed")]
        others = [line for line in self.lines if [line[name] for name in ("part", "row", "data", "seed")] != key]
        self.lines = [*others, entry]
        self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"about": self.about, "lines": self.lines}) + "\n", encoding="utf-8")
        part.replace(self.path)


def run_all(settings: Settings, rows: list[Row], results: Results, claims: Path | None = None) -> None:
    """Every row, one after the other.

    Args:
        settings: What all rows share.
        rows: The most important first.
        results: Written after every row.
        claims: A folder in which a process claims a row; rows that another one has claimed are left to it.
    """
    for row in rows:
        if claims is not None and not claimed(claims, row):
            continue
        entry = run_row(settings, row)
        print(f"{entry['part']}: {entry['row']}, {entry['data']}, seed {entry['seed']}: {summary(entry)}", flush=True)
        results.add(entry)


def claimed(folder: Path, row: Row) -> bool:
    """Whether this process is the first that wants a row."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / hashlib.sha256(row.key.encode()).hexdigest()[:16]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def summary(entry: dict[str, Any]) -> str:
    """One line for the log."""
    found = entry.get("last", {})
    shares = [f"{name} {values['mean']:.3f}" for name, values in found.items() if "mean" in values]
    purity = entry.get("quantizer", {}).get("purity")
    told = " ".join(shares)
    if purity is not None:
        told += f" purity {purity:.3f}"
    return f"{told} {entry['seconds']}"


NAMED = {"--fashion": "FEATURES", "--icons": "FEATURES", "--photos": "PHOTOS"}


def called(words: list[str], program: str = "lab.paper.published") -> str:
    """The command with no path of this machine: after --fashion, --icons and --work stands what they are."""
    shown = ["OUT.json"]
    for before, word in itertools.pairwise(words):
        if before in ("--fashion", "--icons", "--photos"):
            shown.append(NAMED[before])
        elif before in ("--work", "--claims"):
            shown.append("FOLDER")
        else:
            shown.append(word)
    return shlex.join(["python", "-m", program, *shown])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--icons", type=Path)
    parser.add_argument("--parts", default="published,paper,modality,size,baselines,tables")
    parser.add_argument("--only", default="", help="rows whose name, data and seed hold this text")
    parser.add_argument("--work", type=Path, help="where features of one width and stages 2 are kept for a second call")
    parser.add_argument("--claims", type=Path, help="where processes that share the rows claim them")
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies the seconds that stage 3 may take")
    parser.add_argument("--scale", type=float, default=1.0, help="divide all steps, for a trial")
    parser.add_argument("--decoder", default="", help="another size of the decoder, for a trial")
    parser.add_argument("--codes", type=int, default=0, help="at most so many codes per level, for a trial")
    parser.add_argument("--queries", type=int, default=TEST_QUERIES, help="test queries of each task, evenly spread")
    parser.add_argument("--products", type=int, help="of fashion, the first so many; without it all")
    parser.add_argument("--commit", default="", help="that is run, where there is no git")
    parser.add_argument("--set", action="append", default=[], help="one field of every config, name=JSON, for a trial")
    args = parser.parse_args()
    features = {name: path for name in ("fashion", "icons") if (path := getattr(args, name)) is not None}
    fields = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    about = {
        **provenance(),
        "scale": args.scale,
        "decoder": args.decoder,
        "codes": args.codes,
        "set": fields,
        "test queries per task": args.queries,
        "products": args.products,
        "patience": args.patience,
    }
    about["command"] = called(sys.argv[1:])
    about["threads"] = torch.get_num_threads()
    about["commit"] = args.commit or about["commit"]
    results = Results(args.output, about)
    known = results.keys()
    rows = [
        row for row in rows_of(tuple(args.parts.split(",")), tuple(features)) if row.key not in known and args.only in row.key
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = args.work or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            features,
            place,
            args.scale,
            args.decoder,
            args.codes,
            fields,
            queries=args.queries,
            products=args.products,
            patience=args.patience,
        )
        run_all(settings, rows, results, args.claims)
    results.write()


if __name__ == "__main__":
    main()
