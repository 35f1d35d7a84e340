"""Training: all stages of one config, one after the other, into a model folder that `Genius.from_pretrained` reads.

The same call after a kill goes on: finished stages are read back, an unfinished one resumes at its last checkpoint.
`OUTPUT/training/` keeps the config, the metrics, each stage's weights and the checkpoint in progress. Before it starts, a few
steps of every stage, timed on a part of the data, say how long it will take: steps, k-means and the looks at held-out questions;
codes of a large pool and the last judgement come on top.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from genius.config import merge, to_dict
from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.encoders.towers import HEADS, Heads
from genius.errors import GeniusError
from genius.files import write_whole
from genius.model.codebooks import choose_level_sizes
from genius.model.config import GeniusConfig
from genius.model.genius import Genius
from genius.model.quantizer import ResidualQuantizer
from genius.train.config import STAGES, StageConfig, TrainConfig, read_train_config, that_trains, with_steps
from genius.train.encoder import HeadsStage
from genius.train.generator import Frozen, GeneratorStage, Honest, generator_config, honest_offsets
from genius.train.holdout import Split, calibrate, few_questions, judged_pool, split, with_honest
from genius.train.journal import Journal, spoken
from genius.train.loop import (
    LOOKS,
    OneProcess,
    Recorder,
    Runtime,
    Stage,
    finish,
    finished,
    make_accelerator,
    make_optimizer,
    run_stage,
    take_step,
)
from genius.train.losses import send
from genius.train.pairs import Embedded
from genius.train.quantizer import KMEANS_SAMPLE, QuantizerStage, quantizer_config
from genius.train.sources import check_source, encoder_of_features, join_heads, load_source

__all__ = ["TrainConfig", "Trained", "read_train_config", "train"]

TRAINING, CONFIG = "training", "config.json"
HEADS_WIDTH = 256  # of heads where the config names none
JUDGED_QUESTIONS, JUDGED_POOL = 2000, 100_000  # at most, when stages are judged on honest questions


@dataclass
class Trained:
    """What a run leaves behind."""

    model: Genius
    heads: Heads | None  # None: the features needed none
    metrics: dict[str, dict[str, float]]  # stage -> its last validation
    data: FeatureSet  # the training set in the model's own features


def train(config: TrainConfig, data: FeatureSet | None = None, *, quiet: bool = False) -> Trained:
    """Train every stage of `config`; `data` (in memory) takes the place of `config.data`."""
    if not config.output:
        raise GeniusError("the config names no output folder")
    if data is None:
        check_source(config)
    folder = Path(config.output) / TRAINING
    accelerator = make_accelerator(config.device)
    journal = Journal(folder, quiet=quiet, tensorboard=config.tensorboard, active=accelerator.is_main_process)
    runtime = Runtime(accelerator, journal, config.seed, config.run)
    _refuse_another(folder, config)
    encoder: Encoder | None = None
    ready = config
    if data is None:
        data, encoder, ready = load_source(config, runtime, folder)
    ready = with_sizes(ready, data, runtime)
    check(data, ready, trained=encoder)
    if encoder is None and config.encoder_uri is not None:
        encoder = encoder_of_features(config.encoder_uri, data, Path(config.data) if FeatureSet.is_folder(config.data) else None)
    _claim(folder, config, runtime)  # only now: a refused run leaves the folder free
    try:
        trained = train_stages(ready, data, runtime, folder)
    finally:
        runtime.journal.close()
    if runtime.main:
        _save(trained, config, encoder)
    accelerator.wait_for_everyone()
    return trained


def train_stages(config: TrainConfig, data: FeatureSet, runtime: Runtime, folder: Path) -> Trained:
    """The three stages on features in memory, with a config that leaves nothing open (`with_sizes`)."""
    metrics: dict[str, dict[str, float]] = {}
    parts = hold_out(config, data, runtime)
    config = counted(config, len(parts.train.visits()), runtime)
    say_how_long(config, parts, runtime, folder)
    heads = None
    if config.encoder.train == "heads":
        stage = HeadsStage(parts.train, parts.validation, config.model.width, config.encoder, config.seed, runtime.device)
        metrics["encoder"] = finish(stage, lambda: run_stage(stage, config.encoder, runtime, folder / "encoder"), runtime, folder)
        heads = stage.heads.eval()
        data = through_heads(heads, data)
        parts = parts.map(lambda part: through_heads(heads, part))
    second = QuantizerStage(parts.train, parts.validation, config.model, config.quantizer, config.seed, runtime.device)

    def learn_codes() -> dict[str, float]:
        run_stage(second, config.quantizer, runtime, folder / "quantizer")
        second.eval()
        second.finish()
        values = second.validate() if runtime.main else {}
        runtime.journal.write("quantizer", config.quantizer.steps, values)
        return values

    metrics["quantizer"] = finish(second, learn_codes, runtime, folder)
    second.eval()
    frozen, honest = freeze(second, parts, config)
    beams = int(config.search.get("beams", 20))
    third = GeneratorStage(parts.train, frozen, honest, second.quantizer, config.model, config.generator, config.seed, beams)
    metrics["generator"] = finish(
        third, lambda: run_stage(third, config.generator, runtime, folder / "generator"), runtime, folder
    )
    model = assemble(config, second, third)
    weights, metrics["confidence"] = calibrate(model, parts.validation)
    runtime.journal.write("confidence", 0, metrics["confidence"])
    model.config = dataclasses.replace(model.config, confidence=weights)
    return Trained(model, heads, metrics, data)


def counted(config: TrainConfig, visits: int, runtime: Runtime) -> TrainConfig:
    """The config with every stage's epochs in steps over the training questions."""
    stages = {name: with_steps(getattr(config, name), visits) for name in STAGES}
    for name, stage in stages.items():
        if stage != getattr(config, name):
            runtime.journal.note(f"{name}: {getattr(config, name).epochs:g} epochs of {visits:,} are {stage.steps:,} steps")
    return dataclasses.replace(config, **stages)  # type: ignore[arg-type]


