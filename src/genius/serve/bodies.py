"""From the bytes of a request to a validated body, JSON or multipart, with the same fields and errors; and limits on what it may
cost in bytes, seconds and pixels, checked before they are spent.

400: it cannot be parsed. 415: neither JSON nor multipart. 422: a value is invalid. Knows nothing of the index.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import pydantic_core
from fastapi import Request
from PIL import Image
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.errors import PictureError
from genius.pictures import DECODING, NAMES, TooManyPixels, decoded, decoding_cost, opened
from genius.serve.auth import owner_of
from genius.serve.errors import ApiError, error_response, first_problem
from genius.serve.schemas import ItemBody, ItemIn, ItemsRequest, SearchBatch, SearchBody
from genius.serve.settings import ServeConfig

MAX_ASPECT = 100  # encoders resize by the shorter side: a 1 x 30,000 image would grow, not shrink
HEAVY_FORMATS = ("WEBP", "AVIF", "HEIF")
HEAVY_BYTES_PER_PIXEL = 20
MAX_FORM_FIELDS = 32
MAX_FORM_FIELD_BYTES = 1_000_000
_large_images = threading.Lock()
M = TypeVar("M", bound=BaseModel)
WithImage = TypeVar("WithImage", bound=SearchBody | ItemBody)


class Arrivals:
    """Bytes of request bodies in memory, of all requests and by owner. Counted as received, not as announced.

    The first `free` bytes of a body do not count, so a text query is always accepted. One owner may hold half of the capacity.
    """

    def __init__(self, capacity: int, free: int) -> None:
        self._capacity = capacity
        self._free = free
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def counted(self, size: int) -> int:
        return max(0, size - self._free)

    def grow(self, owner: str, before: int, after: int) -> None:
        """A body of `owner` has grown from `before` to `after` bytes; 503 if that is too much."""
        more = self.counted(after) - self.counted(before)
        self._held[owner] += more
        if more and (self.held > self._capacity or self._held[owner] > self._capacity // 2):
            raise ApiError(503, "too many large requests at once", retry_after=1)

    def release(self, owner: str, size: int) -> None:
        self._held[owner] -= self.counted(size)
        if self._held[owner] <= 0:
            del self._held[owner]


class BodyLimit:
    """ASGI middleware: bodies of at most `max_body_bytes`, otherwise 413; 503 when those of all requests take too much memory."""

    def __init__(self, app: ASGIApp, config: ServeConfig, arrivals: Arrivals) -> None:
        self.app = app
        self.arrivals = arrivals
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self.config.max_body_bytes:
            refusal = error_response(413, self._too_large(), request_id=scope.get("request_id", ""))
            await refusal(scope, receive, send)
            return
        owner = ""
        size = 0
        arriving = True

        async def limited() -> Message:
            nonlocal owner, size, arriving
            if not arriving:
                return await receive()  # waits for the client to disconnect, while the response is made
            owner = owner or owner_of(scope)  # the key is known by now
            message = await receive()
            if message["type"] != "http.request":
                return message
            arriving = message.get("more_body", False)
            before = size
            size += len(message.get("body", b""))
            self.arrivals.grow(owner, before, size)
            if size > self.config.max_body_bytes:
                raise ApiError(413, self._too_large())
            return message

        try:
            await self.app(scope, limited, send)
        finally:
            self.arrivals.release(owner, size)

    def _too_large(self) -> str:
        return f"the body is larger than {self.config.max_body_bytes:,} bytes"


# -- images ----------------------------------------------------------------------------------------------------


def decode_base64(value: str | None, config: ServeConfig) -> bytes | None:
    """Base64, or a data: URL of it, to bytes. None stays None. A link or a path is refused: nothing is
    fetched, nothing is opened."""
    if value is None:
        return None
    if value.startswith("data:"):
        head, comma, value = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ApiError(422, "image: a data: URL must be base64")
    elif "://" in value[:32]:
        raise ApiError(422, "image: send the image itself as base64; this server fetches no links")
    if len(value) > (config.max_image_bytes + 2) // 3 * 4 + 4:
        raise ApiError(413, f"image: larger than {config.max_image_bytes:,} bytes")
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(422, "image: not valid base64") from None


def check_images(images: Sequence[bytes], config: ServeConfig) -> None:
    """Refuse images by size, format, pixels and decoding cost, without decoding them."""
    for data in images:
        with _uploaded(data, config):
            pass


def decode_image(data: bytes, config: ServeConfig, shrink: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Bytes to an upright RGB image, as small as `shrink` makes it. Large ones are decoded one at a time: the memory of one is
    given back before the next begins."""
    with _uploaded(data, config) as image:
        turn: AbstractContextManager[object] = nullcontext()
        if _peak_bytes(image) > DECODING.capacity // 4:
            turn = _large_images
        with turn, decoded(image, config.query_side) as rgb:
            return shrink(rgb)


@contextmanager
def _uploaded(data: bytes, config: ServeConfig) -> Iterator[Image.Image]:
    """An uploaded image with its header read and checked."""
    if len(data) > config.max_image_bytes:
        raise ApiError(413, f"image: larger than {config.max_image_bytes:,} bytes")
    if not data:
        raise ApiError(422, "image: empty")
    if data[:512].lstrip().startswith((b"<?xml", b"<svg", b"<!DOCTYPE svg")):
        raise ApiError(422, f"image: SVG is not accepted, send {NAMES}")
    try:
        with opened(data, "the image") as image:
            _check_header(image, config)
            yield image
    except TooManyPixels:
        raise ApiError(413, f"image: more than {config.max_pixels:,} pixels") from None
    except PictureError:
        raise ApiError(422, f"image: cannot be read, send {NAMES}") from None


