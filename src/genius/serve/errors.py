"""Every answer that is not a success: one JSON shape, one clear line, the right status.

`{"error": {"code": "too_large", "message": "...", "request_id": "..."}}`. Handlers here turn FastAPI's, Starlette's
and our own exceptions into it; only a bug of ours is a 500.
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
    """Every answer that is not a success."""

    error: ErrorBody


class ApiError(Exception):
    """An answer of `status` with one line for the caller."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


def error_response(
    status: int, message: str, *, request_id: str = "", retry_after: int | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The one shape of an error answer."""
    extra = dict(headers or {})
    if retry_after is not None:
        extra["Retry-After"] = str(retry_after)
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(status, message, request_id), status_code=status, headers=extra)


def error_body(status: int, message: str, request_id: str) -> dict[str, dict[str, str]]:
    return {"error": {"code": CODES.get(status, "error"), "message": _printable(message), "request_id": request_id}}


def describe(error: ValidationError | RequestValidationError) -> str:
    """The first problem of a validation error as one line: where, what, and how many more."""
    problems: list[Any] = list(error.errors())
    if not problems:
        return "the request is not valid"
    first = problems[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part not in ("body", "query", "path"))
    message = str(first.get("msg", "not valid")).removeprefix("Value error, ")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {message}{more}" if where else f"{message}{more}"


def install_handlers(app: FastAPI) -> None:
    """Map exceptions to answers. A `GeniusError` is the caller's mistake by definition."""

    def rid(request: Request) -> str:
        return str(request.scope.get("request_id", ""))

    async def on_api(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error_response(error.status, error.message, request_id=rid(request), retry_after=error.retry_after)

    async def on_genius(request: Request, error: Exception) -> JSONResponse:
        return error_response(422, str(error), request_id=rid(request))

    async def on_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError | ValidationError)
        return error_response(422, describe(error), request_id=rid(request))

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        messages = {404: f"no such route: {request.url.path}", 405: f"{request.method} is not allowed here"}
        message = messages.get(error.status_code, str(error.detail))
        return error_response(error.status_code, message, request_id=rid(request), headers=error.headers)

    app.add_exception_handler(ApiError, on_api)
    app.add_exception_handler(GeniusError, on_genius)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(ValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)


def _printable(message: str, limit: int = 500) -> str:
    """One line of at most `limit` characters that always encodes: callers may echo what they sent."""
    line = " ".join(message.split()).encode("utf-8", "replace").decode("utf-8")
    return line if len(line) <= limit else line[: limit - 1] + "…"
