"""All routes under `/v1`, and health and metrics. They translate between HTTP and the service.

Routes of a collection exist twice: below `/v1`, for the first collection, and below `/v1/collections/{collection}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from genius.index.metadata import check_metadata
from genius.serve.auth import Caller, Role, authorize, client_of, guard_open_server, identify
from genius.serve.backend import Backend, Page
from genius.serve.bodies import read_batch, read_item, read_item_bodies, read_search
from genius.serve.errors import ERRORS, ApiError
from genius.serve.logs import CONTENT_TYPE
from genius.serve.schemas import (
    AddResponse,
    CodesResponse,
    CollectionOut,
    CollectionsResponse,
    DeleteResponse,
    ExplainResponse,
    Health,
    InfoResponse,
    ItemBody,
    ItemDetail,
    ItemsRequest,
    Limits,
    ListResponse,
    PutResponse,
    SearchBatch,
    SearchBatchResponse,
    SearchBody,
    SearchResponse,
    check_id,
)
from genius.serve.service import Service
from genius.types import Item
from genius.version import __version__

T = TypeVar("T")
collection_router = APIRouter(responses=ERRORS)
system_router = APIRouter(tags=["system"], responses=ERRORS)


# -- shared ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """What a route works with: the service, the collection of its path, and the caller."""

    service: Service
    backend: Backend
    caller: Caller

    async def read(self, work: Any, lane: str = "") -> Any:
        return await self.service.read(work, self.caller, lane)

    async def count(self) -> int:
        return int(await self.read(self.backend.index.count))


def allowed(request: Request, role: Role) -> Call:
    """The call, if the caller may make it."""
    service = service_of(request)
    keys = service.keys
    if not keys:
        guard_open_server(service.config, request.headers, request.method)
    caller = identify(keys, request.headers, client_of(request.scope))
    request.state.caller = caller  # for the log, and for shares of memory
    authorize(caller, role)
    name = request.path_params.get("collection", service.backend.name)
    if name not in service.backends:
        raise ApiError(404, f"no collection {name!r}")
    return Call(service, service.backends[name], caller)


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def changing(request: Request, operation: str, ids: list[str]) -> None:
    """Name a change in the log line of its request."""
    request.state.change = {"operation": operation, "ids": ids}


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the caller disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
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
    """An id from the path, already percent-decoded."""
    try:
        return check_id(item_id)
    except ValueError as error:
        raise ApiError(422, str(error)) from None


def answer(model: BaseModel) -> Response:
    """A model as JSON, serialised once."""
    return Response(model.model_dump_json(), media_type="application/json")


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
    """The same fields as a multipart form, where nothing is null and the image is a file."""
    fields = {}
    for name, field in model.model_json_schema()["properties"].items():
        schema = next((one for one in field.get("anyOf", ()) if one != {"type": "null"}), field)
        fields[name] = {key: value for key, value in schema.items() if key not in ("title", "description", "default")}
    fields["image"] = {"type": "string", "format": "binary", "description": "The image as a file."}
    return {"type": "object", "additionalProperties": False, "properties": fields}


# -- search ----------------------------------------------------------------------------------------------------

TINY_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFElEQVR4nGO4I2N0TkiHAUIBGQAhnQQkHL0E6wAAAABJRU5ErkJggg=="
QUERIES = {
    "text": {"text": "a red bicycle", "k": 5},
    "texts": {"text": "a red bicycle", "target": "text"},
    "text within a filter": {"text": "a red bicycle", "where": "price < 50 AND colour = 'red'", "min_score": 0.2},
    "image": {"image": TINY_PNG, "k": 5},
    "image, changed by text": {"image": TINY_PNG, "text": "the same but crossed out"},
    "like an item, changed by text": {"like": "icons/bicycle.svg", "text": "make it filled"},
    "negative query": {"text": "a bicycle", "minus": "a child", "diverse": True},
}


@collection_router.post(
    "/search",
    tags=["search"],
    response_model=SearchResponse,
    openapi_extra=body_doc(SearchBody, QUERIES, form_of(SearchBody)),
    summary="Search with text, an image, or both",
)
async def search(request: Request) -> Response:
    """Send JSON (the image as base64) or multipart (the image as a file). Best results first.

    Requests that arrive together share one pass through the model. When too many wait, the response is 503 with `Retry-After`.
    """
    started = time.perf_counter()
    call = allowed(request, "read")
    call.service.check_open()
    body, image = await read_search(request, call.service.config)
    result, batch = await unless_gone(request, call.service.search(call.backend, body, image, call.caller))
    took = round((time.perf_counter() - started) * 1000, 3)
    return answer(SearchResponse(**vars(result), took_ms=took, batch_size=batch))


@collection_router.post(
    "/search/batch",
    tags=["search"],
    response_model=SearchBatchResponse,
    openapi_extra=body_doc(SearchBatch, {"two queries": {"queries": [QUERIES["text"], QUERIES["image"]]}}),
    summary="Search with many queries at once",
)
async def search_batch(request: Request) -> Response:
    """Up to 100 queries as JSON, each as for a search. Results in their order; all or nothing."""
    started = time.perf_counter()
    call = allowed(request, "read")
    call.service.check_open()
    bodies = await read_batch(request, call.service.config)
    results = await unless_gone(request, call.service.search_batch(call.backend, bodies, call.caller))
    took = round((time.perf_counter() - started) * 1000, 3)
    return answer(SearchBatchResponse(results=results, took_ms=took))


@collection_router.post(
    "/explain",
    tags=["search"],
    response_model=ExplainResponse,
    openapi_extra=body_doc(SearchBody, QUERIES, form_of(SearchBody)),
    summary="How the results of a query come about",
)
async def explain(request: Request) -> Response:
    """The body of a search. At every step of the generation: the codes kept, those that lead to results and the best rejected,
    with log-probability, number of items, words and examples below each. At most ten results; `beams` is at most 100."""
    call = allowed(request, "read")
    call.service.check_open()
    body, image = await read_search(request, call.service.config)
    explanation = await unless_gone(request, call.service.explain(call.backend, body, image, call.caller))
    return answer(ExplainResponse(**explanation))


# -- items -----------------------------------------------------------------------------------------------------

BIKE = {"text": "a red bicycle", "metadata": {"price": 45, "colour": "red", "new": True}}
ITEM_FORM = {
    "text": {"type": "string"},
    "image": {"type": "string", "format": "binary", "description": "The image as a file."},
    "metadata": {"type": "string", "description": 'A JSON object, e.g. {"price": 45}'},
}
NEW_ITEM_FORM = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string", "minLength": 1, "maxLength": 512}, **ITEM_FORM},
}
NEW_ITEMS = {"items": [{"id": "bike-1", **BIKE}, {"id": "photo-7", "image": TINY_PNG, "metadata": {"price": 9}}]}
PathId = Annotated[
    str,
    PathParameter(
        min_length=1, max_length=512, description="The id, percent-encoded: `photos%2Fbike.jpg`.", examples=["photos/bike.jpg"]
    ),
]
IMAGE_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"description": "The image.", "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}},
    304: {"description": "Unchanged since the given `If-None-Match`."},
}


@collection_router.get("/items", tags=["items"], response_model=ListResponse, summary="List items, page by page")
async def list_items(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000, description="Items of a page.")] = 50,
    cursor: Annotated[str | None, Query(max_length=16_000, description="`next_cursor` of the page before.")] = None,
    where: Annotated[str | None, Query(max_length=2000, description="A filter over metadata, as in a search.")] = None,
    order_by: Annotated[
        str | None, Query(min_length=1, max_length=64, description="A metadata field; without it items are ordered by id.")
    ] = None,
    descending: Annotated[bool, Query(description="Largest values of `order_by` first.")] = False,
) -> Response:
    """Items in order, those without the field last. Pages neither repeat nor skip items that stay as they are while others are
    added or deleted."""
    call = allowed(request, "read")
    most = call.service.config.max_items
    if limit > most:
        raise ApiError(422, f"limit: at most {most} here")
    after = None
    if cursor is not None:
        after = Page.parse_cursor(cursor)
    page = Page(limit, after, (where or "").strip() or None, order_by, descending)
    return answer(await call.read(lambda: call.backend.list_items(page), "list"))


@collection_router.post(
    "/items",
    tags=["items"],
    response_model=AddResponse,
    openapi_extra=body_doc(ItemsRequest, {"texts and images": NEW_ITEMS}, NEW_ITEM_FORM),
    summary="Add items",
)
async def add(request: Request) -> Response:
    """Add many items as JSON, or one as multipart. Existing ids stay as they are (`unchanged`), so an interrupted upload can be
    repeated. All or nothing: one invalid item and none is added."""
    call = allowed(request, "write")
    call.service.check_open()
    changing(request, "add", [])
    bodies = await read_item_bodies(request, call.service.config)
    changing(request, "add", [body.id for body, _ in bodies])
    await call.service.check_images([image for _, image in bodies], call.caller)
    items = [_item(body, body.id, image) for body, image in bodies]
    new, old = await call.service.write("add", lambda: call.backend.add(items), call.caller, len(items))
    return answer(AddResponse(added=new, unchanged=old, count=await call.count()))


@collection_router.put(
    "/items/{item_id:path}",
    tags=["items"],
    response_model=PutResponse,
    responses={201: {"model": PutResponse, "description": "The item is new."}},
    openapi_extra=body_doc(
        ItemBody, {"a text": BIKE, "an image": {"image": TINY_PNG}}, {"type": "object", "properties": ITEM_FORM}
    ),
    summary="Add or replace an item",
)
async def put(request: Request, item_id: PathId) -> Response:
    """Replace the whole item, or add it (201). Safe to repeat."""
    call = allowed(request, "write")
    call.service.check_open()
    name = path_id(item_id)
    changing(request, "put", [name])
    body, image = await read_item(request, call.service.config)
    await call.service.check_images([image], call.caller)
    item = _item(body, name, image)
    created = await call.service.write("put", lambda: call.backend.put(item), call.caller)
    response = answer(PutResponse(id=name, created=created, count=await call.count()))
    if created:
        response.status_code = 201
    return response


@collection_router.delete("/items/{item_id:path}", tags=["items"], response_model=DeleteResponse, summary="Delete an item")
async def delete(request: Request, item_id: PathId) -> Response:
    """404 if there is no such item. A search that starts after the response does not find it."""
    call = allowed(request, "write")
    name = path_id(item_id)
    changing(request, "delete", [name])
    await call.service.write("delete", lambda: call.backend.delete(name), call.caller)
    return answer(DeleteResponse(id=name, count=await call.count()))


@collection_router.get("/items/{item_id:path}", tags=["items"], response_model=ItemDetail, summary="Show an item and its ID")
async def show(request: Request, item_id: PathId) -> Response:
    """The item, its codes, and how many items share each prefix of its ID."""
    call = allowed(request, "read")
    name = path_id(item_id)
    return answer(await call.read(lambda: call.backend.detail(name)))


@collection_router.get(
    "/images/{item_id:path}",
    tags=["items"],
    response_class=Response,
    responses=IMAGE_RESPONSES,
    summary="The item's image",
)
async def image(request: Request, item_id: PathId) -> Response:
    """As it was added if browsers show its format, otherwise as PNG."""
    call = allowed(request, "read")
    name = path_id(item_id)
    data, media_type = await call.read(lambda: call.backend.picture(name), "image")
    return _image_response(request, data, media_type)


@collection_router.get(
    "/thumbnails/{item_id:path}",
    tags=["items"],
    response_class=Response,
    responses=IMAGE_RESPONSES,
    summary="A small JPEG of the item's image",
)
async def thumbnail(request: Request, item_id: PathId) -> Response:
    """For grids: small and cacheable."""
    call = allowed(request, "read")
    name = path_id(item_id)
    side = call.service.config.thumbnail_side
    data, media_type = await call.read(lambda: call.backend.thumbnail(name, side), "image")
    return _image_response(request, data, media_type)


def _item(body: ItemBody, item_id: str, image: bytes | None) -> Item:
    return Item(
        item_id,
        image=image,
        text=body.text,
        metadata=check_metadata(body.metadata, f"item {item_id!r}: "),
        vector=body.vector,
        modality=body.modality,  # type: ignore[arg-type]  # a label is parsed
    )


def _image_response(request: Request, source: bytes | Path, media_type: str) -> Response:
    """Bytes, or a file that is sent piece by piece: it may be large."""
    headers = {
        "Cache-Control": "private, max-age=60",
        "Content-Security-Policy": "default-src 'none'; sandbox",  # shown as an image, whatever is in it
    }
    response: Response
    if isinstance(source, Path):
        response = FileResponse(source, 200, headers, media_type, stat_result=source.stat())
    else:
        headers["ETag"] = f'"{hashlib.blake2b(source, digest_size=12).hexdigest()}"'
        response = Response(source, 200, headers, media_type)
    if request.headers.get("if-none-match") == response.headers["etag"]:
        return Response(status_code=304, headers={**headers, "ETag": response.headers["etag"]})
    return response


# -- codes and info --------------------------------------------------------------------------------------------

PREFIX = r"^[0-9]{1,6}(-[0-9]{1,6})*$"


@collection_router.get("/codes", tags=["codes"], response_model=CodesResponse, summary="The first codes of all IDs")
@collection_router.get("/codes/", response_model=CodesResponse, include_in_schema=False)
async def first_codes(request: Request) -> Response:
    """The first code of every ID (image, text or pair), with counts and examples."""
    call = allowed(request, "read")
    return answer(await call.read(lambda: call.backend.browse(())))


@collection_router.get(
    "/codes/{prefix}",
    tags=["codes"],
    response_model=CodesResponse,
    summary="Items below a prefix of codes",
)
async def codes(
    request: Request,
    prefix: Annotated[
        str, PathParameter(pattern=PREFIX, description="Codes joined by '-'.", examples=["2", "2-17-301"], max_length=300)
    ],
) -> Response:
    """The next codes, the fullest first, each with a few items; and items below the prefix. 404 if there are none."""
    call = allowed(request, "read")
    codes_of_prefix = tuple(int(code) for code in prefix.split("-"))
    return answer(await call.read(lambda: call.backend.browse(codes_of_prefix)))


@collection_router.get("/info", tags=["system"], response_model=InfoResponse, summary="The collection, limits and your rights")
async def info(request: Request) -> Response:
    """Number of items, fields that a filter may name, limits of a request, and what your key may do."""
    call = allowed(request, "read")
    service = call.service
    about = await call.read(call.backend.info)
    return answer(
        InfoResponse(
            version=__version__,
            needs_key=bool(service.keys),
            scopes=[role for role in call.caller.scopes if role == "read" or not service.config.read_only],
            key=call.caller.key,
            limits=Limits(**service.limits()),
            **about,
        )
    )


# -- system ----------------------------------------------------------------------------------------------------


@system_router.get("/v1/collections", response_model=CollectionsResponse, summary="The collections")
async def collections(request: Request) -> Response:
    """Names and sizes of the collections; routes below `/v1/collections/{name}` are those of each."""
    call = allowed(request, "read")
    summaries = []
    for name, backend in call.service.backends.items():
        count = await call.read(backend.index.count)
        summaries.append(CollectionOut(name=name, items=count, default=backend is call.service.backend))
    return answer(CollectionsResponse(collections=summaries))


@system_router.get("/healthz", response_model=Health, summary="Is the process alive?")
async def healthz() -> Response:
    return answer(Health(status="ok"))


@system_router.get("/readyz", response_model=Health, summary="Can it answer now?")
async def readyz(request: Request) -> Response:
    """503 while it shuts down or when the model does not come back."""
    problem = service_of(request).ready()
    if problem is not None:
        raise ApiError(503, f"not ready: {problem}", retry_after=5)
    return answer(Health(status="ready"))


@system_router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text.", "content": {"text/plain": {}}}},
    summary="Prometheus metrics",
)
async def metrics(request: Request) -> Response:
    call = allowed(request, "read")
    for name, backend in call.service.backends.items():
        call.service.metrics.items.labels(name).set(await call.read(backend.index.count))
    return Response(call.service.metrics.render(), media_type=CONTENT_TYPE)
