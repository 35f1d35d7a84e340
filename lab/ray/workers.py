"""`genius serve --workers 2` against one: queries a second and memory, with the bundled model on this machine's processors.

The same closed loop of connections against both, in turns, so that what else runs here hits both alike; how much that was is
written down (`cores_of_others`). One worker by itself may use several threads: a third server has one thread only. Memory is
the proportional share (PSS): what two processes map in common counts half for each.

    python -m lab.ray.workers --items 20000
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from lab.ray.processes import keep
from lab.speed.serve import Server, build, load

RESULT = Path(__file__).parent / "workers.json"
WAYS = {"one": (1, 0), "two": (2, 0), "one, one thread": (1, 1)}  # workers, and threads of each: 0 is what the command chooses


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


def processor_s(server: Server) -> float:
    """Processor time so far of all processes of a server."""
    parent = psutil.Process(server.process.pid)
    times = [one.cpu_times() for one in [parent, *parent.children(recursive=True)]]
    return float(sum(time.user + time.system for time in times))


def turn(server: Server, connections: int, seconds: float) -> dict[str, Any]:
    """One load, with what it cost the server and the client."""
    before, mine, elsewhere = processor_s(server), time.process_time(), _busy()
    found = load(server, connections, seconds)
    spent, mine, busy = processor_s(server) - before, time.process_time() - mine, _busy() - elsewhere
    found["cores_used"] = round(spent / found["seconds"], 2)
    found["cores_of_client"] = round(mine / found["seconds"], 2)
    found["cores_of_others"] = round(max(0.0, busy - spent - mine) / found["seconds"], 2)
    found["processor_ms_per_query"] = round(1000 * spent / max(1, found["answered"]), 2)
    return found


def _busy() -> float:
    """Processor seconds that everything on this machine has had."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.steal - times.guest - times.guest_nice)


def started(index: Path, model: str, workers: int, threads: int) -> Server:
    before = os.environ.pop("OMP_NUM_THREADS", None)
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        return Server(index, model, "--workers", str(workers))
    finally:
        os.environ.pop("OMP_NUM_THREADS", None)
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index, model = build(Path(folder), options.items, "bundled:mini")
        servers = {way: started(index, model, *how) for way, how in WAYS.items()}
        turns: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for server in servers.values():
            load(server, options.connections, 4.0)  # warm
        for _ in range(options.turns):
            for way, server in servers.items():
                turns[way].append(turn(server, options.connections, options.seconds))
        held = {way: memory(server) for way, server in servers.items()}
        statuses = {way: server.stop() for way, server in servers.items()}

    def middle(name: str) -> dict[str, float]:
        return {way: round(statistics.median(one[name] for one in some), 2) for way, some in turns.items()}

    rates = middle("queries_per_second")
    body = {
        "what": "genius serve --workers 2 against 1, bundled:mini, closed loop, medians of turns that alternate",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "settings": vars(options),
        "processors": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "queries_per_second": rates,
        "ratio": round(rates["two"] / rates["one"], 2),
        "ratio_to_one_thread": round(rates["two"] / rates["one, one thread"], 2),
        **{
            name: middle(name)
            for name in ("processor_ms_per_query", "cores_used", "cores_of_client", "cores_of_others", "p50_ms")
        },
        "memory": held,
        "exit_status": statuses,
        "turns": turns,
    }
    keep(RESULT, body)


if __name__ == "__main__":
    main()
