"""`/v1/search`, `/v1/explain`, `/v1/items` and the pictures of items; and what all routes share: who calls, whether they still
wait, what is audited, which errors to document.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, BinaryIO, TypeVar

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from genius.errors import GeniusError
from genius.serve.auth import Caller, Change, Outcome, Scope, authorize, client_of, guard_open_server, identify
from genius.serve.bodies import read_item, read_items, read_search
from genius.serve.logs import ApiError, ErrorResponse
from genius.serve.schemas import (
    AddResponse,
    DeleteResponse,
    ExplainResponse,
    ItemBody,
    ItemDetail,
    ItemsRequest,
    PutResponse,
    SearchBody,
    SearchResponse,
    check_id,
)
from genius.serve.service import Service
from genius.types import Item

T = TypeVar("T")
MEANINGS = {
    400: "The body cannot be parsed.",
    401: "No API key, or an unknown one.",
    403: "This key may not do that, or the server is read-only.",
    404: "Not here.",
    408: "The headers or the body came too slowly.",
    413: "Too many bytes, pixels or items.",
    415: "Neither JSON nor multipart.",
    422: "A field has a value that cannot be used; the message says which.",
    503: "Too much at once, or shutting down: try again after `Retry-After` seconds.",
    504: "No answer in time.",
    507: "The disk is full.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for errors."""
    return {status: {"model": ErrorResponse, "description": MEANINGS[status]} for status in statuses}


READ_ERRORS = documented(401, 403, 404, 422, 503, 504)
BODY_ERRORS = documented(400, 401, 403, 404, 408, 413, 415, 422, 503, 504)
WRITE_ERRORS = documented(400, 401, 403, 404, 408, 413, 415, 422, 503, 504, 507)


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def known(request: Request) -> Service:
    """The service, if it is known who calls."""
    service = service_of(request)
    keys = service.keys
    if not keys:
        guard_open_server(service.config, request.headers, request.method)
    request.state.caller = identify(keys, request.headers, client_of(request.scope))
    return service


def allowed(request: Request, scope: Scope) -> Service:
    """The service, if the caller may use it."""
    service = known(request)
    authorize(caller_of(request), scope)
    return service


