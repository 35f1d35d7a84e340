"""What the trained rows of several programs share: data without leaks, stages without test queries, and weights trained once.

Knows feature sets and stages; nothing of rows, tables or results.
"""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.encoders.towers import Heads
from genius.train.config import RunConfig, TrainConfig
from genius.train.encoder import HeadsStage
from genius.train.holdout import sample_queries, split
from genius.train.journal import METRICS, Journal
from genius.train.loop import Runtime, Stage, run_stage, training_device
from lab.accuracy import fashion, icons, without
from lab.paper.watched import CurvesAreFlat

HELD_OUT = 0.06  # of the training queries, by group; a quarter of that is what stages are judged by
HEADS_WIDTH = 256


@dataclass(frozen=True)
class Parts:
    """Training without any item that answers a test query; validation over the same pool; test over the whole pool."""

    train: FeatureSet
    validation: FeatureSet
    test: FeatureSet

    def map(self, change: Callable[[FeatureSet], FeatureSet]) -> Parts:
        return Parts(change(self.train), change(self.validation), change(self.test))


@cache
def parts_of(name: str, folder: Path, products: int | None, judged: int) -> Parts:
    data = (fashion if name == "fashion" else icons)(folder, products)
    new = torch.zeros(len(data.test.pool), dtype=torch.bool)
    new[data.test.pairs[:, 1]] = True
    train, honest = without(data.train, new), data.honest
    if honest is None:
        honest = split(train, HELD_OUT, 0).validation
        assert honest is not None
        names = set(honest.query_ids)
        kept = torch.tensor([i for i, query in enumerate(train.query_ids) if query not in names])
        train = train.take_queries(kept)
    else:
        honest = without(honest, new)
    return Parts(train, sample_queries(honest, judged), with_local_pools(data.test))


def with_local_pools(test: FeatureSet) -> FeatureSet:
    """Every task's own pool: the items of the kinds that answer it."""
    kind, pools = test.pool.modality, {}
    for task in test.tasks.unique().tolist():
        asked = (test.tasks == task)[test.pairs[:, 0]]
        pools[int(task)] = torch.isin(kind, kind[test.pairs[asked, 1]].unique()).nonzero()[:, 0]
    return replace(test, pools=pools)


def trained_once(path: Path, train: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Weights that several rows share. Of several processes one trains them, and the others wait."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, however it ends
        if not path.exists():
            part = path.with_suffix(".part")
            torch.save(dict(train()), part)
            part.rename(path)
    return dict(torch.load(path, weights_only=True, map_location="cpu"))


def train_stage(stage: Stage, config: TrainConfig, run: RunConfig, seed: int) -> list[dict[str, Any]]:
    """Train one stage; the lines of its journal."""
    part = getattr(config, stage.name)
    stage.validate = dict  # type: ignore[method-assign]  # test queries judge, once everything is trained
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), quiet=True)
        try:
            run_stage(stage, part, Runtime(training_device(), journal, seed, run), Path(folder) / "checkpoint")
        except CurvesAreFlat:
            stage.eval()
            with torch.no_grad():
                stage.quick()
        metrics = Path(folder) / METRICS
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []
    stage.eval()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # other jobs share the GPU
    return lines


def trained_heads(parts: Parts, config: TrainConfig, run: RunConfig, seed: int, device: torch.device) -> Heads:
    """Heads that bring towers of two widths to the width of the model."""
    stage = HeadsStage(parts.train, parts.validation, config.model.width, config.encoder, seed, device)
    train_stage(stage, config, run, seed)
    return stage.heads.to(device).eval()
