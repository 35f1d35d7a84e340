"""`genius index ... --ray`: parts go to workers, records come back, one commit makes them an index.

Workers are Ray actors that hold the model. A worker that dies is replaced and its parts are done again; a part that takes three
workers with it, or fails by itself, is listed and left out, and a later run tries it again. Nothing is lost by killing anything,
this program included: what has a record is not done twice.

The commit (`take_in`) moves data files in as they are, no row is read or written again. It is inside one change of the table
(`Store.change`), so that it counts as a whole or not at all: files are linked into the table's folder, missing metadata columns
are added, the files are appended, and then those rows go that must not stay: the former rows of ids that are replaced, the later
ones of ids that came twice, and those whose metadata contradicts an earlier part's.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError, Problems
from genius.files import write_whole
from genius.index import Index
from genius.index import metadata as meta
from genius.index.commit import table_folder
from genius.index.folder import WriteLock
from genius.index.ingest import IngestConfig, IngestReport
from genius.index.opened import Live
from genius.index.reader import Reader, database_errors, good_rows
from genius.index.writing import follow
from genius.scale import connected, load_ray
from genius.scale.parts import DATA, LOCK, Part, PartIndexer, Record, Staging, cut

AT_ONCE = 10_000  # rows named in one condition
IN_FLIGHT = 2  # parts that a worker has: one that it does, and the next
TRIES = 3  # workers that a part may outlive
SILENCE = 120.0  # seconds without any worker after which a message says that we wait

Tell = Callable[[int, int], None]
"""Hears of items that are done since the last call, and of how many there are in all (0: unknown)."""


@dataclass(slots=True)
class Taken:
    """What a commit did."""

    added: int = 0
    replaced: int = 0
    problems: Problems = field(default_factory=Problems)


def was_taken_in(index: Index, staging: Staging) -> bool:
    """Whether the job that lies here was committed, and only its removal is missing: its row numbers are nobody else's."""
    numbers = staging.range()
    return numbers is not None and index.reader().count(f"_seq >= {numbers[0]} AND _seq < {numbers[1]}") > 0


def take_in(index: Index, staging: Staging, records: Sequence[Record]) -> Taken:
    """Commit records. Call it again after any crash: it happens once (`was_taken_in`)."""
    taken = Taken()
    gone = [0][:0]
    filled = sorted((record for record in records if record.rows), key=lambda record: record.first)
    if not filled:
        return taken
    with index.write_lock.hold():
        with index.change():
            with index.lock:
                live = index.current()
            fresh, contradicted = _columns(live.reader.columns, filled)
            _move_in(index, staging, filled)
            if fresh:
                index.store.add_columns(fresh)
            index.store.append_files([fragment for record in filled for fragment in _fragments(record, contradicted)])
            _read_back(index, filled)
            reader = index.store.peek(index.store.newest())
            unfit = _unfit(reader, filled, contradicted, taken.problems)
            doubtful = _doubtful(live, staging, filled)
            found = {seq: row["id"] for seq, row in reader.rows(doubtful, ["id"]).items() if seq not in unfit}
            twice = _twice(found, taken.problems)
            with index.lock:
                there = index.sure(list(found.values())).find(found.values())
                former = [int(index.live.seqs[row]) for row in there.values()]
            gone = list(there.values())
            leaving = [*former, *twice, *unfit]
            for i in range(0, len(leaving), AT_ONCE):
                index.store.delete(leaving[i : i + AT_ONCE])
        follow(index, gone)
    taken.replaced = len(former)
    taken.added = sum(record.rows for record in filled) - len(twice) - len(unfit) - taken.replaced
    return taken


def _columns(known: meta.Columns, records: Sequence[Record]) -> tuple[dict[str, meta.FieldType], dict[str, set[str]]]:
    """Metadata columns that the table lacks; and of each record those that contradict the table or an earlier one."""
    columns = dict(known)
    spelling = {name.lower(): name for name in columns}
    fresh: dict[str, meta.FieldType] = {}
    contradicted: dict[str, set[str]] = {}
    for record in records:
        for name, field_type in record.field_types.items():
            if name not in columns and name.lower() not in spelling and len(columns) < meta.MAX_KEYS:
                columns[name] = fresh[name] = field_type
                spelling[name.lower()] = name
            elif columns.get(name) != field_type:
                contradicted.setdefault(record.name, set()).add(name)
    return fresh, contradicted


