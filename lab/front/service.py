"""What people wait for beside the search itself: `genius search` from cold, a service with many callers, filters that differ.

    python -m lab.front.service demo.genius --out lab/front/service.json

- `cold`: processor seconds (user and system) of whole processes, the least and the middle of several; `import torch` beside it.
- `filters`: processor milliseconds of 32 searches in one pass of the service's backend with 32 conditions, with one, with none.
- `load`: a closed loop over 64 connections. The client shares the cores, so processor milliseconds a query are given for both;
  latency is of the clock, so it means little on a busy machine (`load_average`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from genius import Index
from genius.search import SearchRequest
from genius.serve.backend import Backend, Job
from genius.types import Query
from lab.speed import serve

SEARCHES, ITEMS = 32, 3000


def cold(command: Sequence[str], runs: int) -> dict[str, Any]:
    """Processor seconds of a process, from its start to its end."""
    seconds = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    own = sorted(seconds[1:])  # the first reads files that the others find in memory
    return {"runs": runs, "least_s": round(own[0], 2), "middle_s": round(own[len(own) // 2], 2)}


def filters(rounds: int) -> dict[str, Any]:
    """32 searches in one pass: without a condition, with one, with 32."""
    draw = random.Random(0)
    queries = [Query(text=" ".join(draw.choices(serve.WORDS, k=4))) for _ in range(SEARCHES)]
    each: list[str | None] = [f"price < {60 + i}" for i in range(SEARCHES)]
    conditions: dict[str, list[str | None]] = {"none": [None] * SEARCHES, "one": ["price < 60"] * SEARCHES, "each": each}
    with tempfile.TemporaryDirectory() as folder:
        backend = Backend(Index.open(serve.build(Path(folder), ITEMS, "bundled:mini")[0]))
        jobs = {
            name: [Job(query, SearchRequest(10, where), backend) for query, where in zip(queries, filtered, strict=True)]
            for name, filtered in conditions.items()
        }
        least = dict.fromkeys(jobs, float("inf"))
        for turn in range(rounds + 1):  # in turns, so that a busy machine is busy for all
            for name, own in jobs.items():
                start = time.process_time()
                answers = backend.run(own)
                if turn:  # in the first, conditions become rows
                    least[name] = min(least[name], time.process_time() - start)
                assert not any(isinstance(answer, BaseException) for answer in answers)
    found = {f"{name}_ms": round(1e3 * seconds, 1) for name, seconds in least.items()}
    about = {"items": ITEMS, "searches": SEARCHES, "rounds": rounds}
    return about | found | {"each_against_one": round(least["each"] / least["one"], 2)}


def load(index: Path, seconds: float) -> dict[str, Any]:
    server = serve.Server(index, serve.described(index)[0])
    try:
        serve.load(server, 16, 60, 300)  # warm
        process = psutil.Process(server.process.pid)

        def spent() -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        before, own = spent(), time.process_time()
        report = serve.load(server, 64, seconds)
        answered = max(report["answered"], 1)
        report["server_cpu_ms_per_query"] = round(1e3 * (spent() - before) / answered, 2)
        report["client_cpu_ms_per_query"] = round(1e3 * (time.process_time() - own) / answered, 2)
        return report
    finally:
        server.stop()


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "cold": lambda args: {name: cold(command, args.runs) for name, command in _commands(args.index).items()},
    "filters": lambda args: filters(args.runs),
    "load": lambda args: load(args.index, args.seconds),
}


def _commands(index: Path) -> dict[str, list[str]]:
    return {
        "genius search": ["-m", "genius", "search", str(index), "a red bicycle"],
        "import torch": ["-c", "import torch"],
        "import torch, not taken apart at the end": ["-c", "import gc, torch; gc.freeze()"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS), help="a run replaces its own parts of the file")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled already
    for name in args.parts.split(","):
        about = {"date": datetime.date.today().isoformat(), "load_average": round(os.getloadavg()[0], 1)}
        whole = json.loads(args.out.read_text()) if args.out.exists() else {"index": args.index.name, "seed": 0}
        whole[name] = about | PARTS[name](args)
        args.out.write_text(json.dumps(whole, indent=2) + "\n")
        print(json.dumps({name: whole[name]}), flush=True)


if __name__ == "__main__":
    main()
