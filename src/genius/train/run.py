"""All stages of one config, one after the other, into a model folder that `Genius.from_pretrained` reads.

The same call after a kill goes on: finished stages are read back, an unfinished one resumes at its last checkpoint.
`OUTPUT/training/` keeps the config, the metrics, each stage's weights and the checkpoint in progress.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from genius.config import to_dict
from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.errors import GeniusError
from genius.features import Features
from genius.files import write_whole
from genius.model.genius import Genius, GeniusConfig
from genius.model.heads import Heads
from genius.train.calibrate import WITHOUT_DATA, Calibration
from genius.train.config import TrainConfig
from genius.train.encoder import HeadsStage
from genius.train.generator import GeneratorStage, freeze
from genius.train.loop import Runtime, finish, make_accelerator, run_stage
from genius.train.progress import Journal
from genius.train.quantizer import QuantizerStage
from genius.train.sizes import choose_level_sizes
from genius.train.sources import check_source, load_source
from genius.train.validate import split

TRAINING, CONFIG, HEADS = "training", "config.json", "heads.safetensors"
HEADS_WIDTH = 256  # of heads where the config names none


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
    runtime = Runtime(
        accelerator, Journal(folder, quiet=quiet, tensorboard=config.tensorboard, active=accelerator.is_main_process), config.seed
    )
    _claim(folder, config, runtime)
    encoder: Encoder | None = None
    if data is None:
        data, encoder = load_source(config, runtime, folder)
    try:
        trained = train_stages(config, data, runtime, folder)
    finally:
        runtime.journal.close()
    if runtime.main:
        _save(trained, config, encoder)
    accelerator.wait_for_everyone()
    return trained


def train_stages(config: TrainConfig, data: FeatureSet, runtime: Runtime, folder: Path) -> Trained:
    """The three stages on features in memory."""
    config = with_sizes(config, data, runtime)
    check(data, config)
    metrics: dict[str, dict[str, float]] = {}
    kept, held_out = split(data, config.validation, config.validation_limit, config.seed)
    heads = None
    if config.encoder.train == "heads":
        stage = HeadsStage(kept, held_out, config.model.width, config.encoder, config.seed, runtime.device)
        metrics["encoder"] = finish(stage, lambda: run_stage(stage, config.encoder, runtime, folder / "encoder"), runtime, folder)
        heads = stage.heads.eval()
        kept, data = through_heads(heads, kept), through_heads(heads, data)
        held_out = None if held_out is None else through_heads(heads, held_out)
    second = QuantizerStage(kept, held_out, config.model, config.quantizer, config.seed, runtime.device)

    def learn_codes() -> dict[str, float]:
        run_stage(second, config.quantizer, runtime, folder / "quantizer")
        second.eval()
        second.finish()
        values = second.validate() if runtime.main else {}
        runtime.journal.write("quantizer", config.quantizer.steps, values)
        return values

    metrics["quantizer"] = finish(second, learn_codes, runtime, folder)
    second.eval()
    quantizer = second.quantizer
    frozen = freeze(second.embed, kept, quantizer, config.generator.modality_dropout > 0)
    held_out_z = None if held_out is None else second.embed(held_out.queries)
    beams = int(config.search.get("beams", 20))
    third = GeneratorStage(kept, held_out, frozen, held_out_z, quantizer, config.model, config.generator, config.seed, beams)
    metrics["generator"] = finish(
        third, lambda: run_stage(third, config.generator, runtime, folder / "generator"), runtime, folder
    )
    search, tried = dict(config.search), {}
    if held_out is None or held_out_z is None:
        search = WITHOUT_DATA | search
    elif {"finish", "geometry", "rerank"} - search.keys():
        budget = int(search.get("rerank", 0))
        trial = Calibration(third.generator, quantizer, frozen.codes, frozen.pool, held_out_z, held_out, budget)
        trial.weight = float(search.get("geometry", 0.0))
        for name, choose in (("geometry", trial.geometry), ("rerank", trial.rerank), ("finish", trial.finish)):
            if name not in search:
                search[name], found = choose()
                tried.update(found)
        metrics["generator"].update(tried)
    shown = "  ".join(f"{name} {value:.3f}" for name, value in tried.items())
    runtime.journal.note(f"search: {', '.join(f'{name} = {value}' for name, value in search.items())}  {shown}")
    model = assemble(config, second, third, search)
    return Trained(model, heads, metrics, data)


def with_sizes(config: TrainConfig, data: FeatureSet, runtime: Runtime) -> TrainConfig:
    """The config with the width of z and the codebook sizes, chosen by the data where it names none."""
    width, sizes = config.model.width, config.model.level_sizes
    if not width:
        width = HEADS_WIDTH if config.encoder.train == "heads" else data.pool.width
        runtime.journal.note(f"width = {width}")
    if not sizes:
        sizes = choose_level_sizes(torch.bincount(data.pool.modality, minlength=3).tolist())
        runtime.journal.note(f"level_sizes = {list(sizes)}")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, width=width, level_sizes=sizes))


def assemble(config: TrainConfig, second: QuantizerStage, third: GeneratorStage, search: dict[str, Any]) -> Genius:
    body = GeniusConfig(
        fusion=second.fusion.config,
        quantizer=second.quantizer.config,
        generator=third.generator.config,
        rerank_embedding=config.model.rerank_embedding,
        search=search,
    )
    model = Genius(body).to(second.fusion.mix_output.weight.device)
    model.fusion.load_state_dict(second.fusion.state_dict())
    model.quantizer.load_state_dict(second.quantizer.state_dict())
    model.generator.load_state_dict(third.generator.state_dict())
    return model


def through_heads(heads: Heads, data: FeatureSet) -> FeatureSet:
    """The same set with the heads' vectors in place of the towers'."""
    return dataclasses.replace(data, queries=heads.apply_chunked(data.queries), pool=heads.apply_chunked(data.pool))


def check(data: FeatureSet, config: TrainConfig) -> None:
    """One clear line for data that cannot be trained on."""
    if len(data.pool) == 0:
        raise GeniusError("the candidate pool is empty")
    if data.pairs.shape[0] == 0:
        raise GeniusError("there are no (query, positive) pairs to train on")
    if torch.bincount(data.pairs[:, 0], minlength=len(data.queries)).min() == 0:
        raise GeniusError("some queries have no positive: leave them out of the training set")
    for name, rows in (("query", data.queries), ("pool", data.pool)):
        _check_rows(name, rows)
    if config.encoder.train != "heads":
        for rows in (data.queries, data.pool):
            rows.check(config.model.width)


def _check_rows(name: str, rows: Features) -> None:
    for kind, vectors, mask in (("image", rows.image, rows.image_mask), ("text", rows.text, rows.text_mask)):
        bad: Tensor = mask & ~torch.isfinite(vectors).all(1)
        if bad.any():
            raise GeniusError(f"{int(bad.sum())} {name} {kind} features are NaN or infinite (first: row {int(bad.nonzero()[0])})")
        zero: Tensor = mask & (vectors == 0).all(1)
        if zero.any():
            raise GeniusError(f"{int(zero.sum())} {name} {kind} features are all zero (first: row {int(zero.nonzero()[0])})")
    neither = ~(rows.image_mask | rows.text_mask)
    if neither.any():
        raise GeniusError(
            f"{int(neither.sum())} {name} rows have neither an image nor a text (first: row {int(neither.nonzero()[0])})"
        )


def _claim(folder: Path, config: TrainConfig, runtime: Runtime) -> None:
    """Keep the config beside its results; refuse to mix two different runs in one folder."""
    body = to_dict(config)
    path = folder / CONFIG
    if path.exists():
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if _trained_by(found) != _trained_by(body):
            changed = _first_difference(_trained_by(found), _trained_by(body))
            raise GeniusError(f"{config.output} holds a run of another config ({changed}): choose another output or delete it")
    elif runtime.main:
        write_whole(path, lambda target: target.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8"))


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
            encoder.heads.load_state_dict(tensors)  # type: ignore[attr-defined]
    if encoder is not None:
        model.__dict__["encoder"] = encoder
    model.save_pretrained(output)
