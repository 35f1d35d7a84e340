"""`/v1/items`: add, replace, delete, show; and the pictures of items."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response, StreamingResponse

from genius.serve.bodies import read_item, read_items
from genius.serve.routes import READ_ERRORS, WRITE_ERRORS, allowed, answer, audited, body_doc, caller_of, path_id
from genius.serve.routes.search import TINY_PNG
from genius.serve.schemas import AddResponse, DeleteResponse, ItemBody, ItemDetail, ItemsRequest, PutResponse
from genius.types import Item

router = APIRouter(tags=["items"])
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


@router.post(
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


@router.put(
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


@router.delete("/v1/items/{item_id:path}", response_model=DeleteResponse, responses=WRITE_ERRORS, summary="Delete an item")
async def delete(request: Request, item_id: PathId) -> Response:
    """404 if there is no such item. A search that starts after the answer does not find it."""
    async with audited(request, "delete") as (service, change):
        name = path_id(item_id)
        change.ids = [name]
        await service.write(change, lambda: service.backend.delete(name))
    count = await service.read(service.backend.index.count, caller_of(request))
    return answer(DeleteResponse(id=name, count=count))


@router.get("/v1/items/{item_id:path}", response_model=ItemDetail, responses=READ_ERRORS, summary="Show an item and its ID")
async def show(request: Request, item_id: PathId) -> Response:
    """The item, its codes, and for each step of its ID how many items share it up to there."""
    service = allowed(request, "read")
    name = path_id(item_id)
    return answer(await service.read(lambda: service.backend.detail(name), caller_of(request)))


@router.get(
    "/v1/images/{item_id:path}", response_class=Response, responses={**READ_ERRORS, **PICTURE}, summary="The item's picture"
)
async def image(request: Request, item_id: PathId) -> Response:
    """As it was added where the format is one that browsers show, otherwise as PNG."""
    service = allowed(request, "read")
    name = path_id(item_id)
    return _picture(request, *(await service.read(lambda: service.backend.picture(name), caller_of(request), "picture")))


@router.get(
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
