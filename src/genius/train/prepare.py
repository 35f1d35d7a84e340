"""What happens before the first step: sizes that follow from the data, checks, held-out queries, and the run's folder.

Knows configs and features; nothing of losses or models' insides.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from genius.config import flat, merge, to_dict
from genius.data.features import FeatureSet
from genius.encoders.base import Encoder
from genius.errors import GeniusError
from genius.files import write_json
from genius.model.codebooks import choose_level_sizes
from genius.train.config import STAGES, TrainConfig, current_names, that_trains, with_steps
from genius.train.generator import generator_config
from genius.train.holdout import Split, sample_pool, sample_queries, split, split_given
from genius.train.loop import Runtime, wait_for_all
from genius.train.losses import rank
from genius.train.quantizer import quantizer_config

TRAINING = "training"  # folder below the output
CONFIG = "config.json"  # in it
HEADS_WIDTH = 256  # of heads where the config names none
VALIDATION_QUERIES = 2000  # at most, while stages are validated
VALIDATION_POOL = 100_000  # candidates at most, while stages are validated
NOT_PART_OF_THE_RUN = ("output", "device")  # config fields that do not decide the result


def settle_sizes(config: TrainConfig, data: FeatureSet, runtime: Runtime) -> TrainConfig:
    """The config with what it leaves to the data: whether heads are needed, the width of z, the codebook sizes."""
    width = config.model.width
    sizes = config.model.level_sizes
    train = config.encoder.train
    feature_width = data.pool.image.shape[1]
    if train == "auto":
        needs_heads = feature_width != data.pool.text.shape[1] or width not in (0, feature_width)
        train = "none"
        if needs_heads:
            train = "heads"
        runtime.journal.note(f"encoder.train = {train}")
    if not width:
        width = feature_width
        if train == "heads":
            width = HEADS_WIDTH
        runtime.journal.note(f"width = {width}")
    if not sizes:
        sizes = choose_level_sizes(torch.bincount(data.pool.modality, minlength=3).tolist())
        runtime.journal.note(f"level_sizes = {list(sizes)}")
    model = dataclasses.replace(config.model, width=width, level_sizes=sizes)
    return dataclasses.replace(that_trains(config, train), model=model)


def check_data(data: FeatureSet, config: TrainConfig, trained: Encoder | None = None) -> None:
    """Raise one clear line for data that cannot be trained on.

    Args:
        data: The training set.
        config: The config with its sizes settled.
        trained: The encoder that made the features from pairs; None: features only.
    """
    if config.encoder.train == "towers" and trained is None:
        raise GeniusError("encoder.train = 'towers' needs images and texts: a file of pairs, not features")
    generator_config(config.model)  # sizes that fit no model are refused before hours are spent
    quantizer_config(config.model)
    if len(data.pool) == 0:
        raise GeniusError("the candidate pool is empty")
    if data.pairs.shape[0] == 0:
        raise GeniusError("there are no (query, positive) pairs to train on")
    if torch.bincount(data.pairs[:, 0], minlength=len(data.queries)).min() == 0:
        raise GeniusError("some queries have no positive: leave them out of the training set")
    width = None
    if config.encoder.train != "heads":
        width = config.model.width
    data.queries.check(width, "queries", zeros=False)
    data.pool.check(width, "pool", zeros=False)


def count_steps(config: TrainConfig, visits: int, runtime: Runtime) -> TrainConfig:
    """The config with every stage's epochs as steps over `visits` training examples."""
    stages = {name: with_steps(getattr(config, name), visits) for name in STAGES}
    for name, stage in stages.items():
        before = getattr(config, name)
        if stage != before:
            runtime.journal.note(f"{name}: {before.epochs:g} epochs of {visits:,} are {stage.steps:,} steps")
    return dataclasses.replace(config, **stages)  # type: ignore[arg-type]


def hold_out(config: TrainConfig, data: FeatureSet, runtime: Runtime) -> Split:
    """Training queries and held-out ones. Validation uses a sample of queries and, if the pool is large, of it."""
    if config.held_out_data:
        given = FeatureSet.load(config.held_out_data)
        if given.pool_ids != data.pool_ids:
            raise GeniusError(f"{config.held_out_data} has another pool than {config.data or 'the training data'}")
        parts = split_given(data, given, config.seed)
    else:
        parts = split(data, config.held_out, config.seed)
    train, offsets, validation = (_queries(part) for part in (parts.train, parts.offsets, parts.validation))
    runtime.journal.note(
        f"{train:,} queries to train on; held out {offsets:,} for offsets, {validation:,} for validation, "
        f"linked by {parts.linked_by}"
    )
    if parts.validation is None:
        return parts
    queries = sample_queries(parts.validation, VALIDATION_QUERIES)
    return parts._replace(validation=sample_pool(queries, VALIDATION_POOL, config.seed))


def _queries(part: FeatureSet | None) -> int:
    if part is None:
        return 0
    return len(part.queries)


# -- the folder of a run -------------------------------------------------------------------------------------------


def claim(folder: Path, config: TrainConfig) -> None:
    """Write the config next to its results, unless it is there."""
    path = folder / CONFIG
    if rank() == 0 and not path.exists():
        write_json(path, to_dict(config), indent=2)
    wait_for_all()


def refuse_another_run(folder: Path, config: TrainConfig) -> None:
    """Raise if the folder holds a run of another config: two runs are not mixed in one folder."""
    path = folder / CONFIG
    if not path.exists():
        return
    fields = _deciding_fields(to_dict(config))
    stored_fields: Any = None
    try:
        stored = current_names(json.loads(path.read_text(encoding="utf-8")))
        stored_fields = _deciding_fields(merge(to_dict(TrainConfig()), stored))  # a field that came later has its default there
    except (ValueError, AttributeError, GeniusError):
        pass
    if stored_fields != fields:
        changed = _first_difference(stored_fields, fields)
        raise GeniusError(f"{config.output} holds a run of another config ({changed}): choose another output or delete it")


def _deciding_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that decides the result: not where it is written or shown."""
    return {name: value for name, value in body.items() if name not in NOT_PART_OF_THE_RUN}


def _first_difference(old: Any, new: dict[str, Any]) -> str:
    if not isinstance(old, dict):
        return "unreadable"
    before = flat(old)
    after = flat(new)
    name = next(name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name))
    return f"{name} was {before.get(name)!r}, is {after.get(name)!r}"
