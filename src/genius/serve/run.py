"""Run the app under uvicorn: one process, JSON logs, and a SIGTERM that lets everyone finish."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from genius.errors import GeniusError
from genius.serve.logs import event
from genius.serve.service import Service
from genius.serve.settings import ServeConfig


class _Server(uvicorn.Server):
    """uvicorn finishes open requests on SIGTERM. This also turns `/readyz` to 503 at once, and ends with status 0."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would raise the signal again after the drain; nothing is logged here: handlers interrupt writes
        self._service.draining = True
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        event("drain", open_connections=len(self.server_state.connections))
        await super().shutdown(sockets)


def serve(app: FastAPI, config: ServeConfig, on_listening: Callable[[str], None] = lambda url: None) -> None:
    """Listen until SIGTERM or SIGINT. Port 0 takes a free one; `on_listening` is told the address."""
    listener = _bind(config)
    host, port = listener.getsockname()[:2]
    on_listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    options = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=max(1, round(config.drain_s)),
        h11_max_incomplete_event_size=64 * 1024,
        limit_concurrency=config.max_connections,
        ws="none",
        lifespan="on",
    )
    _Server(options, app.state.service).run(sockets=[listener])
    if not app.state.service.drained:  # a hung thread would keep the process; what was acknowledged is on disk
        logging.shutdown()
        os._exit(1)


def _bind(config: ServeConfig) -> socket.socket:
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
