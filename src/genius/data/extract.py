"""From a collection and an encoder to a `FeatureSet`: resumable, sharded, never all images in memory.

The final files are laid out first at their full size and filled row by row, so there is nothing to merge and a
stopped run goes on where it was. Several processes may share the work: process r of n takes every n-th shard.
A run with another encoder or changed data refuses to mix with what is there.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from genius.data.collection import Collection, check_collection
from genius.data.features import POOL, QUERIES, FeatureSet, features_from_tensors, pairs_from_ids, write_json
from genius.encoders.base import Encoder, OnError, PairEncoder, encode_items, encode_joint, encode_queries
from genius.errors import GeniusError
from genius.features import Features
from genius.instructions import query_text
from genius.types import Item, Modality, Query
from genius.weight_files import read_tensors

Progress = Callable[[str, int, int], None]
"""Called as progress("queries" | "pool", rows done, rows in all)."""


@dataclass(frozen=True, slots=True)
class ExtractConfig:
    """How features are extracted."""

    batch_size: int = 64  # pictures or texts encoded at once
    shard_rows: int = 4096  # rows between two marks of progress: what a stopped run may lose
    half: bool = True  # store fp16, as published for candidates; else fp32
    fusion: Literal["towers", "feature"] = "towers"  # feature: one fused vector an item, from `encode_pairs`
    on_error: OnError = "raise"  # skip: drop items and queries whose picture cannot be read, and say so
    check: bool = True  # read every line and look for every image before the first is encoded
    rank: int = 0  # this process ...
    world: int = 1  # ... of so many


@dataclass
class _Plan:
    """What the finished folder will hold, known before anything is encoded."""

    query_ids: list[str]
    tasks: list[int]
    positives: Mapping[str, Sequence[str]]
    pool_ids: list[str]
    pools: dict[int, list[str]]
    names: dict[int, str]
    times: dict[str, int]  # of queries that training meets more than once


def extract(
    encoder: Encoder | PairEncoder,
    collection: Collection,
    directory: str | Path,
    config: ExtractConfig | None = None,
    progress: Progress | None = None,
) -> FeatureSet | None:
    """Fill `directory` with the collection's features. None: other processes still have shards to do."""
    config = config or ExtractConfig()
    directory = Path(directory)
    if FeatureSet.is_folder(directory):
        _check_stamp(directory, _stamp(encoder, collection, config))
        return FeatureSet.load(directory)
    if config.check:
        check_collection(collection)
    plan = _plan(collection)
    directory.mkdir(parents=True, exist_ok=True)
    _check_stamp(directory, _stamp(encoder, collection, config))
    parts: list[tuple[str, str, int, Iterator[Any]]] = [
        ("queries", QUERIES, len(plan.query_ids), (judged.query for judged in collection.queries())),
        ("pool", POOL, len(plan.pool_ids), collection.pool()),
    ]
    for name, file, rows, stream in parts:
        _lay_out(directory / file, rows, encoder.width, config.half)
        _fill(directory, name, file, rows, stream, encoder, config, progress)
    if not _all_done(directory, plan, config):
        return None
    return _finish(directory, plan)


# -- the plan ------------------------------------------------------------------------------------------------------


def _plan(collection: Collection) -> _Plan:
    pool_ids = [item.id for item in collection.pool()]
    known = set(pool_ids)
    query_ids, tasks, positives, times = [], [], {}, {}
    for judged in collection.queries():
        query_ids.append(judged.id)
        tasks.append(judged.task)
        positives[judged.id] = [name for name in judged.positives if name in known]  # others are in pools that are not read
        if judged.times > 1:
            times[judged.id] = judged.times
    pools = {}
    for number in range(len(collection.tasks)):
        own = collection.local_pool(number)
        if own is not None:
            pools[number] = list(dict.fromkeys(own))
    names = {number: task.key for number, task in enumerate(collection.tasks)}
    return _Plan(query_ids, tasks, positives, pool_ids, pools, names, times)


STAMP = "extract.json"


def _stamp(encoder: Encoder | PairEncoder, collection: Collection, config: ExtractConfig) -> dict[str, Any]:
    return {
        "encoder": encoder.fingerprint(),
        "collection": collection.fingerprint(),
        "fusion": config.fusion,
        "half": config.half,
        "shard_rows": config.shard_rows,
    }


def _check_stamp(directory: Path, stamp: dict[str, Any]) -> None:
    """Features of two encoders, or of older data, never end up in one folder."""
    path = directory / STAMP
    if not path.is_file():
        if FeatureSet.is_folder(directory):
            return  # made elsewhere: nothing to compare with
        write_json(path, stamp)
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    different = [key for key in stamp if found.get(key) != stamp[key]]
    if different:
        raise GeniusError(f"{directory} holds features of another {different[0]}: give another folder, or delete this one")


# -- files at their full size --------------------------------------------------------------------------------------


