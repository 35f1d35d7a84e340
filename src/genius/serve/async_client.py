"""`AsyncGeniusClient`: the client for `async` programs. Each call runs in a thread, so that others go on meanwhile."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from genius.serve.client import GeniusClient

P = ParamSpec("P")
R = TypeVar("R")


def _later(
    method: Callable[Concatenate[GeniusClient, P], R],
) -> Callable[Concatenate[AsyncGeniusClient, P], Coroutine[Any, Any, R]]:
    @functools.wraps(method)
    async def call(self: AsyncGeniusClient, /, *args: P.args, **options: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.client, *args, **options)

    return call


class AsyncGeniusClient:
    """The same methods as `GeniusClient`, to be awaited: `hits = (await client.search("a red bicycle")).hits`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """As `GeniusClient`."""
        self.client = GeniusClient(*args, **options)

    async def __aenter__(self) -> AsyncGeniusClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    search = _later(GeniusClient.search)
    explain = _later(GeniusClient.explain)
    add = _later(GeniusClient.add)
    put = _later(GeniusClient.put)
    get = _later(GeniusClient.get)
    delete = _later(GeniusClient.delete)
    image = _later(GeniusClient.image)
    thumbnail = _later(GeniusClient.thumbnail)
    codes = _later(GeniusClient.codes)
    info = _later(GeniusClient.info)
    ready = _later(GeniusClient.ready)
    wait_until_ready = _later(GeniusClient.wait_until_ready)
    close = _later(GeniusClient.close)
