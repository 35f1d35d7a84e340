"""`genius index ... --ray`: parts go to workers, records come back, one commit makes them an index.

Workers are Ray actors that hold the model. Ray starts one that dies again, elsewhere if need be, and its part is done again; a
part that takes three workers with it, or fails by itself, is listed and left out, and a later run tries it again. Nothing is lost
by killing anything, this program included: what has a record is not done twice.

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

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.report.to_dict(),
            "parts": self.parts,
            "resumed": self.resumed,
            "failed": self.failed,
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
    """Have the parts done by actors, one part at a time each. One that dies is started again by Ray, and tries its part again."""
    config = work.config
    with connected(config.address, config.workers or None) as ray:
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if config.device != "cpu" else 0
        count = min(config.workers or gpus or max(1, int(resources.get("CPU", 1))), len(work.parts))
        options = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        actor = ray.remote(**options, max_restarts=-1, max_task_retries=TRIES - 1)(PartIndexer)
        workers = [actor.remote(*work.arguments()) for _ in range(count)]
        try:
            _give_out(ray, workers, work)
        finally:
            for worker in workers:
                ray.kill(worker)  # also one that still waits for a place to start, and may never get it


def _give_out(ray: Any, workers: Sequence[Any], work: _Work) -> None:
    """Give every worker that has started a part, and another one when that is done."""
    total = 0
    if all(part.items for part in work.parts):
        total = sum(part.items for part in work.parts)
    waiting = deque(work.parts)
    running: dict[Any, tuple[Any, Part | None]] = {worker.ready.remote(): (worker, None) for worker in workers}
    while waiting or any(part is not None for _, part in running.values()):
        done, _ = ray.wait(list(running), num_returns=1, timeout=SILENCE)
        if not done:
            if all(part is None for _, part in running.values()):
                work.say("waiting for a worker: has the cluster any processor or GPU free?")
            continue
        worker, part = running.pop(done[0])
        try:
            answer = ray.get(done[0])
        except ray.exceptions.RayError as error:
            if part is None:
                raise GeniusError(f"a worker could not start: {_reason(error)}") from None
            cause = _reason(error)
            if not isinstance(error, ray.exceptions.RayTaskError):  # not the part's own fault, that every worker would have
                cause = f"{TRIES} workers died over it ({cause})"
            work.report.failed.append(f"{part}: {cause}")
        else:
            if part is not None:
                items, seconds = answer
                work.report.cpu_s += seconds
                work.tell(items, total)
        if waiting:
            part = waiting.popleft()
            running[worker.write.remote(part, work.first[part.name])] = worker, part


def _reason(error: BaseException) -> str:
    """One line of what Ray wraps in many."""
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if cause is None and lines else " ".join(lines))[: 4 * 80] or type(error).__name__
