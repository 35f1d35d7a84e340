"""From a collection and an encoder to a `FeatureSet`: resumable, sharded, never all images in memory.

The final files are allocated first at their full size and filled row by row: there is nothing to merge, a stopped run
resumes, and readers memory-map them. Several processes, on several machines with one disk, may share the work: process r
of n takes every n-th shard, a range of rows of one file. A shard counts as done when its rows are on the disk; a killed
one is repeated. A run with another encoder or changed data refuses to mix with what is there.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from genius.data.collection import Collection, check_collection
from genius.data.features import POOL, QUERIES, FeatureSet, features_from_tensors, pairs_from_ids
from genius.encoders.base import (
    Encoder,
    OnError,
    Precision,
    encode_items,
    precision,
    sent_to_workers,
    widths_of,
)
from genius.errors import GeniusError
from genius.features import Features
from genius.files import disk_errors, write_json
from genius.instructions import KnownInstructions
from genius.pictures import PictureWorkers
from genius.types import Modality
from genius.weight_files import read_tensors

Progress = Callable[[str, int, int], None]
"""Called as progress("queries" | "pool", rows done, rows in all) for this process's share of the rows."""


@dataclass(frozen=True, slots=True)
class ExtractConfig:
    """How features are extracted."""

    batch_size: int = 64  # images or texts encoded at once
    shard_rows: int = 4096  # rows between two marks of progress: what a stopped run may lose
    half: bool = True  # store fp16, as published for candidates; else fp32
    on_error: OnError = "raise"  # skip: drop items and queries whose image cannot be read, and say so
    check: bool = True  # read every line and look for every image before the first is encoded
    rank: int = 0  # this process ...
    world: int = 1  # ... of so many
    precision: Precision = "fp32"  # of the encoder's large products; vectors are stored as `half` says
    workers: int = 0  # processes that decode images; 0: a few threads of this one


@dataclass
class _Plan:
    """What the finished folder will hold, known before anything is encoded."""

    query_ids: list[str]
    tasks: list[int]
    positives: Mapping[str, Sequence[str]]
    pool_ids: list[str]
    pools: dict[int, list[str]]
    names: dict[int, str]
    times: dict[str, int]  # of queries that an epoch visits more than once
    instructions: KnownInstructions | None  # of the queries, if they are a fixed set


def extract(
    encoder: Encoder,
    collection: Collection,
    directory: str | Path,
    config: ExtractConfig | None = None,
    progress: Progress | None = None,
) -> FeatureSet | None:
    """Fill a folder with a collection's features.

    Args:
        encoder: What makes them.
        collection: The dataset.
        directory: The folder; an unfinished one is resumed.
        config: Batches, shards and precision.
        progress: Called as progress("queries" | "pool", rows done, rows in all).

    Returns:
        The features; None while other processes still have shards to do.

    Raises:
        GeniusError: If the data is broken, or the folder holds features of another encoder or dataset.
    """
    config = config or ExtractConfig()
    directory = Path(directory)
    if FeatureSet.is_folder(directory):
        _check_stamp(directory, _stamp(encoder, collection, config))
        return FeatureSet.load(directory)
    if config.check and not (directory / STAMP).is_file():  # a run that goes on was checked when it began
        check_collection(collection)
    plan = _plan(collection)
    directory.mkdir(parents=True, exist_ok=True)
    _check_stamp(directory, _stamp(encoder, collection, config))
    queries = _Rows(directory, "queries", QUERIES, len(plan.query_ids), encoder, config)
    pool = _Rows(directory, "pool", POOL, len(plan.pool_ids), encoder, config)
    say = progress or (lambda *_: None)
    with ExitStack() as stack:
        workers = None
        if config.workers:
            workers = stack.enter_context(PictureWorkers(config.workers, sent_to_workers(encoder)))
        queries.fill((judged.query for judged in collection.queries()), workers, say)
        pool.fill(collection.pool(), workers, say)
    if not (queries.complete() and pool.complete()):
        return None
    return _finish(directory, plan)


# -- the plan ------------------------------------------------------------------------------------------------------


