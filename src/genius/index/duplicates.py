"""Items of an index that are nearly the same: each is searched for, and what is found very near is its double."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from genius.index.index import Index
from genius.search import SearchRequest

AT_ONCE = 64  # items compared with the others in one pass


@dataclass(frozen=True, slots=True)
class Alike:
    """Items that look the same, with how like the last is to one of the others."""

    ids: tuple[str, ...]  # in the order of the index
    least: float


def duplicates(index: Index, threshold: float = 0.97, near: int = 5) -> Iterator[Alike]:
    """Groups of items of which each is at least `threshold` like another of the group, by the usual search for each item."""
    owner: dict[str, str] = {}
    least: dict[str, float] = {}

    def root(name: str) -> str:
        while owner.setdefault(name, name) != name:
            name = owner[name]
        return name

    request = SearchRequest(near + 1, min_score=threshold)
    for names, vectors, kinds in index.vectors(AT_ONCE):
        found = index.search_embedded(vectors, targets=torch.tensor([int(kind) for kind in kinds]), request=request)
        for name, hits in zip(names, found, strict=True):
            for hit in hits:
                if hit.id != name:
                    one, other = sorted((root(name), root(hit.id)))
                    owner[other] = one
                    least[one] = min(least.get(one, 1.0), least.get(other, 1.0), hit.score)
    groups: dict[str, list[str]] = {}
    for name in owner:
        groups.setdefault(root(name), []).append(name)
    for first, group in groups.items():
        if len(group) > 1:
            yield Alike(tuple(group), least[first])
