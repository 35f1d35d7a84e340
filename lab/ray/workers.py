"""`genius serve --workers 2` against one: queries a second and memory, with the bundled model on this machine's processors.

The same closed loop of connections against both, in turns, so that what else runs here hits both alike. Memory is the
proportional share (PSS): what two processes map in common counts half for each.

    python -m lab.ray.workers --items 20000
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from lab.ray.processes import keep
from lab.speed.serve import Server, build, load

RESULT = Path(__file__).parent / "workers.json"


def memory(server: Server) -> dict[str, float]:
    """MB of all processes that answer: their shares, what each would say of itself, and what of it are the index's own files."""
    parent = psutil.Process(server.process.pid)
    pids = [child.pid for child in parent.children()] or [parent.pid]
    found = {"pss_mb": 0.0, "rss_mb": 0.0, "index_pss_mb": 0.0, "index_rss_mb": 0.0}
    for pid in pids:
        mapped = ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                mapped = words[-1]
            elif words[0] in ("Pss:", "Rss:"):
                name = f"{words[0][:-1].lower()}_mb"
                found[name] += int(words[1]) / 1000
                if "/cache/" in mapped:
                    found[f"index_{name}"] += int(words[1]) / 1000
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index, model = build(Path(folder), options.items, "bundled:mini")
        servers = {count: Server(index, model, "--workers", str(count)) for count in (1, 2)}
        turns: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
        for server in servers.values():
            load(server, options.connections, 4.0)  # warm
        for _ in range(options.turns):
            for count, server in servers.items():
                turns[count].append(load(server, options.connections, options.seconds))
        held = {count: memory(server) for count, server in servers.items()}
        statuses = {count: server.stop() for count, server in servers.items()}
    rates = {count: statistics.median(turn["queries_per_second"] for turn in turns[count]) for count in turns}
    body = {
        "what": "genius serve --workers 2 against 1, bundled:mini, closed loop",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "settings": vars(options),
        "processors": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "queries_per_second": rates,
        "ratio": round(rates[2] / rates[1], 2),
        "p50_ms": {count: statistics.median(turn["p50_ms"] for turn in turns[count]) for count in turns},
        "memory": held,
        "exit_status": statuses,
        "statuses": {count: [turn["statuses"] for turn in turns[count]] for count in turns},
    }
    keep(RESULT, body)


if __name__ == "__main__":
    main()
