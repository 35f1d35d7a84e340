"""Run the app under uvicorn: one process, or one of several on a socket; JSON logs, a SIGTERM that lets everyone finish, and
connections that may not keep a place for ever.

uvicorn's protocol knows a limit for idle connections only: one that sends half a header keeps its place for ever. Here every
connection that keeps us waiting has a time limit, and a full house makes room by closing the one that has waited
longest, of the address that has most. One that cannot get a place is still answered: `/healthz` as always, anything else
with 503 in the promised shape.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from genius.errors import GeniusError
from genius.serve.auth import address_of
from genius.serve.logs import error_body, event
from genius.serve.service import Service
from genius.serve.settings import ServeConfig

Stage = Literal["new", "head", "idle", "body", "unwanted", "working", "stuck"]
SPARE = 128  # connections beyond the limit that are still told so; more are closed without a word
LINGER_S = 5.0  # how long the rest of a refused body is read, so that its sender sees the answer
PATIENCE = {"new": 1.0, "head": 1.0, "idle": 0.0, "body": 2.0, "unwanted": 0.0, "stuck": 2.0}
"""Seconds after which a connection in this stage may be closed to make room; one that we work for never is."""


class Door:
    """All open connections."""

    def __init__(self, most: int, exempt: Collection[str], on_refusal: Callable[[str], None]) -> None:
        self._most, self._exempt, self._on_refusal = most, frozenset(exempt), on_refusal
        self._inside: set[GuardedProtocol] = set()

    @property
    def full(self) -> bool:
        return len(self._inside) > self._most

    def enter(self, visitor: GuardedProtocol) -> None:
        """Let a connection in, at the cost of another if need be. Without room it may still say what it wants."""
        self._inside.add(visitor)
        visitor.outside = self.full and not self._make_room(visitor)
        if len(self._inside) > self._most + SPARE and not self._make_room(visitor, asking=True):
            visitor.transport.abort()

    def admit(self, visitor: GuardedProtocol) -> bool:
        """Room for one that was outside and now asks for something: it comes before all that only hold a place."""
        visitor.outside = self.full and not self._make_room(visitor, asking=True)
        return not visitor.outside

    def leave(self, visitor: GuardedProtocol) -> None:
        self._inside.discard(visitor)

    def refused(self, reason: str) -> None:
        self._on_refusal(reason)

    def _make_room(self, newcomer: GuardedProtocol, asking: bool = False) -> bool:
        for one in self._inside:
            one.look()
        held = Counter(one.address for one in self._inside if one.address not in self._exempt)
        patience = {**PATIENCE, "new": 0.0, "head": 0.0} if asking else PATIENCE
        may_go = [one for one in self._inside if one is not newcomer and one.waited >= patience.get(one.stage, float("inf"))]
        if not may_go:
            return False
        # of the greediest address; one that never asked for anything before one that may ask again; the oldest
        victim = max(may_go, key=lambda one: (held[one.address], one.stage != "idle", one.waited))
        self.leave(victim)
        victim.make_room()
        return True


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with time limits, a `Door`, and refusals in the promised shape."""

    def __init__(self, *, door: Door, settings: ServeConfig, **rest: Any) -> None:
        super().__init__(**rest)
        self._door, self._settings = door, settings
        self._inner, self.app = self.app, self._admit  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self.address = ""
        self.outside = False  # there was no room for it
        self.stage: Stage = "new"
        self._since = self.loop.time()

    @property
    def waited(self) -> float:
        """Seconds in this stage."""
        return self.loop.time() - self._since

    # -- what uvicorn calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = address_of(self.client[0]) if self.client else ""
        self._time(self._settings.header_timeout_s)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self.look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.look()

    def send_400_response(self, msg: str) -> None:
        self._door.refused("not_http")
        self._refuse(400, "this is not a request that can be understood")

    # -- stages ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Note what the connection is doing now; a new stage has its own time limit."""
        stage = self._stage()
        if stage == self.stage or (stage == "head" and self.stage == "new"):
            return
        self.stage, self._since = stage, self.loop.time()
        limits = {"head": self._settings.header_timeout_s, "idle": self._settings.keep_alive_s, "unwanted": LINGER_S}
        self._stop_timer()
        if stage in limits and not self.transport.is_closing():
            self._time(limits[stage])

    def _stage(self) -> Stage:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            return "stuck" if self.flow.write_paused else "body" if cycle.more_body else "working"
        if self.conn.their_state is h11.SEND_BODY:
            return "unwanted"
        return "head" if cycle is None or self.conn.trailing_data[0] else "idle"

    def _time(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self.look()  # a response may have begun since
        if self.stage in ("new", "head"):
            self._door.refused("slow_head")
            self._refuse(408, f"the headers did not arrive within {self._settings.header_timeout_s:g} s")
        elif self.stage in ("idle", "unwanted"):
            self.transport.close()

    # -- refusing ----------------------------------------------------------------------------------------------

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.outside:
            scope["crowded"] = not self._door.admit(self)
        await self._inner(scope, receive, send)  # type: ignore[arg-type]

    def make_room(self) -> None:
        """Close this connection for the sake of another."""
        self.look()
        self._door.refused("crowded")
        if self.stage == "stuck":
            self.transport.abort()  # it does not read what we send
        elif self.stage in ("idle", "unwanted"):
            self.transport.close()
        else:
            self._refuse(503, "too many connections: this one kept others waiting", retry_after=1)

    def _refuse(self, status: int, message: str, retry_after: int | None = None) -> None:
        """Answer without asking the app, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            request_id = uuid.uuid4().hex
            body = json.dumps(error_body(status, message, request_id)).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            headers += [("x-request-id", request_id), ("x-content-type-options", "nosniff")]
            if retry_after is not None:
                headers.append(("retry-after", str(retry_after)))
            answer = [
                h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ]
            self.transport.write(b"".join(self.conn.send(part) or b"" for part in answer))
        self.transport.close()


def tls_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """What the listener needs, or None without files. TLS 1.2 and newer."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise GeniusError("TLS needs both a certificate and its key (--tls-cert, --tls-key)")
    for file in (certificate, key):
        if not Path(file).is_file():
            raise GeniusError(f"no such file for TLS: {file}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def no_password() -> str:
        raise GeniusError(f"the key {key} is protected by a password: give one that is not")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        if isinstance(error, GeniusError):
            raise
        raise GeniusError(f"cannot use {certificate} with {key} for TLS: {getattr(error, 'reason', None) or error}") from None
    return context


class _Server(uvicorn.Server):
    """uvicorn finishes open requests on SIGTERM. This also turns `/readyz` to 503 at once, and ends with status 0. And it
    opens the door itself: connections are watched from their first byte, TLS handshakes included."""

    def __init__(self, config: uvicorn.Config, service: Service, tls: ssl.SSLContext | None, alone: bool = True) -> None:
        super().__init__(config)
        self._service, self._tls, self._alone = service, tls, alone
        self.on_answering: Callable[[], None] = lambda: None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would raise the signal again after the drain; nothing is logged here: handlers interrupt writes
        self._service.draining = True
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        settings = self._service.config
        door = Door(
            settings.max_connections,
            [address_of(proxy) for proxy in settings.trusted_proxies],
            lambda reason: self._service.metrics.rejected.labels(reason).inc(),
        )

        def connect() -> GuardedProtocol:
            return GuardedProtocol(
                door=door,
                settings=settings,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        patience = settings.header_timeout_s if self._tls is not None else None
        for listener in sockets or []:
            # beside others, one connection at a time: who is idle takes the next, and nobody takes them all
            opening = asyncio.get_running_loop().create_server(
                connect, sock=listener, ssl=self._tls, backlog=1024 if self._alone else 1, ssl_handshake_timeout=patience
            )
            self.servers.append(await opening)
            listener.listen(1024)  # how many may wait is another matter
        self.on_answering()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        event("drain", open_connections=len(self.server_state.connections))
        await super().shutdown(sockets)


def serve(app: FastAPI, config: ServeConfig, on_listening: Callable[[str], None] = lambda url: None) -> bool:
    """Listen until SIGTERM or SIGINT; False if something could not be finished. Port 0 takes a free one; `on_listening`
    is told the address."""
    server, listener, url = build(app, config)
    on_listening(url)
    server.run(sockets=[listener])
    return bool(app.state.service.drained)


def serve_as_worker(app: FastAPI, config: ServeConfig, listener: socket.socket, ready: int) -> bool:
    """The same on a socket that others answer on, too; `ready`: a pipe to say on that this one does now."""
    server, _, _ = build(app, config, listener)

    def say() -> None:
        os.write(ready, b"1")
        os.close(ready)

    server.on_answering = say
    server.run(sockets=[listener])
    return bool(app.state.service.drained)


def address(listener: socket.socket, config: ServeConfig) -> str:
    host, port = listener.getsockname()[:2]
    return f"http{'s' if config.tls_cert else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def build(app: FastAPI, config: ServeConfig, shared: socket.socket | None = None) -> tuple[_Server, socket.socket, str]:
    """The server, not yet running, the socket it will listen on (`shared`: one that others listen on, too), and its address."""
    tls = tls_context(config.tls_cert, config.tls_key)
    listener = shared or bind(config)
    _allow_many_files()
    options = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=max(1, round(config.keep_alive_s)),
        timeout_graceful_shutdown=max(1, round(config.drain_s)),
        h11_max_incomplete_event_size=64 * 1024,
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=list(config.trusted_proxies),
        ws="none",
        loop="asyncio",  # whatever else is installed: connections are watched with what this loop does
        lifespan="on",
    )
    return _Server(options, app.state.service, tls, alone=shared is None), listener, address(listener, config)


def leave(status: int) -> NoReturn:
    """End the process now. What was acknowledged is on disk; taking the interpreter, the model and the database's threads
    apart would take seconds, and a hung thread would keep it for ever."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _allow_many_files() -> None:
    """A connection is an open file, and some systems allow only 256 unless asked."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(config: ServeConfig) -> socket.socket:
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise GeniusError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from None
    return listener
