"""`genius index ... --ray`: workers encode parts of the sources, and this process commits what they return.

A part is some files, or a range of rows of a table. A worker (`PartEncoder`, a Ray actor that holds the model) reads a part and
encodes what is new in it. The driver commits parts in the order of the sources, in batches as `genius index` does. So a run that
was stopped needs no notes of its own: the next one finds the committed items unchanged.

Ray starts a worker that dies again, elsewhere if need be, and its part is done again. A part that takes three workers with it,
or fails by itself, is listed and left out; a later run tries it again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genius.data.readers import TABLE_SUFFIXES, cut_rows
from genius.errors import GeniusError
from genius.index import Index, writing
from genius.index.ingest import (
    Indexed,
    IngestConfig,
    IngestReport,
    SourceFile,
    changed_items,
    file_type,
    find_files,
    forget_deleted,
    read_items,
)
from genius.index.names import root_of
from genius.index.prepare import Prepared, prepare
from genius.index.results import AddReport
from genius.scale import connected, load_ray

TRIES = 3  # workers that a part may outlive
SILENCE = 120.0  # seconds without any worker after which a message says that we wait

Tell = Callable[[int, int], None]
"""Called with the items that are done since the last call, and all items (0: unknown)."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BulkConfig:
    """How work is spread."""

    address: str = "local"  # of the cluster
    workers: int = 0  # 0: one a GPU, or where there is none, one a processor
    part_rows: int = 1024  # items of a part; a multiple of 256, so that passes of the encoder are those of one process
    thumbnails: int = 256
    device: str = "auto"


@dataclass
class BulkReport(Indexed):
    """What a run did, beyond what any indexing reports."""

    parts: int = 0
    failed: list[str] = field(default_factory=list)  # a line for each part that could not be done
    cpu_s: float = 0.0  # processor time of the workers, loading the model aside

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "parts": self.parts, "failed": self.failed, "worker_cpu_s": round(self.cpu_s, 3)}


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker does in one go."""

    files: tuple[SourceFile, ...]
    items: int  # about how many, for the time left; 0: unknown

    def __str__(self) -> str:
        first = self.files[0]
        last = self.files[-1]
        if first.rows is not None and len(self.files) == 1:
            return f"{first.name}, rows from {first.rows.first + 1:,} on"
        if first is last:
            return first.name
        return f"{first.name} to {last.name}"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A part that is done."""

    batches: list[Prepared]
    report: IngestReport  # what was skipped or unchanged
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """What all workers need to know."""

    index: Path
    version: int  # of the index, that items are compared with
    ingest: IngestConfig
    config: BulkConfig


class PartEncoder:
    """Opens the index once, with its model, and encodes one part after the other.

    Args:
        task: What to do with parts.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.index = Index.open(task.index, read_only=True, version=task.version)
        self.index.model.to(task.config.device)

    def ready(self) -> None:
        """Returns once the model is loaded."""

    def encode(self, part: Part) -> Encoded:
        """Read a part, and encode the items that are new or changed.

        Args:
            part: The part.
        """
        started = time.process_time()
        config = self.task.ingest
        report = IngestReport()
        read = read_items(part.files, config, report, _ignore, self.index.reader().columns)
        items = changed_items(self.index, read, set(), report, _ignore, config.undelete)
        batches = [
            prepare(self.index.model, batch, self.task.config.thumbnails, "skip")
            for batch in writing.item_batches(items, config.batch_size)
        ]
        return Encoded(batches, report, time.process_time() - started)


Results = Generator[tuple[Part, Encoded | str]]
Spread = Callable[[Task, Sequence[Part], Say], Results]
"""Has parts encoded: yields each with its result, or with the reason why there is none, in their order."""


def bulk_index(
    paths: Sequence[str | Path],
    output: Path,
    model: str | None,
    ingest: IngestConfig,
    config: BulkConfig,
    tell: Tell = lambda done, total: None,
    say: Say = lambda line: None,
    spread: Spread | None = None,
) -> BulkReport:
    """Index files and folders with the workers of a cluster, which must see them, and the index, under the same paths.

    Args:
        paths: Files and folders.
        output: Folder of the index.
        model: URI of the model of a new index.
        ingest: How files become items.
        config: How work is spread.
        tell: Called as items are done.
        say: Called with lines for people.
        spread: Another way than Ray to have parts encoded.

    Returns:
        What was done, and the parts that failed.
    """
    if ingest.prune:
        raise GeniusError("--prune compares all sources with the index: run `genius index --prune` without --ray afterwards")
    if spread is None:
        load_ray()  # what is missing is said before an index is made
        spread = _on_ray
    started = time.monotonic()
    done = BulkReport(IngestReport())
    with Index(output.absolute(), model, thumbnails=config.thumbnails) as index:
        parts = cut(paths, ingest, config.part_rows, done.report, root_of(index, paths, TABLE_SUFFIXES))
        done.parts = len(parts)
        total = 0
        if all(part.items for part in parts):
            total = sum(part.items for part in parts)
        seen: set[str] = set()
        with closing(spread(Task(index.path, index.version, ingest, config), parts, say)) as results:
            for part, result in results:
                if isinstance(result, str):
                    done.failed.append(f"{part}: {result}")
                else:
                    tell(_commit(index, result, seen, done), total)
        if ingest.undelete:
            forget_deleted(index, seen)
        done.items = index.count()
    done.report.seconds = time.monotonic() - started
    return done


def _commit(index: Index, part: Encoded, seen: set[str], done: BulkReport) -> int:
    """Add a part's items to the index; returns how many items the part had, skipped ones included."""
    report = done.report
    count = part.report.unchanged + part.report.left_deleted + part.report.problems.total
    report.unchanged += part.report.unchanged
    report.left_deleted += part.report.left_deleted
    report.problems += part.report.problems
    done.cpu_s += part.cpu_s
    for batch in part.batches:
        count += len(batch.items) + len(batch.problems)
        twice = [item.id for item in batch.items if item.id in seen]
        report.problems += [f"{item_id}: this id came before, from another file or row" for item_id in twice]
        added = AddReport()
        writing.commit(index, batch.without(twice), index.model, True, "skip", added)
        seen.update(item.id for item in batch.items)
        report.added += added.added
        report.replaced += added.replaced
        report.problems += added.problems
    return count


