"""Bodies on their way in: how much of them is in memory, for all requests together.

Counted as received, not as announced: who declares sixteen megabytes and sends one byte takes the room of one byte.
When there is no more room, whoever holds most gives way: nobody keeps the others out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from genius.serve.errors import ApiError


@dataclass(slots=True, eq=False)
class Body:
    """One body; `arriving` until its last byte is here."""

    owner: str
    size: int = 0
    arriving: bool = True
    gives_way: bool = False


class Arrivals:
    """The bodies of all requests that are being read or answered. Used in the event loop only."""

    def __init__(self, most: int, free: int) -> None:
        self._most, self._free = most, free
        self._bodies: set[Body] = set()

    def begin(self, owner: str) -> Body:
        body = Body(owner)
        self._bodies.add(body)
        return body

    def end(self, body: Body) -> None:
        self._bodies.discard(body)

    @property
    def held(self) -> int:
        """Bytes that count: beyond the first few of each."""
        return sum(self._counted(body) for body in self._bodies)

    def grow(self, body: Body, size: int) -> None:
        """`size` more bytes of a body have come; 503 if it has to give way."""
        body.size += size
        if self._counted(body) and self.held > self._most:
            self._find_who_gives_way(body).gives_way = True
        self.check(body)

    def check(self, body: Body) -> None:
        if body.gives_way:
            raise ApiError(503, "too many large requests at once", retry_after=1)

    def _counted(self, body: Body) -> int:
        return max(0, body.size - self._free)

    def _find_who_gives_way(self, newest: Body) -> Body:
        """The largest body that is still arriving, of the owner who holds most; the newest one if that is its owner."""
        held: Counter[str] = Counter()
        for body in self._bodies:
            held[body.owner] += self._counted(body)
        greediest = max(held, key=lambda owner: held[owner])
        candidates = [body for body in self._bodies if body.owner == greediest and body.arriving and not body.gives_way]
        if greediest == newest.owner or not candidates:
            return newest
        return max(candidates, key=self._counted)
