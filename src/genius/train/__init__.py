"""Training: the three stages of one config, one after the other, into a folder that `Genius.from_pretrained` reads.

Calling `train` again after a kill continues: finished stages are read back, an unfinished one resumes at its last
checkpoint. `OUTPUT/training/` keeps the config, the metrics, each stage's weights and the checkpoint in progress.
This module only calls the parts in order:

    sources      data, and the encoder it came from
    prepare      sizes that follow from the data, checks, held-out queries
    encoder, quantizer, generator    the stages
    handover     what a stage leaves for the next one, and the finished model
    loop         the training loop of every stage
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from genius.data.features import FeatureSet
from genius.encoders import load_encoder
from genius.encoders.base import Encoder
from genius.encoders.towers import Heads
from genius.errors import GeniusError
from genius.instructions import KnownInstructions
from genius.model.genius import Genius
from genius.train.calibration import calibrate
from genius.train.config import StageConfig, TrainConfig, read_train_config
from genius.train.encoder import HeadsStage
from genius.train.generator import GeneratorStage
from genius.train.handover import assemble, freeze, sampled_query_bank, save_model, through_heads
from genius.train.journal import Journal
from genius.train.loop import Runtime, Stage, finish, run_stage, training_device, wait_for_all
from genius.train.losses import rank
from genius.train.prepare import CONFIG, TRAINING, check_data, claim, count_steps, hold_out, refuse_another_run, settle_sizes
from genius.train.quantizer import QuantizerStage
from genius.train.sources import check_made_by, check_source, features_folder, load_source

__all__ = ["CONFIG", "TRAINING", "TrainConfig", "Trained", "read_train_config", "train", "train_stages"]

DEFAULT_BEAMS = 20  # of the validation searches, where the config's `search` names none


@dataclass
class Trained:
    """What a run leaves behind."""

    model: Genius
    heads: Heads | None  # None: the features needed none
    metrics: dict[str, dict[str, float]]  # stage -> its last validation
    data: FeatureSet  # the training set in the model's own features


def train(config: TrainConfig, data: FeatureSet | None = None, *, quiet: bool = False) -> Trained:
    """Train every stage of `config` and save the model in `config.output`.

    Args:
        config: What to train, on what (`genius.train.config.TrainConfig`).
        data: Features in memory; they take the place of `config.data`.
        quiet: No progress on stderr.

    Returns:
        The model, its heads, the metrics of every stage and the training set in the model's features.

    Raises:
        GeniusError: If the config names no output, the data cannot be trained on, or the folder holds another run.
    """
    if not config.output:
        raise GeniusError("the config names no output folder")
    if data is None:
        check_source(config)
    folder = Path(config.output) / TRAINING
    device = training_device(config.device)
    runtime = Runtime(device, Journal(folder, quiet=quiet, active=rank() == 0), config.seed, config.run)
    refuse_another_run(folder, config)
    encoder: Encoder | None = None
    settled = config
    if data is None:
        data, encoder, settled = load_source(config, runtime, folder)
    settled = settle_sizes(settled, data, runtime)
    check_data(data, settled, trained=encoder)
    if encoder is None and config.encoder_uri is not None:
        features = Path(config.data) if FeatureSet.is_folder(config.data) else None
        encoder = load_encoder(config.encoder_uri)
        check_made_by(encoder, data, features, config.encoder_uri)  # before hours are spent
    claim(folder, config)  # only now: a refused run leaves the folder free
    trained = train_stages(settled, data, runtime, folder)
    if config.data:
        trained.model.instructions = KnownInstructions.load(features_folder(config, folder))
    if rank() == 0:
        save_model(Path(config.output), trained.model, trained.heads, encoder)
    wait_for_all()
    return trained


def train_stages(config: TrainConfig, data: FeatureSet, runtime: Runtime, folder: Path) -> Trained:
    """Train the three stages on features in memory.

    Args:
        config: A config that leaves nothing open (`prepare.settle_sizes`).
        data: The training set.
        runtime: Devices, processes and the journal.
        folder: Where checkpoints and weights of the stages are kept.
    """
    metrics: dict[str, dict[str, float]] = {}

    def learn(stage: Stage, stage_config: StageConfig) -> None:
        """Train a stage, or read back what it left when it has finished before."""
        run = partial(run_stage, stage, stage_config, runtime, folder / stage.name)
        metrics[stage.name] = finish(stage, run, runtime, folder)

    parts = hold_out(config, data, runtime)
    config = count_steps(config, len(parts.train.visits()), runtime)
    heads = None
    if config.encoder.train == "heads":
        first = HeadsStage(parts.train, parts.validation, config.model.width, config.encoder, config.seed, runtime.device)
        learn(first, config.encoder)
        heads = first.heads
        data = through_heads(heads, data)
        parts = parts.map(partial(through_heads, heads))
    second = QuantizerStage(parts.train, parts.validation, config.model, config.quantizer, config.seed, runtime.device)
    learn(second, config.quantizer)
    frozen, validation = freeze(second, parts, config)
    beams = int(config.search.get("beams", DEFAULT_BEAMS))
    third = GeneratorStage(parts.train, frozen, validation, second.quantizer, config.model, config.generator, config.seed, beams)
    learn(third, config.generator)
    model = assemble(config, second, third)
    model.queries = sampled_query_bank(second, parts, config.seed)
    weights, metrics["confidence"] = calibrate(model, parts.validation, parts.offsets)
    runtime.journal.write("confidence", 0, metrics["confidence"])
    model.config = dataclasses.replace(model.config, confidence=weights)
    return Trained(model, heads, metrics, data)
