"""All that the service asks of an index, in one place, and how a batch of requests becomes calls of it.

Knows items, hits and codes; knows nothing of HTTP. Everything here blocks: the service calls it from threads.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote

from PIL import Image

from genius.errors import GeniusError
from genius.serve.schemas import ChildCode, CodesResponse, CodeStep, HitOut, ItemDetail, ItemOut, Target
from genius.types import ImageInput, Item, Modality, Query, load_image

CHILDREN, EXAMPLES, ITEMS = 36, 4, 48  # shown of one prefix
START_EXAMPLES = 12  # of each first code: the page opens with them
WEB_TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "AVIF": "image/avif",
}


class Found(Protocol):
    """A `genius.index.Hit`."""

    @property
    def id(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def codes(self) -> tuple[int, ...]: ...
    @property
    def item(self) -> Item: ...
    @property
    def modality(self) -> Modality: ...


class View(Protocol):
    """A `genius.index.PrefixView`."""

    @property
    def count(self) -> int: ...
    @property
    def children(self) -> Mapping[int, int]: ...
    @property
    def items(self) -> list[Item]: ...
    @property
    def codes(self) -> list[tuple[int, ...]]: ...


class Report(Protocol):
    """A `genius.index.AddReport`."""

    added: int
    existing: int
    replaced: int


class SearchIndex(Protocol):
    """The part of `genius.index.Index` that is used here. Must be safe to share between threads."""

    @property
    def version(self) -> int: ...
    def search_many(
        self,
        queries: Sequence[Query],
        k: int = ...,
        *,
        where: str | None = ...,
        min_score: float | None = ...,
        beams: int | None = ...,
        rerank: int | None = ...,
    ) -> Sequence[Sequence[Found]]: ...
    def add(self, items: Iterable[Item]) -> Report: ...
    def upsert(self, items: Iterable[Item]) -> Report: ...
    def delete(self, ids: str | Iterable[str], *, missing: Literal["raise", "skip"] = ...) -> int: ...
    def get(self, ids: Sequence[str], *, missing: Literal["raise", "skip"] = ...) -> list[Item]: ...
    def codes(self, item_id: str) -> tuple[int, ...]: ...
    def thumbnail(self, item_id: str) -> bytes | None: ...
    def count(self, where: str | None = ...) -> int: ...
    def columns(self) -> dict[str, str]: ...
    def below(self, prefix: Sequence[int] = ..., *, limit: int = ..., per_child: int = ...) -> View: ...
    def close(self) -> None: ...


class Missing(Exception):
    """No such item, picture or prefix; the message says which."""


@dataclass(frozen=True, slots=True)
class Options:
    """What queries of one pass must agree on."""

    where: str | None = None
    min_score: float | None = None
    beams: int | None = None
    rerank: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One query in the queue, its picture decoded."""

    query: Query
    k: int
    options: Options = Options()
    without: str | None = None  # an id to leave out of its own "more like this"


class Backend:
    def __init__(self, index: SearchIndex, level_sizes: Sequence[int]) -> None:
        self.index = index
        self.level_sizes = tuple(level_sizes)
        self._counts: dict[tuple[int, ...], int] = {}  # items below a prefix, of version `_counted`
        self._counted = -1
        self._lock = threading.Lock()

    # -- search ------------------------------------------------------------------------------------------------

    def run(self, jobs: Sequence[Job]) -> list[list[HitOut] | BaseException]:
        """One pass for each set of options. If a pass fails, its queries run alone, so that only the guilty fails."""
        answers: list[list[HitOut] | BaseException] = [GeniusError("not run")] * len(jobs)
        groups: dict[Options, list[int]] = {}
        for position, job in enumerate(jobs):
            groups.setdefault(job.options, []).append(position)
        for options, positions in groups.items():
            try:
                found: list[list[HitOut] | BaseException] = list(self._search([jobs[p] for p in positions], options))
            except Exception as error:
                found = [error] if len(positions) == 1 else [self._alone(jobs[p]) for p in positions]
            for position, answer in zip(positions, found, strict=True):
                answers[position] = answer
        return answers

    def _alone(self, job: Job) -> list[HitOut] | BaseException:
        try:
            return self._search([job], job.options)[0]
        except Exception as error:
            return error

    def _search(self, jobs: Sequence[Job], options: Options) -> list[list[HitOut]]:
        k = max(job.k + (job.without is not None) for job in jobs)  # the best k of more are the best k
        hits = self.index.search_many(
            [job.query for job in jobs],
            k,
            where=options.where,
            min_score=options.min_score,
            beams=options.beams,
            rerank=options.rerank,
        )
        return [[_hit(hit) for hit in found if hit.id != job.without][: job.k] for job, found in zip(jobs, hits, strict=True)]

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
        return text or item.text, load_image(picture)

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

    def picture(self, item_id: str) -> tuple[bytes, str]:
        """The item's picture and its media type. What browsers cannot show is turned into PNG."""
        source = self._item(item_id).image
        if source is None:
            raise Missing(f"item {item_id!r} has no picture")
        if isinstance(source, str | Path):
            try:
                source = Path(source).read_bytes() if Path(source).suffix.lower() != ".svg" else load_image(source)
            except (OSError, GeniusError):
                raise Missing(f"the picture of {item_id!r} is no longer there") from None
        if isinstance(source, bytes):
            try:
                with Image.open(io.BytesIO(source)) as opened:
                    kind = WEB_TYPES.get(opened.format or "")
                return (source, kind) if kind is not None else (_png(load_image(source)), "image/png")
            except (OSError, GeniusError, ValueError):
                raise Missing(f"the picture of {item_id!r} cannot be read any more") from None
        return _png(source), "image/png"

    def thumbnail(self, item_id: str, side: int) -> tuple[bytes, str]:
        """The stored thumbnail, or one made now."""
        self._item(item_id)
        small = self.index.thumbnail(item_id)
        if small is not None:
            return small, "image/jpeg"
        data, _ = self.picture(item_id)
        picture = load_image(data)
        picture.thumbnail((side, side))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=85)
        return buffer.getvalue(), "image/jpeg"

    # -- codes -------------------------------------------------------------------------------------------------

    def browse(self, prefix: tuple[int, ...]) -> CodesResponse:
        """What lives under a prefix: next codes with examples, and items."""
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
            for code, count in list(view.children.items())[:CHILDREN]
        ]
        return CodesResponse(
            prefix=join(prefix),
            path=self._path(prefix),
            level=len(prefix),
            levels=len(self.level_sizes),
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


def _hit(hit: Found) -> HitOut:
    return HitOut(**_shown(hit.item, hit.codes), score=float(hit.score))


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
