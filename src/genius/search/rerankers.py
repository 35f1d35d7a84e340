"""The registry of re-rankers: functions by name, of this package, of a program, or of an installed package.

Knows names; what a re-ranker does, and the three that are built in, is `genius.search.rerank`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from genius.errors import GeniusError

GROUP = "genius.rerankers"
BUILT_IN = ("embeddings", "codes", "none")  # re-rankers that rank as plans do; others are given `rerank` candidates

Reranker = Callable[[Any, Any, Any], Any]
"""(QueryBatch, Candidates, Collection) -> (Q, C) float32 scores, an array or a tensor. Those of padding (row -1) are ignored."""

_registry: dict[str, Reranker] = {}


def register(name: str, reranker: Reranker) -> Reranker:
    """Make a re-ranker known by a name, which `SearchParams.reranker` may then have.

    Args:
        name: Not yet taken.
        reranker: The function.

    Raises:
        GeniusError: If another re-ranker has this name.
    """
    if _registry.get(name, reranker) is not reranker:
        raise GeniusError(f"there is a re-ranker {name!r} already")
    _registry[name] = reranker
    return reranker


def names() -> list[str]:
    """All re-rankers that can be named, those of installed packages included."""
    return sorted({*BUILT_IN, *_registry, *(entry.name for entry in entry_points(group=GROUP))})


def check_name(name: object) -> None:
    """Refuse a name that nobody registered.

    Raises:
        GeniusError: With the names there are.
    """
    if not isinstance(name, str) or (name not in _registry and name not in names()):
        raise GeniusError(f"reranker must be one of {', '.join(map(repr, names()))}, got {name!r}")


def find(name: str) -> Reranker:
    """The re-ranker of a name; one of an installed package is imported when it is first needed.

    Raises:
        GeniusError: If there is none, or it cannot be imported.
    """
    check_name(name)
    if name not in _registry:
        (entry, *_) = entry_points(group=GROUP, name=name)
        try:
            _registry[name] = entry.load()
        except Exception as error:  # whatever importing another package raises
            raise GeniusError(f"the re-ranker {name!r} of {entry.value} cannot be imported: {error}") from None
    return _registry[name]
