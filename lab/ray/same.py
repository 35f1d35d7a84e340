"""The same sources indexed by two of Ray's workers and without Ray: the same ids, codes, vectors, metadata and answers?

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


def run(sources: Path, output: Path, *options: str) -> dict[str, Any]:
    """`genius index` as a process: what it says, and the processor time of it and of everything that it started.

    For Ray that is its store, raylet, agents and workers, from start to end."""
    command = [sys.executable, "-m", "genius", "index", str(sources), "-o", str(output), "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    spent: dict[int, float] = {}

    def watch() -> None:
        mine = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                for one in [mine, *mine.children(recursive=True)]:
                    times = one.cpu_times()
                    spent[one.pid] = times.user + times.system
            except psutil.Error:
                pass
            time.sleep(0.25)

    watcher = threading.Thread(target=watch, daemon=True)
    started = time.monotonic()
    watcher.start()
    text, _ = process.communicate()
    assert process.returncode == 0, text
    return {"cpu_s": round(sum(spent.values()), 1), "wall_s": round(time.monotonic() - started, 1), "said": json.loads(text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=19_000)
    parser.add_argument("--pictures", type=int, default=1000)
    options = parser.parse_args()
    mark()
    folder = Path(tempfile.mkdtemp(prefix="genius-same-"))
    try:
        ids = make_sources(folder / "sources", options.rows, options.pictures)
        plain = run(folder / "sources", folder / "plain.genius")
        two = run(folder / "sources", folder / "two.genius", "--ray", "--workers", "2")
        with Index.open(folder / "plain.genius", read_only=True) as a, Index.open(folder / "two.genius", read_only=True) as b:
            found = differences(a, b)
        body: dict[str, Any] = {
            "what": "genius index with --ray against without, same sources",
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "settings": {**vars(options), "model": "bundled:mini", "threads": os.environ.get("OMP_NUM_THREADS")},
            "items": len(ids),
            "questions": len(QUESTIONS),
            "added": {"without": plain["said"]["added"], "two_workers": two["said"]["added"]},
            "different": found,
            "cpu_s": {"without": plain["cpu_s"], "two_workers": two["cpu_s"]},
            "wall_s": {"without": plain["wall_s"], "two_workers": two["wall_s"]},
        }
        body["load_average"] = [round(value, 1) for value in os.getloadavg()]
        keep(RESULT, body)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
