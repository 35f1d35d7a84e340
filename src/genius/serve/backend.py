"""One collection as the service uses it: an open index, and how a batch of queries becomes calls of it.

Knows items, hits and codes; knows nothing of HTTP, queues or keys. Everything here blocks: the service calls it from threads.
"""

from __future__ import annotations

import base64
import bisect
import functools
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from genius.errors import GeniusError, PictureError
from genius.index import Hits, Index
from genius.index.target import default_target
from genius.pictures import SVG, WEB_TYPES, WORKING_SIDE, TooManyPixels, load_image, loaded, opened
from genius.search import SearchRequest
from genius.serve.schemas import (
    ChildCode,
    CodesResponse,
    CodeStep,
    HitOut,
    ItemDetail,
    ItemOut,
    ListedItem,
    ListResponse,
    SearchResult,
)
from genius.types import ImageInput, Item, Modality, Query

CHILDREN = 36  # next codes shown of one prefix
EXAMPLES = 4  # items shown of each
START_EXAMPLES = 12  # items shown of each first code: the page opens with them
ITEMS = 48  # items shown of one prefix
MAX_EXPLAINED = 10  # results explained
LARGE_K = 100  # a search for more results has the lane of large searches
LARGE_LANE = "large"
MAX_LISTINGS = 8  # orders of a collection that are kept
MAX_COUNTS = 10_000  # of items below a prefix, likewise
SortKey = tuple[Any, str]
"""Value of the field that a listing is ordered by (None: by id alone, or the item lacks it), and the item's id."""


class Missing(Exception):
    """No such item, image or prefix; the message says which."""


@dataclass(frozen=True, slots=True)
class Job:
    """One query in the queue, its image decoded."""

    query: Query
    request: SearchRequest
    backend: Backend
    exclude: str | None = None  # an id to leave out of its own "more like this"
    batched: bool = False  # one of many queries of a request

    @property
    def large(self) -> bool:
        return self.request.k > LARGE_K

    @property
    def fetched(self) -> int:
        """Hits to ask for, so that `k` are left."""
        return self.request.k + (self.exclude is not None)

    @property
    def group(self) -> tuple[str, SearchRequest, bool]:
        """Jobs with equal groups share a pass: fewer hits, or only better ones, are taken out of more. Filters may differ."""
        return self.backend.name, replace(self.request, k=1, min_score=None, where=None), self.large

    @property
    def lane(self) -> str:
        """The type of work. Lanes have equal shares of the time, so that nobody's settings delay other searches."""
        if self.large or self.request.diverse or not self.request.adaptive:
            return LARGE_LANE
        if self.batched:
            return "batch"
        if self.request.where is not None:
            return "filtered"
        return "search"


@dataclass(frozen=True, slots=True)
class Page:
    """What a listing asks for."""

    limit: int
    after: SortKey | None = None  # of the last item of the page before
    where: str | None = None
    order_by: str | None = None
    descending: bool = False

    def order(self, key: SortKey) -> tuple[bool, Any, str]:
        """What keys are compared by: items without the field last, equal values by id."""
        value, item_id = key
        if value is None:
            return (True, 0, item_id)
        if self.descending:
            value = _Reversed(value)
        return (False, value, item_id)

    def cursor(self, key: SortKey) -> str:
        """A key as text for a URL."""
        return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")

    @staticmethod
    def parse_cursor(text: str) -> SortKey:
        """The key of a cursor; `GeniusError` if it is none of ours."""
        try:
            value, item_id = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, TypeError):
            raise GeniusError("cursor: not one that this server gave") from None
        if not isinstance(item_id, str) or not isinstance(value, str | int | float | bool | None):
            raise GeniusError("cursor: not one that this server gave")
        return value, item_id


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class _Reversed:
    """A value that sorts the other way round."""

    value: Any

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)