def _fragments(record: Record, contradicted: Mapping[str, set[str]]) -> list[Mapping[str, object]]:
    unfit = contradicted.get(record.name, set())
    return [{**body, "names": ["" if name in unfit else name for name in body["names"]]} for body in record.fragments]


def _move_in(index: Index, staging: Staging, records: Sequence[Record]) -> None:
    """The same files under a second name, in the table's folder; where a file system has no links, copies."""
    target = table_folder(index.path) / DATA
    with database_errors("add items"):
        target.mkdir(exist_ok=True)
        for name, size in (file for record in records for file in record.files()):
            source = staging.folder / DATA / name
            place = target / name
            if place.exists() and place.stat().st_size == size:
                continue  # of an attempt that was killed here
            try:
                os.link(source, place)
            except OSError:
                write_whole(place, lambda path, source=source: shutil.copyfile(source, path))  # type: ignore[misc]


def _read_back(index: Index, records: Sequence[Record]) -> None:
    """Every row of the records, by its checksum, before the change counts; one line if any is missing or another."""
    for record in records:
        found = 0
        last = record.first + record.rows
        for batch in good_rows(index.store.peek(index.store.newest()), f"_seq >= {record.first} AND _seq < {last}"):
            found += batch.num_rows
        if found != record.rows:
            raise GeniusError(f"{record.rows - found} rows of a part cannot be read back; the index is as it was")


def _unfit(reader: Reader, records: Sequence[Record], contradicted: Mapping[str, set[str]], problems: Problems) -> set[int]:
    """Rows whose metadata is of another type than the column has by now."""
    unfit: set[int] = set()
    for record in records:
        wrong = contradicted.get(record.name)
        if not wrong:
            continue
        for seq, row in reader.rows(range(record.first, record.first + record.rows), ["id", "_metadata"]).items():
            _, conflicts = meta.new_columns(reader.columns, [(row["id"], meta.load(row["_metadata"]))])
            if conflicts:
                unfit.add(seq)
                problems += conflicts.values()
    return unfit


def _doubtful(live: Live, staging: Staging, records: Sequence[Record]) -> NDArray[np.int64]:
    """Rows whose id, by its hash, may be in the index already, or come twice."""
    hashes = np.concatenate([staging.hashes(record) for record in records])
    seqs = np.concatenate([np.arange(record.first, record.first + record.rows) for record in records])
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    doubt = np.zeros(len(hashes), bool)
    doubt[order[1:][same]] = doubt[order[:-1][same]] = True
    doubt |= live.may_hold(hashes)
    return seqs[doubt]


def _twice(found: Mapping[int, str], problems: Problems) -> list[int]:
    """The later rows of ids that came more than once."""
    seen: set[str] = set()
    later = []
    for seq in sorted(found):
        if found[seq] in seen:
            later.append(seq)
            problems.append(f"{found[seq]}: this id came before, from another file or row")
        seen.add(found[seq])
    return later


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
            parts = cut(paths, ingest, config.part_rows, salt, report.report)
            with index.change():
                first = staging.begin(parts, index.store)
            todo = [part for part in parts if staging.record(part, first[part.name]) is None]
            report.parts = len(parts)
            report.resumed = len(parts) - len(todo)
            if todo:
                (spread or _on_ray)(_Work(index.path, ingest, config, todo, first, tell, say, report))
            records = _records(staging, parts, first, report.failed)
            taken = take_in(index, staging, records)
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
        had = [(part, tries)] + [
            self.pending.pop(ref)[1:] for ref in [r for r, (who, *_) in self.pending.items() if who == worker]
        ]
        self.workers.pop(worker, None)
        self.deaths += 1
        self.report.lost_workers += 1
        if self.deaths > TRIES * self.wanted + TRIES or (part is None and "creation" in str(error) and not self.workers):
            raise GeniusError(f"workers keep dying: {_reason(error)}") from None
        for one, before in had:
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
