"""All that the service asks of an index, in one place, and how a batch of requests becomes calls of it.

Knows items, hits and codes; knows nothing of HTTP. Everything here blocks: the service calls it from threads.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from PIL import Image

from genius.errors import GeniusError, PictureError
from genius.index import Hits, Index
from genius.index.overview import Placed, Planes
from genius.index.searching import why_nothing
from genius.pictures import SVG, WEB_TYPES, WORKING_SIDE, load_image, loaded, opened
from genius.search import SearchRequest
from genius.serve.schemas import (
    ChildCode,
    CodesResponse,
    CodeStep,
    HitOut,
    ItemDetail,
    ItemOut,
    MapResponse,
    PlacedOut,
    Target,
)
from genius.types import ImageInput, Item, Modality, Query

CHILDREN, EXAMPLES, ITEMS = 36, 4, 48  # shown of one prefix
START_EXAMPLES = 12  # of each first code: the page opens with them
MOST_EXPLAINED = 10  # answers
MANY = 100  # results: a search for more is a large one


class Missing(Exception):
    """No such item, picture or prefix; the message says which."""


@dataclass(frozen=True, slots=True)
class Job:
    """One query in the queue, its picture decoded."""

    query: Query
    request: SearchRequest
    without: str | None = None  # an id to leave out of its own "more like this"

    @property
    def large(self) -> bool:
        return self.request.k > MANY

    @property
    def group(self) -> tuple[SearchRequest, bool]:
        """Jobs that agree on this share a pass: whoever wants fewer answers, or better ones, takes them out of more. Those with
        different filters share what comes before a filter."""
        return replace(self.request, k=1, min_score=None, where=None), self.large

    @property
    def lane(self) -> str:
        """What kind of work it is: each kind gets its share of the time, so that nobody's settings hold up the rest."""
        if self.large or not self.request.adaptive:
            return LARGE_LANE
        return "filtered" if self.request.where is not None else "plain"


LARGE_LANE = "large"


@dataclass(frozen=True)
class Answers:
    """What one search found, on its way to the response."""

    hits: list[HitOut]
    answerable: float | None = None
    doubtful: bool = False
    why: str | None = None


