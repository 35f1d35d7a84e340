"""Dynamic batching with fair shares: jobs that arrive while the worker is busy share its next pass.

A bounded queue and a few worker threads. Nothing here knows what a job is: `run` takes jobs of one group and returns a result
or an exception for each. A job that nobody waits for any more is not run.

Jobs wait by *lane* (the type of work) and *owner* (the caller). Each such pair gets an equal share of the workers' time, as far
as it has something waiting (start-time fair queueing). When the queue is full, a caller with few jobs waiting replaces the newest
job of the one with the most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")
Share = tuple[str, str]
"""Lane and owner."""


class QueueFull(Exception):
    """The queue is full: try again after `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full, try again in {retry_after} s")
        self.retry_after = retry_after


class Closed(Exception):
    """The service is shutting down and takes no new work."""


class FairQueue(Generic[J]):
    """Jobs by lane and owner. Not thread-safe: the batcher holds its lock."""

    def __init__(self) -> None:
        self._waiting: dict[Share, deque[tuple[int, J]]] = {}  # (arrival number, job); only shares with jobs
        self._used: dict[Share, float] = {}  # seconds of work charged, from the clock on
        self._clock = 0.0  # `used` of the share served last: newcomers start here, so that waiting earns nothing
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(jobs) for jobs in self._waiting.values())

    def push(self, job: J, lane: str = "", owner: str = "") -> None:
        share = lane, owner
        if share not in self._waiting:
            self._waiting[share] = deque()
            self._used[share] = max(self._used.get(share, 0.0), self._clock)
        self._waiting[share].append((self._arrivals, job))
        self._arrivals += 1

    def take(self, limit: Callable[[str], int], alike: Callable[[J, J], bool]) -> tuple[str, list[tuple[str, J]]]:
        """The next jobs: the first of the share whose turn it is, and others of its lane that may join its pass.

        Args:
            limit: Most jobs of a pass, by lane.
            alike: Whether two jobs may be in one pass.

        Returns:
            The lane, and (owner, job) pairs in order of arrival after the first. Call it only when something waits.
        """
        share = min(self._waiting, key=lambda one: (self._used[one], self._waiting[one][0][0]))
        self._clock = self._used[share]
        self._used = {one: used for one, used in self._used.items() if one in self._waiting or used > self._clock}
        lane, owner = share
        arrival, first = self._waiting[share][0]
        chosen = [(arrival, owner, first)]
        most = limit(lane)
        if most > 1:
            others = [
                (number, who, job)
                for (where, who), jobs in self._waiting.items()
                for number, job in jobs
                if where == lane and number != arrival and alike(first, job)
            ]
            others.sort(key=lambda entry: entry[0])
            chosen += others[: most - 1]
        for number, who, _ in chosen:
            self._remove((lane, who), number)
        return lane, [(who, job) for _, who, job in chosen]

    def charge(self, lane: str, owners: Sequence[str], seconds: float) -> None:
        """Charge a pass of `seconds` in equal parts to the owners of its jobs (one entry per job)."""
        for owner in owners:
            self._used[lane, owner] = self._used.get((lane, owner), self._clock) + seconds / len(owners)

    def evict(self, lane: str, owner: str) -> J | None:
        """Remove the newest job of the share with most waiting, if that is at least two more than the given one has."""
        largest = max(self._waiting, key=lambda share: len(self._waiting[share]), default=None)
        if largest is None or len(self._waiting[largest]) < len(self._waiting.get((lane, owner), ())) + 2:
            return None
        arrival, job = self._waiting[largest][-1]
        self._remove(largest, arrival)
        return job

    def drain(self) -> Iterator[J]:
        """Remove and yield everything."""
        for jobs in self._waiting.values():
            yield from (job for _, job in jobs)
        self._waiting.clear()

    def _remove(self, share: Share, arrival: int) -> None:
        left = deque(entry for entry in self._waiting.pop(share) if entry[0] != arrival)
        if left:
            self._waiting[share] = left


@dataclass(slots=True)
class PassSize:
    """How many jobs a pass may have to take about `seconds`: fewer after a long one, more while there is time left."""

    most: int
    largest: int
    seconds: float
    _long: int = 0  # passes in a row that took too long

    def learn(self, jobs: int, took: float) -> None:
        if took > self.seconds:
            self._long += 1
        else:
            self._long = 0
        if self._long and (jobs > 1 or self._long > 1):  # a single slow job may have been a cold start
            self.most = max(1, int(jobs * self.seconds / took))
        elif jobs >= self.most and took < self.seconds / 2:
            self.most = min(self.largest, 2 * self.most)


@dataclass(slots=True)
class _Waiting(Generic[J, R]):
    job: J
    future: Future[tuple[R, int]] = field(default_factory=Future)  # (result, size of its pass)

    def fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class Batcher(Generic[J, R]):
    """`submit` a job, get a future. Worker threads run what has queued, alike jobs together.

    Args:
        run: Takes jobs of one group, returns one result or exception each.
        max_batch: Most jobs of a pass.
        queue_size: Jobs that may wait.
        pass_s: Target duration of a pass; batches of a lane shrink to keep it.
        workers: Threads.
        group: Jobs with equal groups may share a pass.
        lane: The type of work of a job; lanes share the time equally.
        cautious: Lanes whose first passes are single jobs.
        on_batch: Called with size and seconds of every pass.
        name: Prefix of the threads' names.
    """

    def __init__(
        self,
        run: Callable[[Sequence[J]], Sequence[R | BaseException]],
        *,
        max_batch: int,
        queue_size: int,
        pass_s: float = float("inf"),
        workers: int = 1,
        group: Callable[[J], Hashable] = lambda job: None,
        lane: Callable[[J], str] = lambda job: "",
        cautious: Collection[str] = (),
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
        name: str = "genius-batcher",
    ) -> None:
        self._run = run
        self._group = group
        self._lane = lane
        self._on_batch = on_batch
        self._max_batch = max_batch
        self._queue_size = queue_size
        self._pass_s = pass_s
        self._cautious = frozenset(cautious)
        self._queue: FairQueue[_Waiting[J, R]] = FairQueue()
        self._changed = threading.Condition()
        self._closing = False
        self._idle = workers
        self._running: dict[int, float] = {}  # thread -> start of its pass
        self._job_seconds = 0.05  # smoothed: what Retry-After is estimated from
        self._sizes: dict[str, PassSize] = {}  # per lane
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    # -- callers -----------------------------------------------------------------------------------------------

    def submit(self, job: J, owner: str = "") -> Future[tuple[R, int]]:
        """Queue a job.

        Args:
            job: What `run` gets.
            owner: Whose share of the time it takes.

        Returns:
            A future of the result and the number of jobs in its pass. Who gives up waiting cancels it.

        Raises:
            QueueFull: At once, rather than letting anyone wait in vain.
            Closed: The batcher is closing.
        """
        waiting: _Waiting[J, R] = _Waiting(job)
        lane = self._lane(job)
        evicted = None
        with self._changed:
            if self._closing:
                raise Closed("the service is shutting down")
            if len(self._queue) >= self._queue_size + self._idle:
                evicted = self._queue.evict(lane, owner)
                if evicted is None:
                    raise QueueFull(self.retry_after())
            self._queue.push(waiting, lane, owner)
            self._changed.notify()
        if evicted is not None:
            evicted.fail(QueueFull(self.retry_after()))
        return waiting.future

    def retry_after(self) -> int:
        """Whole seconds until the queue is probably empty: 1 to 60."""
        return max(1, min(60, round(len(self._queue) * self._job_seconds + 0.5)))

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def stuck_s(self) -> float:
        """Age of the longest running pass; 0 when idle."""
        now = time.monotonic()
        return now - min(list(self._running.values()), default=now)

    def close(self, timeout_s: float) -> bool:
        """Take no new jobs, finish the queued ones, stop. False if that took longer than `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        finished = not any(thread.is_alive() for thread in self._threads)
        with self._changed:
            left = list(self._queue.drain())
        for waiting in left:
            waiting.fail(Closed("the service is shutting down"))
        return finished

    # -- workers -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            taken = self._take()
            if taken is None:
                return
            lane, batch = taken
            seconds = self._answer(lane, [waiting for _, waiting in batch])
            with self._changed:
                self._idle += 1
                self._queue.charge(lane, [owner for owner, _ in batch], seconds)

    def _take(self) -> tuple[str, list[tuple[str, _Waiting[J, R]]]] | None:
        """Wait for work: a lane and its next jobs with their owners. None when closing and empty."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            self._idle -= 1
            return self._queue.take(lambda lane: self._size(lane).most, self._alike)

    def _alike(self, one: _Waiting[J, R], other: _Waiting[J, R]) -> bool:
        return self._group(one.job) == self._group(other.job)

    def _size(self, lane: str) -> PassSize:
        if lane not in self._sizes:
            first = self._max_batch
            if lane in self._cautious:
                first = 1
            self._sizes[lane] = PassSize(first, self._max_batch, self._pass_s)
        return self._sizes[lane]

    def _answer(self, lane: str, batch: Sequence[_Waiting[J, R]]) -> float:
        """Run one pass and set its futures; returns the seconds it took."""
        started = time.monotonic()
        live = [waiting for waiting in batch if waiting.future.set_running_or_notify_cancel()]
        if not live:
            return 0.0
        self._running[threading.get_ident()] = started
        try:
            results: Sequence[R | BaseException] = self._run([waiting.job for waiting in live])
            if len(results) != len(live):
                raise RuntimeError(f"{len(live)} jobs gave {len(results)} results")
        except BaseException as error:  # the worker must outlive any job
            results = [error] * len(live)
        del self._running[threading.get_ident()]
        seconds = time.monotonic() - started
        self._job_seconds = 0.8 * self._job_seconds + 0.2 * seconds / len(live)
        self._size(lane).learn(len(live), seconds)
        self._on_batch(len(live), seconds)
        for waiting, result in zip(live, results, strict=True):
            if isinstance(result, BaseException):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result((result, len(live)))
        return seconds
