"""Rows of one table must have been trained alike, or their difference says nothing of what the row is named after.

Knows recipes as `genius train` keeps them beside a model, and as a config would be; nothing of results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from genius.config import flat
from genius.encoders import resolve
from genius.errors import GeniusError
from genius.files import read_json
from genius.train import CONFIG, TRAINING
from genius.train.config import RULES

Recipe = dict[str, Any]
"""Dotted field -> value."""
# what does not decide how a model is trained: where it lies, what is shown, with which dice, how it is searched
BESIDE = (
    "output",
    "device",
    "seed",
    "encoder_uri",
    "run.log_every",
    "run.checkpoint_steps",
    "run.compile",
    "search",
)
ALL = "all tasks"  # the model beside those for single tasks: it is always given
WAY = ", or train the first row here too (--variant '{}=train')"
CHOSEN = ("model.width", "model.level_sizes")  # 0 and empty: left to the data


def recipe_of(model: str) -> Recipe:
    """How a model was trained, as `genius train` keeps it in the model's folder."""
    path = resolve(model) / TRAINING / CONFIG
    try:
        body = read_json(path, 1 << 20)
    except (FileNotFoundError, NotADirectoryError):
        raise GeniusError(
            f"nothing says how {model} was trained ({TRAINING}/{CONFIG} is not there), so it cannot stand in an ablation: train "
            f"that row here (--variant 'ROW=train')"
        ) from None
    return flat(body)


def refuse_unlike(first: str, recipes: Mapping[str, Recipe], changes: Mapping[str, Collection[str]]) -> None:
    """One clear line where a row's recipe differs from the first row's in more than what the row is about (`changes`)."""
    for row, recipe in recipes.items():
        about = {*changes.get(first, ()), *changes.get(row, ()), *_idle(recipes[first]), *_idle(recipe)}
        for name in sorted(recipes[first].keys() | recipe.keys()):
            old, new = recipes[first].get(name), recipe.get(name)
            if (
                name == "model.level_sizes" and "model.modality_code" in about
            ):  # without one the first level is as large as others
                old, new = (old or [])[1:], (new or [])[1:]
            if name in about or _beside(name) or _same(name, old, new):
                continue
            raise GeniusError(
                f"{first!r} and {row!r} were trained differently ({name}: {_shown(old)} and {_shown(new)}), so they do not "
                f"compare: give a model with the same settings{'' if first == ALL else WAY.format(first)}"
            )


def _idle(recipe: Recipe) -> set[str]:
    """Fields that another one leaves without effect."""
    return {name for rule in RULES if rule.switch in recipe and rule.off(recipe[rule.switch]) for name in rule.ignored}


def _beside(name: str) -> bool:
    return any(name == field or name.startswith(f"{field}.") for field in BESIDE)


def _same(name: str, old: Any, new: Any) -> bool:
    if name in CHOSEN and (not old or not new):
        return True
    if name == "data":
        return not old or not new or ":" in f"{old}{new}" or Path(old).resolve() == Path(new).resolve()
    return bool(_plain(old) == _plain(new))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    text = repr(_plain(value))
    return text if len(text) < 60 else text[:57] + "..."
