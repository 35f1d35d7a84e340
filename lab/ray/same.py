"""The same sources indexed by two of Ray's workers and without Ray: the same ids, codes, vectors, metadata and answers?

A worker of Ray has one thread, so the process without Ray has one, too; a third run has as many as the machine gives it, to see
what the number of threads alone changes.

    python -m lab.ray.same --rows 19000 --pictures 1000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from genius.index import Index
from lab.ray.compare import QUESTIONS, differences, make_sources
from lab.ray.processes import keep, mark

RESULT = Path(__file__).parent / "same.json"


def run(sources: Path, output: Path, *options: str, threads: int = 1) -> dict[str, Any]:
    """`genius index` as a process: what it says, and the processor time of it and of everything that it starts.

    `cpu_of`: the command's own, the workers', and that of Ray's store, raylet and agents. `threads`: 0 for one a processor."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": f"{threads}"} if threads else {}
    command = [sys.executable, "-m", "genius", "index", str(sources), "-o", str(output), "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    spent: dict[int, tuple[str, float]] = {}

    def watch() -> None:
        mine = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                for one in [mine, *mine.children(recursive=True)]:
                    times, title = one.cpu_times(), " ".join(one.cmdline()[:1])
                    who = "command" if one is mine else "workers" if title.startswith("ray::PartWriter") else "ray"
                    spent[one.pid] = who, times.user + times.system
            except psutil.Error:
                pass
            time.sleep(0.25)

    watcher = threading.Thread(target=watch, daemon=True)
    started = time.monotonic()
    watcher.start()
    text, _ = process.communicate()
    assert process.returncode == 0, text
    cpu_of = {who: round(sum(cpu for by, cpu in spent.values() if by == who), 1) for who in ("command", "workers", "ray")}
    wall = round(time.monotonic() - started, 1)
    return {"cpu_s": round(sum(cpu_of.values()), 1), "cpu_of": cpu_of, "wall_s": wall, "said": json.loads(text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=19_000)
    parser.add_argument("--pictures", type=int, default=1000)
    options = parser.parse_args()
    mark()
    folder = Path(tempfile.mkdtemp(prefix="genius-same-"))
    try:
        ids = make_sources(folder / "sources", options.rows, options.pictures)
        runs = {
            "without": run(folder / "sources", folder / "without.genius"),
            "two_workers": run(folder / "sources", folder / "two_workers.genius", "--ray", "--workers", "2"),
            "all_threads": run(folder / "sources", folder / "all_threads.genius", threads=0),
        }
        indexes = {name: Index.open(folder / f"{name}.genius", read_only=True) for name in runs}
        body: dict[str, Any] = {
            "what": "genius index with --ray --workers 2 against without --ray, same sources: items and answers that differ",
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "settings": {**vars(options), "model": "bundled:mini", "threads": 1, "processors": os.cpu_count()},
            "items": len(ids),
            "questions": len(QUESTIONS),
            "added": {name: one["said"]["added"] for name, one in runs.items()},
            "different": differences(indexes["without"], indexes["two_workers"]),
            "different_by_threads_alone": differences(indexes["without"], indexes["all_threads"]),
            "cpu_s": {name: one["cpu_s"] for name, one in runs.items()},
            "wall_s": {name: one["wall_s"] for name, one in runs.items()},
        }
        body["load_average"] = [round(value, 1) for value in os.getloadavg()]
        keep(RESULT, body)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
