"""The running service: an index behind waiting lines for searches, pictures, reads and writes.

Knows time limits and what to say when there is no room; the routes only translate to and from HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from genius.errors import GeniusError, PictureError
from genius.index import Index
from genius.index.searching import wanted_kind
from genius.search import SearchRequest
from genius.serve.auth import Audit, Caller, Change, KeyRing, Keys
from genius.serve.backend import LARGE_LANE, Answers, Backend, Job, Missing
from genius.serve.batching import Batcher, Closed, Expired, QueueFull
from genius.serve.bodies import Arrivals, check_pictures, decode_base64, decode_picture
from genius.serve.logs import ApiError, Metrics, event
from genius.serve.schemas import SearchBody
from genius.serve.settings import ServeConfig
from genius.types import ImageInput, Query

T = TypeVar("T")
READERS = 4


@dataclass(frozen=True, slots=True)
class Task:
    """Work that is done alone: decoding a picture, reading or changing the index."""

    work: Callable[[], Any]
    lane: str = ""


def _alone(name: str, queue: int, workers: int) -> Batcher[Task, Any]:
    """A waiting line of work that is done one by one."""
    return Batcher(
        lambda tasks: [_attempt(task) for task in tasks],
        max_batch=1,
        queue_size=queue,
        workers=workers,
        lane=lambda task: task.lane,
        name=name,
    )


def _attempt(task: Task) -> Any:
    try:
        return task.work()
    except Exception as error:
        return error


class Service:
    def __init__(self, index: Index, config: ServeConfig, keys: Keys | KeyRing) -> None:
        self.config = config
        self.ring = keys if isinstance(keys, KeyRing) else KeyRing(keys)
        self.metrics = Metrics()
        self.audit = Audit(config.audit)
        self.arrivals = Arrivals(config.max_inflight_bytes, config.small_body_bytes)
        self.backend = Backend(index, config.query_side)
        self.batcher: Batcher[Job, Answers] = Batcher(
            self.backend.run,
            max_batch=config.max_batch,
            queue_size=config.queue_size,
            linger_s=config.linger_ms / 1000,
            pass_s=config.pass_s,
            group=lambda job: job.group,
            lane=lambda job: job.lane,
            cautious=(LARGE_LANE,),
            on_batch=self.metrics.observe_batch,
        )
        self.decoding = _alone("genius-decode", config.queue_size, config.decoders)
        self.writing = _alone("genius-write", config.max_writes - 1, 1)
        self.reading = _alone("genius-read", config.queue_size, READERS)
        self._searches = 0
        self.draining = False  # no new work
        self.drained = True  # False after a close that had to leave something unfinished
        self.metrics.queue.set_function(lambda: self.batcher.depth)

    @property
    def keys(self) -> Keys:
        return self.ring.current()

    # -- saying no ---------------------------------------------------------------------------------------------

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A request with a body, counted while it is read and answered; 503 while shutting down."""
        if self.draining:
            raise self._refuse("shutting_down", "the server is shutting down")
        self._searches += 1
        try:
            yield
        finally:
            self._searches -= 1

    def _refuse(self, reason: str, message: str, retry_after: int = 1) -> ApiError:
        self.metrics.rejected.labels(reason).inc()
        return ApiError(503, message, retry_after=retry_after)

    def _timeout(self, seconds: float) -> ApiError:
        self.metrics.rejected.labels("timeout").inc()
        return ApiError(504, f"no answer within {seconds:g} s")

    def _blame(self, error: GeniusError) -> Exception:
        """Most are the caller's mistake (422); some are the disk's or the database's, whose paths are not for callers."""
        text = str(error)
        if "disk is full" in text:
            return ApiError(507, "the disk is full; nothing that was there is lost")
        if "being written by another" in text:
            return self._refuse("locked", "another process is writing to the index", 5)
        if text.startswith("cannot ") and not isinstance(error, PictureError):  # what the index's database could not do
            event("index_error", logging.ERROR, message=text)
            return self._refuse("index", "the index cannot be used right now, see the server's log", 5)
        return error

    # -- search ------------------------------------------------------------------------------------------------

    async def search(self, asked: SearchBody, picture: bytes | None, caller: Caller) -> tuple[Answers, int]:
        """(hits, size of the pass), or an ApiError that says what to do."""
        started = time.monotonic()
        with self._saying_why():
            async with asyncio.timeout(self.config.timeout_s):
                job = await self._job(asked, picture, caller.owner)
                left = self.config.timeout_s - (time.monotonic() - started)
                return await asyncio.wrap_future(self.batcher.submit(job, left, caller.owner))

    async def explain(self, asked: SearchBody, picture: bytes | None, caller: Caller) -> dict[str, Any]:
        """How the answers to a question come about."""
        with self._saying_why():
            async with asyncio.timeout(self.config.timeout_s):
                job = await self._job(asked, picture, caller.owner)
        return await self.read(lambda: self.backend.explain(job), caller, "explain")

    @contextmanager
    def _saying_why(self) -> Iterator[None]:
        """What stops a search becomes an answer that says what to do."""
        try:
            yield
        except QueueFull as error:
            raise self._refuse("queue_full", "too many searches are waiting", error.retry_after) from None
        except Expired:
            raise self._refuse("expired", "the search waited too long for its turn", self.batcher.retry_after()) from None
        except Closed:
            raise self._refuse("shutting_down", "the server is shutting down") from None
        except GeniusError as error:
            raise self._blame(error) from None
        except TimeoutError:
            raise self._timeout(self.config.timeout_s) from None

    async def _job(self, asked: SearchBody, picture: bytes | None, owner: str) -> Job:
        text, image = await self._content(asked.text, picture, asked.like, owner)
        sent = None if asked.minus_image is None else decode_base64(asked.minus_image, self.config)
        unwanted = await self._content(asked.minus, sent, asked.minus_like, owner)
        minus = Query(*unwanted) if any(part is not None for part in unwanted) else None
        query = Query(text, image, asked.instruction, wanted_kind(asked.target, asked.modality), minus)
        where = (asked.where or "").strip() or None
        strict = asked.modality is not None
        request = SearchRequest(asked.k, where, asked.min_score, asked.beams, asked.rerank, strict=strict, diverse=asked.diverse)
        return Job(query, request, asked.like)

    async def _content(
        self, text: str | None, picture: bytes | None, like: str | None, owner: str
    ) -> tuple[str | None, ImageInput | None]:
        """Words and picture of what is asked: as sent, or those of an indexed item."""
        words = (text or "").strip() or None
        if picture is not None:
            return words, await self._decode("sent", lambda: decode_picture(picture, self.config, self.backend.shrink), owner)
        if like is None:
            return words, None
        try:
            return await self._decode("like", lambda: self.backend.like(like, words), owner)
        except Missing as error:
            raise ApiError(404, str(error)) from None

    async def _decode(self, lane: str, work: Callable[[], T], owner: str) -> T:
        future = self.decoding.submit(Task(work, lane), self.config.timeout_s, owner)
        return cast(T, (await asyncio.wrap_future(future))[0])

    # -- other work --------------------------------------------------------------------------------------------

    async def read(self, work: Callable[[], T], caller: Caller, lane: str = "") -> T:
        """Run something that reads, in a thread, within the time limit. `lane`: what takes longer has one of its own."""
        try:
            future = self.reading.submit(Task(work, lane), self.config.timeout_s, caller.owner)
            return cast(T, (await asyncio.wait_for(asyncio.wrap_future(future), self.config.timeout_s))[0])
        except QueueFull as error:
            raise self._refuse("reads", "too many requests at once", error.retry_after) from None
        except Closed:
            raise self._refuse("shutting_down", "the server is shutting down") from None
        except (TimeoutError, Expired):
            raise self._timeout(self.config.timeout_s) from None
        except Missing as error:
            raise ApiError(404, str(error)) from None
        except GeniusError as error:
            raise self._blame(error) from None

    async def check_pictures(self, pictures: list[bytes], caller: Caller) -> None:
        """Refuse pictures by their headers before anything is written; a broken one is found when it is decoded, and then
        nothing is written either."""
        if pictures:
            await self.read(lambda: check_pictures(pictures, self.config), caller)

    async def write(self, change: Change, work: Callable[[], T], items: int = 1) -> T:
        """Run a write: one at a time, a short line, a time limit."""
        if self.config.read_only:
            raise ApiError(403, "this server is read-only")
        if not self.audit.usable():
            raise self._refuse("audit", "the audit log cannot be written: no changes meanwhile", 5)
        try:
            future = self.writing.submit(Task(lambda: self._audited(change, work)), float("inf"), change.caller.owner)
        except QueueFull:
            raise self._refuse("writes", "too many writes are waiting", 2) from None
        except Closed:
            raise self._refuse("shutting_down", "the server is shutting down") from None
        try:
            done, _ = await asyncio.wait_for(asyncio.wrap_future(future), self.config.write_timeout_s)
        except (QueueFull, Closed):  # gave way to someone who had less waiting, or the server is going down
            raise self._refuse("writes", "too many writes are waiting", 2) from None
        except TimeoutError:
            if future.cancel() or future.cancelled():
                raise self._refuse("writes", "the write waited too long for its turn; nothing was written", 5) from None
            raise ApiError(
                504, f"not written within {self.config.write_timeout_s:g} s; it may still be: ask for the item"
            ) from None
        except Missing as error:
            raise ApiError(404, str(error)) from None
        except GeniusError as error:
            raise self._blame(error) from None
        self.metrics.writes.labels(change.operation).inc(items)
        return cast(T, done)

    def _audited(self, change: Change, work: Callable[[], T]) -> T:
        change.begun = True
        try:
            done = work()
        except Exception as error:
            if change.settled:  # its caller was told that it takes too long, and waits no more
                known = isinstance(error, GeniusError | Missing)
                self.audit.record(change, "failed", 504, str(error) if known else type(error).__name__)
            raise
        self.audit.record(change, "done", 200)
        return done

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
        # pictures first, since they become searches
        lines: tuple[Batcher[Any, Any], ...] = (self.decoding, self.batcher, self.writing, self.reading)
        done = [line.close(max(0.0, deadline - time.monotonic())) for line in lines]
        self.backend.close()
        self.drained = all(done)
        return self.drained

    def describe_limits(self) -> dict[str, int]:
        config = self.config
        return {name: getattr(config, name) for name in ("max_body_bytes", "max_image_bytes", "max_pixels", "max_k", "max_items")}
