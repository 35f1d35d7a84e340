"""Dynamic batching: jobs that arrive while the worker is busy share its next pass, and nobody's crowd comes before somebody
else's only job.

A bounded queue and a few worker threads. Nothing here knows what a job is: `run` takes jobs of one group and returns,
for each, a result or the exception that job alone deserves. A job that nobody waits for any more is not run.

Jobs wait in *lanes* (kinds of work) and, within a lane, by *owner* (who asks). Lanes get equal shares of the worker's
time, owners equal shares of their lane's, as far as each has something waiting: start-time fair queueing. A full queue lets the
one in who has less waiting, in place of the newest of who has most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

J = TypeVar("J")
R = TypeVar("R")


@dataclass(slots=True)
class _Share:
    """How much time something has had. `clock` is what a newcomer below it starts from: waiting saves nothing up."""

    used: float = 0.0
    clock: float = 0.0


@dataclass(slots=True)
class _Lane(_Share, Generic[T]):
    owners: dict[str, tuple[_Share, deque[tuple[int, T]]]] = field(default_factory=dict)  # only who has jobs waiting


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[T]] = {}
        self._clock = 0.0
        self._count = self._arrivals = 0

    def __len__(self) -> int:
        return self._count

    def push(self, job: T, lane: str = "", owner: str = "") -> None:
        place = self._lanes.setdefault(lane, _Lane())
        if not place.owners:
            place.used = max(place.used, self._clock)
        if owner not in place.owners:
            place.owners[owner] = (_Share(place.clock), deque())
        place.owners[owner][1].append((self._arrivals, job))
        self._arrivals += 1
        self._count += 1

    def take(self, most: Callable[[str], int], alike: Callable[[T, T], bool]) -> tuple[str, list[tuple[str, T]]]:
        """The lane whose turn it is and its next jobs, with their owners: the first in turn and those `alike`, in the
        order they came, at most `most(lane)`. Call it only when something waits."""
        name, lane = min(
            ((n, place) for n, place in self._lanes.items() if place.owners), key=lambda pair: (pair[1].used, _first(pair[1]))
        )
        owner = min(lane.owners, key=lambda o: (lane.owners[o][0].used, lane.owners[o][1][0][0]))
        self._clock, lane.clock = lane.used, lane.owners[owner][0].used
        lead = lane.owners[owner][1][0]
        company = (
            sorted(
                (arrival, who, job)
                for who, (_, waiting) in lane.owners.items()
                for arrival, job in waiting
                if arrival != lead[0] and alike(lead[1], job)
            )
            if most(name) > 1
            else []
        )
        chosen = [(lead[0], owner, lead[1]), *company[: most(name) - 1]]
        self._remove(lane, {arrival for arrival, _, _ in chosen})
        return name, [(who, job) for _, who, job in chosen]

    def charge(self, lane: str, owners: Sequence[str], seconds: float) -> None:
        """Time that a lane had, shared by the owners of the jobs it was spent on."""
        place = self._lanes[lane]
        place.used += seconds
        for owner in owners:
            if owner in place.owners:
                place.owners[owner][0].used += seconds / len(owners)

    def give_way(self, lane: str, owner: str) -> T | None:
        """Take out the newest job of whoever has most waiting, if that is at least two more than the given owner has."""
        sizes = {(name, who): len(jobs) for name, place in self._lanes.items() for who, (_, jobs) in place.owners.items()}
        largest = max(sizes, key=lambda cell: sizes[cell], default=None)
        if largest is None or sizes[largest] < sizes.get((lane, owner), 0) + 2:
            return None
        crowded = self._lanes[largest[0]]
        arrival, job = crowded.owners[largest[1]][1][-1]
        self._remove(crowded, {arrival})
        return job

    def drain(self) -> Iterator[T]:
        """Take out everything."""
        for place in self._lanes.values():
            for _, waiting in place.owners.values():
                yield from (job for _, job in waiting)
            place.owners.clear()
        self._count = 0

    def _remove(self, lane: _Lane[T], arrivals: set[int]) -> None:
        self._count -= len(arrivals)
        for owner in list(lane.owners):
            share, waiting = lane.owners[owner]
            left = deque(pair for pair in waiting if pair[0] not in arrivals)
            if left:
                lane.owners[owner] = (share, left)
            else:
                del lane.owners[owner]


def _first(lane: _Lane[T]) -> int:
    return min(waiting[0][0] for _, waiting in lane.owners.values())


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
class PassSize:
    """How many jobs a pass may have so that it takes about `seconds`: fewer after a long one, more while there is time left."""

    most: int
    largest: int
    seconds: float
    _long: int = 0  # passes in a row that took too long

    def learn(self, jobs: int, took: float) -> None:
        self._long = self._long + 1 if took > self.seconds else 0
        if self._long and (jobs > 1 or self._long > 1):  # a single job that took long once may have met a cold start
            self.most = max(1, int(jobs * self.seconds / took))
        elif jobs >= self.most and took < self.seconds / 2:
            self.most = min(self.largest, 2 * self.most)


@dataclass(slots=True)
class _Waiting(Generic[J, R]):
    job: J
    deadline: float  # time.monotonic()
    future: Future[tuple[R, int]] = field(default_factory=Future)  # (result, size of its pass)


class Batcher(Generic[J, R]):
    """`submit` a job, get a future; worker threads run what has queued, at most `max_batch` alike jobs at a time.

    `group`: jobs that agree on it may share a pass. `lane`: the kind of work it is; lanes share the time evenly. A pass is
    kept to about `pass_s` seconds, judging by the last ones of its lane; `cautious` lanes begin with single jobs.
    """

    def __init__(
        self,
        run: Callable[[Sequence[J]], Sequence[R | BaseException]],
        *,
        max_batch: int,
        queue_size: int,
        linger_s: float = 0.0,
        pass_s: float = float("inf"),
        workers: int = 1,
        group: Callable[[J], Hashable] = lambda job: None,
        lane: Callable[[J], str] = lambda job: "",
        cautious: Collection[str] = (),
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
        name: str = "genius-batcher",
    ) -> None:
        self._run, self._group, self._lane, self._on_batch = run, group, lane, on_batch
        self._max_batch, self._queue_size, self._linger_s, self._pass_s = max_batch, queue_size, linger_s, pass_s
        self._cautious = frozenset(cautious)
        self._queue: FairQueue[_Waiting[J, R]] = FairQueue()
        self._changed = threading.Condition()
        self._closing = False
        self._idle = workers
        self._running: dict[int, float] = {}  # thread -> since when
        self._pace = 0.05  # seconds a job takes, smoothed: what Retry-After is made of
        self._sizes: dict[str, PassSize] = {}  # of each lane
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    # -- callers -----------------------------------------------------------------------------------------------

    def submit(self, job: J, timeout_s: float, owner: str = "") -> Future[tuple[R, int]]:
        """Queue a job. Raises `QueueFull` or `Closed` at once rather than letting anyone wait in vain."""
        waiting: _Waiting[J, R] = _Waiting(job, time.monotonic() + timeout_s)
        lane = self._lane(job)
        with self._changed:
            if self._closing:
                raise Closed("the service is shutting down")
            gives_way = None
            if len(self._queue) >= self._queue_size + self._idle:
                gives_way = self._queue.give_way(lane, owner)
                if gives_way is None:
                    raise QueueFull(self.retry_after())
            self._queue.push(waiting, lane, owner)
            self._changed.notify()
        if gives_way is not None:
            _fail(gives_way, QueueFull(self.retry_after()))
        return waiting.future

    def retry_after(self) -> int:
        """Whole seconds until the queue is probably empty: 1 to 60."""
        return max(1, min(60, round(len(self._queue) * self._pace + 0.5)))

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def stuck_s(self) -> float:
        """How long the longest running pass has been running; 0 when idle."""
        since = min(list(self._running.values()), default=None)
        return 0.0 if since is None else time.monotonic() - since

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
            _fail(waiting, Closed("the service is shutting down"))
        return finished

    # -- the workers -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            taken = self._take()
            if taken is None:
                return
            lane, batch = taken
            seconds = self._answer(lane, batch)
            with self._changed:
                self._idle += 1
                self._queue.charge(lane, [owner for owner, _ in batch], seconds)

    def _answer(self, lane: str, batch: list[tuple[str, _Waiting[J, R]]]) -> float:
        """Run one pass and tell everyone; the seconds it took."""
        started = time.monotonic()
        live = [w for _, w in batch if w.future.set_running_or_notify_cancel()]
        for waiting in live:
            if waiting.deadline <= started:
                waiting.future.set_exception(Expired("its turn came too late"))
        live = [w for w in live if w.deadline > started]
        if not live:
            return 0.0
        self._running[threading.get_ident()] = started
        try:
            results: Sequence[R | BaseException] = self._run([w.job for w in live])
            if len(results) != len(live):
                raise RuntimeError(f"{len(live)} jobs gave {len(results)} results")
        except BaseException as error:  # the worker must outlive any job
            results = [error] * len(live)
        del self._running[threading.get_ident()]
        seconds = time.monotonic() - started
        self._pace = 0.8 * self._pace + 0.2 * seconds / len(live)
        self._size(lane).learn(len(live), seconds)
        self._on_batch(len(live), seconds)
        for waiting, result in zip(live, results, strict=True):
            if isinstance(result, BaseException):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result((result, len(live)))
        return seconds

    def _size(self, lane: str) -> PassSize:
        if lane not in self._sizes:
            self._sizes[lane] = PassSize(1 if lane in self._cautious else self._max_batch, self._max_batch, self._pass_s)
        return self._sizes[lane]

    def _take(self) -> tuple[str, list[tuple[str, _Waiting[J, R]]]] | None:
        """Wait for work: a lane and its next jobs with their owners. None when closing and empty."""
        with self._changed:
            while True:
                while not self._queue:
                    if self._closing:
                        return None
                    self._changed.wait()
                self._linger()
                if self._queue:  # or another worker was quicker
                    self._idle -= 1
                    return self._queue.take(lambda lane: self._size(lane).most, self._alike)

    def _alike(self, one: _Waiting[J, R], other: _Waiting[J, R]) -> bool:
        return self._group(one.job) == self._group(other.job)

    def _linger(self) -> None:
        """Wait a moment for company, with the lock held."""
        until = time.monotonic() + self._linger_s
        while len(self._queue) < self._max_batch and not self._closing:
            left = until - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                return


def _fail(waiting: _Waiting[J, R], error: Exception) -> None:
    if waiting.future.set_running_or_notify_cancel():
        waiting.future.set_exception(error)
