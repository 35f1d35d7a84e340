"""Run the app under uvicorn: one process, or one of several on a socket; JSON logs, and a SIGTERM that lets everyone finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from genius.errors import GeniusError
from genius.serve.auth import address_of
from genius.serve.connections import Door, GuardedProtocol
from genius.serve.logs import event
from genius.serve.service import Service
from genius.serve.settings import ServeConfig


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