def hold_out(config: TrainConfig, data: FeatureSet, runtime: Runtime) -> Split:
    """Training questions and honest ones; the latter over a part of the pool if that is large."""
    if config.held_out_data:
        given = FeatureSet.load(config.held_out_data)
        if given.pool_ids != data.pool_ids:
            raise GeniusError(f"{config.held_out_data} has another pool than {config.data or 'the training data'}")
        parts = with_honest(data, given, config.seed)
    else:
        parts = split(data, config.held_out, config.seed)
    counts = [0 if part is None else len(part.queries) for part in (parts.train, parts.offsets, parts.validation)]
    held = f"held out {counts[1]:,} for offsets, {counts[2]:,} for validation, linked by {parts.linked_by}"
    runtime.journal.note(f"{counts[0]:,} questions to train on; {held}")
    if parts.validation is None:
        return parts
    return parts._replace(validation=judged_pool(few_questions(parts.validation, JUDGED_QUESTIONS), JUDGED_POOL, config.seed))


def freeze(second: QuantizerStage, parts: Split, config: TrainConfig) -> tuple[Frozen, Honest | None]:
    """z and codes of what stage 3 reads: codes in passes, z once, or row by row where it is large."""
    quantizer, width = second.quantizer, config.model.width
    pool, modality = Embedded(second.pool, second.embed, width), second.pool.modality
    frozen = Frozen(pool, modality, second.codes(second.pool))
    send([frozen.codes])  # one ID an item, whichever process trains on it
    if config.generator.inputs != "items":
        frozen.queries = Embedded(second.queries, second.embed, width)
    if parts.offsets is not None:
        asked = second.embed(parts.offsets.queries)
        pairs, tasks = parts.offsets.pairs.to(asked.device), parts.offsets.tasks.to(asked.device)
        frozen.offsets = honest_offsets(asked, tasks, pairs, pool, modality, config.seed)
    if parts.validation is None:
        return frozen, None
    judged = second.embed(parts.validation.pool)
    codes = quantizer.encode(judged, parts.validation.pool.modality.to(judged.device))
    return frozen, Honest(parts.validation, second.embed(parts.validation.queries), judged, codes)


def with_sizes(config: TrainConfig, data: FeatureSet, runtime: Runtime) -> TrainConfig:
    """The config with what it leaves to the data: whether heads are needed, the width of z, the codebook sizes."""
    width, sizes, train = config.model.width, config.model.level_sizes, config.encoder.train
    own = data.pool.image.shape[1]
    if train == "auto":
        train = "heads" if own != data.pool.text.shape[1] or width not in (0, own) else "none"
        runtime.journal.note(f"encoder.train = {train}")
    if not width:
        width = HEADS_WIDTH if train == "heads" else own
        runtime.journal.note(f"width = {width}")
    if not sizes:
        sizes = choose_level_sizes(torch.bincount(data.pool.modality, minlength=3).tolist())
        runtime.journal.note(f"level_sizes = {list(sizes)}")
    model = dataclasses.replace(config.model, width=width, level_sizes=sizes)
    return dataclasses.replace(that_trains(config, train), model=model)


