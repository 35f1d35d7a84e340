"""What Ray costs: `genius index` with one worker of Ray against without it, the same sources, in processor time.

The time of everything that a run starts counts. Both have one thread, and take turns. What starting costs, Ray's store, raylet
and agents above all, is measured by runs over one single item, and reported apart: `all` has it in, `work` leaves it out.
`cpu_s_by_whom` says who spent it: the command, the worker (a second process that imports torch and loads the model), and what
belongs to Ray, seven processes that it starts for a machine of its own; options of Ray change next to nothing of theirs.

    python -m lab.ray.overhead --pictures 5000 --rows 5000 --turns 3
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from lab.ray.compare import make_sources
from lab.ray.processes import keep, mark
from lab.ray.same import run

RESULT = Path(__file__).parent / "overhead.json"
WAYS = {"without": (), "one_worker": ("--ray", "--workers", "1")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--pictures", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    mark()
    folder = Path(tempfile.mkdtemp(prefix="genius-overhead-"))
    spent: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in WAYS} for kind in ("all", "start")}
    whose: dict[str, list[dict[str, float]]] = {kind: [] for kind in spent}  # with Ray
    try:
        ids = make_sources(folder / "sources", options.rows, options.pictures)
        (folder / "one").mkdir()
        (folder / "one" / "a.txt").write_text("one single item")
        for _ in range(options.turns):
            for way, words in WAYS.items():
                for kind, sources in (("all", "sources"), ("start", "one")):
                    output = folder / f"{way}.genius"
                    took = run(folder / sources, output, *words)
                    spent[kind][way].append(took["cpu_s"])
                    whose[kind] += [took["cpu_of"]] if words else []
                    shutil.rmtree(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    middle = {kind: {way: statistics.median(times) for way, times in ways.items()} for kind, ways in spent.items()}
    work = {way: middle["all"][way] - middle["start"][way] for way in WAYS}
    body = {
        "what": "genius index --ray --workers 1 against without --ray: processor seconds of all processes, medians of turns",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "settings": {**vars(options), "model": "bundled:mini", "threads": 1},
        "items": len(ids),
        "cpu_s": middle["all"],
        "cpu_s_of_starting": middle["start"],
        "cpu_s_by_whom": {
            kind: {who: round(statistics.median(took[who] for took in each), 1) for who in each[0]}
            for kind, each in whose.items()
        },
        "overhead": {
            "all": round(middle["all"]["one_worker"] / middle["all"]["without"], 2),
            "work": round(work["one_worker"] / work["without"], 2),
        },
        "each": spent,
        "load_average": [round(value, 1) for value in os.getloadavg()],
    }
    keep(RESULT, body)


if __name__ == "__main__":
    main()
