"""What an experiment is: one table or figure of `experiments.toml`, or a file of the user's own, and what the user brings to it.

Knows names and settings; nothing of models or results.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from genius.config import from_dict, read_config
from genius.errors import GeniusError
from genius.evaluate.sources import Source

EXPERIMENTS = Path(__file__).parent / "experiments.toml"


@dataclass(frozen=True)
class AblationRow:
    """One model of an ablation."""

    name: str
    set: dict[str, Any] = field(default_factory=dict)  # fields that this row changes
    # what a given model must be to deserve the row's name ("model.level_sizes", "model.decoder"); the table says where it is not
    expects: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One table or figure. A table of `experiments.toml`, or a file of the user's own."""

    title: str
    # methods: one model, several searches. ablation: several models. The others have their own shapes.
    kind: Literal["methods", "ablation", "text-to-image", "storage", "speed", "map", "cards", "training-time"]
    pools: tuple[str, ...] = ("universal",)
    methods: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()  # trained and run when training data is given
    beams: tuple[int, ...] = (50,)
    tasks: tuple[str, ...] = ()  # empty: all
    rows: tuple[AblationRow, ...] = ()
    sizes: tuple[int, ...] = ()  # of the pool, for speed
    queries: int = 0  # at most so many of each task; 0: all
    single: bool = False  # methods: beside the model, one trained for each task alone, when training data is given
    levels: tuple[int, ...] = (1,)  # cards: of the codes that they are about; 0 is the kind, the paper's first level
    cards: int = 4  # so many of each level
    steps: int = 30  # training-time: that are timed


@dataclass(frozen=True)
class Request:
    """What the user brings."""

    data: str = ""
    model: str = ""
    variants: Mapping[str, str] = field(default_factory=dict)  # row of an ablation -> model
    train: str = ""
    base: str = "builtin:paper"
    work: Path = Path("reproduce")
    overrides: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()  # in place of the experiment's own
    items: Path | None = None  # cards: what the candidates of a folder of features are, a JSONL of id, image and text
    dense: Mapping[str, str] = field(default_factory=dict)  # row of a table -> another encoder, or its features
    queries: int = 0
    device: str = "cpu"
    cache: Path | None = None

    def source(self) -> Source:
        return Source(self.data, cache=self.cache, device=self.device)

    def examples(self) -> Source:
        return Source(self.train, "train", cache=self.cache, device=self.device)


def read_experiment(name: str) -> Experiment:
    """One of the paper's by name, or a file of the same kind: other rows, other sizes."""
    if name.endswith(".toml"):
        return read_config(Experiment, name)
    tables = _ours()
    if name not in tables:
        raise GeniusError(f"no experiment {name!r}; there are {', '.join(tables)}")
    return tables[name]


def _ours() -> dict[str, Experiment]:
    tables = tomllib.loads(EXPERIMENTS.read_text(encoding="utf-8"))
    return {name: from_dict(Experiment, values, f"{EXPERIMENTS.name}: {name}") for name, values in tables.items()}


def listing() -> dict[str, str]:
    """Name -> title of every experiment."""
    return {name: experiment.title for name, experiment in _ours().items()}
