"""How long a training run will take, before it starts: a few steps of every stage, timed on a part of the data.

Knows stages; changes nothing of the run. It counts steps, k-means and the looks at held-out questions; codes of a large pool and
the last judgement come on top.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.quantizer import ResidualQuantizer
from genius.train.config import StageConfig, TrainConfig
from genius.train.encoder import HeadsStage
from genius.train.generator import Frozen, GeneratorStage, Honest
from genius.train.holdout import Split, few_questions, judged_pool
from genius.train.loop import LOOKS, OneProcess, Recorder, Runtime, Stage, finished, make_optimizer, take_step
from genius.train.progress import Journal, spoken
from genius.train.quantizer import KMEANS_SAMPLE, QuantizerStage, quantizer_config

PART = 4096  # items and questions that are looked at
TIMED = 3  # steps of each stage; the first one warms up and does not count


def say_how_long(config: TrainConfig, parts: Split, runtime: Runtime, folder: Path) -> None:
    """One line for people. With several processes, whose steps wait for each other, each stage says it after its first steps."""
    if runtime.journal.quiet or runtime.world > 1:
        return
    left = {name: seconds for name, seconds in estimate(config, parts, runtime).items() if not finished(folder, name)}
    each = ", ".join(f"{name} {spoken(seconds)}" for name, seconds in left.items())
    sooner = "; a stage that gets no better ends sooner" if runtime.run.patience else ""
    if left:
        runtime.journal.note(f"this will take about {spoken(sum(left.values()))} here ({each}{sooner})")


def estimate(config: TrainConfig, parts: Split, runtime: Runtime) -> dict[str, float]:
    """Seconds of each stage that trains on features."""
    part = judged_pool(few_questions(parts.train, PART), PART, config.seed)
    model, seed, device, held = config.model, config.seed, runtime.device, parts.validation
    out = {}
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng([device] if device.type == "cuda" else []):
        alone = Runtime(OneProcess(device), Journal(Path(folder), quiet=True), seed, runtime.run)
        if config.encoder.train == "heads":
            heads = HeadsStage(part, held, model.width, config.encoder, seed, device)
            out["encoder"] = _seconds(heads, config.encoder, alone)
            part, held = _as_wide(part, model.width), None if held is None else _as_wide(held, model.width)
        second = QuantizerStage(part, held, model, config.quantizer, seed, device)
        out["quantizer"] = _seconds(second, config.quantizer, alone)
        rows = min(len(parts.train.pool) + len(parts.train.queries), KMEANS_SAMPLE) / (len(part.pool) + len(part.queries))
        fits = 1 + bool(model.constants.refit)
        out["quantizer"] += fits * rows * _timed(second.initialise, device)
        third = GeneratorStage(part, *_made_up(config, part, held, device), model, config.generator, seed)
        out["generator"] = _seconds(third, config.generator, alone)
    return out


def _seconds(stage: Stage, config: StageConfig, runtime: Runtime) -> float:
    """All steps of a stage, and all its looks at held-out questions."""
    stage.accumulate = runtime.run.accumulate
    stage.to(runtime.device).train()
    optimizer, recorder = make_optimizer(stage, config), Recorder(stage, runtime)
    steps = dataclasses.replace(config, steps=max(config.steps, TIMED))
    times = []
    for step in range(steps.steps - TIMED, steps.steps):  # the last ones: by then all of a stage takes part
        work = lambda: take_step(stage, stage, optimizer, steps, runtime, step, recorder)  # noqa: B023, E731
        times.append(_timed(work, runtime.device))
    stage.eval()
    with torch.no_grad():
        look = _timed(stage.quick, runtime.device) if runtime.run.patience else 0.0
    return config.steps * min(times[1:]) + LOOKS * look


def _timed(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _as_wide(data: FeatureSet, width: int) -> FeatureSet:
    """The set as heads will leave it: vectors of another width, here at random."""
    queries, pool = (
        dataclasses.replace(rows, image=_directions(len(rows), width), text=_directions(len(rows), width))
        for rows in (data.queries, data.pool)
    )
    return dataclasses.replace(data, queries=queries, pool=pool)


def _made_up(
    config: TrainConfig, part: FeatureSet, held: FeatureSet | None, device: torch.device
) -> tuple[Frozen, Honest | None, ResidualQuantizer]:
    """What the earlier stages would leave, at random: the decoder takes as long over it."""
    width, sizes = config.model.width, config.model.level_sizes
    quantizer = ResidualQuantizer(quantizer_config(config.model)).to(device)

    def codes(modality: Tensor) -> Tensor:
        rest = [torch.randint(size, (len(modality),)) for size in sizes[1:]]
        return torch.stack([modality.cpu(), *rest], 1).to(device)

    z, asked = (_directions(len(rows), width).to(device) for rows in (part.pool, part.queries))
    frozen = Frozen(z, part.pool.modality.to(device), codes(part.pool.modality), asked)
    if held is None:
        return frozen, None, quantizer
    asked, pool = (_directions(len(rows), width).to(device) for rows in (held.queries, held.pool))
    return frozen, Honest(held, asked, pool, codes(held.pool.modality)), quantizer


def _directions(count: int, width: int) -> Tensor:
    return F.normalize(torch.randn(count, width), dim=1)
