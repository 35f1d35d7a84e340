"""`Collection`: what every dataset looks like before the encoder, and `Sample`: part of one.

Tasks, a stream of queries with their positives, one pool of items, and for each task the part of the pool that is its
own. Nothing here opens an image. The datasets themselves are in `mbeir` and `genius.data`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from genius.data.readers import Row, read_jsonl_rows
from genius.errors import GeniusError
from genius.types import Item, Modality, Query


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a results table: a dataset and a direction."""

    key: str  # unique in its collection, "mscoco_task0" in M-BEIR
    dataset: str  # "MSCOCO"
    query: Modality
    target: Modality
    cutoffs: tuple[int, ...] = (1, 5, 10)  # k of every hit@k that is reported
    main: int = 5  # the k of the tables

    @property
    def direction(self) -> str:
        return f"{self.query.label}->{self.target.label}"

    @property
    def title(self) -> str:
        return f"{self.dataset} {self.direction}"


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """A query with the ids of its positives."""

    id: str
    query: Query
    positives: tuple[str, ...]
    task: int  # position in the collection's tasks
    times: int = 1  # visits per training epoch (M-BEIR up-samples small datasets)


@runtime_checkable
class Collection(Protocol):
    """A dataset on disk. Streams may be read several times and always come in the same order."""

    name: str

    @property
    def tasks(self) -> Sequence[Task]: ...

    def queries(self) -> Iterator[JudgedQuery]: ...

    def pool(self) -> Iterator[Item]:
        """Every candidate, once: the universal pool."""
        ...

    def local_pool(self, task: int) -> Iterator[str] | None:
        """Ids of the task's own candidates; None: the whole pool is its own."""
        ...

    def fingerprint(self) -> str:
        """Changes when a file of the dataset does, so that features are never those of older data."""
        ...


def files_fingerprint(paths: Iterable[Path], *extra: str) -> str:
    digest = hashlib.sha256("|".join(extra).encode())
    for path in sorted(paths):
        stat = path.stat()
        digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def read_jsonl(path: Path) -> Iterator[Row]:
    """One object per line; a broken line is named by its number."""
    try:
        for number, row in read_jsonl_rows(path):
            if isinstance(row, str):
                raise GeniusError(f"{path}:{number} is {row}")
            yield row
    except FileNotFoundError:
        raise GeniusError(f"no such file: {path}") from None
    except OSError as error:
        raise GeniusError(f"cannot read {path}: {error.strerror or error}") from None


class ProblemCounter:
    """Counts problems by description and keeps the first examples, for one line at the end."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[str]] = {}

    def add(self, problem: str, example: str) -> None:
        self.counts[problem] = self.counts.get(problem, 0) + 1
        kept = self.examples.setdefault(problem, [])
        if len(kept) < 3:
            kept.append(example)

    def once(self, name: str, known: set[str], what: str) -> None:
        """Add a name to those that are `known`; each may occur once."""
        if name in known:
            self.add(f"{what} occur twice", name)
        known.add(name)

    def raise_if_any(self, where: str) -> None:
        if self.counts:
            parts = [f"{count} {name} (e.g. {', '.join(self.examples[name])})" for name, count in self.counts.items()]
            raise GeniusError(f"{where}: {'; '.join(parts)}")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a check found in a sound collection."""

    queries: int
    items: int
    pairs: int
    per_task: dict[str, int]  # task key -> queries


def check_collection(collection: Collection, *, images: bool = True) -> Summary:
    """Read every line once and fail with counts and examples, before hours are spent.

    Looks for: ids that occur twice (in all, or in one task's pool), queries without a positive or with none in the task's
    own pool, missing image files. Further positives may lie elsewhere: OVEN's and InfoSeek's queries name each other's
    candidates.

    Args:
        collection: The dataset.
        images: Whether image files are looked for.

    Raises:
        GeniusError: One line with all problems.
    """
    problems = ProblemCounter()
    known: set[str] = set()
    for item in collection.pool():
        problems.once(item.id, known, "candidate ids")
        if images:
            _check_image(item.image, item.id, "candidates' images are missing", problems)
    local: list[set[str] | None] = []
    for number, task in enumerate(collection.tasks):
        ids = collection.local_pool(number)
        query_positives = set[str]()
        for name in ids or ():
            problems.once(name, query_positives, f"candidate ids of the pool of {task.key}")
        for name in query_positives - known:
            problems.add(f"candidates of the pool of {task.key} are not in the universal pool", name)
        local.append(None if ids is None else query_positives)
    seen: set[str] = set()
    per_task = [0] * len(collection.tasks)
    pairs = 0
    for judged in collection.queries():
        problems.once(judged.id, seen, "query ids")
        per_task[judged.task] += 1
        if not judged.positives:
            problems.add("queries have no positive", judged.id)
            continue
        pool = local[judged.task]
        inside = sum(positive in known for positive in judged.positives)
        local_positives = inside
        if pool is not None:
            local_positives = sum(positive in pool for positive in judged.positives)
        pairs += inside
        if not inside:
            problems.add("queries have no positive in any pool", f"{judged.id} -> {judged.positives[0]}")
        elif not local_positives:
            problems.add("queries have no positive in their task's own pool", f"{judged.id} -> {judged.positives[0]}")
        if images:
            _check_image(judged.query.image, judged.id, "queries' images are missing", problems)
    if not known:
        problems.add("pools are empty", collection.name)
    if not seen:
        problems.add("query files are empty", collection.name)
    problems.raise_if_any(collection.name)
    counts = {task.key: n for task, n in zip(collection.tasks, per_task, strict=True)}
    return Summary(len(seen), len(known), pairs, counts)


def _check_image(image: object, name: str, problem: str, problems: ProblemCounter) -> None:
    if isinstance(image, str | Path) and not Path(image).is_file():
        problems.add(problem, f"{name}: {image}")


class Sample:
    """At most `queries` of each task (0: all) and about `candidates` items (0: all)."""

    def __init__(self, inner: Collection, *, queries: int = 0, candidates: int = 0, seed: int = 0) -> None:
        if queries < 0 or candidates < 0:
            raise GeniusError("a sample needs a positive number of queries and candidates, or 0 for all")
        self.inner = inner
        self.seed = seed
        self._sizes = (queries, candidates)
        self.name = f"{inner.name}-sample"
        self._query_ids = self._pick_queries(queries)
        needed: set[str] = set()
        for judged in inner.queries():
            if judged.id in self._query_ids:
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
        if most:
            others = others[: max(0, most - len(needed))]
        return needed | set(others)

    def queries(self) -> Iterator[JudgedQuery]:
        return (judged for judged in self.inner.queries() if judged.id in self._query_ids)

    def pool(self) -> Iterator[Item]:
        return (item for item in self.inner.pool() if item.id in self._kept)

    def local_pool(self, task: int) -> Iterator[str] | None:
        pool = self.inner.local_pool(task)
        if pool is None:
            return None
        return (name for name in pool if name in self._kept)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.inner.fingerprint()}:{self._sizes}:{self.seed}".encode()).hexdigest()[:24]
