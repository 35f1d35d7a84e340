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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

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
from genius.files import write_json
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
    parts: list[tuple[str, str, int, Iterator[Any]]] = [
        ("queries", QUERIES, len(plan.query_ids), (judged.query for judged in collection.queries())),
        ("pool", POOL, len(plan.pool_ids), collection.pool()),
    ]
    with ExitStack() as stack:
        workers = None
        if config.workers:
            workers = stack.enter_context(PictureWorkers(config.workers, sent_to_workers(encoder)))
        for name, file, rows, stream in parts:
            lay_out(directory / file, rows, widths_of(encoder), config.half)
            _Shards(directory, name, file, rows, encoder, config, workers, progress).fill(stream)
    if not _all_done(directory, plan, config):
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


def layout(rows: int, widths: tuple[int, int], half: bool) -> tuple[bytes, dict[str, tuple[int, tuple[int, ...], Any]]]:
    """Header of a safetensors file with the four tensors, and (offset, shape, dtype) of each."""
    number: type[np.floating[Any]] = np.float32
    number_label = "F32"
    if half:
        number = np.float16
        number_label = "F16"
    table: dict[str, Any] = {}
    places: dict[str, tuple[int, tuple[int, ...], Any]] = {}
    start = 0
    for name, shape, label, dtype in (
        ("image", (rows, widths[0]), number_label, number),
        ("text", (rows, widths[1]), number_label, number),
        ("image_mask", (rows,), "BOOL", np.bool_),
        ("text_mask", (rows,), "BOOL", np.bool_),
    ):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        table[name] = {"dtype": label, "shape": list(shape), "data_offsets": [start, start + size]}
        places[name] = (start, shape, dtype)
        start += size
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: (len(header) + offset, shape, dtype) for name, (offset, shape, dtype) in places.items()}


def lay_out(path: Path, rows: int, widths: tuple[int, int], half: bool) -> None:
    header, places = layout(rows, widths, half)
    end = max(offset + int(np.prod(shape)) * np.dtype(dtype).itemsize for offset, shape, dtype in places.values())
    if path.is_file() and path.stat().st_size == end:
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # other processes may lay it out at the same moment
    try:
        os.pwrite(handle, header, 0)
        _reserve(handle, end)
    except OSError as error:
        raise _disk_full(path, error) from None
    finally:
        os.close(handle)


def _reserve(handle: int, size: int) -> None:
    """Allocate the file's full size, if the file system can: a full disk shows now and not in some hours."""
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(handle, size)


def _disk_full(path: Path, error: OSError) -> GeniusError:
    return GeniusError(f"cannot write {path}: {error.strerror or error}. What is done is kept: start again when there is space")


@dataclass
class _Shards:
    """One file's rows in ranges; this process encodes its own."""

    directory: Path
    name: str  # "queries" or "pool"
    file: str
    rows: int
    encoder: Encoder
    config: ExtractConfig
    workers: PictureWorkers | None
    progress: Progress | None

    def fill(self, stream: Iterator[Any]) -> None:
        size = self.config.shard_rows
        shards = range(self.config.rank, -(-self.rows // size), self.config.world)
        shard_sizes = {shard: min(size, self.rows - shard * size) for shard in shards}
        todo = [shard for shard in shard_sizes if not _mark(self.directory, self.name, shard).is_file()]
        total = sum(shard_sizes.values())
        done = total - sum(shard_sizes[shard] for shard in todo)
        self._say(done, total)
        position = 0
        for shard in todo:
            inputs = list(itertools.islice(stream, shard * size - position, shard * size - position + shard_sizes[shard]))
            position = shard * size + shard_sizes[shard]  # `inputs` are paths and texts, not images
            self._encode(shard, inputs, done, total)
            done += shard_sizes[shard]
            self._say(done, total)

    def _encode(self, shard: int, inputs: list[Any], done: int, total: int) -> None:
        seen = 0

        def advance(rows: int) -> None:
            nonlocal seen
            seen += rows
            self._say(min(done + seen, total - 1), total)

        with precision(self.encoder, self.config.precision):
            features, problems = _encode(self.encoder, inputs, self.config, advance, self.workers)
        path = self.directory / self.file
        _, places = layout(self.rows, widths_of(self.encoder), self.config.half)
        try:
            write_rows(path, places, shard * self.config.shard_rows, features)
            write_json(_mark(self.directory, self.name, shard), problems)  # after the rows: a mark means they are there
        except OSError as error:
            raise _disk_full(path, error) from None

    def _say(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(self.name, done, total)


def _mark(directory: Path, name: str, shard: int) -> Path:
    return directory / "progress" / f"{name}-{shard:06d}.json"


def write_rows(path: Path, places: dict[str, tuple[int, tuple[int, ...], Any]], start: int, features: Features) -> None:
    """Write exactly these rows' bytes, and sync: neighbours belong to other processes, maybe on other machines."""
    with path.open("r+b") as file:
        for name, (offset, shape, dtype) in places.items():
            values = getattr(features, name).numpy().astype(dtype)
            file.seek(offset + start * int(np.prod(shape[1:])) * values.itemsize)
            file.write(values.tobytes())
        file.flush()
        os.fsync(file.fileno())


# -- encoding one shard --------------------------------------------------------------------------------------------


def _encode(
    encoder: Encoder,
    inputs: list[Any],
    config: ExtractConfig,
    advance: Callable[[int], None],
    workers: PictureWorkers | None,
) -> tuple[Features, list[str]]:
    """Features of every input in order; unreadable ones have both masks 0 and a line in the problems."""
    features, kept, problems = encode_items(
        encoder, inputs, batch_size=config.batch_size, on_error=config.on_error, on_progress=advance, workers=workers
    )
    if len(kept) == len(inputs):
        return features, []
    return _spread(features, kept, len(inputs)), problems


def _spread(features: Features, kept: Sequence[int], rows: int) -> Features:
    """The same with empty rows in place of those that could not be read."""
    parts = []
    for part in (features.image, features.text, features.image_mask, features.text_mask):
        whole = part.new_zeros(rows, *part.shape[1:])
        whole[list(kept)] = part
        parts.append(whole)
    return Features(*parts)


# -- the end -------------------------------------------------------------------------------------------------------


def _all_done(directory: Path, plan: _Plan, config: ExtractConfig) -> bool:
    for name, rows in (("queries", len(plan.query_ids)), ("pool", len(plan.pool_ids))):
        shards = -(-rows // config.shard_rows)
        if not all(_mark(directory, name, shard).is_file() for shard in range(shards)):
            return False
    return True


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
    _write_problems(directory)
    if plan.instructions is not None:
        plan.instructions.save(directory)
    result.save(directory, vectors=not whole)  # the vectors are in place already, unless rows were dropped
    shutil.rmtree(directory / "progress", ignore_errors=True)
    return FeatureSet.load(directory)


def _write_problems(directory: Path) -> None:
    lines: list[str] = []
    for path in sorted((directory / "progress").glob("*.json")):
        lines += cast(list[str], json.loads(path.read_text(encoding="utf-8")))
    if lines:
        (directory / "problems.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def modality_counts(features: Features) -> dict[str, int]:
    """How many rows are images, texts and pairs."""
    counts = torch.bincount(features.modality, minlength=3).tolist()
    return {modality.label: int(counts[int(modality)]) for modality in Modality}
