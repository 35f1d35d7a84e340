"""The running service: collections behind queues for searches, image decoding, reads and writes.

Knows time limits and what to respond when queues are full. The routes only translate to and from HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from genius.errors import GeniusError, PictureError
from genius.index import Index
from genius.index.opened import Replaced
from genius.index.target import Target
from genius.search import SearchRequest
from genius.serve.auth import Caller, Keys
from genius.serve.backend import LARGE_LANE, Backend, Job, Missing
from genius.serve.batching import Batcher, Closed, QueueFull
from genius.serve.bodies import Arrivals, check_images, decode_base64, decode_image
from genius.serve.errors import ApiError
from genius.serve.logs import Metrics, event
from genius.serve.schemas import SearchBody, SearchResult
from genius.serve.settings import ServeConfig
from genius.types import ImageInput, Query

T = TypeVar("T")
READERS = 4  # threads
SETTINGS = {"k", "min_score", "beams", "rerank", "diverse", "mode", "words_weight", "item_bias", "min_probability"}
"""Fields of a query that a `SearchRequest` has, too."""

COLLECTION_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@dataclass(frozen=True, slots=True, eq=False)
class ExclusiveJob:
    """Work that shares its pass with nothing: decoding an image, explaining, reading or changing the index."""

    work: Callable[[], Any]
    lane: str = ""

    @property
    def group(self) -> ExclusiveJob:
        return self


class Service:
    """Collections, queues, keys and metrics of one process.

    Args:
        collections: Open indexes by name; the first is the one of paths without a collection.
        config: Limits and time limits.
        keys: API keys; none: an open service.
    """

    def __init__(self, collections: Mapping[str, Index], config: ServeConfig, keys: Keys) -> None:
        self.config = config
        self.keys = keys
        self.metrics = Metrics()
        self.arrivals = Arrivals(config.max_inflight_bytes, config.small_body_bytes)
        self.backends: dict[str, Backend] = {}
        for name, index in collections.items():
            if not re.fullmatch(COLLECTION_NAME, name):
                raise GeniusError(f"{name!r} is no collection name: letters, digits, '.', '_' and '-', at most 64")
            base = "/v1"
            if self.backends:
                base = f"/v1/collections/{name}"
            self.backends[name] = Backend(index, config.query_side, name, base)
        if not self.backends:
            raise GeniusError("a service needs at least one collection")
        self.batcher: Batcher[Job | ExclusiveJob, Any] = Batcher(
            _run,
            max_batch=config.max_batch,
            queue_size=config.queue_size,
            pass_s=config.pass_s,
            group=lambda job: job.group,
            lane=lambda job: job.lane,
            cautious=(LARGE_LANE,),
            on_batch=self.metrics.observe_batch,
        )
        self.decoding = _task_queue("genius-decode", config.queue_size, config.decoders)
        self.writing = _task_queue("genius-write", config.max_writes - 1, 1)
        self.reading = _task_queue("genius-read", config.queue_size, READERS)
        self.draining = False  # no new work
        self.drained = True  # False after a close that had to leave something unfinished
        self.metrics.queue.set_function(lambda: self.batcher.depth)

    @property
    def backend(self) -> Backend:
        """The first collection."""
        return next(iter(self.backends.values()))

    # -- search ------------------------------------------------------------------------------------------------

    async def search(self, backend: Backend, body: SearchBody, image: bytes | None, caller: Caller) -> tuple[SearchResult, int]:
        """Results and the number of queries in the pass, or an ApiError that says what to do."""
        async with self._limited():
            job = await self._job(backend, body, image, caller.owner)
            return cast(tuple[SearchResult, int], await asyncio.wrap_future(self.batcher.submit(job, caller.owner)))

    async def search_batch(self, backend: Backend, bodies: Sequence[SearchBody], caller: Caller) -> list[SearchResult]:
        """Results of several queries, in their order. All or nothing: the first failure is the response, and names its query."""
        futures: list[asyncio.Future[tuple[SearchResult, int]]] = []
        async with self._limited():
            try:
                for number, body in enumerate(bodies):
                    with _naming(number):
                        image = decode_base64(body.image, self.config)
                        job = replace(await self._job(backend, body, image, caller.owner), batched=True)
                    futures.append(asyncio.wrap_future(self.batcher.submit(job, caller.owner)))
                results = []
                for number, future in enumerate(futures):
                    with _naming(number):
                        results.append((await future)[0])
                return results
            finally:
                for future in futures:
                    future.cancel()

    async def explain(self, backend: Backend, body: SearchBody, image: bytes | None, caller: Caller) -> dict[str, Any]:
        """How the results of a query come about. Queued with the searches, in a lane of its own."""
        most = self.config.max_explain_beams
        if body.beams is not None and body.beams > most:
            raise ApiError(422, f"beams: at most {most} for an explanation")
        async with self._limited():
            job = await self._job(backend, body, image, caller.owner)
            return await _done(self.batcher, lambda: backend.explain(job), "explain", caller.owner)

    async def _job(self, backend: Backend, body: SearchBody, image: bytes | None, owner: str) -> Job:
        text, picture = await self._content(backend, body.text, image, body.like, owner)
        negative_image = decode_base64(body.minus_image, self.config)
        negative_content = await self._content(backend, body.minus, negative_image, body.minus_like, owner)
        negative = None
        if any(part is not None for part in negative_content):
            negative = Query(*negative_content)
        target = Target.parse(body.target, body.modality)
        given = body.model_dump(include=SETTINGS)
        where = (body.where or "").strip() or None
        request = SearchRequest(**given, where=where, strict=target.strict, any_modality=target.any_modality)
        backend.check_query(body.vector, body.mode)
        query = Query(text, picture, body.instruction, target.modality, negative, body.vector)
        return Job(query, request, backend, body.like)

    async def _content(
        self, backend: Backend, text: str | None, image: bytes | None, like: str | None, owner: str
    ) -> tuple[str | None, ImageInput | None]:
        """Text and image of a query: as sent, or those of an indexed item."""
        words = (text or "").strip() or None
        if image is not None:
            decode = functools.partial(decode_image, image, self.config, backend.shrink)
            return words, await _done(self.decoding, decode, "sent", owner)
        if like is None:
            return words, None
        return await _done(self.decoding, lambda: backend.like(like, words), "like", owner)

    # -- reads and writes --------------------------------------------------------------------------------------

    async def read(self, work: Callable[[], T], caller: Caller, lane: str = "") -> T:
        """Run something that reads, in a thread, within the time limit. `lane`: slower reads have one of their own."""
        async with self._limited():
            return await _done(self.reading, work, lane, caller.owner)

    async def check_images(self, images: Sequence[bytes | None], caller: Caller) -> None:
        """Refuse images by their headers before anything is stored. A broken one is found when it is decoded, and then
        nothing is stored either."""
        present = [image for image in images if image is not None]
        if present:
            await self.read(lambda: check_images(present, self.config), caller)

    async def write(self, operation: str, work: Callable[[], T], caller: Caller, items: int = 1) -> T:
        """Run a write: one at a time, a short queue, a time limit."""
        if self.config.read_only:
            raise ApiError(403, "this server is read-only")
        with self._explaining_failures():
            try:
                future = self.writing.submit(ExclusiveJob(work), caller.owner)
                done, _ = await asyncio.wait_for(asyncio.wrap_future(future), self.config.write_timeout_s)
            except QueueFull:
                raise self._refuse("writes", "too many writes are waiting", 2) from None
            except TimeoutError:
                if future.cancel() or future.cancelled():
                    raise self._refuse("writes", "the write waited too long for its turn; nothing was written", 5) from None
                limit = f"{self.config.write_timeout_s:g} s"
                raise ApiError(504, f"not written within {limit}; it may still complete: read the item to find out") from None
        self.metrics.writes.labels(operation).inc(items)
        return cast(T, done)

    # -- refusals ----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """503 while shutting down."""
        if self.draining:
            raise self._refuse("shutting_down", "the server is shutting down")

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[None]:
        """Within the time limit of a request."""
        with self._explaining_failures():
            async with asyncio.timeout(self.config.timeout_s):
                yield

    @contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        """What stops a request becomes a response that says what to do."""
        try:
            yield
        except QueueFull as error:
            raise self._refuse("queue_full", "too many requests are waiting", error.retry_after) from None
        except Closed:
            raise self._refuse("shutting_down", "the server is shutting down") from None
        except Missing as error:
            raise ApiError(404, str(error)) from None
        except GeniusError as error:
            raise self._blame(error) from None
        except TimeoutError:
            self.metrics.rejected.labels("timeout").inc()
            raise ApiError(504, f"no answer within {self.config.timeout_s:g} s") from None

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
        if isinstance(error, Replaced):
            event("index_replaced", logging.ERROR, message=text)
            return self._refuse("index", "the index was replaced by another: the server must be started again", 5)
        if text.startswith("cannot ") and not isinstance(error, PictureError):
            event("index_error", logging.ERROR, message=text)
            return self._refuse("index", "the index cannot be used right now, see the server's log", 5)
        return error

    # -- life cycle --------------------------------------------------------------------------------------------

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
        queues: tuple[Batcher[Any, Any], ...] = (self.decoding, self.batcher, self.writing, self.reading)
        finished = [
            queue.close(max(0.0, deadline - time.monotonic())) for queue in queues
        ]  # in this order: images become searches
        for backend in self.backends.values():
            backend.close()
        self.drained = all(finished)
        return self.drained

    def limits(self) -> dict[str, int]:
        names = ("max_body_bytes", "max_image_bytes", "max_pixels", "max_k", "max_items", "max_queries")
        return {name: getattr(self.config, name) for name in names}


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """Name the query of a batch in errors about it."""
    try:
        yield
    except ApiError as error:
        raise ApiError(error.status, f"queries.{number}: {error.message}", retry_after=error.retry_after) from None
    except Missing as error:
        raise Missing(f"queries.{number}: {error}") from None
    except GeniusError as error:
        if str(error).startswith("cannot "):  # of the index, not of the query
            raise
        raise GeniusError(f"queries.{number}: {error}") from None


def _run(jobs: Sequence[Job | ExclusiveJob]) -> Sequence[Any]:
    """One pass: searches of one group, or a single task."""
    first = jobs[0]
    if isinstance(first, ExclusiveJob):
        return [_attempt(first)]
    return first.backend.run(cast(Sequence[Job], jobs))


def _attempt(task: ExclusiveJob) -> Any:
    try:
        return task.work()
    except Exception as error:
        return error


async def _done(queue: Batcher[Any, Any], work: Callable[[], T], lane: str, owner: str) -> T:
    """The result of work that shares its pass with nothing."""
    result, _ = await asyncio.wrap_future(queue.submit(ExclusiveJob(work, lane), owner))
    return cast(T, result)


def _task_queue(name: str, queue_size: int, workers: int) -> Batcher[ExclusiveJob, Any]:
    return Batcher(
        lambda tasks: [_attempt(task) for task in tasks],
        max_batch=1,
        queue_size=queue_size,
        workers=workers,
        lane=lambda task: task.lane,
        name=name,
    )
