"""Dynamic batching: requests that arrive while the model is busy share its next pass.

A bounded queue and one worker thread. Nothing here knows what a job is: `run` takes a list of jobs and returns, for
each, a result or the exception that job alone deserves. A job that nobody waits for any more is not run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")


class QueueFull(Exception):
    """The queue holds as much as it may: try again after `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full, try again in {retry_after} s")
        self.retry_after = retry_after


class Expired(Exception):
    """The job's time was over before its turn came."""


class Closed(Exception):
    """The service is shutting down and takes no new work."""


@dataclass(slots=True)
class _Waiting(Generic[J, R]):
    job: J
    deadline: float  # time.monotonic()
    future: Future[tuple[R, int]] = field(default_factory=Future)  # (result, size of its batch)


class Batcher(Generic[J, R]):
    """`submit` a job, get a future; a worker thread runs what has queued, at most `max_batch` at a time."""

    def __init__(
        self,
        run: Callable[[Sequence[J]], Sequence[R | BaseException]],
        *,
        max_batch: int,
        queue_size: int,
        linger_s: float = 0.0,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._queue_size = queue_size
        self._linger_s = linger_s
        self._on_batch = on_batch
        self._queue: deque[_Waiting[J, R]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy_since: float | None = None
        self._pace = 0.05  # seconds a job takes, smoothed: what Retry-After is made of
        self._thread = threading.Thread(target=self._work, name="genius-batcher", daemon=True)
        self._thread.start()

    # -- callers -----------------------------------------------------------------------------------------------

    def submit(self, job: J, timeout_s: float) -> Future[tuple[R, int]]:
        """Queue a job. Raises `QueueFull` or `Closed` at once rather than letting anyone wait in vain."""
        waiting: _Waiting[J, R] = _Waiting(job, time.monotonic() + timeout_s)
        with self._changed:
            if self._closing:
                raise Closed("the service is shutting down")
            if len(self._queue) >= self._queue_size:
                raise QueueFull(self.retry_after())
            self._queue.append(waiting)
            self._changed.notify()
        return waiting.future

    def retry_after(self) -> int:
        """Whole seconds until the queue is probably empty: 1 to 60."""
        return max(1, min(60, round(len(self._queue) * self._pace + 0.5)))

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def stuck_s(self) -> float:
        """How long the running batch has been running; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self, timeout_s: float) -> bool:
        """Take no new jobs, finish the queued ones, stop. False if that took longer than `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:
            left = list(self._queue) if self._thread.is_alive() else []
            self._queue.clear()
        for waiting in left:
            if waiting.future.set_running_or_notify_cancel():
                waiting.future.set_exception(Closed("the service is shutting down"))
        return not self._thread.is_alive()

    # -- the worker --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            batch = self._take()
            if batch is None:
                return
            live = [w for w in batch if w.future.set_running_or_notify_cancel()]
            now = time.monotonic()
            for waiting in live:
                if waiting.deadline <= now:
                    waiting.future.set_exception(Expired("its turn came too late"))
            live = [w for w in live if w.deadline > now]
            if not live:
                continue
            self._busy_since = now
            try:
                results: Sequence[R | BaseException] = self._run([w.job for w in live])
                if len(results) != len(live):
                    raise RuntimeError(f"{len(live)} jobs gave {len(results)} results")
            except BaseException as error:  # the worker must outlive any job
                results = [error] * len(live)
            seconds = time.monotonic() - now
            self._busy_since = None
            self._pace = 0.8 * self._pace + 0.2 * seconds / len(live)
            self._on_batch(len(live), seconds)
            for waiting, result in zip(live, results, strict=True):
                if isinstance(result, BaseException):
                    waiting.future.set_exception(result)
                else:
                    waiting.future.set_result((result, len(live)))

    def _take(self) -> list[_Waiting[J, R]] | None:
        """Wait for work; None when closing and empty."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            if self._linger_s > 0 and not self._closing:
                until = time.monotonic() + self._linger_s
                while len(self._queue) < self._max_batch and not self._closing:
                    left = until - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
            return [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