class Backend:
    def __init__(self, index: Index, query_side: int = 1024) -> None:
        self.index = index
        self.planes = Planes(index)
        self._query_side = query_side
        self._counts: dict[tuple[int, ...], int] = {}  # items below a prefix, of version `_counted`
        self._counted = -1
        self._lock = threading.Lock()

    # -- search ------------------------------------------------------------------------------------------------

    def run(self, jobs: Sequence[Job]) -> list[Answers | BaseException]:
        """One pass for jobs of one group. If it fails, they run alone, so that only the guilty fails."""
        try:
            return list(self._search(jobs))
        except Exception as error:
            return [error] if len(jobs) == 1 else [self.run([job])[0] for job in jobs]

    def _search(self, jobs: Sequence[Job]) -> list[Answers]:
        k = max(job.request.k + (job.without is not None) for job in jobs)  # the best k of more are the best k
        # ... but answers that differ are chosen for their number
        own = [job.request.k + (job.without is not None) if job.request.diverse else k for job in jobs]
        requests = [replace(job.request, k=most, min_score=None) for job, most in zip(jobs, own, strict=True)]
        hits = self.index.search_each([job.query for job in jobs], requests)
        return [_answers(job, found) for job, found in zip(jobs, hits, strict=True)]

    def explain(self, job: Job) -> dict[str, Any]:
        """How the answers to a query come about; ids of items with a picture have thumbnails here."""
        found = self.index.explain(job.query, replace(job.request, k=min(job.request.k, MOST_EXPLAINED)))
        body = found.to_dict()
        body["thumbnails"] = {name: f"/v1/thumbnails/{quote(name, safe='')}" for name in body.pop("pictures")}
        for answer in body["answers"]:
            answer.pop("image")  # the path is the server's own affair
            pictured = answer["modality"] != Modality.TEXT.label
            answer["thumbnail_url"] = f"/v1/thumbnails/{quote(answer['id'], safe='')}" if pictured else None
        return body

    def like(self, item_id: str, text: str | None) -> tuple[str | None, ImageInput | None]:
        """Text and picture of a query "like this item", or "like this, but TEXT"."""
        item = self._item(item_id)
        if item.image is None:
            return (f"{item.text} {text}" if text else item.text), None
        picture: ImageInput = item.image
        if isinstance(picture, str | Path) and not Path(picture).is_file():  # moved since: what the index kept must do
            small = self.index.thumbnail(item_id)
            if small is None:
                raise Missing(f"the picture of {item_id!r} is no longer there")
            picture = small
        try:
            with loaded(picture, least=self._query_side) as decoded:
                return text or item.text, self.shrink(decoded)
        except PictureError:
            raise Missing(f"the picture of {item_id!r} cannot be read any more") from None

    def shrink(self, picture: Image.Image) -> Image.Image:
        """A query's picture as small as the encoder takes it: it may have to wait in memory."""
        prepare: Callable[[Image.Image], Image.Image] | None = getattr(self.index.model.encoder, "prepare_image", None)
        if prepare is not None:
            return prepare(picture)
        if max(picture.size) > self._query_side:
            picture.thumbnail((self._query_side, self._query_side), Image.Resampling.LANCZOS)
        return picture

    # -- items -------------------------------------------------------------------------------------------------

    def _item(self, item_id: str) -> Item:
        found = self.index.get([item_id], missing="skip")
        if not found:
            raise Missing(f"no item {item_id!r}")
        return found[0]

    def detail(self, item_id: str) -> ItemDetail:
        item = self._item(item_id)
        try:
            codes = self.index.codes(item_id)
        except GeniusError:  # deleted between the two calls
            raise Missing(f"no item {item_id!r}") from None
        return ItemDetail(**_shown(item, codes), path=self._path(codes))

    def add(self, items: Sequence[Item]) -> tuple[int, int]:
        """(new, there already)"""
        report = self.index.add(items)
        return report.added, report.existing

    def put(self, item: Item) -> bool:
        """True if it is new."""
        return self.index.upsert([item]).added > 0

    def delete(self, item_id: str) -> None:
        if self.index.delete([item_id], missing="skip") == 0:
            raise Missing(f"no item {item_id!r}")

    def picture(self, item_id: str) -> tuple[bytes | BinaryIO, str]:
        """The item's picture (a file opened for reading, where it lies in one) and its media type.

        What browsers cannot show is turned into PNG.
        """
        source = self._item(item_id).image
        if source is None:
            raise Missing(f"item {item_id!r} has no picture")
        try:
            if isinstance(source, Image.Image) or (isinstance(source, str | Path) and Path(source).suffix.lower() == SVG):
                return _png(load_image(source)), "image/png"
            with opened(source, "the image") as picture:
                kind = WEB_TYPES.get(picture.format or "")
            if kind is None:
                return _png(load_image(source, least=WORKING_SIDE)), "image/png"
            return (source if isinstance(source, bytes) else Path(source).open("rb")), kind
        except (OSError, PictureError):
            gone = isinstance(source, str | Path) and not Path(source).is_file()
            problem = "is no longer there" if gone else "cannot be read any more"
            raise Missing(f"the picture of {item_id!r} {problem}") from None

    def thumbnail(self, item_id: str, side: int) -> tuple[bytes, str]:
        """The stored thumbnail, or one made now."""
        source = self._item(item_id).image
        small = self.index.thumbnail(item_id)
        if small is not None:
            return small, "image/jpeg"
        if source is None:
            raise Missing(f"item {item_id!r} has no picture")
        try:
            picture = load_image(source, least=side)
        except PictureError:
            raise Missing(f"the picture of {item_id!r} cannot be read any more") from None
        picture.thumbnail((side, side))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=85)
        return buffer.getvalue(), "image/jpeg"

    def map(self, ids: Sequence[str] = ()) -> MapResponse:
        """A sample of items on a plane, and where these lie on it."""
        plane, alive, drawing = self.planes.now()
        if plane is None:
            return MapResponse(count=0, method="pca", drawing=False, items=[], found=[])
        found = [_at(at) for at in self.planes.locate(plane, ids)] if ids else []
        items = [_at(at) for at in plane.placed(alive)]
        return MapResponse(count=len(alive), method=plane.method, drawing=drawing, items=items, found=found)

    def close(self) -> None:
        self.planes.close()
        self.index.close()

    # -- codes -------------------------------------------------------------------------------------------------

    def browse(self, prefix: tuple[int, ...], most: int = CHILDREN) -> CodesResponse:
        """What lives under a prefix: at most so many next codes, the fullest with examples, and items."""
        each = EXAMPLES if prefix else START_EXAMPLES
        view = self.index.below(prefix, limit=ITEMS, per_child=each)
        if prefix and view.count == 0:
            raise Missing(f"nothing lives under {join(prefix)}")
        shown = [ItemOut(**_shown(item, codes)) for item, codes in zip(view.items, view.codes, strict=True)]
        examples: dict[int, list[ItemOut]] = {}
        for item in shown if view.children else ():
            examples.setdefault(item.codes[len(prefix)], []).append(item)
        children = [
            ChildCode(code=code, prefix=join((*prefix, code)), count=count, examples=examples.get(code, [])[:each])
            for code, count in list(view.children.items())[:most]
        ]
        return CodesResponse(
            prefix=join(prefix),
            path=self._path(prefix),
            level=len(prefix),
            levels=len(self.index.about.levels),
            count=view.count,
            children_total=len(view.children),
            children=children,
            items=shown[:ITEMS],
        )

    def _path(self, codes: Sequence[int]) -> list[CodeStep]:
        """Every prefix with its number of items. Counting the big ones reads much: remembered for the version."""
        version = self.index.version
        with self._lock:
            if self._counted != version or len(self._counts) > 10_000:
                self._counts, self._counted = {}, version
            known = self._counts
        steps, count = [], -1
        for length in range(1, len(codes) + 1):
            prefix = tuple(int(code) for code in codes[:length])
            if count == 1:
                pass  # alone already: alone below
            elif prefix in known:
                count = known[prefix]
            else:
                count = known[prefix] = self.index.below(prefix, limit=0).count
            steps.append(CodeStep(code=prefix[-1], prefix=join(prefix), count=count))
        return steps