def assemble(config: TrainConfig, second: QuantizerStage, third: GeneratorStage) -> Genius:
    body = GeniusConfig(
        fusion=second.fusion.config,
        quantizer=second.quantizer.config,
        generator=third.generator.config,
        rerank_embedding=config.model.constants.rerank_embedding,
        search=config.search,
    )
    model = Genius(body).to(second.fusion.mix_output.weight.device)
    model.fusion.load_state_dict(second.fusion.state_dict())
    model.quantizer.load_state_dict(second.quantizer.state_dict())
    model.generator.load_state_dict(third.generator.state_dict())
    return model


def through_heads(heads: Heads, data: FeatureSet) -> FeatureSet:
    """The same set with the heads' vectors in place of the towers'."""
    return dataclasses.replace(data, queries=heads.apply_chunked(data.queries), pool=heads.apply_chunked(data.pool))


def check(data: FeatureSet, config: TrainConfig, trained: Encoder | None = None) -> None:
    """One clear line for data that cannot be trained on; `trained`: the encoder that made the features from pairs."""
    if config.encoder.train == "towers" and trained is None:
        raise GeniusError("encoder.train = 'towers' needs pictures and texts: a file of pairs, not features")
    generator_config(config.model), quantizer_config(config.model)  # sizes that fit no model, before hours are spent
    if len(data.pool) == 0:
        raise GeniusError("the candidate pool is empty")
    if data.pairs.shape[0] == 0:
        raise GeniusError("there are no (query, positive) pairs to train on")
    if torch.bincount(data.pairs[:, 0], minlength=len(data.queries)).min() == 0:
        raise GeniusError("some queries have no positive: leave them out of the training set")
    for name, rows in (("query", data.queries), ("pool", data.pool)):
        rows.check_rows(name, zeros=False)
    if config.encoder.train != "heads":
        for rows in (data.queries, data.pool):
            rows.check(config.model.width)


def _claim(folder: Path, config: TrainConfig, runtime: Runtime) -> None:
    """Keep the config beside its results."""
    body, path = to_dict(config), folder / CONFIG
    if runtime.main and not path.exists():
        write_whole(path, lambda target: target.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8"))
    runtime.accelerator.wait_for_everyone()


def _refuse_another(folder: Path, config: TrainConfig) -> None:
    """Two different runs are not mixed in one folder."""
    body, path = to_dict(config), folder / CONFIG
    if path.exists():
        try:  # a field that came later has its default there
            found: Any = merge(to_dict(TrainConfig()), json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, AttributeError):
            found = None
        if _trained_by(found) != _trained_by(body):
            changed = _first_difference(_trained_by(found), _trained_by(body))
            raise GeniusError(f"{config.output} holds a run of another config ({changed}): choose another output or delete it")


def _trained_by(body: Any) -> Any:
    """The part of a config that decides the result: not where it is written or shown."""
    return {k: v for k, v in body.items() if k not in ("output", "device", "tensorboard")} if isinstance(body, dict) else body


def _first_difference(old: Any, new: Any, where: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                return _first_difference(old.get(name), new.get(name), f"{where}.{name}" if where else name)
    return f"{where} was {old!r}, is {new!r}" if where else "unreadable"


def _save(trained: Trained, config: TrainConfig, encoder: Encoder | None) -> None:
    """The model folder. Heads join their towers when the encoder has them; else they lie beside, for features."""
    output, model = Path(config.output), trained.model
    if trained.heads is not None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in trained.heads.state_dict().items()}
        sizes = trained.heads
        described = {
            "image_width": sizes.image_width,
            "text_width": sizes.text_width,
            "width": sizes.width,
            "hidden": sizes.hidden_width,
        }
        write_whole(output / HEADS, lambda path: save_file(tensors, path, metadata={n: str(v) for n, v in described.items()}))
        if encoder is not None:
            join_heads(encoder, trained.heads)
    if encoder is not None:
        model._take(encoder)
    model.save_pretrained(output)


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
