"""`Sample`: part of a collection, for a look at a large dataset before anything expensive is done.

Some queries of every task, all of their positives, and other candidates drawn by their id, so the same call gives the
same part on every machine. Fewer candidates make every task easier: numbers on a sample compare with each other only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from genius.data.collection import Collection, JudgedQuery, Task
from genius.errors import GeniusError
from genius.types import Item


class Sample:
    """At most `queries` of each task (0: all) and about `candidates` items (0: all)."""

    def __init__(self, inner: Collection, *, queries: int = 0, candidates: int = 0, seed: int = 0) -> None:
        if queries < 0 or candidates < 0:
            raise GeniusError("a sample needs a positive number of queries and candidates, or 0 for all")
        self.inner, self.seed, self._sizes = inner, seed, (queries, candidates)
        self.name = f"{inner.name}-sample"
        self._asked = self._pick_queries(queries)
        needed: set[str] = set()
        for judged in inner.queries():
            if judged.id in self._asked:
                needed.update(judged.positives)
        self._kept = self._pick_items(needed, candidates)

    @property
    def tasks(self) -> Sequence[Task]:
        return self.inner.tasks

    def _place(self, name: str) -> bytes:
        return hashlib.sha256(f"{self.seed}:{name}".encode()).digest()[:8]

    def _pick_queries(self, most: int) -> set[str]:
        by_task: dict[int, list[str]] = {}
        for judged in self.inner.queries():
            by_task.setdefault(judged.task, []).append(judged.id)
        return {name for names in by_task.values() for name in sorted(names, key=self._place)[: most or None]}

    def _pick_items(self, needed: set[str], most: int) -> set[str]:
        others = sorted((item.id for item in self.inner.pool() if item.id not in needed), key=self._place)
        return needed | set(others if not most else others[: max(0, most - len(needed))])

    def queries(self) -> Iterator[JudgedQuery]:
        return (judged for judged in self.inner.queries() if judged.id in self._asked)

    def pool(self) -> Iterator[Item]:
        return (item for item in self.inner.pool() if item.id in self._kept)

    def local_pool(self, task: int) -> Iterator[str] | None:
        own = self.inner.local_pool(task)
        return None if own is None else (name for name in own if name in self._kept)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.inner.fingerprint()}:{self._sizes}:{self.seed}".encode()).hexdigest()[:24]
