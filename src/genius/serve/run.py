"""Run the app under uvicorn: one process, or several on one socket. JSON logs, a drain on SIGTERM, TLS.

What uvicorn has options for is an option here; `connections.py` has the limits it has none for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from genius.errors import GeniusError
from genius.serve import logs
from genius.serve.connections import Listener, Options, accepted_at_once
from genius.serve.settings import ServeConfig

OPEN_FILES = 8192  # a connection is an open file, and some systems allow only 256 by default
SEND_BUFFER_BYTES = 256 * 1024  # of a connection: a client that reads nothing gets no more made for it
WORKER_TIMEOUT_S = 60  # for a worker that lives to answer its supervisor, and for a replacement to be ready


class _Server(uvicorn.Server):
    """uvicorn finishes requests in flight on SIGTERM; this one then ends with status 0 instead of raising the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logs.event("drain", open_connections=len(self.server_state.connections))
        await super().shutdown(sockets)


class Supervisor(Multiprocess):
    """uvicorn's supervisor, which notices at once that a worker died, also one that it is asking for a sign of life."""

    def keep_subprocess_alive(self) -> None:
        for process in self.processes:
            process.child_conn.close()  # the worker has its own: when it dies, the pipe ends, and nobody waits for an answer
        super().keep_subprocess_alive()


def serve(app: FastAPI, config: ServeConfig, on_listening: Callable[[str], None] = lambda url: None) -> bool:
    """Listen until SIGTERM or SIGINT.

    Args:
        app: From `create_app`.
        config: Its settings; port 0 takes a free one.
        on_listening: Called with the address.

    Returns:
        False if something could not be finished in time.
    """
    server, listener, url = build(app, config)
    on_listening(url)
    server.run(sockets=[listener])
    return bool(app.state.service.drained)


def serve_workers(
    open_app: Callable[[], FastAPI], config: ServeConfig, workers: int, on_listening: Callable[[str], None]
) -> None:
    """The same with several processes on one socket, supervised by uvicorn.

    One that dies is replaced. SIGHUP replaces all, one by one, each when its successor is ready.

    Args:
        open_app: Makes the app in each process; it must be picklable (a module's function, or a partial of one).
        config: Settings of every worker.
        workers: How many.
        on_listening: Called with the address.
    """
    listener = bind(config)
    on_listening(address(listener, config))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    app = functools.partial(_worker_app, open_app, config)
    Supervisor(_options(app, config, factory=True, workers=workers), [listener]).run()


def _worker_app(open_app: Callable[[], FastAPI], config: ServeConfig) -> FastAPI:
    logs.configure(config.log_level)
    try:
        return open_app()
    except GeniusError as error:
        logs.event("not_started", logging.ERROR, message=str(error))
        sys.exit(STARTUP_FAILURE)  # tells the supervisor that another try would fail, too


def build(app: FastAPI, config: ServeConfig) -> tuple[uvicorn.Server, socket.socket, str]:
    """The server, not yet running, the socket it will listen on, and its address."""
    check_tls(config.tls_cert, config.tls_key)
    listener = bind(config)
    return _Server(_options(app, config)), listener, address(listener, config)


def _options(app: Any, config: ServeConfig, **more: Any) -> Options:
    return Options(
        app,
        config,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=max(1, round(config.keep_alive_s)),
        timeout_graceful_shutdown=max(1, round(config.drain_s)),
        timeout_worker_healthcheck=WORKER_TIMEOUT_S,
        backlog=accepted_at_once(config),
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=list(config.trusted_proxies),
        ssl_certfile=config.tls_cert or None,
        ssl_keyfile=config.tls_key or None,
        ws="none",
        loop="asyncio",
        lifespan="on",
        **more,
    )


def check_tls(certificate: str, key: str) -> None:
    """One clear line for TLS files that cannot be used, or whose key needs a password."""
    if not certificate and not key:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise GeniusError(f"cannot use {certificate or 'no certificate'} with {key or 'no key'} for TLS: {reason}") from None


def bind(config: ServeConfig) -> socket.socket:
    """A listening socket; raises the limit of open files to what connections need."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        open_files = OPEN_FILES
        if hard != resource.RLIM_INFINITY:
            open_files = min(OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < open_files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
    try:
        addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, socket_type, protocol, _, place = addresses[0]
        listener = Listener(family, socket_type, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(place)
        listener.listen()
        listener.set_inheritable(True)
    except OSError as error:
        raise GeniusError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from None
    return listener


def address(listener: socket.socket, config: ServeConfig) -> str:
    host, port = listener.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    scheme = "http"
    if config.tls_cert:
        scheme = "https"
    return f"{scheme}://{host}:{port}"


def leave(status: int) -> NoReturn:
    """End the process now. What was acknowledged is on disk; taking the model and the database's threads apart would take
    seconds, and a hung thread would keep the process for ever."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
