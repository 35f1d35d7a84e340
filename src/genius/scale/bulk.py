"""`genius index ... --ray`: workers run the encoder, this process does everything else as `genius index` does without Ray.

This process reads files and tables, compares items with the index, hands batches of new items to the workers (`BatchEncoder`, Ray
actors that hold the model), and commits what they return, in order. So a run that was stopped needs no notes of its own: the
next one finds the committed items unchanged.

Ray starts a worker that dies again, elsewhere if need be, and its batch is encoded again. A batch that takes three workers with
it is named and left out; a later run tries it again.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from genius.errors import GeniusError, counted
from genius.index import Index, writing
from genius.index.folder import about_of, load_index_model
from genius.index.ingest import Indexed, IngestConfig, ingest
from genius.index.prepare import Prepared, Stamped, prepare
from genius.index.results import AddReport

LOCAL = "local"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anyone
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
TRIES = 3  # workers that a batch may outlive
AHEAD = 4  # batches per worker that are encoded, or wait for their turn to be committed
SILENCE = 120.0  # seconds without any worker after which a message says that we wait

Batch = list[Stamped]
Results = Generator[tuple[Batch, Prepared | str]]
"""Batches in their order, each with what the encoder made of it, or with the reason why there is nothing."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BulkConfig:
    """How work is spread."""

    address: str = "local"  # of the cluster
    workers: int = 0  # 0: one a GPU, or where there is none, one a processor
    thumbnails: int = 256
    device: str = "auto"


class BatchEncoder:
    """Encodes batches of items with the model of an index.

    Args:
        folder: Of the index.
        config: How work is spread.
    """

    def __init__(self, folder: Path, config: BulkConfig) -> None:
        self.model = load_index_model(folder, None, about_of(folder)).to(config.device)
        self.thumbnails = config.thumbnails

    def ready(self) -> None:
        """Returns once the model is loaded."""

    def encode(self, batch: Batch) -> Prepared:
        """Items as the index stores them.

        Args:
            batch: Items, and what each was read from.
        """
        return prepare(self.model, batch, self.thumbnails, "skip")


Spread = Callable[[Path, BulkConfig, Iterator[Batch], Say], Results]
"""Has batches encoded: called with the folder of the index, how, the batches, and where lines for people go."""


def bulk_index(
    paths: Sequence[str | Path],
    output: Path,
    model: str | None,
    ingest_config: IngestConfig,
    config: BulkConfig,
    on_progress: Callable[[int], None] = lambda done: None,
    say: Say = lambda line: None,
    spread: Spread | None = None,
) -> Indexed:
    """Index files and folders with the encoders of a cluster, which must see files and index under the same paths.

    Args:
        paths: Files and folders.
        output: Folder of the index.
        model: URI of the model of a new index.
        ingest_config: How files become items.
        config: How work is spread.
        on_progress: Called with the number of items that are done.
        say: Called with lines for people.
        spread: Another way than Ray to have batches encoded.

    Returns:
        What was done.
    """
    if spread is None:
        load_ray()  # what is missing is said before an index is made
        spread = _on_ray
    with Index(output.absolute(), model, thumbnails=config.thumbnails) as index:

        def write(items: Iterator[Stamped]) -> AddReport:
            batches = writing.item_batches(items, ingest_config.batch_size)
            total = AddReport()
            with closing(spread(index.path, config, batches, say)) as results:
                for batch, ready in results:
                    report = AddReport()
                    if isinstance(ready, str):
                        ends = f"{batch[0][0].id} to {batch[-1][0].id}"
                        report.problems.append(f"{counted(len(batch), 'item')}, {ends}: {ready}", len(batch))
                    else:
                        writing.commit(index, ready, index.model, True, "skip", report)
                    total.merge(report)
                    on_progress(report.added + report.replaced + report.problems.total)
            return total

        done = ingest(index, paths, ingest_config, on_progress, write)
        return Indexed(done, index.count(), hint=index.advice())


# -- Ray ---------------------------------------------------------------------------------------------------------


def load_ray() -> Any:
    """Ray, or one line that says how to get it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise GeniusError("--ray needs more packages: pip install 'genius-search[ray]'") from None
    return ray


@contextmanager
def connected(address: str, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected: to the cluster at `address`, or with "local" to one of this machine that ends with the block.

    A program that is connected already stays so.

    Args:
        address: Of a cluster, or "local" for one on this machine that ends with the block.
        cpus: Processors of a local cluster; None: this machine's.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == LOCAL:
        options |= {"num_cpus": cpus, "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # LanceDB's, of forks: Ray's children become other programs
            ray.init(address=address, **options)
    except Exception as error:  # it has no class of its own for this
        raise GeniusError(f"cannot reach a Ray cluster at {address!r}: {' '.join(str(error).split())[:200]}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _on_ray(folder: Path, config: BulkConfig, batches: Iterator[Batch], say: Say) -> Results:
    """Have batches encoded by actors. One that dies is started again by Ray, and tries its batch again."""
    first = next(batches, None)
    if first is None:
        return  # nothing is new: no worker is needed
    with connected(config.address, config.workers or None) as ray:
        resources = ray.cluster_resources()
        gpus = 0
        if config.device != "cpu":
            gpus = int(resources.get("GPU", 0))
        options = {"num_cpus": 1}
        if gpus:
            options = {"num_gpus": 1}
        count = config.workers or gpus or max(1, int(resources.get("CPU", 1)))
        actor = ray.remote(**options, max_restarts=-1, max_task_retries=TRIES - 1)(BatchEncoder)
        workers = [actor.remote(folder, config) for _ in range(count)]
        try:
            yield from _in_order(ray, workers, chain([first], batches), say)
        finally:
            for worker in workers:
                ray.kill(worker)  # also one that still waits for a place to start, and may never get it


def _in_order(ray: Any, workers: Sequence[Any], batches: Iterator[Batch], say: Say) -> Results:
    """Give every worker that has started a batch, and another one when that is done; results stay with Ray until their turn."""
    numbered = enumerate(batches)
    running: dict[Any, tuple[Any, int | None]] = {worker.ready.remote(): (worker, None) for worker in workers}
    idle: list[Any] = []
    given: dict[int, Batch] = {}
    finished: dict[int, Any] = {}
    turn = 0
    more = True
    while more or given:
        while idle and more and len(given) < AHEAD * len(workers):
            number, batch = next(numbered, (0, None))
            if batch is None:
                more = False
            else:
                worker = idle.pop()
                given[number] = batch
                running[worker.encode.remote(batch)] = worker, number
        if turn in finished:
            yield given.pop(turn), _result(ray, finished.pop(turn))
            turn += 1
        elif more or given:
            done, _ = ray.wait(list(running), num_returns=1, timeout=SILENCE, fetch_local=False)
            if done:
                worker, ended = running.pop(done[0])
                idle.append(worker)
                if ended is None:
                    _check_start(ray, done[0])
                else:
                    finished[ended] = done[0]
            elif not given:
                say("waiting for a worker: has the cluster any processor or GPU free?")


def _check_start(ray: Any, started: Any) -> None:
    try:
        ray.get(started)
    except ray.exceptions.RayError as error:
        raise GeniusError(f"a worker could not start: {_reason(error)}") from None


def _result(ray: Any, finished: Any) -> Prepared | str:
    """What a worker returned, or why it did not."""
    try:
        result: Prepared = ray.get(finished)
        return result
    except ray.exceptions.RayTaskError as error:  # the batch's own fault, that every worker would have
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