def _check_header(image: Image.Image, config: ServeConfig) -> None:
    width, height = image.size
    if width * height > config.max_pixels:
        raise ApiError(413, f"image: {width} x {height} pixels, more than {config.max_pixels:,}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ApiError(422, f"image: {width} x {height} is too thin")
    cost = _peak_bytes(image)
    if cost > DECODING.capacity:
        needed = f"{cost // 1_000_000} MB, more than {DECODING.capacity // 1_000_000} MB"
        raise ApiError(413, f"image: {width} x {height} pixels of {image.format} take {needed} to decode")


def _peak_bytes(image: Image.Image) -> int:
    """Memory that decoding takes at its peak, measured in a service: some decoders hold an image several times."""
    if image.format in HEAVY_FORMATS:
        return image.width * image.height * HEAVY_BYTES_PER_PIXEL
    return decoding_cost(image)


# -- bodies ----------------------------------------------------------------------------------------------------


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or (content_type.startswith("application/") and content_type.endswith("+json"))


def _refuse_compressed(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise ApiError(415, "send the body as it is, without Content-Encoding")


async def read_json_body(request: Request, model: type[M]) -> M:
    """The JSON body as `model`, parsed and validated in one pass: no NaN, no lone surrogates, no deep nesting."""
    _refuse_compressed(request)
    if not _is_json(media_type(request)):
        raise ApiError(415, "send application/json")
    body = await request.body()
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if problem["type"] == "json_invalid":
            raise ApiError(400, f"the body is not valid JSON: {problem['msg'].removeprefix('Invalid JSON: ')}") from None
        raise ApiError(422, first_problem(error)) from None


async def read_form(request: Request) -> tuple[dict[str, str], bytes | None]:
    """Multipart fields as text, and the image. Empty fields count as absent: HTML forms send them."""
    _refuse_compressed(request)
    try:
        form = await request.form(max_files=1, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_FORM_FIELD_BYTES)
    except (ApiError, ClientDisconnect):
        raise
    except Exception as error:  # the parser raises several types, a broken charset even LookupError
        detail = getattr(error, "detail", None) or str(error) or type(error).__name__
        raise ApiError(400, f"the multipart body cannot be parsed: {detail}") from None
    fields: dict[str, str] = {}
    image: bytes | None = None
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "image":
                    raise ApiError(422, f"{name}: unexpected file, only 'image' may be one")
                data = await value.read()
                if data or value.filename:
                    image = data
            elif value != "":
                if name in fields:
                    raise ApiError(422, f"{name}: given twice")
                fields[name] = value
    finally:
        await form.close()
    return fields, image


async def _read(
    request: Request, config: ServeConfig, model: type[WithImage], from_form: Callable[[dict[str, str]], WithImage]
) -> tuple[WithImage, bytes | None]:
    """One JSON object or one form as a model, and the bytes of its image."""
    content_type = media_type(request)
    if _is_json(content_type):
        body = await read_json_body(request, model)
        return body, decode_base64(body.image, config)
    if content_type != "multipart/form-data":
        raise ApiError(415, "send application/json or multipart/form-data")
    fields, image = await read_form(request)
    if image is None and "image" in fields:
        image = decode_base64(fields["image"], config)
    if image is not None:
        fields["image"] = ""  # present, and checked on its own
    try:
        return from_form(fields), image
    except ValidationError as error:
        raise ApiError(422, first_problem(error)) from None


async def read_search(request: Request, config: ServeConfig) -> tuple[SearchBody, bytes | None]:
    """The query and the bytes of its image."""
    body, image = await _read(request, config, SearchBody, SearchBody.model_validate_strings)
    if body.k > config.max_k:
        raise ApiError(422, f"k: at most {config.max_k} here")
    return body, image


async def read_batch(request: Request, config: ServeConfig) -> list[SearchBody]:
    """The queries of a batch."""
    queries = (await read_json_body(request, SearchBatch)).queries
    if len(queries) > config.max_queries:
        raise ApiError(413, f"queries: at most {config.max_queries} in one request")
    for number, query in enumerate(queries):
        if query.k > config.max_k:
            raise ApiError(422, f"queries.{number}.k: at most {config.max_k} here")
    return queries


def _item_values(fields: dict[str, str]) -> dict[str, Any]:
    """Fields of an item's form, with its metadata parsed from JSON."""
    if "metadata" not in fields:
        return dict(fields)
    try:
        return {**fields, "metadata": pydantic_core.from_json(fields["metadata"], allow_inf_nan=False)}
    except ValueError:
        raise ApiError(422, "metadata: not valid JSON") from None


async def read_item_bodies(request: Request, config: ServeConfig) -> list[tuple[ItemIn, bytes | None]]:
    """The items of a POST: many as JSON, or one as multipart."""
    if not _is_json(media_type(request)):
        return [await _read(request, config, ItemIn, lambda fields: ItemIn.model_validate(_item_values(fields)))]
    body = await read_json_body(request, ItemsRequest)
    if len(body.items) > config.max_items:
        raise ApiError(413, f"items: at most {config.max_items} in one request")
    return [(item, decode_base64(item.image, config)) for item in body.items]


async def read_item(request: Request, config: ServeConfig) -> tuple[ItemBody, bytes | None]:
    """The content of a PUT: the id is in the path."""
    return await _read(request, config, ItemBody, lambda fields: ItemBody.model_validate(_item_values(fields)))
