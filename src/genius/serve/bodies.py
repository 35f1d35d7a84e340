"""From bytes to a checked request: JSON or multipart, the same fields, the same errors.

400: it cannot be parsed. 415: it is neither. 422: it parses, but says something we cannot do.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic_core
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from genius.serve.errors import ApiError, describe
from genius.serve.limits import decode_base64
from genius.serve.schemas import ItemBody, ItemIn, ItemsRequest, SearchBody
from genius.serve.settings import ServeConfig

M = TypeVar("M", bound=BaseModel)
MAX_FIELDS, MAX_FIELD_BYTES = 32, 1_000_000


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


async def read_search(request: Request, config: ServeConfig) -> tuple[SearchBody, bytes | None]:
    """The question and the bytes of its picture."""
    kind = media_type(request)
    if _is_json(kind):
        asked = await read_json(request, SearchBody)
        picture = None if asked.image is None else decode_base64(asked.image, config)
    elif kind == "multipart/form-data":
        fields, picture = await read_form(request)
        if picture is None and "image" in fields:
            picture = decode_base64(fields["image"], config)
        if picture is not None:
            fields["image"] = ""  # it is here, and checked on its own
        try:
            asked = SearchBody.model_validate_strings(fields)
        except ValidationError as error:
            raise ApiError(422, describe(error)) from None
    else:
        raise ApiError(415, "send application/json or multipart/form-data")
    if asked.k > config.max_k:
        raise ApiError(422, f"k: at most {config.max_k} here")
    return asked, picture


def _item_fields(fields: dict[str, str], picture: bytes | None, config: ServeConfig) -> tuple[dict[str, Any], bytes | None]:
    values: dict[str, Any] = dict(fields)
    if picture is None and "image" in values:
        picture = decode_base64(values["image"], config)
    if picture is not None:
        values["image"] = ""
    if "metadata" in values:
        try:
            values["metadata"] = pydantic_core.from_json(values["metadata"], allow_inf_nan=False)
        except ValueError:
            raise ApiError(422, "metadata: not valid JSON") from None
    return values, picture


async def read_items(request: Request, config: ServeConfig) -> list[tuple[ItemIn, bytes | None]]:
    """The items of a POST: many as JSON, or one as multipart."""
    kind = media_type(request)
    if _is_json(kind):
        asked = await read_json(request, ItemsRequest)
        if len(asked.items) > config.max_items:
            raise ApiError(413, f"items: at most {config.max_items} in one request")
        return [(item, None if item.image is None else decode_base64(item.image, config)) for item in asked.items]
    if kind != "multipart/form-data":
        raise ApiError(415, "send application/json or multipart/form-data")
    values, picture = _item_fields(*(await read_form(request)), config)
    try:
        return [(ItemIn.model_validate(values), picture)]
    except ValidationError as error:
        raise ApiError(422, describe(error)) from None


async def read_item(request: Request, config: ServeConfig) -> tuple[ItemBody, bytes | None]:
    """The content of a PUT: the id is in the path."""
    kind = media_type(request)
    if _is_json(kind):
        body = await read_json(request, ItemBody)
        return body, None if body.image is None else decode_base64(body.image, config)
    if kind != "multipart/form-data":
        raise ApiError(415, "send application/json or multipart/form-data")
    values, picture = _item_fields(*(await read_form(request)), config)
    try:
        return ItemBody.model_validate(values), picture
    except ValidationError as error:
        raise ApiError(422, describe(error)) from None
