"""Error responses. Every response that is not a success is `{"error": {"code", "message", "request_id"}}` with one clear line.

Maps exceptions of FastAPI, Starlette and GENIUS to that shape. Knows nothing of logs or metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from genius.errors import GeniusError

MAX_LINE = 500  # characters of a message
CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    431: "headers_too_large",
    500: "internal",
    503: "unavailable",
    504: "timeout",
    507: "disk_full",
}


class ErrorBody(BaseModel):
    code: str
    message: str
    request_id: str


class ErrorResponse(BaseModel):
    """Every response that is not a success."""

    error: ErrorBody


ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "model": ErrorResponse,
        "description": "An error, in one line. 400: cannot be parsed. 401, 403: API key. 404: not found. 408: too slow. "
        "413: too many bytes, pixels, items or queries. 415: neither JSON nor multipart. 422: an invalid value. "
        "503: overloaded or shutting down, try again after `Retry-After` seconds. 504: time limit. 507: disk full.",
    }
}
"""What OpenAPI says of all responses that are no success."""


class ApiError(GeniusError):
    """A response of `status` with one line for the caller."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


def error_body(status: int, message: str, request_id: str) -> dict[str, dict[str, str]]:
    return {"error": {"code": CODES.get(status, "error"), "message": _one_line(message), "request_id": request_id}}


def error_response(
    status: int, message: str, *, request_id: str = "", retry_after: int | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    extra = dict(headers or {})
    if retry_after is not None:
        extra["Retry-After"] = str(retry_after)
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(status, message, request_id), status_code=status, headers=extra)


def first_problem(error: ValidationError | RequestValidationError) -> str:
    """The first problem of a validation error as one line: where, what, and how many more."""
    problems: list[Any] = list(error.errors())
    if not problems:
        return "the request is not valid"
    first = problems[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part not in ("body", "query", "path"))
    message = str(first.get("msg", "not valid")).removeprefix("Value error, ")
    if where:
        message = f"{where}: {message}"
    if len(problems) > 1:
        message = f"{message} (and {len(problems) - 1} more)"
    return message


def install_handlers(app: FastAPI) -> None:
    """Map exceptions to responses. A `GeniusError` is the caller's mistake by definition."""

    def respond(request: Request, status: int, message: str, **options: Any) -> JSONResponse:
        return error_response(status, message, request_id=str(request.scope.get("request_id", "")), **options)

    async def on_api(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return respond(request, error.status, error.message, retry_after=error.retry_after)

    async def on_genius(request: Request, error: Exception) -> JSONResponse:
        return respond(request, 422, str(error))

    async def on_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError | ValidationError)
        return respond(request, 422, first_problem(error))

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        missing = f"no such route: {request.url.path}"
        if request.url.path.startswith("/v1/collections/"):
            missing += " (the name of a collection has no slash)"
        messages = {404: missing, 405: f"{request.method} is not allowed here"}
        message = messages.get(error.status_code, str(error.detail))
        return respond(request, error.status_code, message, headers=error.headers)

    app.add_exception_handler(ApiError, on_api)
    app.add_exception_handler(GeniusError, on_genius)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(ValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)


def _one_line(message: str) -> str:
    """One line of at most `MAX_LINE` characters that always encodes: messages may echo what was sent."""
    line = " ".join(message.split()).encode("utf-8", "replace").decode("utf-8")
    if len(line) <= MAX_LINE:
        return line
    return line[: MAX_LINE - 1] + "…"
