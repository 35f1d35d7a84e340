"""What routes share: who calls, how large the body claims to be, which errors to document."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from genius.serve.auth import Scope, authorize, guard_open_server
from genius.serve.errors import ApiError
from genius.serve.schemas import ErrorResponse, check_id
from genius.serve.service import Service

MEANINGS = {
    400: "The body cannot be parsed.",
    401: "No API key, or an unknown one.",
    403: "This key may not do that, or the server is read-only.",
    404: "Not here.",
    408: "The body came too slowly.",
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


def allowed(request: Request, scope: Scope) -> Service:
    """The service, if the caller may use it."""
    service = service_of(request)
    if not service.keys:
        guard_open_server(service.config, request.headers, request.method)
    request.state.scopes = authorize(service.keys, request.headers, scope)
    return service


def declared_bytes(request: Request) -> int | None:
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else None


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