def _plan(collection: Collection) -> _Plan:
    pool_ids = [item.id for item in collection.pool()]
    known = set(pool_ids)
    query_ids = []
    tasks = []
    positives = {}
    times = {}
    used: dict[tuple[str | None, Modality, Modality], None] = {}
    for judged in collection.queries():
        target = collection.tasks[judged.task].target
        used.setdefault((judged.query.instruction, judged.query.modality, target))
        query_ids.append(judged.id)
        tasks.append(judged.task)
        positives[judged.id] = [name for name in judged.positives if name in known]  # others are in other pools
        if judged.times > 1:
            times[judged.id] = judged.times
    pools = {}
    for number in range(len(collection.tasks)):
        pool = collection.local_pool(number)
        if pool is not None:
            pools[number] = list(dict.fromkeys(pool))
    names = {number: task.key for number, task in enumerate(collection.tasks)}
    return _Plan(query_ids, tasks, positives, pool_ids, pools, names, times, KnownInstructions.of(used))


STAMP = "extract.json"


def _stamp(encoder: Encoder, collection: Collection, config: ExtractConfig) -> dict[str, Any]:
    return {
        "encoder": encoder.fingerprint(),
        "collection": collection.fingerprint(),
        "half": config.half,
        "shard_rows": config.shard_rows,
        "precision": config.precision,
    }


def _check_stamp(directory: Path, stamp: dict[str, Any]) -> None:
    """Features of two encoders, or of older data, never end up in one folder."""
    path = directory / STAMP
    if not path.is_file():
        if FeatureSet.is_folder(directory):
            return  # made elsewhere: nothing to compare with
        write_json(path, stamp)
        return
    stored = {"precision": "fp32", **json.loads(path.read_text(encoding="utf-8"))}  # older ones do not say
    different = [key for key in stamp if stored.get(key) != stamp[key]]
    if different:
        raise GeniusError(f"{directory} holds features of another {different[0]}: give another folder, or delete this one")


# -- files at their full size --------------------------------------------------------------------------------------


class _Rows:
    """One file's rows, in shards of which this process encodes its own; a mark says that a shard's rows are there."""

    def __init__(self, directory: Path, name: str, file: str, rows: int, encoder: Encoder, config: ExtractConfig) -> None:
        self.directory = directory
        self.name = name  # "queries" or "pool"
        self.path = directory / file
        self.rows = rows
        self.encoder = encoder
        self.config = config
        self.header, self.places = layout(rows, widths_of(encoder), config.half)

    def fill(self, stream: Iterator[Any], workers: PictureWorkers | None, say: Progress) -> None:
        """Encode the shards of this process that have no mark yet."""
        self._lay_out()
        size = self.config.shard_rows
        shards = range(self.config.rank, self._shards(), self.config.world)
        shard_sizes = {shard: min(size, self.rows - shard * size) for shard in shards}
        total = sum(shard_sizes.values())
        done = sum(count for shard, count in shard_sizes.items() if self._mark(shard).is_file())
        say(self.name, done, total)
        position = 0
        for shard, count in shard_sizes.items():
            if self._mark(shard).is_file():
                continue
            start = shard * size
            inputs = list(itertools.islice(stream, start - position, start - position + count))  # paths and texts, not images
            position = start + count
            seen = done

            def advance(rows: int) -> None:
                nonlocal seen
                seen += rows
                say(self.name, min(seen, total - 1), total)

            features, problems = self._encode(inputs, workers, advance)
            with self._disk():
                write_rows(self.path, self.places, start, features)
                write_json(self._mark(shard), problems)  # after the rows: a mark means they are there
            done += count
            say(self.name, done, total)

    def complete(self) -> bool:
        """Whether all shards are there, those of other processes too."""
        return all(self._mark(shard).is_file() for shard in range(self._shards()))

    def _shards(self) -> int:
        return -(-self.rows // self.config.shard_rows)

    def _mark(self, shard: int) -> Path:
        return self.directory / "progress" / f"{self.name}-{shard:06d}.json"

    def _lay_out(self) -> None:
        """Allocate the file's full size, if the file system can: a full disk shows now and not in some hours."""
        end = len(self.header) + sum(place.size for place in self.places.values())
        if self.path.is_file() and self.path.stat().st_size == end:
            return
        with self._disk():
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)  # other processes may lay it out at the same moment
            try:
                os.pwrite(handle, self.header, 0)
                os.posix_fallocate(handle, 0, end)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
                os.ftruncate(handle, end)
            finally:
                os.close(handle)

    def _disk(self) -> AbstractContextManager[None]:
        return disk_errors(f"cannot write {self.path}", ". What is done is kept: start again when there is space")

    def _encode(
        self, inputs: list[Any], workers: PictureWorkers | None, advance: Callable[[int], None]
    ) -> tuple[Features, list[str]]:
        """Features of every input in order; unreadable ones have both masks 0 and a line in the problems."""
        config = self.config
        with precision(self.encoder, config.precision):
            features, kept, problems = encode_items(
                self.encoder,
                inputs,
                batch_size=config.batch_size,
                on_error=config.on_error,
                on_progress=advance,
                workers=workers,
            )
        if len(kept) == len(inputs):
            return features, []
        parts = []
        for part in (features.image, features.text, features.image_mask, features.text_mask):
            whole = part.new_zeros(len(inputs), *part.shape[1:])
            whole[kept] = part
            parts.append(whole)
        return Features(*parts), problems


