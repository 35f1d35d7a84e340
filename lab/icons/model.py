"""The words of the icon benchmark: an icon, an application and the raw material.

Knows nothing of files, packages or rendering; every other module here speaks in these types.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.icons.lexicon import Lexicon

TASKS: dict[int, tuple[str, str]] = {  # M-BEIR task id -> (query modality, candidate modality)
    0: ("text", "image"),
    1: ("text", "text"),
    2: ("text", "image,text"),
    3: ("image", "text"),
    4: ("image", "image"),
    6: ("image,text", "text"),
    7: ("image,text", "image"),
    8: ("image,text", "image,text"),
}
SPLITS = ("train", "val", "test")
DATASET_ID = 20


@dataclass(slots=True)
class Icon:
    """One drawing as its source names it, already taken apart into concept and style."""

    set: str  # the packaging it comes from, e.g. "tabler"
    family: str  # the hand that drew it: packagings of one another share it
    name: str  # the name in the set, unchanged
    style: str  # "", "filled", "duotone", "tone-3"...
    base: str  # canonical phrase of the thing, e.g. "microphone"
    mods: tuple[str, ...]  # what was done to it, sorted, e.g. ("off",)
    phrase: str  # the name in plain words, before synonyms were merged
    svg: str
    kind: str = "ui"  # ui, emoji, brand or app
    hexcode: str = ""  # emoji only

    @property
    def concept(self) -> str:
        return "+".join((self.base, *self.mods))

    @property
    def path(self) -> str:
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name)
        return f"img/{self.set}/{safe}.png"


@dataclass(slots=True)
class App:
    """A desktop application: what it is said to do. Its drawings are icons of kind "app" with the same base."""

    base: str
    name: str
    summary: str
    description: str
    keys: tuple[str, ...] = ()  # names under which a theme may draw it


@dataclass(slots=True)
class Material:
    """Everything a build starts from. Tests write one by hand; `gather` collects one from packages."""

    icons: list[Icon]
    tags: dict[str, set[str]]  # concept -> words people use for it
    aliases: list[tuple[str, str]]  # pairs of bases that must share a split
    lexicon: Lexicon
    apps: list[App] = field(default_factory=list)
    provenance: list[dict[str, str]] = field(default_factory=list)
