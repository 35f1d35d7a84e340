"""The running service: an index behind a queue for searches, a line for writes, and threads for the rest.

Knows time limits and what to say when there is no room; the routes only translate to and from HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from genius.errors import GeniusError
from genius.serve.auth import Keys
from genius.serve.backend import Backend, Job, Missing, Options, SearchIndex
from genius.serve.batching import Batcher, Closed, Expired, QueueFull
from genius.serve.errors import ApiError
from genius.serve.limits import decode_picture
from genius.serve.logs import event
from genius.serve.metrics import Metrics
from genius.serve.schemas import HitOut, SearchRequest
from genius.serve.settings import ServeConfig
from genius.types import ImageInput, Modality, Query

T = TypeVar("T")
READERS = 4


class Service:
    def __init__(self, index: SearchIndex, level_sizes: tuple[int, ...], config: ServeConfig, keys: Keys) -> None:
        self.config = config
        self.keys = keys
        self.metrics = Metrics()
        self.backend = Backend(index, level_sizes)
        self.batcher: Batcher[Job, list[HitOut]] = Batcher(
            self.backend.run,
            max_batch=config.max_batch,
            queue_size=config.queue_size,
            linger_s=config.linger_ms / 1000,
            on_batch=self.metrics.observe_batch,
        )
        self._readers = ThreadPoolExecutor(READERS, "genius-read")
        self._decoders = ThreadPoolExecutor(config.decoders, "genius-decode")
        self._writer = ThreadPoolExecutor(1, "genius-write")
        self._write_room = threading.BoundedSemaphore(config.max_writes)
        self._reads = self._searches = 0
        self._body_bytes = 0
        self._writing: set[Future[Any]] = set()
        self.draining = False  # no new work
        self.drained = True  # False after a close that had to leave something unfinished
        self.metrics.queue.set_function(lambda: self.batcher.depth)

    # -- admission ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def admitted(self, declared_bytes: int | None) -> AsyncIterator[None]:
        """Room for one more body in memory, or 503 before it is read."""
        if self.draining:
            raise self._refuse("shutting_down", "the server is shutting down")
        size = self.config.max_body_bytes if declared_bytes is None else declared_bytes
        if self._searches >= self.config.queue_size + 2 * self.config.max_batch:
            raise self._refuse("queue_full", "too many requests at once", self.batcher.retry_after())
        if self._body_bytes and self._body_bytes + size > self.config.max_inflight_bytes:
            raise self._refuse("memory", "too many large requests at once")
        self._searches += 1
        self._body_bytes += size
        try:
            yield
        finally:
            self._searches -= 1
            self._body_bytes -= size

    def _refuse(self, reason: str, message: str, retry_after: int = 1) -> ApiError:
        self.metrics.rejected.labels(reason).inc()
        return ApiError(503, message, retry_after=retry_after)

    def _blame(self, error: GeniusError) -> Exception:
        """Most are the caller's mistake (422); some are the disk's or the database's, whose paths are not for callers."""
        text = str(error)
        if "disk is full" in text:
            return ApiError(507, "the disk is full; nothing that was there is lost")
        if "being written by another" in text:
            return self._refuse("locked", "another process is writing to the index", 5)
        if text.startswith("cannot "):  # how the index words what its database could not do
            event("index_error", logging.ERROR, message=text)
            return self._refuse("index", "the index cannot be used right now, see the server's log", 5)
        return error

    # -- search ------------------------------------------------------------------------------------------------

    async def search(self, asked: SearchRequest, picture: bytes | None) -> tuple[list[HitOut], int]:
        """(hits, size of the batch), or an ApiError that says what to do."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.config.timeout_s):
                job = await self._job(asked, picture)
                left = self.config.timeout_s - (time.monotonic() - started)
                return await asyncio.wrap_future(self.batcher.submit(job, left))
        except QueueFull as error:
            raise self._refuse("queue_full", "too many searches are waiting", error.retry_after) from None
        except Expired:
            raise self._refuse("expired", "the search waited too long for its turn", self.batcher.retry_after()) from None
        except Closed:
            raise self._refuse("shutting_down", "the server is shutting down") from None
        except GeniusError as error:
            raise self._blame(error) from None
        except TimeoutError:
            self.metrics.rejected.labels("timeout").inc()
            raise ApiError(504, f"no answer within {self.config.timeout_s:g} s") from None

    async def _job(self, asked: SearchRequest, picture: bytes | None) -> Job:
        loop = asyncio.get_running_loop()
        text = (asked.text or "").strip() or None
        image: ImageInput | None = None
        if picture is not None:
            side = self.config.query_side
            image = await loop.run_in_executor(self._decoders, lambda: decode_picture(picture, self.config, side=side))
        elif asked.like is not None:
            like = asked.like
            try:
                text, image = await loop.run_in_executor(self._decoders, lambda: self.backend.like(like, text))
            except Missing as error:
                raise ApiError(404, str(error)) from None
        target = None if asked.target is None else Modality.parse(asked.target)
        query = Query(text=text, image=image, instruction=asked.instruction, target=target)
        where = (asked.where or "").strip() or None
        return Job(query, asked.k, Options(where, asked.min_score, asked.beams, asked.rerank), asked.like)

    # -- other work --------------------------------------------------------------------------------------------

    async def read(self, work: Callable[[], T]) -> T:
        """Run something quick that reads, in a thread, within the time limit."""
        if self._reads >= self.config.queue_size:
            raise self._refuse("reads", "too many requests at once")
        self._reads += 1
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._readers, work), self.config.timeout_s)
        except TimeoutError:
            raise ApiError(504, f"no answer within {self.config.timeout_s:g} s") from None
        except Missing as error:
            raise ApiError(404, str(error)) from None
        except GeniusError as error:
            raise self._blame(error) from None
        finally:
            self._reads -= 1

    async def check_pictures(self, pictures: list[bytes]) -> None:
        """Refuse broken or huge pictures before anything is written."""
        for data in pictures:
            await asyncio.get_running_loop().run_in_executor(self._decoders, decode_picture, data, self.config)

    async def write(self, operation: str, work: Callable[[], T], items: int = 1) -> T:
        """Run a write: one at a time, a short line, a time limit."""
        if self.config.read_only:
            raise ApiError(403, "this server is read-only")
        if not self._write_room.acquire(blocking=False):
            raise self._refuse("writes", "too many writes are waiting", 2)
        future = self._writer.submit(work)
        self._writing.add(future)
        future.add_done_callback(self._wrote)  # also when nobody waits any more
        try:
            done = await asyncio.wait_for(asyncio.wrap_future(future), self.config.write_timeout_s)
        except TimeoutError:
            raise ApiError(
                504, f"not written within {self.config.write_timeout_s:g} s; it may still be: ask for the item"
            ) from None
        except Missing as error:
            raise ApiError(404, str(error)) from None
        except GeniusError as error:
            raise self._blame(error) from None
        self.metrics.writes.labels(operation).inc(items)
        return done

    def _wrote(self, future: Future[Any]) -> None:
        self._writing.discard(future)
        self._write_room.release()

    # -- life --------------------------------------------------------------------------------------------------

    def ready(self) -> str | None:
        """None if requests can be answered, else why not."""
        if self.draining:
            return "shutting down"
        if self.batcher.stuck_s > 2 * self.config.timeout_s:
            return f"the model has not answered for {self.batcher.stuck_s:.0f} s"
        return None

    def close(self) -> bool:
        """Finish what is queued, then stop. False if something did not finish in time."""
        self.draining = True
        deadline = time.monotonic() + self.config.drain_s
        searched = self.batcher.close(self.config.drain_s)
        unwritten = wait(list(self._writing), max(0.0, deadline - time.monotonic())).not_done
        for pool in (self._readers, self._decoders, self._writer):
            pool.shutdown(wait=False, cancel_futures=True)
        self.backend.index.close()
        self.drained = searched and not unwritten
        return self.drained

    def describe_limits(self) -> dict[str, int]:
        config = self.config
        return {name: getattr(config, name) for name in ("max_body_bytes", "max_image_bytes", "max_pixels", "max_k", "max_items")}