def _layout(rows: int, width: int, half: bool) -> tuple[bytes, dict[str, tuple[int, tuple[int, ...], Any]]]:
    """Header of a safetensors file with the four tensors, and (offset, shape, dtype) of each."""
    kind, number = ("F16", np.float16) if half else ("F32", np.float32)
    table: dict[str, Any] = {}
    places: dict[str, tuple[int, tuple[int, ...], Any]] = {}
    start = 0
    for name, shape, label, dtype in (
        ("image", (rows, width), kind, number),
        ("text", (rows, width), kind, number),
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


def _lay_out(path: Path, rows: int, width: int, half: bool) -> None:
    header, places = _layout(rows, width, half)
    end = max(offset + int(np.prod(shape)) * np.dtype(dtype).itemsize for offset, shape, dtype in places.values())
    if path.is_file() and path.stat().st_size == end:
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # other processes may lay it out at the same moment
    try:
        os.pwrite(handle, header, 0)
        os.ftruncate(handle, end)
    finally:
        os.close(handle)


def _fill(
    directory: Path,
    name: str,
    file: str,
    rows: int,
    stream: Iterator[Any],
    encoder: Encoder | PairEncoder,
    config: ExtractConfig,
    progress: Progress | None,
) -> None:
    _, places = _layout(rows, encoder.width, config.half)
    done = 0
    for shard, start in enumerate(range(0, rows, config.shard_rows)):
        inputs = list(itertools.islice(stream, min(config.shard_rows, rows - start)))  # paths and texts, not pictures
        mark = _mark(directory, name, shard)
        if shard % config.world == config.rank and not mark.is_file():
            features, problems = _encode(encoder, inputs, config)
            _write_rows(directory / file, places, start, features)
            write_json(mark, problems)  # after the rows: a mark means they are there
        done += len(inputs)
        if progress is not None:
            progress(name, done, rows)


def _mark(directory: Path, name: str, shard: int) -> Path:
    return directory / "progress" / f"{name}-{shard:06d}.json"


def _write_rows(path: Path, places: dict[str, tuple[int, tuple[int, ...], Any]], start: int, features: Features) -> None:
    for name, (offset, shape, dtype) in places.items():
        values = getattr(features, name).numpy().astype(dtype)
        target = np.memmap(path, dtype=dtype, mode="r+", offset=offset, shape=shape)
        target[start : start + len(values)] = values
        target.flush()


# -- encoding one shard --------------------------------------------------------------------------------------------


def _encode(encoder: Encoder | PairEncoder, inputs: list[Any], config: ExtractConfig) -> tuple[Features, list[str]]:
    """Features of every input in order; unreadable ones have both masks 0 and a line in the problems."""
    if config.fusion == "feature":
        if not isinstance(encoder, PairEncoder):
            raise GeniusError("feature fusion needs an encoder that provides encode_pairs")
        features, kept, problems = encode_joint(encoder, inputs, batch_size=config.batch_size, on_error=config.on_error)
        return _spread(features, kept, len(inputs)), problems
    if not isinstance(encoder, Encoder):
        raise GeniusError("this encoder fuses features itself: extract with fusion 'feature'")
    if inputs and isinstance(inputs[0], Query):
        if config.on_error == "raise":
            return encode_queries(encoder, inputs, batch_size=config.batch_size), []
        inputs = [Item(f"query {i}", image=query.image, text=query_text(query)) for i, query in enumerate(inputs)]
    features, kept, problems = encode_items(encoder, inputs, batch_size=config.batch_size, on_error=config.on_error)
    if len(kept) == len(inputs):
        return features, []
    return _spread(features, kept, len(inputs)), problems


def _spread(features: Features, kept: Sequence[int], rows: int) -> Features:
    place = torch.tensor(kept, dtype=torch.long)
    vectors = torch.zeros(2, rows, features.width)
    masks = torch.zeros(2, rows, dtype=torch.bool)
    vectors[0, place], vectors[1, place] = features.image, features.text
    masks[0, place], masks[1, place] = features.image_mask, features.text_mask
    return Features(vectors[0], vectors[1], masks[0], masks[1])


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
    readable_queries, readable_items = queries.image_mask | queries.text_mask, pool.image_mask | pool.text_mask
    query_ids, tasks, pool_ids = plan.query_ids, torch.tensor(plan.tasks, dtype=torch.long), plan.pool_ids
    positives, pools = plan.positives, plan.pools
    whole = bool(readable_queries.all() and readable_items.all())
    if not whole:
        kept_items = set(itertools.compress(pool_ids, readable_items.tolist()))
        query_ids = list(itertools.compress(query_ids, readable_queries.tolist()))
        pool_ids = list(itertools.compress(pool_ids, readable_items.tolist()))
        tasks, queries, pool = tasks[readable_queries], queries[readable_queries], pool[readable_items]
        positives = {q: [p for p in positives[q] if p in kept_items] for q in query_ids}
        pools = {task: [name for name in names if name in kept_items] for task, names in pools.items()}
    row = {name: i for i, name in enumerate(pool_ids)}
    result = FeatureSet(
        queries,
        pool,
        pairs_from_ids(positives, query_ids, pool_ids),
        query_ids,
        pool_ids,
        tasks,
        plan.names,
        {task: torch.tensor([row[name] for name in names], dtype=torch.long) for task, names in pools.items()},
        torch.tensor([plan.times.get(name, 1) for name in query_ids], dtype=torch.long) if plan.times else None,
    )
    _write_problems(directory)
    result.save(directory, vectors=not whole)  # the vectors are in place already, unless some rows had to go
    shutil.rmtree(directory / "progress", ignore_errors=True)
    return FeatureSet.load(directory)


def _write_problems(directory: Path) -> None:
    lines: list[str] = []
    for path in sorted((directory / "progress").glob("*.json")):
        lines += cast(list[str], json.loads(path.read_text(encoding="utf-8")))
    if lines:
        (directory / "problems.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def modality_counts(features: Features) -> dict[str, int]:
    """How many rows are images, texts, pairs: a sanity line for the command."""
    counts = torch.bincount(features.modality, minlength=3).tolist()
    return {modality.label: int(counts[int(modality)]) for modality in Modality}
