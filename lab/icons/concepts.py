"""Concepts: which drawings are kept, which concepts must share a split, and which split each gets.

Two levels. A *concept* is what makes a drawing a positive ("microphone", "microphone+off"). A *group* is what must
not be torn between train and test: a thing, everything done to it, its synonyms and its plurals, and whatever has an
identical picture.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

from lab.icons.lexicon import Lexicon
from lab.icons.model import Icon, Material
from lab.icons.render import Render

_PER_FAMILY = 3  # drawings of one concept by one hand
_MAX_GROUP = 2500  # drawings: a chain of loose synonyms longer than this is cut


class Groups:
    """Union-find over base names. The name of a group is its smallest member, so that it does not depend on order."""

    def __init__(self) -> None:
        self._up: dict[str, str] = {}
        self.weight: dict[str, int] = defaultdict(int)

    def find(self, base: str) -> str:
        up = self._up.setdefault(base, base)
        while up != self._up[up]:
            self._up[up] = self._up[self._up[up]]
            up = self._up[up]
        self._up[base] = up
        return up

    def join(self, a: str, b: str, limit: int | None = None) -> bool:
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if limit is not None and self.weight[a] + self.weight[b] > limit:
            return False
        low, high = min(a, b), max(a, b)
        self._up[high] = low
        self.weight[low] += self.weight.pop(high, 0)
        return True


def split_of(group: str) -> str:
    """85 / 5 / 10, by hash: the same group is in the same split in every build."""
    bucket = int.from_bytes(hashlib.sha256(f"icons:{group}".encode()).digest()[:4], "big") / 2**32
    if bucket < 0.85:
        return "train"
    return "val" if bucket < 0.90 else "test"


def select(material: Material) -> list[Icon]:
    """The icons worth drawing: of things that two hands drew, that somebody described or that a dictionary knows."""
    families: dict[str, set[str]] = defaultdict(set)
    for icon in material.icons:
        families[icon.concept].add(icon.family)
    taken: dict[tuple[str, str], int] = defaultdict(int)
    kept: list[Icon] = []
    for icon in sorted(material.icons, key=lambda i: ("-v" in f"-{i.style}", i.kind == "ui" and i.style not in ("", "filled"))):
        drawn = len(families[icon.concept])
        known = bool(material.tags.get(icon.concept)) or icon.phrase in material.lexicon.senses
        single = drawn < 2 and (icon.kind == "brand" or not known)
        if single and icon.kind not in {"emoji", "app"} and not (icon.kind == "ui" and icon.family == "game-icons"):
            continue
        mark = (icon.concept, icon.family)
        if not icon.style.startswith("tone-"):
            if taken[mark] >= _PER_FAMILY:
                continue
            taken[mark] += 1
        kept.append(icon)
    order = {id(icon): k for k, icon in enumerate(material.icons)}
    kept.sort(key=lambda i: order[id(i)])
    return kept


def drop_copies(icons: Iterable[Icon], renders: dict[str, Render]) -> tuple[list[Icon], list[tuple[Icon, Icon]]]:
    """Icons with distinct pictures, and (dropped, kept) for the others. The first in the given order stays."""
    first: dict[str, Icon] = {}
    kept: list[Icon] = []
    copies: list[tuple[Icon, Icon]] = []
    for icon in icons:
        render = renders.get(icon.path)
        if render is None:
            continue
        if render.digest in first:
            copies.append((icon, first[render.digest]))
        else:
            first[render.digest] = icon
            kept.append(icon)
    return kept, copies


def group_concepts(
    icons: list[Icon], copies: list[tuple[Icon, Icon]], aliases: list[tuple[str, str]], lexicon: Lexicon
) -> Groups:
    groups = Groups()
    for icon in icons:
        groups.weight[icon.base] += 1
    for dropped, kept in copies:  # one picture under two names: hard, whatever the size
        groups.join(dropped.base, kept.base)
    for a, b in sorted(aliases):
        groups.join(a, b, _MAX_GROUP)
    by_sense: dict[str, str] = {}
    for base in sorted({i.base for i in icons}):
        sense = lexicon.only_sense(base)
        if sense is not None:
            groups.join(by_sense.setdefault(sense, base), base, _MAX_GROUP)
    return groups
