"""Measures algorithms on data sets in VIBE's format: recall@10 against queries per second, bytes, build time, additions.

    python -m lab.front.run FILE.hdf5 --algorithms "GENIUS,Faiss HNSW32" --out RESULT.json [--also OTHER.hdf5]

One thread, processor time of the whole process. For every recall in `TARGETS` the fastest setting that reaches it on
*validation* queries is chosen; what is reported is that setting's recall and time on *test* queries, the least time of
`--rounds` rounds in which all algorithms take turns. `--also` asks the same indexes queries of another kind over the same
items. The result is written after every algorithm. Knows nothing of the algorithms but their two calls.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from lab import current_commit
from lab.front import algorithms
from lab.front.algorithms import ALGORITHMS, Algorithm, Floats, Setting
from lab.front.data import Dataset

K = 10
BATCH = 32
TARGETS = (0.90, 0.95, 0.98, 0.995)
ADDED = 10_000
OURS = "GENIUS"
FIRST = 100  # validation queries on which all settings are tried
SLACK = 0.8  # of a setting's time: what the fastest one may take without ruling the other out
BUILT = "build.json"  # beside a kept index: how it was built


def recall(found: NDArray[np.int64], truth: NDArray[np.int32]) -> float:
    """Share of the true ten nearest."""
    return float(
        np.mean([len(set(mine) & set(true)) / K for mine, true in zip(found.tolist(), truth[:, :K].tolist(), strict=True)])
    )


def timed(algorithm: Algorithm, queries: Floats, batch: int) -> tuple[NDArray[np.int64], float]:
    """Rows (Q, K), and processor seconds per query."""
    blocks = [queries[at : at + batch] for at in range(0, len(queries), batch)]
    start = time.process_time()
    found = [algorithm.query(block, K) for block in blocks]
    return np.concatenate(found), (time.process_time() - start) / len(queries)


@dataclass(frozen=True)
class Point:
    """A setting, and what it does."""

    recall: float
    seconds: float  # per query
    setting: Setting


def promising(points: list[Point]) -> list[Point]:
    """Points that may be the fastest at some recall: none has as much and takes less than `SLACK` of the time."""
    out = []
    for point in points:
        fastest = min(other.seconds for other in points if other.recall >= point.recall)
        if fastest >= SLACK * point.seconds:
            out.append(point)
    return out


@dataclass
class Contender:
    """An algorithm over the items, and what was measured of it."""

    name: str
    algorithm: Algorithm
    line: dict[str, Any]
    targets: Sequence[float] = TARGETS
    chosen: dict[tuple[str, float], Setting] = field(default_factory=dict)  # (queries, target) -> setting

    def sweep(self, data: Dataset, count: int) -> None:
        """Choose settings on validation queries: all of the grid on the first of them, the promising ones on all."""
        queries = data.validation[:count]
        truth = data.validation_neighbors[:count]
        timed(self.algorithm_at(self.algorithm.settings[0]), queries[:20], 1)
        rough = self._points(self.algorithm.settings, queries[:FIRST], truth[:FIRST])
        points = self._points([point.setting for point in promising(rough)], queries, truth)
        front: list[dict[str, Any]] = []
        for point in sorted(points, key=lambda point: point.seconds):
            if not front or point.recall > front[-1]["recall@10"]:
                front.append(
                    {"recall@10": round(point.recall, 4), "ms": round(1e3 * point.seconds, 4), "setting": dict(point.setting)}
                )
        self.line.setdefault("validation", {})[data.name] = front
        for target in self.targets:
            enough = [point for point in points if point.recall >= target]
            if enough:
                self.chosen[data.name, target] = min(enough, key=lambda point: point.seconds).setting

    def _points(self, settings: Sequence[Setting], queries: Floats, truth: NDArray[np.int32]) -> list[Point]:
        points = []
        for setting in settings:
            found, seconds = timed(self.algorithm_at(setting), queries, 1)
            points.append(Point(recall(found, truth), seconds, setting))
        return points

    def algorithm_at(self, setting: Setting) -> Algorithm:
        self.algorithm.set(setting)
        return self.algorithm

    def measure(self, data: Dataset, count: int) -> None:
        """One round over test queries; the least times stay."""
        queries = data.test[:count]
        tests = self.line.setdefault("test", {}).setdefault(data.name, {})
        for target in self.targets:
            setting = self.chosen.get((data.name, target))
            if setting is None:
                continue
            found, single = timed(self.algorithm_at(setting), queries, 1)
            _, batch = timed(self.algorithm, queries, BATCH)
            entry = tests.setdefault(str(target), {"setting": dict(setting)})
            entry["recall@10"] = round(recall(found, data.neighbors[:count]), 4)
            entry["single_ms"] = round(min(1e3 * single, entry.get("single_ms", np.inf)), 4)
            entry["batch_ms"] = round(min(1e3 * batch, entry.get("batch_ms", np.inf)), 4)


def about(args: argparse.Namespace, data: Dataset) -> dict[str, Any]:
    return {
        "command": f"python -m lab.front.{Path(sys.argv[0]).stem} "
        + shlex.join(Path(part).name if "/" in part else part for part in sys.argv[1:]),
        "commit": current_commit(),
        "date": datetime.date.today().isoformat(),
        "device": f"{platform.machine()}, {cpu_name()}, {os.cpu_count()} cores, shared",
        "threads": 1,
        "seed": 0,
        "items": len(data.train),
        "width": data.train.shape[1],
        "test_queries": min(args.queries, len(data.test)),
        "validation_queries": min(args.validation, len(data.validation)),
        "learn_queries": len(data.learn),
        "time": "processor time of the process, least of all rounds",
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def fitted(name: str, data: Dataset, threads: int, keep: Path | None) -> Contender:
    """A built index, or the one that is kept. Build times are processor time, summed over `threads`."""
    algorithm = made(name)
    folder = None
    if keep is not None:
        folder = keep / data.name / re.sub(r"\W+", "_", name)
    if folder is not None and (folder / BUILT).exists():
        build = json.loads((folder / BUILT).read_text())
        algorithm.load(folder, data.train, data.learn)
    else:
        build = built(algorithm, data, threads)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            algorithm.save(folder)
            (folder / BUILT).write_text(json.dumps(build))
    line = {
        "name": name,
        **build,
        "memory_bytes_per_item": round(algorithm.memory_bytes / len(data.train), 1),
        "disk_bytes_per_item": algorithm.disk_bytes,
    }
    return Contender(name, algorithm, line)


def made(name: str) -> Algorithm:
    if name == OURS:
        from lab.front.ours import Genius

        return Genius()
    return ALGORITHMS[name]()


def built(algorithm: Algorithm, data: Dataset, threads: int) -> dict[str, Any]:
    """Build, and say how long it took, and with what."""
    if isinstance(algorithm, algorithms.Faiss) and algorithm.refine:
        algorithms.STORE.stored(data.train)  # shared, and nobody's build time
    faiss.omp_set_num_threads(threads)
    algorithms.THREADS = threads
    start = time.process_time()
    algorithm.fit_ood(data.train, data.learn, data.learn_neighbors)
    seconds = time.process_time() - start
    faiss.omp_set_num_threads(1)
    return {"build_s": round(seconds, 1), "build_threads": threads, "build_commit": current_commit()}


def add_some(contender: Contender, data: Dataset) -> None:
    """Processor time of 10,000 additions: items, slightly moved."""
    random = np.random.default_rng(1)
    rows = data.train[random.integers(len(data.train), size=ADDED)]
    rows = rows + 0.02 * random.standard_normal(rows.shape).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    start = time.process_time()
    try:
        contender.algorithm.add(rows)
    except NotImplementedError:
        return
    contender.line["add_10000_s"] = round(time.process_time() - start, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--also", type=Path, action="append", default=[], help="other queries over the same items")
    parser.add_argument("--algorithms", default=",".join([OURS, *ALGORITHMS]))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--validation", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder in which built indexes are kept for later runs")
    parser.add_argument("--targets", help="recalls that settings are chosen for, with commas between")
    parser.add_argument("--build-only", action="store_true", help="build and keep the indexes, and measure nothing")
    parser.add_argument("--build-threads", type=int, default=1)
    parser.add_argument("--no-additions", action="store_true", help="where a second copy of the vectors has no room")
    args = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    data = Dataset.read(args.data)
    if args.build_only:
        for name in args.algorithms.split(","):
            print(name, fitted(name, data, args.build_threads, args.keep).line, flush=True)
        return
    others = [Dataset.read(file, data.train) for file in args.also]
    body = {**about(args, data), "data": data.name, "failed": {}, "lines": []}
    contenders: list[Contender] = []

    def write() -> None:
        body["load_average"] = round(os.getloadavg()[0], 1)
        body["lines"] = [contender.line for contender in contenders]
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    for name in args.algorithms.split(","):
        try:
            contender = fitted(name, data, args.build_threads, args.keep)
            if args.targets:
                contender.targets = [float(target) for target in args.targets.split(",")]
            for part in (data, *others):
                contender.sweep(part, args.validation)
                contender.measure(part, args.queries)
        except Exception as error:  # a library that fails is a result
            traceback.print_exc()
            body["failed"][name] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        contenders.append(contender)
        write()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
        print(
            name,
            json.dumps({key: value for key, value in contender.line.items() if key != "validation"}),
            f"{peak} GB",
            flush=True,
        )
    for _ in range(args.rounds - 1):
        for contender in contenders:
            for part in (data, *others):
                contender.measure(part, args.queries)
        write()
    if not args.no_additions:
        for contender in contenders:
            add_some(contender, data)
        write()


if __name__ == "__main__":
    main()
