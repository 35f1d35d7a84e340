"""The routes, and what they share: who calls, whether they still wait, what is audited, which errors to document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from genius.errors import GeniusError
from genius.serve.auth import Caller, Change, Outcome, Scope, authorize, client_of, guard_open_server, identify
from genius.serve.errors import ApiError, ErrorResponse
from genius.serve.schemas import check_id
from genius.serve.service import Service

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
