"""`/v1/items`: add, replace, delete, show; and the pictures of items."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from genius.serve.bodies import read_item, read_items
from genius.serve.routes.common import READ_ERRORS, WRITE_ERRORS, allowed, answer, body_doc, declared_bytes, path_id
from genius.serve.routes.search import TINY_PNG
from genius.serve.schemas import AddResponse, DeleteResponse, ItemBody, ItemDetail, ItemsRequest, PutResponse
from genius.types import Item

router = APIRouter(tags=["items"])

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
    service = allowed(request, "write")
    async with service.admitted(declared_bytes(request)):
        bodies = await read_items(request, service.config)
        await service.check_pictures([picture for _, picture in bodies if picture is not None])
        items = [_item(body, body.id, picture) for body, picture in bodies]
        new, old = await service.write("add", lambda: service.backend.add(items), len(items))
    count = await service.read(service.backend.index.count)
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
    service = allowed(request, "write")
    name = path_id(item_id)
    async with service.admitted(declared_bytes(request)):
        body, picture = await read_item(request, service.config)
        await service.check_pictures([] if picture is None else [picture])
        item = _item(body, name, picture)
        created = await service.write("put", lambda: service.backend.put(item))
    count = await service.read(service.backend.index.count)
    return answer(PutResponse(id=name, created=created, count=count), 201 if created else 200)


@router.delete("/v1/items/{item_id:path}", response_model=DeleteResponse, responses=WRITE_ERRORS, summary="Delete an item")
async def delete(request: Request, item_id: PathId) -> Response:
    """404 if there is no such item. A search that starts after the answer does not find it."""
    service = allowed(request, "write")
    name = path_id(item_id)
    await service.write("delete", lambda: service.backend.delete(name))
    count = await service.read(service.backend.index.count)
    return answer(DeleteResponse(id=name, count=count))


@router.get("/v1/items/{item_id:path}", response_model=ItemDetail, responses=READ_ERRORS, summary="Show an item and its ID")
async def show(request: Request, item_id: PathId) -> Response:
    """The item, its codes, and for each step of its ID how many items share it up to there."""
    service = allowed(request, "read")
    name = path_id(item_id)
    return answer(await service.read(lambda: service.backend.detail(name)))


@router.get(
    "/v1/images/{item_id:path}", response_class=Response, responses={**READ_ERRORS, **PICTURE}, summary="The item's picture"
)
async def image(request: Request, item_id: PathId) -> Response:
    """As it was added where the format is one that browsers show, otherwise as PNG."""
    service = allowed(request, "read")
    name = path_id(item_id)
    return _picture(request, *(await service.read(lambda: service.backend.picture(name))))


@router.get(
    "/v1/thumbnails/{item_id:path}", response_class=Response, responses={**READ_ERRORS, **PICTURE}, summary="A small JPEG of it"
)
async def thumbnail(request: Request, item_id: PathId) -> Response:
    """For grids: small, quick, cacheable."""
    service = allowed(request, "read")
    name = path_id(item_id)
    side = service.config.thumbnail_side
    return _picture(request, *(await service.read(lambda: service.backend.thumbnail(name, side))))


def _picture(request: Request, data: bytes, kind: str) -> Response:
    tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
    headers = {
        "ETag": tag,
        "Cache-Control": "private, max-age=60",
        "Content-Security-Policy": "default-src 'none'; sandbox",  # a picture is a picture, whatever is in it
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, 200, headers, kind)
