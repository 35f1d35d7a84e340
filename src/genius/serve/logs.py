"""Structured logs (one JSON object per line on stderr) and Prometheus metrics.

`Observe` is the outermost layer: it names the request, times and counts it, and catches bugs. Queries, items and keys are never
logged; ids of changed items are. Metrics have a registry of their own, so that two apps in one process do not mix, and
bounded labels: route templates and known methods, never what a caller sent.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
import uuid
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.serve.errors import error_response

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

logger = logging.getLogger("genius.serve")


class Metrics:
    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        ProcessCollector(registry=r)
        self.requests = Counter("genius_requests_total", "Requests answered.", ["method", "route", "status"], registry=r)
        self.seconds = Histogram("genius_request_seconds", "Request latency.", ["route"], buckets=SECONDS, registry=r)
        self.in_flight = Gauge("genius_requests_in_flight", "Requests in flight.", registry=r)
        self.batch = Histogram("genius_batch_size", "Queries per pass through the model.", buckets=BATCH_SIZES, registry=r)
        self.batch_seconds = Histogram("genius_batch_seconds", "Duration of a pass.", buckets=SECONDS, registry=r)
        self.rejected = Counter("genius_rejected_total", "Requests refused to protect others.", ["reason"], registry=r)
        self.queue = Gauge("genius_queue_depth", "Queries waiting.", registry=r)
        self.items = Gauge("genius_items", "Items in a collection.", ["collection"], registry=r)
        self.writes = Counter("genius_written_items_total", "Items added, replaced or deleted.", ["operation"], registry=r)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        if method not in METHODS:
            method = "other"
        self.requests.labels(method, route, str(status)).inc()
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
    """JSON lines on stderr for our logger and for uvicorn's.

    Only the command line calls this: a library leaves logging alone.

    Args:
        level: debug, info, warning or error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("genius.serve", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
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
        request_id = uuid.uuid4().hex
        if _REQUEST_ID.fullmatch(given):
            request_id = given.decode()
        scope["request_id"] = request_id
        started = time.perf_counter()
        status = 500
        sent = 0
        disconnected = False

        async def observed(message: Message) -> None:
            nonlocal status, sent, disconnected
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message.get("headers", [])}
                extra = [pair for pair in SECURITY_HEADERS if pair[0] not in present]
                message["headers"] = [*message.get("headers", []), *extra, (b"x-request-id", request_id.encode())]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            try:
                await send(message)
            except Exception:
                disconnected = True
                raise

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, observed)
        except ClientDisconnect:
            status = 499  # the caller hung up while sending: nobody to answer
        except Exception:
            if disconnected:
                status = 499
                return
            event("bug", logging.ERROR, exc_info=True, request_id=request_id, path=scope["path"])
            if sent == 0:
                await error_response(500, "internal error, see the server's log", request_id=request_id)(scope, receive, observed)
        finally:
            self.metrics.in_flight.dec()
            seconds = time.perf_counter() - started
            self.metrics.observe_request(scope["method"], _route(scope), status, seconds)
            state = scope.get("state", {})
            caller = state.get("caller")
            level = logging.INFO
            if scope["path"] in QUIET:
                level = logging.DEBUG
            event(
                "request",
                level,
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round(seconds * 1000, 2),
                bytes_out=sent,
                client=(scope.get("client") or ("", 0))[0],
                key=getattr(caller, "key", None),
                request_id=request_id,
                **state.get("change", {}),  # operation and ids of a write
            )


def _route(scope: Scope) -> str:
    """The template of the route, such as `/v1/items/{item_id}`. An included router's routes may lack its prefix."""
    template = str(getattr(scope.get("route"), "path_format", None) or "other")
    if template == "other" or template.startswith("/v1") or not scope["path"].startswith("/v1/"):
        return template
    if "collection" in scope.get("path_params", {}):
        return "/v1/collections/{collection}" + template
    return "/v1" + template