# -- parts -------------------------------------------------------------------------------------------------------


def cut(
    paths: Sequence[str | Path], config: IngestConfig, rows: int, report: IngestReport, root: Path | None = None
) -> list[Part]:
    """Everything under `paths` in parts of at most `rows` items, in the order in which one process would read it.

    Args:
        paths: Files and folders.
        config: How files become items.
        rows: Items of a part. Tables that cannot be cut are one part: a worker says what is wrong with them.
        report: Takes what is not indexed.
        root: Folder that ids are relative to; None: that of a new index.
    """
    parts: list[Part] = []
    single: list[SourceFile] = []
    for file in find_files(paths, config, report, root):
        is_table = file_type(file.path) == "table"
        if single and (is_table or len(single) == rows):
            parts.append(Part(tuple(single), len(single)))
            single = []
        if is_table:
            parts += _row_ranges(file, rows)
        else:
            single.append(file)
    if single:
        parts.append(Part(tuple(single), len(single)))
    return parts


def _row_ranges(file: SourceFile, rows: int) -> Iterator[Part]:
    try:
        row_ranges = cut_rows(file.path, rows)
    except (GeniusError, OSError):
        yield Part((file,), 0)
        return
    for row_range in row_ranges:
        count = 0
        if row_range.count <= rows:  # else it is all of a table that is not counted
            count = row_range.count
        yield Part((replace(file, rows=row_range),), count)


def _ignore(_: int) -> None:
    pass


# -- Ray ---------------------------------------------------------------------------------------------------------


def _on_ray(task: Task, parts: Sequence[Part], say: Say) -> Results:
    """Have parts encoded by actors, one part at a time each. One that dies is started again by Ray, and tries its part again."""
    config = task.config
    with connected(config.address, config.workers or None) as ray:
        resources = ray.cluster_resources()
        gpus = 0
        if config.device != "cpu":
            gpus = int(resources.get("GPU", 0))
        options = {"num_cpus": 1}
        if gpus:
            options = {"num_gpus": 1}
        count = min(config.workers or gpus or max(1, int(resources.get("CPU", 1))), len(parts))
        actor = ray.remote(**options, max_restarts=-1, max_task_retries=TRIES - 1)(PartEncoder)
        workers = [actor.remote(task) for _ in range(count)]
        try:
            yield from _in_order(ray, workers, parts, say)
        finally:
            for worker in workers:
                ray.kill(worker)  # also one that still waits for a place to start, and may never get it


def _in_order(ray: Any, workers: Sequence[Any], parts: Sequence[Part], say: Say) -> Results:
    """Give every worker that has started a part, and another one when that is done; results stay with Ray until their turn."""
    waiting = deque(enumerate(parts))
    running: dict[Any, tuple[Any, int | None]] = {worker.ready.remote(): (worker, None) for worker in workers}
    finished: dict[int, Any] = {}
    for turn, part in enumerate(parts):
        while turn not in finished:
            done, _ = ray.wait(list(running), num_returns=1, timeout=SILENCE, fetch_local=False)
            if not done:
                if all(number is None for _, number in running.values()):
                    say("waiting for a worker: has the cluster any processor or GPU free?")
                continue
            worker, number = running.pop(done[0])
            if number is None:
                _check_start(ray, done[0])
            else:
                finished[number] = done[0]
            if waiting:
                number, following = waiting.popleft()
                running[worker.encode.remote(following)] = worker, number
        yield part, _result(ray, finished.pop(turn))


def _check_start(ray: Any, started: Any) -> None:
    try:
        ray.get(started)
    except ray.exceptions.RayError as error:
        raise GeniusError(f"a worker could not start: {_reason(error)}") from None


def _result(ray: Any, finished: Any) -> Encoded | str:
    """What a worker returned, or why it did not."""
    try:
        result: Encoded = ray.get(finished)
        return result
    except ray.exceptions.RayTaskError as error:  # the part's own fault, that every worker would have
        return _reason(error)
    except ray.exceptions.RayError as error:
        return f"{TRIES} workers died over it ({_reason(error)})"


def _reason(error: BaseException) -> str:
    """One line of what Ray wraps in many."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    if cause is not None:
        return " ".join(lines)[:320]
    return (lines or [type(error).__name__])[-1][:320]