def join(prefix: Sequence[int]) -> str:
    return "-".join(str(code) for code in prefix)


def parse_prefix(text: str, level_sizes: Sequence[int]) -> tuple[int, ...]:
    """`"2-17-301"` -> (2, 17, 301), within what the model's codebooks hold."""
    parts = text.split("-") if text else []
    if any(not (part.isascii() and part.isdigit() and len(part) <= 6) for part in parts):
        raise GeniusError("a prefix is codes joined by '-', such as 2-17-301")
    if len(parts) > len(level_sizes):
        raise GeniusError(f"a prefix has at most {len(level_sizes)} codes here")
    for level, part in enumerate(parts):
        if int(part) >= level_sizes[level]:
            raise GeniusError(f"code {level + 1} is 0 to {level_sizes[level] - 1}, not {int(part)}")
    return tuple(int(part) for part in parts)


def _shown(item: Item, codes: Sequence[int]) -> dict[str, Any]:
    label: Target = item.modality.label  # type: ignore[assignment]
    pictured = item.image is not None
    address = quote(item.id, safe="")
    return {
        "id": item.id,
        "modality": label,
        "text": item.text,
        "metadata": dict(item.metadata),
        "codes": [int(code) for code in codes],
        "image_url": f"/v1/images/{address}" if pictured else None,
        "thumbnail_url": f"/v1/thumbnails/{address}" if pictured else None,
    }


def _at(placed: Placed) -> PlacedOut:
    label: Target = placed.modality.label  # type: ignore[assignment]
    small = None if placed.modality is Modality.TEXT else f"/v1/thumbnails/{quote(placed.id, safe='')}"
    x, y = round(placed.x, 4), round(placed.y, 4)
    return PlacedOut(id=placed.id, modality=label, title=placed.title, codes=list(placed.codes), thumbnail_url=small, x=x, y=y)


def _answers(job: Job, found: Hits) -> Answers:
    lowest = -math.inf if job.request.min_score is None else job.request.min_score
    wanted = (hit for hit in found if hit.id != job.without and hit.score >= lowest)
    hits = [
        HitOut(**_shown(hit.item, hit.codes), score=float(hit.score), probability=hit.probability)
        for hit in islice(wanted, job.request.k)
    ]
    why = found.why if not found or hits else why_nothing(None, replace(job.request, where=None), {"item": len(found)})
    return Answers(hits, found.answerable, found.doubtful, why)


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