def caller_of(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


@asynccontextmanager
async def audited(request: Request, operation: str) -> AsyncIterator[tuple[Service, Change]]:
    """The service for a change by a caller who may write; what is refused on the way is on record, too."""
    service = known(request)
    change = Change(caller_of(request), operation, str(request.scope.get("request_id", "")))
    try:
        authorize(change.caller, "write")
        yield service, change
    except Exception as error:
        if service.audit and not change.settled:
            status, message = _told(error)
            outcome: Outcome = "unknown" if status == 504 else "failed" if change.begun else "refused"
            await service.read(lambda: service.audit.record(change, outcome, status, message), change.caller)
        raise


def _told(error: Exception) -> tuple[int, str]:
    """Status and message of the answer that an error becomes."""
    if isinstance(error, ApiError):
        return error.status, error.message
    if isinstance(error, GeniusError):
        return 422, str(error)
    return (499, "the caller hung up") if isinstance(error, ClientDisconnect) else (500, type(error).__name__)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is given up when the caller hangs up."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def path_id(item_id: str) -> str:
    """An id from the path, decoded by the server. Any character may be in it; encode slashes as %2F or leave them."""
    try:
        return check_id(item_id)
    except ValueError as error:
        raise ApiError(422, str(error)) from None


def answer(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A model as JSON, serialised once."""
    return Response(model.model_dump_json(), status, headers, "application/json")


def body_doc(model: type[BaseModel], examples: dict[str, Any], form: dict[str, Any] | None = None) -> dict[str, Any]:
    """`openapi_extra` for a route that reads its body itself."""
    content: dict[str, Any] = {
        "application/json": {
            "schema": {"$ref": f"#/components/schemas/{model.__name__}"},
            "examples": {name: {"summary": name, "value": value} for name, value in examples.items()},
        }
    }
    if form is not None:
        content["multipart/form-data"] = {"schema": form}
    return {"requestBody": {"required": True, "content": content}}


def form_of(model: type[BaseModel]) -> dict[str, Any]:
    """The same fields as a multipart form, where nothing is null and the picture is a file."""
    fields = {}
    for name, field in model.model_json_schema()["properties"].items():
        kind = next((kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}), field)
        fields[name] = {key: value for key, value in kind.items() if key not in ("title", "description", "default")}
    fields["image"] = {"type": "string", "format": "binary", "description": "The picture as a file."}
    return {"type": "object", "additionalProperties": False, "properties": fields}


search_router = APIRouter(tags=["search"])

TINY_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFElEQVR4nGO4I2N0TkiHAUIBGQAhnQQkHL0E6wAAAABJRU5ErkJggg=="
EXAMPLES = {
    "words": {"text": "a red bicycle", "target": "image", "k": 5},
    "words within a filter": {"text": "a red bicycle", "where": "price < 50 AND colour = 'red'", "min_score": 0.2},
    "a picture": {"image": TINY_PNG, "k": 5},
    "a picture, but different": {"image": TINY_PNG, "text": "the same in blue", "target": "image"},
    "like an item, but different": {"like": "photos/bike.jpg", "text": "the same in blue"},
    "not like something": {"text": "a bicycle", "minus": "a child", "diverse": True},
}


@search_router.post(
    "/v1/search",
    response_model=SearchResponse,
    responses=BODY_ERRORS,
    openapi_extra=body_doc(SearchBody, EXAMPLES, form_of(SearchBody)),
    summary="Find items with words, a picture, or both",
)
async def search(request: Request) -> Response:
    """Send JSON (the picture as base64) or multipart (the picture as a file). Best results first.

    Requests that arrive together share one pass through the model. When too many wait, the answer is 503 with
    `Retry-After`: nothing is queued without bound.
    """
    started = time.perf_counter()
    service = allowed(request, "read")
    with service.admitted():
        asked, picture = await read_search(request, service.config)
        found, batch = await unless_gone(request, service.search(asked, picture, caller_of(request)))
    took = round((time.perf_counter() - started) * 1000, 3)
    return answer(SearchResponse(**vars(found), took_ms=took, batch_size=batch))


@search_router.post(
    "/v1/explain",
    response_model=ExplainResponse,
    responses=BODY_ERRORS,
    openapi_extra=body_doc(SearchBody, EXAMPLES, form_of(SearchBody)),
    summary="How the answers to a question come about",
)
async def explain(request: Request) -> Response:
    """The same body as a search. At every step of the writing: the codes that were kept, those that lead to answers and the best
    that were rejected, how likely each was (log p), how many items, which words and which examples live below it. At most ten
    answers are explained."""
    service = allowed(request, "read")
    with service.admitted():
        asked, picture = await read_search(request, service.config)
        found = await unless_gone(request, service.explain(asked, picture, caller_of(request)))
    return answer(ExplainResponse(**found))


items_router = APIRouter(tags=["items"])
PIECE = 256 * 1024  # bytes of a picture that are sent at a time

BIKE = {"text": "a red bicycle", "metadata": {"price": 45, "colour": "red", "new": True}}
FORM_FIELDS = {
    "text": {"type": "string"},
    "image": {"type": "string", "format": "binary", "description": "The picture as a file."},
    "metadata": {"type": "string", "description": 'A JSON object, e.g. {"price": 45}'},
}
PathId = Annotated[
    str,
    Path(min_length=1, max_length=512, description="The id, percent-encoded: `photos%2Fbike.jpg`.", examples=["photos/bike.jpg"]),
]
PICTURE: dict[int | str, dict[str, object]] = {
    200: {"description": "The picture.", "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}},
    304: {"description": "Unchanged since the given `If-None-Match`."},
}


def _item(body: ItemBody, item_id: str, picture: bytes | None) -> Item:
    return Item(item_id, image=picture, text=body.text, metadata=body.metadata)


@items_router.post(
    "/v1/items",
    response_model=AddResponse,
    responses=WRITE_ERRORS,
    openapi_extra=body_doc(
        ItemsRequest,
        {
            "texts and pictures": {
                "items": [{"id": "bike-1", **BIKE}, {"id": "photo-7", "image": TINY_PNG, "metadata": {"price": 9}}]
            },
        },
        {
            "type": "object",
            "required": ["id"],
            "properties": {"id": {"type": "string", "minLength": 1, "maxLength": 512}, **FORM_FIELDS},
        },
    ),
    summary="Add items",
)
async def add(request: Request) -> Response:
    """Add many items as JSON, or one as multipart. Ids that are there already stay as they are (`unchanged`): a broken-off
    upload can simply be repeated. All or nothing: one bad item and none is added."""
    async with audited(request, "add") as (service, change):
        with service.admitted():
            bodies = await read_items(request, service.config)
            change.ids = [body.id for body, _ in bodies]
            await service.check_pictures([picture for _, picture in bodies if picture is not None], change.caller)
            items = [_item(body, body.id, picture) for body, picture in bodies]
            new, old = await service.write(change, lambda: service.backend.add(items), len(items))
    count = await service.read(service.backend.index.count, caller_of(request))
    return answer(AddResponse(added=new, unchanged=old, count=count))


@items_router.put(
    "/v1/items/{item_id:path}",
    response_model=PutResponse,
    responses={**WRITE_ERRORS, 201: {"model": PutResponse, "description": "The item is new."}},
    openapi_extra=body_doc(
        ItemBody, {"a text": BIKE, "a picture": {"image": TINY_PNG}}, {"type": "object", "properties": FORM_FIELDS}
    ),
    summary="Add or replace an item",
)
async def put(request: Request, item_id: PathId) -> Response:
    """Replace the whole item, or add it (201). Safe to repeat."""
    async with audited(request, "put") as (service, change):
        name = path_id(item_id)
        change.ids = [name]
        with service.admitted():
            body, picture = await read_item(request, service.config)
            await service.check_pictures([] if picture is None else [picture], change.caller)
            item = _item(body, name, picture)
            created = await service.write(change, lambda: service.backend.put(item))
    count = await service.read(service.backend.index.count, caller_of(request))
    return answer(PutResponse(id=name, created=created, count=count), 201 if created else 200)


@items_router.delete("/v1/items/{item_id:path}", response_model=DeleteResponse, responses=WRITE_ERRORS, summary="Delete an item")
async def delete(request: Request, item_id: PathId) -> Response:
    """404 if there is no such item. A search that starts after the answer does not find it."""
    async with audited(request, "delete") as (service, change):
        name = path_id(item_id)
        change.ids = [name]
        await service.write(change, lambda: service.backend.delete(name))
    count = await service.read(service.backend.index.count, caller_of(request))
    return answer(DeleteResponse(id=name, count=count))


@items_router.get("/v1/items/{item_id:path}", response_model=ItemDetail, responses=READ_ERRORS, summary="Show an item and its ID")
async def show(request: Request, item_id: PathId) -> Response:
    """The item, its codes, and for each step of its ID how many items share it up to there."""
    service = allowed(request, "read")
    name = path_id(item_id)
    return answer(await service.read(lambda: service.backend.detail(name), caller_of(request)))


@items_router.get(
    "/v1/images/{item_id:path}", response_class=Response, responses={**READ_ERRORS, **PICTURE}, summary="The item's picture"
)
async def image(request: Request, item_id: PathId) -> Response:
    """As it was added where the format is one that browsers show, otherwise as PNG."""
    service = allowed(request, "read")
    name = path_id(item_id)
    return _picture(request, *(await service.read(lambda: service.backend.picture(name), caller_of(request), "picture")))


@items_router.get(
    "/v1/thumbnails/{item_id:path}", response_class=Response, responses={**READ_ERRORS, **PICTURE}, summary="A small JPEG of it"
)
async def thumbnail(request: Request, item_id: PathId) -> Response:
    """For grids: small, quick, cacheable."""
    service = allowed(request, "read")
    name = path_id(item_id)
    side = service.config.thumbnail_side
    return _picture(request, *(await service.read(lambda: service.backend.thumbnail(name, side), caller_of(request), "picture")))


def _picture(request: Request, data: bytes | BinaryIO, kind: str) -> Response:
    """Bytes, or a file that is sent piece by piece: it may be large."""
    if isinstance(data, bytes):
        length, mark = len(data), hashlib.blake2b(data, digest_size=12).hexdigest()
    else:
        about = os.fstat(data.fileno())
        length, mark = about.st_size, f"{about.st_mtime_ns:x}-{about.st_size:x}"
    headers = {
        "ETag": f'"{mark}"',
        "Cache-Control": "private, max-age=60",
        "Content-Security-Policy": "default-src 'none'; sandbox",  # a picture is a picture, whatever is in it
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        if not isinstance(data, bytes):
            data.close()
        return Response(status_code=304, headers=headers)
    if isinstance(data, bytes):
        return Response(data, 200, headers, kind)
    return StreamingResponse(_pieces(data, length), 200, {**headers, "Content-Length": str(length)}, kind)


def _pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Exactly `length` bytes: the file may change while it is sent."""
    with file:
        while length > 0 and (piece := file.read(min(PIECE, length))):
            length -= len(piece)
            yield piece
    while length > 0:
        yield bytes(min(PIECE, length))
        length -= min(PIECE, length)
