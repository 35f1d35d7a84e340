"""For the tests of the service: a small picture book (drawn shapes, sentences about them, and pairs of both), and an index
that answers when it is let."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from PIL import Image, ImageDraw

from genius import GeniusError, Item, Modality, Query
from genius.index import Hit, Hits
from genius.search import SearchRequest
from genius.serve.auth import ENVIRONMENT, Caller, Keys

COLOURS = {"red": "#d3362b", "blue": "#2b5fd3", "green": "#2b9a4a", "yellow": "#e6b422", "purple": "#7d3cc2", "orange": "#e8791e"}
SHAPES = ("circle", "square", "triangle", "bar", "cross", "ring")


def keys_of(*pairs: tuple[str, str]) -> Keys:
    """Keys from (role, key) pairs."""
    return Keys(environ={ENVIRONMENT: ",".join(f"{role}:{key}" for role, key in pairs)})


def scopes(keys: Keys, presented: str) -> tuple[str, ...]:
    """What a presented key may do."""
    key = keys.find(presented)
    return () if key is None else Caller(key.name, key.role, "").scopes


def draw(shape: str, colour: str, size: int = 96, background: str = "white") -> Image.Image:
    picture = Image.new("RGB", (size, size), background)
    pen, fill = ImageDraw.Draw(picture), COLOURS.get(colour, colour)
    low, high, middle = size // 6, size - size // 6, size // 2
    if shape == "circle":
        pen.ellipse((low, low, high, high), fill)
    elif shape == "square":
        pen.rectangle((low, low, high, high), fill)
    elif shape == "triangle":
        pen.polygon([(middle, low), (high, high), (low, high)], fill)
    elif shape == "bar":
        pen.rectangle((low, middle - size // 8, high, middle + size // 8), fill)
    elif shape == "cross":
        pen.line((low, low, high, high), fill, size // 6)
        pen.line((low, high, high, low), fill, size // 6)
    else:
        pen.ellipse((low, low, high, high), outline=fill, width=size // 8)
    return picture


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


def book() -> list[Item]:
    """Every shape in every colour: as a picture, as a sentence, as both."""
    items = []
    for s, shape in enumerate(SHAPES):
        for c, colour in enumerate(COLOURS):
            about = {"colour": colour, "shape": shape, "price": 10 * s + c, "round": shape in ("circle", "ring")}
            picture = encoded(draw(shape, colour))
            items.append(Item(f"{shape}/{colour}.png", image=picture, metadata=about))
            items.append(Item(f"{shape} {colour} text", text=f"a {colour} {shape} on white paper", metadata=about))
            items.append(
                Item(
                    f"{shape}-{colour}-pair",
                    image=encoded(draw(shape, colour, background="#eee")),
                    text=f"{colour} {shape}",
                    metadata=about,
                )
            )
    return items


class SlowIndex:
    """Looks like an Index; answers when it is let, and remembers how it was asked."""

    version = 1
    path = "slow.genius"
    about = SimpleNamespace(levels=(3, 4))
    model = SimpleNamespace(encoder=SimpleNamespace())

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.asked: list[tuple[int, str | None]] = []  # (queries, where)
        self.texts: list[str | None] = []  # of all queries, in the order in which they were run
        self.wrote: list[str] = []
        self.fails = False

    def search_each(self, queries: Sequence[Query], requests: Sequence[SearchRequest]) -> list[Hits]:
        self.asked += [(count, where) for where, count in Counter(request.where for request in requests).items()]
        self.texts += [query.text for query in queries]
        self.entered.set()
        assert self.go.wait(60)
        if any(request.where == "bad" for request in requests):
            raise GeniusError("where: unknown column 'bad'")
        if any(query.text == "crash" for query in queries):
            raise RuntimeError("a bug")
        pairs = zip(queries, requests, strict=True)
        return [Hits(self._hit(f"{query.text}-{i}", 1.0 - i / 100) for i in range(request.k)) for query, request in pairs]

    def _hit(self, item_id: str, score: float) -> Any:
        return Hit(item_id, score, (1, 2), Item(item_id, text="t"), Modality.TEXT)

    def upsert(self, items: Iterable[Item]) -> Any:
        self.entered.set()
        assert self.go.wait(60)
        if self.fails:
            raise GeniusError("no room for that")
        self.wrote += [item.id for item in items]
        return SimpleNamespace(added=1, existing=0, replaced=0)

    def delete(self, ids: Iterable[str], *, missing: str = "raise") -> int:
        raise GeniusError("cannot delete items: the disk is full; nothing that was there is lost")

    def below(self, prefix: Sequence[int], *, limit: int, per_child: int) -> Any:
        raise GeniusError(f"there is no code {prefix[-1]}")

    def get(self, ids: Sequence[str], *, missing: str = "raise") -> list[Item]:
        raise GeniusError("cannot read the index: LanceError(IO): /secret/path/data.lance is gone")

    def count(self, where: str | None = None) -> int:
        return 0

    def close(self) -> None:
        pass
