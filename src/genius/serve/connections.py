"""Connections: how long one may take to say what it wants, and who has to go when there are too many.

uvicorn's protocol knows a limit for idle connections only: one that sends half a header keeps its place for ever. Here every
connection that keeps us waiting has a time limit, and a full house makes room by closing the one that has waited
longest, of the address that has most. One that cannot get a place is still answered: `/healthz` as always, anything else
with 503 in the promised shape.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any, Literal

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from genius.serve.auth import address_of
from genius.serve.errors import error_body
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
