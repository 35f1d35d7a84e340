"""What becomes of a request: errors of one shape, structured logs (one JSON object a line on stderr), Prometheus metrics.

Every answer that is not a success is `{"error": {"code": "too_large", "message": "...", "request_id": "..."}}`, one clear line
with the right status. Handlers here turn FastAPI's, Starlette's and our own exceptions into it; only a bug of ours is a 500.
Queries and keys are never logged. `Observe` is the outermost layer: it names the request, times it, counts it, and is the last to
catch a bug. Metrics are in a registry of their own, so that two apps in one process do not mix, and their labels are bounded:
routes by their template, methods by a list, never what a caller sent.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger("genius.serve")
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Metrics:
    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        ProcessCollector(registry=r)
        self.requests = Counter("genius_requests_total", "Requests answered.", ["method", "route", "status"], registry=r)
        self.seconds = Histogram("genius_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=r)
        self.in_flight = Gauge("genius_requests_in_flight", "Requests being answered.", registry=r)
        self.batch = Histogram(
            "genius_batch_size",
            "Queries that shared a pass through the model.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=r,
        )
        self.batch_seconds = Histogram("genius_batch_seconds", "Time of a pass through the model.", buckets=SECONDS, registry=r)
        self.rejected = Counter("genius_rejected_total", "Requests refused to protect the rest.", ["reason"], registry=r)
        self.queue = Gauge("genius_queue_depth", "Queries waiting.", registry=r)
        self.items = Gauge("genius_items", "Items in the index.", registry=r)
        self.writes = Counter("genius_written_items_total", "Items added, replaced or deleted.", ["operation"], registry=r)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def observe_batch(self, size: int, seconds: float) -> None:
        self.batch.observe(size)
        self.batch_seconds.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class JsonFormatter(logging.Formatter):
    """Time, level, event, and whatever was passed as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[0] is not None:
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, ensure_ascii=True, default=str)


def configure(level: str) -> None:
    """JSON lines for our logger and for uvicorn's. Only the command line calls this: a library leaves logging alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("genius.serve", "uvicorn", "uvicorn.error"):
        target = logging.getLogger(name)
        target.handlers = [handler] if name != "uvicorn.error" else []
        target.propagate = name == "uvicorn.error"
        target.setLevel(level.upper())


def event(name: str, level: int = logging.INFO, exc_info: bool = False, **fields: Any) -> None:
    logger.log(level, name, exc_info=exc_info, extra={"fields": fields})


class Observe:
    """ASGI middleware: request id, access log, metrics, security headers, and the catch-all for bugs."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"] = request_id
        started, status, sent, gone = time.perf_counter(), 500, 0, False

        async def observed(message: Message) -> None:
            nonlocal status, sent, gone
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message.get("headers", [])}
                extra = [pair for pair in SECURITY if pair[0] not in present]
                message["headers"] = [*message.get("headers", []), *extra, (b"x-request-id", request_id.encode())]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            try:
                await send(message)
            except Exception:
                gone = True
                raise

        self.metrics.in_flight.inc()
        try:
            if scope.get("crowded") and scope["path"] not in QUIET:  # no place for this connection: see `connections`
                self.metrics.rejected.labels("crowded").inc()
                crowded = error_response(503, "too many connections at once", request_id=request_id, retry_after=1)
                await crowded(scope, receive, observed)
            else:
                await self.app(scope, receive, observed)
        except ClientDisconnect:
            status = 499  # the caller left while sending: nobody to answer
        except Exception:
            if gone:  # the server could not send: the connection broke, or what came was not HTTP
                status = 499
                return
            event("bug", logging.ERROR, exc_info=True, request_id=request_id, path=scope["path"])
            if sent == 0:
                await error_response(500, "internal error, see the server's log", request_id=request_id)(scope, receive, observed)
        finally:
            self.metrics.in_flight.dec()
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path_format", None) or "other"
            self.metrics.observe_request(scope["method"], route, status, seconds)
            event(
                "request",
                logging.DEBUG if scope["path"] in QUIET else logging.INFO,
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round(seconds * 1000, 2),
                bytes_out=sent,
                client=(scope.get("client") or ("", 0))[0],
                key=_key(scope),
                request_id=request_id,
            )


def _key(scope: Scope) -> str | None:
    """The name of the caller's key, once it is known."""
    caller = scope.get("state", {}).get("caller")
    return caller.name if caller is not None and caller.keyed else None