class Backend:
    """One collection.

    Args:
        index: The open index; closed with the backend.
        query_side: Longest side of a query image that waits in memory, for encoders that do not prepare images themselves.
        name: Of the collection.
        base: Prefix of the URLs of its images.
    """

    def __init__(self, index: Index, query_side: int = 1024, name: str = "", base: str = "/v1") -> None:
        self.index = index
        self.name = name
        self.base = base
        self._query_side = query_side
        # both read much, and are the same for one version of the index
        self._count_below = functools.lru_cache(MAX_COUNTS)(lambda version, prefix: index.below(prefix, limit=0).count)
        self._sorted_keys = functools.lru_cache(MAX_LISTINGS)(lambda version, *order: self._sort_keys(*order))

    # -- search ------------------------------------------------------------------------------------------------

    def run(self, jobs: Sequence[Job]) -> list[SearchResult | BaseException]:
        """One pass for jobs of one group. If it fails, each runs alone, so that only the failing query fails."""
        try:
            return list(self._search(jobs))
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [self.run([job])[0] for job in jobs]

    def _search(self, jobs: Sequence[Job]) -> list[SearchResult]:
        largest_k = max(job.fetched for job in jobs)
        requests = []
        for job in jobs:
            k = largest_k
            if job.request.diverse or job.request.mode != "similarity":  # elsewhere the best k of more are the best k
                k = job.fetched
            requests.append(replace(job.request, k=k, min_score=None))
        results = self.index.search_each([job.query for job in jobs], requests)
        return [self._search_result(job, hits) for job, hits in zip(jobs, results, strict=True)]

    def _search_result(self, job: Job, results: Hits) -> SearchResult:
        lowest = -math.inf
        if job.request.min_score is not None:
            lowest = job.request.min_score
        wanted = (hit for hit in results if hit.id != job.exclude and hit.score >= lowest)
        hits = []
        for hit in islice(wanted, job.request.k):
            codes = [int(code) for code in hit.codes]
            score = float(hit.score)
            hits.append(HitOut(**self._shown(hit.item), codes=codes, score=score, probability=hit.probability, ranks=hit.ranks))
        why = results.why
        if results and not hits:
            why = f"nothing found: no result scores {lowest:g} or more; lower min_score, or leave it out"
        return SearchResult(hits=hits, answerable=results.answerable, doubtful=results.doubtful, why=why, fusion=results.fusion)

    def explain(self, job: Job) -> dict[str, Any]:
        """How the results of a query come about; examples with an image have thumbnails here."""
        body = self.index.explain(job.query, replace(job.request, k=min(job.request.k, MAX_EXPLAINED)))
        body["thumbnails"] = {name: self._url("thumbnails", name) for name in body.pop("pictures")}
        for result in body["answers"]:
            result.pop("image")  # a path of the server
            has_image = result["modality"] != Modality.TEXT.label
            result["thumbnail_url"] = self._url("thumbnails", result["id"], has_image)
        return body

    def like(self, item_id: str, text: str | None) -> tuple[str | None, ImageInput | None]:
        """Text and image of a query "like this item", or "like this, but TEXT"."""
        item = self._item(item_id)
        if item.image is None:
            texts = [part for part in (item.text, text) if part]
            return " ".join(texts), None
        source = _image_of(item)
        with _readable(item_id, source):
            if isinstance(source, Path) and not _is_file(source):  # moved: the stored thumbnail is left
                source = self.index.thumbnail(item_id) or source
            try:
                with loaded(source, least=self._query_side) as image:
                    return text or item.text, self.shrink(image)
            except TooManyPixels:  # indexed from a large file, which a service does not decode
                thumbnail = self.index.thumbnail(item_id)
                if thumbnail is None:
                    raise Missing(f"the picture of {item_id!r} is too large, and has no thumbnail") from None
                return text or item.text, self.shrink(load_image(thumbnail))

    def shrink(self, image: Image.Image) -> Image.Image:
        """A query image as small as the encoder takes it: it may have to wait in memory."""
        prepare: Callable[[Image.Image], Image.Image] | None = getattr(self.index.model.encoder, "prepare_image", None)
        if prepare is not None:
            return prepare(image)
        if max(image.size) > self._query_side:
            image.thumbnail((self._query_side, self._query_side), Image.Resampling.LANCZOS)
        return image

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
        return ItemDetail(**self._shown(item), codes=list(codes), path=self._path(codes))

    def list_items(self, page: Page) -> ListResponse:
        """One page of items, ordered by id or by a metadata field."""
        keys = self._sorted_keys(self._version(), page.where, page.order_by, page.descending)
        start = 0
        if page.after is not None:
            try:
                start = bisect.bisect_right(keys, page.order(page.after), key=page.order)
            except TypeError:
                raise GeniusError("cursor: not one of a listing in this order") from None
        end = start + page.limit
        items: Sequence[Item] = ()
        if keys[start:end]:
            items = self.index.get([item_id for _, item_id in keys[start:end]], missing="skip")
        next_cursor = None
        if end < len(keys):
            next_cursor = page.cursor(keys[end - 1])
        listed = [ListedItem(**self._shown(item)) for item in items]
        return ListResponse(items=listed, total=len(keys), next_cursor=next_cursor)

    def _sort_keys(self, where: str | None, order_by: str | None, descending: bool) -> list[SortKey]:
        """(value, id) of all matching items in order."""
        keys = [(value, item_id) for item_id, value in self.index.values(order_by, where)]
        return sorted(keys, key=Page(0, None, where, order_by, descending).order)

    def check_query(self, vector: Sequence[float] | None, mode: str) -> None:
        """Refuse a query that this index cannot answer before it shares a batch with others.

        Args:
            vector: Of the query; None: it is a text or an image.
            mode: Of the search; words need no encoder.

        Raises:
            GeniusError: If the width differs, or there is no encoder for a text or an image.
        """
        if vector is None and mode != "words" and self.index.model.encoder is None:
            raise GeniusError("this index holds vectors only and has no encoder: send a vector")
        if vector is not None and len(vector) != self.index.about.width:
            width = self.index.about.width
            raise GeniusError(f"the query's vector is {len(vector)} wide; vectors of this index are {width} wide")

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

    def picture(self, item_id: str) -> tuple[bytes | Path, str]:
        """The item's picture (the file, where it lies in one that browsers show) and its media type."""
        source = _image_of(self._item(item_id))
        with _readable(item_id, source):
            media_type = None
            if isinstance(source, bytes) or source.suffix.lower() != SVG:
                with opened(source, "the image") as picture:
                    media_type = WEB_TYPES.get(picture.format or "")
            if media_type is None:
                return _encoded(load_image(source, least=WORKING_SIDE), "PNG"), "image/png"
        return source, media_type

    def thumbnail(self, item_id: str, side: int) -> tuple[bytes, str]:
        """The stored thumbnail, or one made now."""
        item = self._item(item_id)
        small = self.index.thumbnail(item_id)
        if small is None:
            source = _image_of(item)
            with _readable(item_id, source):
                picture = load_image(source, least=side)
            picture.thumbnail((side, side))
            small = _encoded(picture, "JPEG", quality=85)
        return small, "image/jpeg"

    def info(self) -> dict[str, Any]:
        """What the index holds: fields of `InfoResponse`."""
        default = default_target(self.index.modalities())
        return {
            "items": self.index.count(),
            "level_sizes": list(self.index.about.levels),
            "fields": self.index.columns(),
            "words": self.index.words_fields(),
            "default_target": None if default is None else default.label,
            "advice": self.index.advice(),
        }

    def close(self) -> None:
        self.index.close()

    # -- codes -------------------------------------------------------------------------------------------------

    def browse(self, prefix: tuple[int, ...]) -> CodesResponse:
        """Items below a prefix of codes, and the fullest next codes with examples."""
        each = EXAMPLES
        if not prefix:
            each = START_EXAMPLES
        view = self.index.below(prefix, limit=ITEMS, per_child=each)
        if prefix and view.count == 0:
            raise Missing(f"no item below {join(prefix)}")
        shown = []
        for item, codes in zip(view.items, view.codes, strict=True):
            shown.append(ItemOut(**self._shown(item), codes=[int(code) for code in codes]))
        examples: dict[int, list[ItemOut]] = {}
        if view.children:
            for example in shown:
                examples.setdefault(example.codes[len(prefix)], []).append(example)
        children = [
            ChildCode(code=code, prefix=join((*prefix, code)), count=count, examples=examples.get(code, [])[:each])
            for code, count in list(view.children.items())[:CHILDREN]
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
        """Every prefix with its number of items."""
        version = self._version()
        steps = []
        count = -1
        for length in range(1, len(codes) + 1):
            prefix = tuple(int(code) for code in codes[:length])
            if count != 1:  # a single item stays a single item below
                count = self._count_below(version, prefix)
            steps.append(CodeStep(code=prefix[-1], prefix=join(prefix), count=count))
        return steps

    def _version(self) -> tuple[str, int]:
        """What cached answers belong to: another index may have taken the place of this one (`genius reencode`)."""
        version = self.index.version
        return self.index.about.id, version

    # -- presentation ------------------------------------------------------------------------------------------

    def _url(self, route: str, item_id: str, has_image: bool = True) -> str | None:
        """Path of an item's image or thumbnail; None for an item without an image."""
        if not has_image:
            return None
        return f"{self.base}/{route}/{quote(item_id, safe='')}"

    def _shown(self, item: Item) -> dict[str, Any]:
        """The fields of `ListedItem`."""
        has_image = item.image is not None
        return {
            "id": item.id,
            "modality": item.modality.label,
            "text": item.text,
            "metadata": dict(item.metadata),
            "image_url": self._url("images", item.id, has_image),
            "thumbnail_url": self._url("thumbnails", item.id, has_image),
        }


def join(prefix: Sequence[int]) -> str:
    return "-".join(str(code) for code in prefix)


def _image_of(item: Item) -> bytes | Path:
    """The image of an indexed item, as it is stored: its bytes, or the path of a file."""
    if item.image is None:
        raise Missing(f"item {item.id!r} has no picture")
    if isinstance(item.image, bytes):
        return item.image
    return Path(str(item.image))


def _is_file(path: Path) -> bool:
    """Whether a file is there; an index may name any path, also one that no system can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


@contextmanager
def _readable(item_id: str, source: bytes | Path) -> Iterator[None]:
    """Say what became of a stored image that cannot be read."""
    try:
        yield
    except (OSError, PictureError):
        if isinstance(source, Path) and not _is_file(source):
            raise Missing(f"the picture of {item_id!r} is no longer there") from None
        raise Missing(f"the picture of {item_id!r} cannot be read any more") from None


def _encoded(picture: Image.Image, file_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, file_format, **options)
    return buffer.getvalue()
