"""One search of each kind over the demo's index: what is asked, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genius.index import Hit, Index
from genius.search import SearchRequest
from genius.types import Item, Modality, Query


@dataclass(frozen=True, slots=True)
class Shown:
    """A query, how to say it, and its hits."""

    title: str
    query: Query
    hits: list[Hit]


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


def run_showcase(index: Index, items: Sequence[Item], k: int = 8) -> list[Shown]:
    """Run every search of `SEARCHES`, its pictures taken from `items`. The query's own drawing is left out of the answers."""
    pictures = {item.id: item.image for item in items}
    shown = []
    for title, text, source, target in SEARCHES:
        picture = pictures[source] if source else None
        query = Query(text=text, image=picture, target=target)
        hits = [hit for hit in index.search_many([query], SearchRequest(k + 1, strict=True))[0] if hit.id != source][:k]
        shown.append(Shown(title, query, hits))
    return shown
