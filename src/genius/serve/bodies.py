"""From bytes to a checked request, JSON or multipart, the same fields and the same errors; and what it may cost: bytes, seconds
and pixels, checked before they are spent.

400: it cannot be parsed. 415: it is neither. 422: it parses, but says something we cannot do. Bodies on their way in are counted
for all requests together, as received, not as announced: who declares sixteen megabytes and sends one byte takes the room of one
byte. When there is no more room, whoever holds most gives way: nobody keeps the others out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pydantic_core
from fastapi import Request
from PIL import Image
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.errors import PictureError
from genius.pictures import NAMES, TooManyPixels, decoded, opened
from genius.serve.auth import client_of, owner_of
from genius.serve.logs import ApiError, describe, error_response
from genius.serve.schemas import ItemBody, ItemIn, ItemsRequest, SearchBody
from genius.serve.settings import ServeConfig

MAX_ASPECT = 100  # encoders resize by the shorter side: a 1 x 30,000 picture would grow, not shrink
DRAIN_S, DRAIN_BYTES = 10.0, 256_000_000  # how long and how much of a refused body is read and dropped
M = TypeVar("M", bound=BaseModel)
Pictured = TypeVar("Pictured", bound=SearchBody | ItemBody)
MAX_FIELDS, MAX_FIELD_BYTES = 32, 1_000_000


@dataclass(slots=True, eq=False)
class Body:
    """One body; `arriving` until its last byte is here."""

    owner: str
    size: int = 0
    arriving: bool = True
    gives_way: bool = False


class Arrivals:
    """The bodies of all requests that are being read or answered. Used in the event loop only."""

    def __init__(self, most: int, free: int) -> None:
        self._most, self._free = most, free
        self._bodies: set[Body] = set()

    def begin(self, owner: str) -> Body:
        body = Body(owner)
        self._bodies.add(body)
        return body

    def end(self, body: Body) -> None:
        self._bodies.discard(body)

    @property
    def held(self) -> int:
        """Bytes that count: beyond the first few of each."""
        return sum(self._counted(body) for body in self._bodies)

    def grow(self, body: Body, size: int) -> None:
        """`size` more bytes of a body have come; 503 if it has to give way."""
        body.size += size
        if self._counted(body) and self.held > self._most:
            self._find_who_gives_way(body).gives_way = True
        self.check(body)

    def check(self, body: Body) -> None:
        if body.gives_way:
            raise ApiError(503, "too many large requests at once", retry_after=1)

    def _counted(self, body: Body) -> int:
        return max(0, body.size - self._free)

    def _find_who_gives_way(self, newest: Body) -> Body:
        """The largest body that is still arriving, of the owner who holds most; the newest one if that is its owner."""
        held: Counter[str] = Counter()
        for body in self._bodies:
            held[body.owner] += self._counted(body)
        greediest = max(held, key=lambda owner: held[owner])
        candidates = [body for body in self._bodies if body.owner == greediest and body.arriving and not body.gives_way]
        if greediest == newest.owner or not candidates:
            return newest
        return max(candidates, key=self._counted)


class BodyLimit:
    """ASGI middleware: bodies of at most `max_body_bytes` within `body_timeout_s`, without long silences; 413, 408 or, when
    there is no room for one more, 503 otherwise.

    A refused body is still read (and dropped) for a while: closing a socket with unread bytes resets the
    connection, and the client would see that instead of the answer.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig, arrivals: Arrivals) -> None:
        self.app = app
        self.arrivals = arrivals
        self.limit = config.max_body_bytes
        self.timeout_s, self.stall_s = config.body_timeout_s, config.body_stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"content-length", b"expect")}
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.limit:
            if b"expect" not in headers:  # with Expect the client has not sent the body yet
                await self._drain(receive)
            response = error_response(
                413, self._too_large(), request_id=scope.get("request_id", ""), headers={"connection": "close"}
            )
            await response(scope, receive, send)
            return

        body, deadline = self.arrivals.begin(client_of(scope)), time.monotonic() + self.timeout_s

        async def limited() -> Message:
            if not body.arriving:
                return await receive()  # after the body: waits for the disconnect, for as long as the answer takes
            body.owner = owner_of(scope)  # the key is known by now
            message = await self._next(receive, body, deadline)
            if message["type"] == "http.request":
                body.arriving = message.get("more_body", False)
                self.arrivals.grow(body, len(message.get("body", b"")))
                if body.size > self.limit:
                    if body.arriving:
                        await self._drain(receive)
                    raise ApiError(413, self._too_large())
            return message

        try:
            await self.app(scope, limited, send)
        finally:
            self.arrivals.end(body)

    async def _next(self, receive: Receive, body: Body, deadline: float) -> Message:
        """The next part, unless it takes too long or the body has to give way meanwhile."""
        silent = time.monotonic() + self.stall_s
        coming = asyncio.ensure_future(receive())
        try:
            while True:
                left = min(deadline, silent) - time.monotonic()
                done, _ = await asyncio.wait({coming}, timeout=max(0.0, min(left, 1.0)))
                if done:
                    return coming.result()
                self.arrivals.check(body)
                if time.monotonic() >= deadline:
                    raise ApiError(408, f"the body did not arrive within {self.timeout_s:g} s")
                if time.monotonic() >= silent:
                    raise ApiError(408, f"nothing of the body arrived for {self.stall_s:g} s")
        finally:
            if not coming.done():
                coming.cancel()

    def _too_large(self) -> str:
        return f"the body is larger than {self.limit:,} bytes"

    async def _drain(self, receive: Receive) -> None:
        left, deadline = DRAIN_BYTES, time.monotonic() + DRAIN_S
        while left > 0 and time.monotonic() < deadline:
            try:
                message = await asyncio.wait_for(receive(), max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                return
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
            left -= len(message.get("body", b""))


def decode_base64(value: str, config: ServeConfig) -> bytes:
    """Base64 (plain or a data: URL) -> bytes. A link or a path is refused: nothing is fetched, nothing is opened."""
    if value.startswith("data:"):
        head, comma, value = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ApiError(422, "image: a data: URL must be base64")
    elif "://" in value[:32]:
        raise ApiError(422, "image: send the picture itself as base64; this server fetches no links")
    if len(value) > (config.max_image_bytes + 2) // 3 * 4 + 4:
        raise ApiError(413, f"image: larger than {config.max_image_bytes:,} bytes")
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(422, "image: not valid base64") from None


def check_pictures(pictures: Sequence[bytes], config: ServeConfig) -> None:
    """Refuse pictures by their size, format and pixels, without decoding them."""
    for data in pictures:
        with _uploaded(data, config):
            pass


def decode_picture(data: bytes, config: ServeConfig, shrink: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Bytes -> an upright RGB picture as small as `shrink` makes it."""
    with _uploaded(data, config) as picture, decoded(picture, config.query_side) as rgb:
        return shrink(rgb)


@contextmanager
def _uploaded(data: bytes, config: ServeConfig) -> Iterator[Image.Image]:
    """A picture that was sent, its header read and judged."""
    if len(data) > config.max_image_bytes:
        raise ApiError(413, f"image: larger than {config.max_image_bytes:,} bytes")
    if not data:
        raise ApiError(422, "image: empty")
    if data[:512].lstrip().startswith((b"<?xml", b"<svg", b"<!DOCTYPE svg")):
        raise ApiError(422, f"image: SVG is not accepted, send {NAMES}")
    try:
        with opened(data, "the image") as picture:
            width, height = picture.size
            if width * height > config.max_pixels:
                raise _Refused(413, f"image: {width} x {height} pixels, more than {config.max_pixels:,}")
            if max(width, height) > MAX_ASPECT * min(width, height):
                raise _Refused(422, f"image: {width} x {height} is too thin")
            yield picture
    except _Refused as refused:
        raise ApiError(refused.status, str(refused)) from None
    except TooManyPixels:
        raise ApiError(413, f"image: more than {config.max_pixels:,} pixels") from None
    except PictureError:
        raise ApiError(422, f"image: cannot be read, send {NAMES}") from None


class _Refused(PictureError):
    """By its header."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def _is_json(kind: str) -> bool:
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def read_json(request: Request, model: type[M]) -> M:
    """The JSON body as `model`. Parsed and checked in one pass: no NaN, no lone surrogates, no deep nesting."""
    body = await request.body()
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if problem["type"] == "json_invalid":
            raise ApiError(400, f"the body is not valid JSON: {problem['msg'].removeprefix('Invalid JSON: ')}") from None
        raise ApiError(422, describe(error)) from None


async def read_form(request: Request) -> tuple[dict[str, str], bytes | None]:
    """Multipart fields as text, and the picture. Empty fields count as absent: HTML forms send them."""
    try:
        form = await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except (ApiError, ClientDisconnect):
        raise
    except Exception as error:  # the parser raises several kinds, a broken charset even LookupError
        detail = getattr(error, "detail", None) or str(error) or type(error).__name__
        raise ApiError(400, f"the multipart body cannot be parsed: {detail}") from None
    fields: dict[str, str] = {}
    picture: bytes | None = None
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "image":
                    raise ApiError(422, f"{name}: unexpected file, only 'image' may be one")
                data = await value.read()
                picture = data if data or value.filename else None
            elif value != "":
                if name in fields:
                    raise ApiError(422, f"{name}: given twice")
                fields[name] = value
    finally:
        await form.close()
    return fields, picture


async def _read(
    request: Request, config: ServeConfig, model: type[Pictured], of_form: Callable[[dict[str, str]], Pictured]
) -> tuple[Pictured, bytes | None]:
    """One JSON object or one form as a model, and the bytes of its picture."""
    kind = media_type(request)
    if _is_json(kind):
        body = await read_json(request, model)
        return body, None if body.image is None else decode_base64(body.image, config)
    if kind != "multipart/form-data":
        raise ApiError(415, "send application/json or multipart/form-data")
    fields, picture = await read_form(request)
    if picture is None and "image" in fields:
        picture = decode_base64(fields["image"], config)
    if picture is not None:
        fields["image"] = ""  # it is here, and checked on its own
    try:
        return of_form(fields), picture
    except ValidationError as error:
        raise ApiError(422, describe(error)) from None


async def read_search(request: Request, config: ServeConfig) -> tuple[SearchBody, bytes | None]:
    """The question and the bytes of its picture."""
    asked, picture = await _read(request, config, SearchBody, SearchBody.model_validate_strings)
    if asked.k > config.max_k:
        raise ApiError(422, f"k: at most {config.max_k} here")
    return asked, picture


def _values(fields: dict[str, str]) -> dict[str, Any]:
    """Fields of an item's form: its metadata is JSON."""
    if "metadata" not in fields:
        return dict(fields)
    try:
        return {**fields, "metadata": pydantic_core.from_json(fields["metadata"], allow_inf_nan=False)}
    except ValueError:
        raise ApiError(422, "metadata: not valid JSON") from None


async def read_items(request: Request, config: ServeConfig) -> list[tuple[ItemIn, bytes | None]]:
    """The items of a POST: many as JSON, or one as multipart."""
    if not _is_json(media_type(request)):
        return [await _read(request, config, ItemIn, lambda fields: ItemIn.model_validate(_values(fields)))]
    asked = await read_json(request, ItemsRequest)
    if len(asked.items) > config.max_items:
        raise ApiError(413, f"items: at most {config.max_items} in one request")
    return [(item, None if item.image is None else decode_base64(item.image, config)) for item in asked.items]


async def read_item(request: Request, config: ServeConfig) -> tuple[ItemBody, bytes | None]:
    """The content of a PUT: the id is in the path."""
    return await _read(request, config, ItemBody, lambda fields: ItemBody.model_validate(_values(fields)))
