"""Dynamic batching with fair shares: jobs that arrive while the worker is busy share its next pass.

A bounded queue and a few worker threads. Nothing here knows what a job is: `run` takes jobs of one group and returns a result
or an exception for each. A job that nobody waits for any more is not run.

Jobs wait in *lanes* (types of work) and, within a lane, by *owner* (the caller). Lanes get equal shares of the workers' time, and
owners equal shares of their lane's, as far as each has something waiting (start-time fair queueing). When the queue is full, a
caller with few jobs waiting replaces the newest job of the one with the most.
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


class QueueFull(Exception):
    """The queue is full: try again after `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full, try again in {retry_after} s")
        self.retry_after = retry_after


class Expired(Exception):
    """The job's time limit passed before its turn."""


class Closed(Exception):
    """The service is shutting down and takes no new work."""


@dataclass(slots=True)
class _Owner(Generic[J]):
    """Jobs of one caller in a lane, as (arrival number, job)."""

    used: float  # seconds of work charged, plus the lane's clock when it joined
    jobs: deque[tuple[int, J]] = field(default_factory=deque)


@dataclass(slots=True)
class _Lane(Generic[J]):
    used: float = 0.0
    clock: float = 0.0  # `used` of the owner served last: newcomers start here, so that waiting earns nothing
    owners: dict[str, _Owner[J]] = field(default_factory=dict)  # only those with jobs waiting

    def first_arrival(self) -> int:
        return min(owner.jobs[0][0] for owner in self.owners.values())


class FairQueue(Generic[J]):
    """Jobs in lanes and by owner. Not thread-safe: the batcher holds its lock."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[J]] = {}
        self._clock = 0.0
        self._count = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return self._count

    def push(self, job: J, lane: str = "", owner: str = "") -> None:
        place = self._lanes.setdefault(lane, _Lane())
        if not place.owners:
            place.used = max(place.used, self._clock)
        if owner not in place.owners:
            place.owners[owner] = _Owner(place.clock)
        place.owners[owner].jobs.append((self._arrivals, job))
        self._arrivals += 1
        self._count += 1

    def take(self, limit: Callable[[str], int], alike: Callable[[J, J], bool]) -> tuple[str, list[tuple[str, J]]]:
        """The next jobs: the first of the owner whose turn it is, and others of its lane that may share its pass.

        Args:
            limit: Most jobs of a pass, by lane.
            alike: Whether two jobs may share a pass.

        Returns:
            The lane, and (owner, job) pairs in order of arrival after the first. Call it only when something waits.
        """
        waiting = [name for name, lane in self._lanes.items() if lane.owners]
        name = min(waiting, key=lambda n: (self._lanes[n].used, self._lanes[n].first_arrival()))
        lane = self._lanes[name]
        owner = min(lane.owners, key=lambda o: (lane.owners[o].used, lane.owners[o].jobs[0][0]))
        self._clock = lane.used
        lane.clock = lane.owners[owner].used
        arrival, first = lane.owners[owner].jobs[0]
        chosen = [(arrival, owner, first)]
        most = limit(name)
        if most > 1:
            others = [
                (number, who, job)
                for who, place in lane.owners.items()
                for number, job in place.jobs
                if number != arrival and alike(first, job)
            ]
            others.sort(key=lambda entry: entry[0])
            chosen += others[: most - 1]
        self._remove(lane, {number for number, _, _ in chosen})
        return name, [(who, job) for _, who, job in chosen]

    def charge(self, lane: str, owners: Sequence[str], seconds: float) -> None:
        """Charge a pass of `seconds` to its lane, and in equal parts to the owners of its jobs (one entry per job)."""
        place = self._lanes[lane]
        place.used += seconds
        for owner in owners:
            if owner in place.owners:
                place.owners[owner].used += seconds / len(owners)

    def evict(self, lane: str, owner: str) -> J | None:
        """Remove the newest job of whoever has most waiting, if that is at least two more than the given owner has."""
        sizes = {(name, who): len(place.jobs) for name, ln in self._lanes.items() for who, place in ln.owners.items()}
        largest = max(sizes, key=lambda cell: sizes[cell], default=None)
        if largest is None or sizes[largest] < sizes.get((lane, owner), 0) + 2:
            return None
        crowded = self._lanes[largest[0]]
        arrival, job = crowded.owners[largest[1]].jobs[-1]
        self._remove(crowded, {arrival})
        return job

    def drain(self) -> Iterator[J]:
        """Remove and yield everything."""
        for lane in self._lanes.values():
            for place in lane.owners.values():
                yield from (job for _, job in place.jobs)
            lane.owners.clear()
        self._count = 0

    def _remove(self, lane: _Lane[J], arrivals: set[int]) -> None:
        self._count -= len(arrivals)
        for owner in list(lane.owners):
            place = lane.owners[owner]
            place.jobs = deque(entry for entry in place.jobs if entry[0] not in arrivals)
            if not place.jobs:
                del lane.owners[owner]


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
    deadline: float  # time.monotonic()
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

    def submit(self, job: J, timeout_s: float, owner: str = "") -> Future[tuple[R, int]]:
        """Queue a job.

        Args:
            job: What `run` gets.
            timeout_s: Seconds it may wait; then its future fails with `Expired`.
            owner: Whose share of the time it takes.

        Returns:
            A future of the result and the number of jobs in its pass.

        Raises:
            QueueFull: At once, rather than letting anyone wait in vain.
            Closed: The batcher is closing.
        """
        waiting: _Waiting[J, R] = _Waiting(job, time.monotonic() + timeout_s)
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
        live = []
        for waiting in batch:
            if waiting.deadline <= started:
                waiting.fail(Expired("its turn came too late"))
            elif waiting.future.set_running_or_notify_cancel():
                live.append(waiting)
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