class _Place(NamedTuple):
    """Where a tensor lies in a file."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


def layout(rows: int, widths: tuple[int, int], half: bool) -> tuple[bytes, dict[str, _Place]]:
    """Header of a safetensors file with the four tensors, and the place of each."""
    label = "F32"
    number: np.dtype[Any] = np.dtype(np.float32)
    if half:
        label = "F16"
        number = np.dtype(np.float16)
    flag = np.dtype(np.bool_)
    tensors = (
        ("image", (rows, widths[0]), label, number),
        ("text", (rows, widths[1]), label, number),
        ("image_mask", (rows,), "BOOL", flag),
        ("text_mask", (rows,), "BOOL", flag),
    )
    table: dict[str, Any] = {}
    places: dict[str, _Place] = {}
    start = 0
    for name, shape, type_label, dtype in tensors:
        places[name] = _Place(start, shape, dtype)
        end = start + places[name].size
        table[name] = {"dtype": type_label, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: place._replace(offset=len(header) + place.offset) for name, place in places.items()}


def write_rows(path: Path, places: Mapping[str, _Place], start: int, features: Features) -> None:
    """Write exactly these rows' bytes, and sync: neighbours belong to other processes, maybe on other machines."""
    with path.open("r+b") as file:
        for name, place in places.items():
            values = getattr(features, name).numpy().astype(place.dtype)
            file.seek(place.offset + start * int(np.prod(place.shape[1:])) * values.itemsize)
            file.write(values.tobytes())
        file.flush()
        os.fsync(file.fileno())


# -- the end -------------------------------------------------------------------------------------------------------


def _finish(directory: Path, plan: _Plan) -> FeatureSet:
    queries = features_from_tensors(read_tensors(directory / QUERIES))
    pool = features_from_tensors(read_tensors(directory / POOL))
    row = {name: i for i, name in enumerate(plan.pool_ids)}
    times = None
    if plan.times:
        times = torch.tensor([plan.times.get(name, 1) for name in plan.query_ids], dtype=torch.long)
    result = FeatureSet(
        queries=queries,
        pool=pool,
        pairs=pairs_from_ids(plan.positives, plan.query_ids, plan.pool_ids),
        query_ids=plan.query_ids,
        pool_ids=plan.pool_ids,
        tasks=torch.tensor(plan.tasks, dtype=torch.long),
        names=plan.names,
        pools={task: torch.tensor([row[name] for name in names], dtype=torch.long) for task, names in plan.pools.items()},
        times=times,
    )
    readable_queries = queries.image_mask | queries.text_mask
    readable_items = pool.image_mask | pool.text_mask
    whole = bool(readable_queries.all() and readable_items.all())
    if not whole:
        result = result.take_queries(readable_queries.nonzero()[:, 0]).take_pool(readable_items.nonzero()[:, 0])
    marks = sorted((directory / "progress").glob("*.json"))
    problems = [line for mark in marks for line in json.loads(mark.read_text(encoding="utf-8"))]
    if problems:
        (directory / "problems.txt").write_text("\n".join(problems) + "\n", encoding="utf-8")
    if plan.instructions is not None:
        plan.instructions.save(directory)
    result.save(directory, vectors=not whole)  # the vectors are in place already, unless rows were dropped
    shutil.rmtree(directory / "progress", ignore_errors=True)
    return FeatureSet.load(directory)


def modality_counts(features: Features) -> dict[str, int]:
    """How many rows are images, texts and pairs."""
    counts = torch.bincount(features.modality, minlength=3).tolist()
    return {modality.label: int(counts[int(modality)]) for modality in Modality}
