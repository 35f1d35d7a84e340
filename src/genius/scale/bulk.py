"""`genius index ... --ray`: parts go to workers, records come back, one commit makes them an index.

Workers are Ray actors that hold the model. A worker that dies is replaced and its parts are done again; a part that takes three
workers with it, or fails by itself, is listed and left out, and a later run tries it again. Nothing is lost by killing anything,
this program included: what has a record is not done twice.

The commit (`genius.index.appending`) moves data files in as they are, no row is read or written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from genius.data.readers import TABLE_SUFFIXES
from genius.errors import GeniusError
from genius.index import Index
from genius.index.appending import holds_rows, numbering, take_in
from genius.index.folder import WriteLock
from genius.index.ingest import IngestConfig, IngestReport
from genius.index.names import root_of
from genius.scale import connected, load_ray
from genius.scale.parts import LOCK, Part, PartIndexer, Record, Staging, cut

IN_FLIGHT = 2  # parts that a worker has: one that it does, and the next
TRIES = 3  # workers that a part may outlive
SILENCE = 120.0  # seconds without any worker after which a message says that we wait

Tell = Callable[[int, int], None]
"""Hears of items that are done since the last call, and of how many there are in all (0: unknown)."""


def was_taken_in(index: Index, staging: Staging) -> bool:
    """Whether the job that lies here was committed, and only its removal is missing: its row numbers are nobody else's."""
    numbers = staging.range()
    return numbers is not None and holds_rows(index, *numbers)


@dataclass(frozen=True, slots=True)
class BulkConfig:
    """How work is spread."""

    address: str = "local"  # of the cluster
    workers: int = 0  # 0: one a GPU, or where there is none, one a processor
    part_rows: int = 1024  # items of a part; a multiple of the batch, so that batches are those of one process
    thumbnails: int = 256
    device: str = "auto"


@dataclass(slots=True)
class BulkReport:
    """What a run did, beyond what any indexing reports."""

    report: IngestReport
    items: int = 0  # in the index now
    parts: int = 0
    resumed: int = 0  # parts that an earlier run had done
    failed: list[str] = field(default_factory=list)  # a line for each part that could not be done
    cpu_s: float = 0.0  # processor time of the workers, loading the model aside
    lost_workers: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.report.to_dict(),
            "parts": self.parts,
            "resumed": self.resumed,
            "failed": self.failed,
            "lost_workers": self.lost_workers,
            "worker_cpu_s": round(self.cpu_s, 3),
        }


def bulk_index(
    paths: Sequence[str | Path],
    output: Path,
    model: str | None,
    ingest: IngestConfig,
    config: BulkConfig,
    tell: Tell = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
    spread: Callable[[_Work], None] | None = None,
) -> BulkReport:
    """Index files and folders with the workers of a cluster, all of which must see them, and the index, under the same paths.

    `spread`: another way than Ray to have the parts done."""
    if ingest.prune:
        raise GeniusError("--prune compares all sources with the index: run `genius index --prune` without --ray afterwards")
    if spread is None:
        load_ray()  # what is missing is said before an index is made
    started = monotonic()
    report = BulkReport(IngestReport())
    with Index(output.absolute(), model, thumbnails=config.thumbnails) as index:
        staging = Staging(index.path)
        staging.create()
        with WriteLock(staging.folder / LOCK, 0.0).hold():
            if was_taken_in(index, staging):
                staging.clear()
            salt = f"{index.about.fingerprint}|{config.thumbnails}"
            root = root_of(index, paths, TABLE_SUFFIXES)
            parts = cut(paths, ingest, config.part_rows, salt, report.report, root)
            with numbering(index) as reserve:
                first = staging.begin(parts, reserve)
            todo = [part for part in parts if staging.record(part, first[part.name]) is None]
            report.parts = len(parts)
            report.resumed = len(parts) - len(todo)
            if todo:
                (spread or _on_ray)(_Work(index.path, ingest, config, todo, first, tell, say, report))
            records = _records(staging, parts, first, report.failed)
            taken = take_in(index, [staging.data_files(record) for record in records])
            try:
                staging.clear()
                report.items = index.count()
            except GeniusError as error:
                raise GeniusError(f"{error}; the change is made: all items are in {output}") from None
    for record in records:
        report.report.problems += record.problems
        report.report.problems.total += record.problems_total - len(record.problems)
        report.report.unchanged += record.unchanged
    report.report.problems += taken.problems
    report.report.added = taken.added
    report.report.replaced = taken.replaced
    report.report.seconds = monotonic() - started
    return report


