"""A waiting line in which nobody's crowd comes before somebody else's only job.

Jobs wait in *lanes* (kinds of work) and, within a lane, by *owner* (who asks). Lanes get equal shares of the worker's
time, owners equal shares of their lane's, as far as each has something waiting: start-time fair queueing. Knows
nothing of threads or of what the jobs are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


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
