"""Limits of one connection, which uvicorn has no options for: uvicorn's protocol over httptools, with a few checks.

- Headers must be complete within `header_timeout_s`, a body within `body_timeout_s`, and a client must read its response within
  `SEND_TIMEOUT_S`.
- Bytes that are not body (headers, chunk framing, trailers) are bounded, and so is the number of pieces a body comes in: parsing
  costs time per piece, and one-byte chunks would cost a thousand times their size.
- Above `max_connections` the connection that has waited longest without a complete request is closed, of the address with most.
- `Listener` accepts few connections in one turn of the event loop, so that those before them are read first, and drops at once
  those that were given up while they waited.

The parser itself (llhttp) refuses Content-Length together with Transfer-Encoding, bare line feeds and folded headers. Rates, TLS
policies and allow lists are a reverse proxy's work. Knows HTTP/1.1 and addresses; nothing of routes.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import socket
import sys
import uuid
from collections import Counter
from http import HTTPStatus
from multiprocessing import reduction
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from genius.serve.auth import address_of
from genius.serve.errors import error_body
from genius.serve.logs import Metrics
from genius.serve.settings import ServeConfig

MAX_OVERHEAD_BYTES = 64 * 1024  # that are not body, of one request, besides as many as the body has
MAX_HEADERS = 128  # trailers included
MAX_TINY_PIECES = 256  # of a body, before they must average at least MIN_PIECE_BYTES
MIN_PIECE_BYTES = 64
MAX_PIPELINED = 64  # requests that wait on one connection
SEND_TIMEOUT_S = 30.0  # without a byte read by the client while a response waits
LINGER_S = 5.0  # reading (and dropping) what remains of a refused body, so that its sender sees the response
WAITING_CONNECTIONS = 4096  # that the system keeps until they are accepted; what comes then is tried again after a second
MAX_ACCEPTED = 32  # connections, in one turn of the event loop
MAX_DROPPED = 256  # connections that were given up before they were accepted, for each that is accepted
CLOSE_WAIT = 8  # the state of a connection whose client will send no more (Linux)
SPARE_CONNECTIONS = 128  # above the limit, if every other connection is being served; more are reset


class Listener(socket.socket):
    """A listening socket for asyncio."""

    def listen(self, backlog: int = 0) -> None:
        """Listen with a long queue; asyncio gives the number of connections that it accepts in one turn."""
        super().listen(max(backlog, WAITING_CONNECTIONS))

    def accept(self) -> tuple[socket.socket, Any]:
        """The first connection that waits and was not given up meanwhile.

        Raises:
            BlockingIOError: None waits, or very many were given up: the event loop comes back.
        """
        for _ in range(MAX_DROPPED):
            connection, address = super().accept()
            if not _given_up(connection):
                return connection, address
            connection.close()
        raise BlockingIOError

    def __reduce__(self) -> tuple[Any, ...]:
        """For worker processes, while they are started."""
        if sys.platform == "win32":
            handle = reduction.DupSocket(self)
        else:
            handle = reduction.DupFd(self.fileno())
        return _listener, (handle, self.family, self.type, self.proto)


def accepted_at_once(settings: ServeConfig) -> int:
    """Connections that are accepted in one turn: few of those that may be open, so that none is closed before it is read."""
    return max(1, min(MAX_ACCEPTED, settings.max_connections // 4))


def _given_up(connection: socket.socket) -> bool:
    """Whether the client reset the connection, or closed it before the end of a request's headers."""
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
        return True
    if not sys.platform.startswith("linux"):
        return False
    if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != CLOSE_WAIT:
        return False
    return b"\r\n\r\n" not in connection.recv(MAX_OVERHEAD_BYTES, socket.MSG_PEEK)


def _listener(handle: Any, family: int, kind: int, protocol: int) -> Listener:
    given = handle.detach()
    if isinstance(given, socket.socket):
        given = given.detach()
    return Listener(family, kind, protocol, given)


class Options(uvicorn.Config):
    """uvicorn's options and the service's own."""

    def __init__(self, app: Any, settings: ServeConfig, **options: Any) -> None:
        super().__init__(app, http=LimitedProtocol, **options)
        self.settings = settings


class LimitedProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection."""

    config: Options

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._settings = self.config.settings
        self._timer: asyncio.TimerHandle | None = None  # for the client to send something
        self._send_timer: asyncio.TimerHandle | None = None  # for the client to read something
        self._refusal: tuple[int, str, str] | None = None  # status, message, reason for the metrics
        self._head_open = True  # waiting for the end of a request's headers
        self._body_open = False  # waiting for the end of a request's body
        self._unread = 0  # bytes of the last read that were not seen as body
        self._overhead = 0  # bytes of this request that were not
        self._pieces = 0  # of its body
        self._body_bytes = 0
        self.address = ""
        self.waiting_since = self.loop.time()

    @property
    def waiting(self) -> bool:
        """Whether the server waits for the client: for a request, its body, or for it to read."""
        return self._head_open or self._body_open or self.flow.write_paused

    @property
    def _busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    # -- connection --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client:
            self.address = address_of(self.client[0])
        self._start_timer(self._settings.header_timeout_s, self._headers_late)
        if len(self.connections) > self._settings.max_connections:
            self._close_longest_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unread = len(data)
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > MAX_OVERHEAD_BYTES + self._body_bytes and not self.transport.is_closing():
            self._refuse(431, f"headers or framing of more than {MAX_OVERHEAD_BYTES:,} bytes", "overhead")

    def pause_writing(self) -> None:
        super().pause_writing()
        self.waiting_since = self.loop.time()
        self._send_timer = self.loop.call_later(SEND_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()

    # -- parser callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(400, f"more than {MAX_PIPELINED} requests at once on one connection", "pipelined")
        super().on_message_begin()
        self._head_open = True
        self._overhead = self._unread
        self._pieces = 0
        self._body_bytes = 0
        self.waiting_since = self.loop.time()
        self._start_timer(self._settings.header_timeout_s, self._headers_late)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            self._fail(431, f"more than {MAX_HEADERS} headers", "overhead")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._start_timer(self._settings.body_timeout_s, self._body_late)
        if sum(name == b"host" for name, _ in self.headers) > 1:
            self._fail(400, "more than one Host header", "not_http")
        encodings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if encodings not in ([], [b"chunked"]):
            self._fail(400, "the only Transfer-Encoding that is understood is chunked", "not_http")
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if self.parser.should_upgrade() and (encodings or lengths not in ([], [b"0"])):  # the parser would take it for the next
            self._fail(400, "a request with a body must not ask for another protocol: send it without Upgrade", "not_http")
        self._head_open = False
        self._body_open = True
        self.waiting_since = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._body_bytes += len(body)
        self._unread -= len(body)
        self._overhead -= len(body)
        if self._pieces > MAX_TINY_PIECES and self._body_bytes < MIN_PIECE_BYTES * self._pieces:
            self._fail(400, f"the body comes in pieces of fewer than {MIN_PIECE_BYTES} bytes", "tiny_pieces")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._body_open = False
        super().on_message_complete()
        if self.cycle.response_complete:  # the end of a refused body: the connection is idle now
            self._head_open = True
            self._start_timer(self._settings.keep_alive_s, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.waiting_since = self.loop.time()
        if self._body_open:  # a response before the end of the body: a refusal
            self._start_timer(LINGER_S, self.transport.close)
        elif not self._head_open and not self.pipeline:
            self._head_open = True  # idle; uvicorn's keep-alive timer runs

    # -- refusing ----------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this when the parser fails, or when one of our callbacks did."""
        status, message, reason = self._refusal or (400, "this is not a valid HTTP request", "not_http")
        self._refuse(status, message, reason)

    def _fail(self, status: int, message: str, reason: str) -> None:
        """Stop the parser from inside a callback."""
        self._refusal = (status, message, reason)
        raise httptools.HttpParserError(message)

    def _headers_late(self) -> None:
        if self._busy:  # part of a second request while the first is being answered
            self._start_timer(self._settings.header_timeout_s, self._headers_late)
            return
        self._refuse(408, f"the headers did not arrive within {self._settings.header_timeout_s:g} s", "slow_head")

    def _body_late(self) -> None:
        if self.pipeline:  # nothing is read while the request before this one is being answered
            self._start_timer(self._settings.body_timeout_s, self._body_late)
            return
        self._refuse(408, f"the body did not arrive within {self._settings.body_timeout_s:g} s", "slow_body")

    def _refuse(self, status: int, message: str, reason: str) -> None:
        """Respond without the app, and close."""
        metrics: Metrics | None = self.app_state.get("metrics")
        if metrics is not None:
            metrics.rejected.labels(reason).inc()
        if self.transport.is_closing():
            return
        if not self._busy or not (self.cycle.response_started or self.pipeline):
            request_id = uuid.uuid4().hex
            body = json.dumps(error_body(status, message, request_id)).encode()
            lines = [
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "connection: close",
                f"x-request-id: {request_id}",
                "x-content-type-options: nosniff",
            ]
            if status == 503:
                lines.append("retry-after: 1")
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if self._busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _close_longest_waiting(self) -> None:
        """Close the connection that has waited longest, of the address with most, in place of this one.

        Where many may be open, a few at once: finding them takes longer than closing them.
        """
        proxies = {address_of(proxy) for proxy in self._settings.trusted_proxies}
        others = cast("set[LimitedProtocol]", self.connections) - {self}
        held = Counter(other.address for other in others if other.address not in proxies)
        candidates = [other for other in others if other.waiting]
        if candidates:
            count = 1 + self._settings.max_connections // 64
            for oldest in heapq.nlargest(count, candidates, key=lambda other: (held[other.address], -other.waiting_since)):
                self.connections.discard(oldest)
                oldest._refuse(503, "too many connections: this one kept others waiting", "crowded")
                if oldest.flow.write_paused:
                    oldest.transport.abort()
        elif len(others) >= self._settings.max_connections + SPARE_CONNECTIONS:
            self.transport.abort()

    # -- timers ------------------------------------------------------------------------------------------------

    def _start_timer(self, seconds: float, action: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, action)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