def _records(staging: Staging, parts: Sequence[Part], first: Mapping[str, int], failed: Sequence[str]) -> list[Record]:
    """The records of all parts but those that failed and are named.

    Raises:
        GeniusError: A part was done, but its record cannot be read: without it its items would be left out in silence.
    """
    records = []
    for part in parts:
        record = staging.record(part, first[part.name])
        if record is not None:
            records.append(record)
        elif not any(line.startswith(f"{part}: ") for line in failed):
            raise GeniusError(f"{part} was indexed, but that cannot be read back; nothing was added: run it again")
    return records


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done, and who hears of it."""

    index: Path
    ingest: IngestConfig
    config: BulkConfig
    parts: Sequence[Part]
    first: Mapping[str, int]  # `_seq` of each part's first row
    tell: Tell
    say: Callable[[str], None]
    report: BulkReport

    def arguments(self) -> tuple[Path, IngestConfig, int, str]:
        """Of a `PartIndexer`."""
        return self.index, self.ingest, self.config.thumbnails, self.config.device


def _on_ray(work: _Work) -> None:
    with connected(work.config.address, work.config.workers or None) as ray:
        _Run(ray, work).run()


class _Run:
    """The driver's loop: never more than `IN_FLIGHT` parts at a worker, and none at one that has not started yet."""

    def __init__(self, ray: Any, work: _Work) -> None:
        self.ray = ray
        self.work = work
        self.report = work.report
        config = work.config
        parts = work.parts
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if config.device != "cpu" else 0
        self.wanted = min(config.workers or gpus or max(1, int(resources.get("CPU", 1))), len(parts))
        options = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        self.make = ray.remote(**options, max_restarts=0)(PartIndexer)
        self.queue = deque((part, 0) for part in parts)
        self.total = 0
        if all(part.items for part in parts):
            self.total = sum(part.items for part in parts)
        self.pending: dict[Any, tuple[Any, Part | None, int]] = {}  # reference -> worker, part (None: it starts), tries
        self.workers: dict[Any, int] = {}  # that have started -> parts in flight
        self.deaths = 0  # since a part was last done

    def run(self) -> None:
        for _ in range(self.wanted):
            self._start()
        last_reply = monotonic()
        try:
            while self.queue or any(part is not None for _, part, _ in self.pending.values()):
                done, _ = self.ray.wait(list(self.pending), num_returns=1, timeout=5.0)
                if done:
                    last_reply = monotonic()
                    self._settle(done[0])
                    self._feed()
                elif not self.workers and monotonic() - last_reply > SILENCE:
                    self.work.say("waiting for a worker: has the cluster any processor or GPU free?")
                    last_reply = monotonic()
        finally:
            for worker in {*self.workers, *(worker for worker, _, _ in self.pending.values())}:
                self.ray.kill(worker)  # also one that still waits for a place to start, and may never get it

    def _start(self) -> None:
        worker = self.make.remote(*self.work.arguments())
        self.pending[worker.ready.remote()] = worker, None, 0

    def _feed(self) -> None:
        for worker in sorted(self.workers, key=lambda one: self.workers[one]):
            while self.queue and self.workers[worker] < IN_FLIGHT:
                part, tries = self.queue.popleft()
                self.pending[worker.write.remote(part, self.work.first[part.name])] = worker, part, tries
                self.workers[worker] += 1

    def _settle(self, reference: Any) -> None:
        worker, part, tries = self.pending.pop(reference)
        errors = self.ray.exceptions
        try:
            answer = self.ray.get(reference)
        except errors.RayTaskError as error:  # the part's own fault: another worker would fare no better
            if part is None:
                raise GeniusError(f"a worker could not start: {_reason(error)}") from None
            self.workers[worker] -= 1
            self.report.failed.append(f"{part}: {_reason(error)}")
        except errors.RayError as error:
            self._lost(worker, part, tries, error)
        else:
            if part is None:
                self.workers[worker] = 0
                return
            self.workers[worker] -= 1
            self.deaths = 0
            self.report.cpu_s += answer[1]
            self.work.tell(answer[0], self.total)

    def _lost(self, worker: Any, part: Part | None, tries: int, error: Exception) -> None:
        """A worker, or its machine, is gone: what it had goes back into the queue, and another takes its place."""
        lost_parts = [(part, tries)] + [
            self.pending.pop(ref)[1:] for ref in [r for r, (owner, *_) in self.pending.items() if owner == worker]
        ]
        self.workers.pop(worker, None)
        self.deaths += 1
        self.report.lost_workers += 1
        if self.deaths > TRIES * self.wanted + TRIES or (part is None and "creation" in str(error) and not self.workers):
            raise GeniusError(f"workers keep dying: {_reason(error)}") from None
        for one, before in lost_parts:
            if one is None:
                continue
            if before + 1 >= TRIES:
                self.report.failed.append(f"{one}: {before + 1} workers died over it ({_reason(error)})")
            else:
                self.queue.appendleft((one, before + 1))
        self._start()


def _reason(error: BaseException) -> str:
    """One line of what Ray wraps in many."""
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if cause is None and lines else " ".join(lines))[: 4 * 80] or type(error).__name__
