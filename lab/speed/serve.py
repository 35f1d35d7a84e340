"""Load test of `genius serve` on this machine: queries a second, latency, errors under overload, memory over time.

A closed loop: each connection sends its next query when the last one is answered. Loopback only, bounded by counts and
seconds. The server is a real process; the client here is asyncio over plain sockets, so that it costs little beside it.

    python -m lab.speed.serve --items 20000 --out lab/speed/serve.json          the tests' tiny model: the service alone
    genius demo && python -m lab.speed.serve --index demo.genius --out ...       the bundled model over the demo's drawings

The file holds one report a model; a run replaces its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from lab import current_commit

ROOT = Path(__file__).parents[2]
LAUNCHER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import fake_encoder; fake_encoder.register(); "
    "from genius.cli import main; main()"
)
WORDS = [
    "red", "blue", "green", "small", "large", "old", "new", "round", "square", "bright", "dark", "car", "tree", "house",
    "boat", "chair", "lamp", "cloud", "river", "stone",
]  # fmt: skip


def build(folder: Path, items: int, model: str) -> tuple[Path, str]:
    """An index of generated sentences: what is measured is the service, not the taste of a model."""
    from genius import Genius, Item
    from genius.index import Index

    if model == "fake":
        sys.path.insert(0, str(ROOT / "tests" / "helpers"))
        from fake_encoder import fake_model

        fake_model(levels=(3, 256, 256, 256)).save_pretrained(folder / "model")
        import fake_encoder

        fake_encoder.register()
        model = str(folder / "model")
    draw = random.Random(0)
    index = Index(folder / "load.genius", Genius.from_pretrained(model))
    index.add(
        (Item(f"item-{i}", text=" ".join(draw.choices(WORDS, k=8)), metadata={"price": i % 100}) for i in range(items)),
        batch_size=2000,
    )
    return index.path, model


class Server:
    """`genius serve` as a process."""

    def __init__(self, index: Path, model: str, *options: str) -> None:
        command = [
            sys.executable,
            "-c",
            LAUNCHER,
            str(ROOT / "tests" / "helpers"),
            "serve",
            str(index),
            "--model",
            model,
            "--port",
            "0",
        ]
        self.process = subprocess.Popen(
            [*command, "--json", "--log-level", "warning", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.host, port = json.loads(self.process.stdout.readline())["url"].removeprefix("http://").split(":")
        self.port = int(port)

    def rss_mb(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss / 1e6)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


async def connection(
    server: Server, draw: random.Random, until: float, counts: Counter[int], seconds: list[float], left: list[int]
) -> None:
    """One connection of the closed loop."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        while time.perf_counter() < until and left[0] > 0:
            left[0] -= 1
            body = json.dumps({"text": " ".join(draw.choices(WORDS, k=4)), "k": 10}).encode()
            head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            started = time.perf_counter()
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer[9:12])
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            counts[status] += 1
            if status == 200:
                seconds.append(time.perf_counter() - started)
            else:
                await asyncio.sleep(0.01)
    finally:
        writer.close()


def load(server: Server, connections: int, seconds: float, requests: int = 10**9) -> dict[str, Any]:
    counts: Counter[int] = Counter()
    times: list[float] = []
    left = [requests]

    async def run() -> float:
        started = time.perf_counter()
        until = started + seconds
        await asyncio.gather(*[connection(server, random.Random(i), until, counts, times, left) for i in range(connections)])
        return time.perf_counter() - started

    wall = asyncio.run(run())
    p50, p95, p99 = (np.percentile(times, [50, 95, 99]) * 1000).tolist() if times else (0.0, 0.0, 0.0)
    return {
        "connections": connections,
        "seconds": round(wall, 2),
        "answered": counts[200],
        "queries_per_second": round(counts[200] / wall, 1),
        "p50_ms": round(p50, 2),
        "p95_ms": round(p95, 2),
        "p99_ms": round(p99, 2),
        "statuses": {str(status): n for status, n in sorted(counts.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load level")
    parser.add_argument("--requests", type=int, default=20_000, help="of the memory run; 0: none")
    parser.add_argument("--model", default="fake", help="'fake' (a tiny encoder: measures the service) or a model URI")
    parser.add_argument("--index", type=Path, help="an index that is there, with its own model, in place of --items and --model")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.index is None:
            index, model = build(Path(folder), options.items, options.model)
            about = {"items": options.items, "model": options.model}
        else:
            index, (model, items) = options.index, described(options.index)
            about = {"items": items, "model": model}
        report = measure(index, model, about, options.seconds, options.requests)
    print(json.dumps(report, indent=2))
    if options.out:
        whole = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps({**whole, report["model"]: report}, indent=2) + "\n")


def described(path: Path) -> tuple[str, int]:
    """The model an index names, and how many items it has."""
    from genius.index.folder import about_of
    from genius.index.store import Store

    source = about_of(path).source
    if source is None:
        raise SystemExit(f"{path} does not say where its model lies")
    store = Store.open(path)
    return source, store.at(store.latest()).count()


def measure(index: Path, model: str, about: dict[str, Any], seconds: float, requests: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": current_commit(),
        "machine": {"cores": os.cpu_count(), "cpu": _cpu(), "memory_gb": round(psutil.virtual_memory().total / 2**30)},
        "versions": _versions(),
        **about,
        "load_average_before": [round(value, 1) for value in os.getloadavg()],
    }
    server = Server(index, model)
    load(server, 8, 2)  # warm
    report["levels"] = [load(server, connections, seconds) for connections in (1, 8, 64)]
    memory = [server.rss_mb()]
    for _ in range(10 if requests else 0):
        load(server, 16, 600, requests // 10)
        memory.append(server.rss_mb())
    report["memory"] = {"requests": requests, "rss_mb": [round(value, 1) for value in memory]}
    report["exit_status"] = server.stop()
    alone = Server(index, model, "--batch", "1")
    load(alone, 8, 2)
    report["without_batching"] = load(alone, 64, seconds)
    alone.stop()
    small = Server(index, model, "--queue", "8", "--batch", "4")
    load(small, 4, 1)
    report["overload"] = {"queue": 8, "batch": 4, **load(small, 64, seconds)}
    small.stop()
    report["batching_gain"] = round(
        report["levels"][-1]["queries_per_second"] / report["without_batching"]["queries_per_second"], 2
    )
    report["load_average_after"] = [round(value, 1) for value in os.getloadavg()]
    return report


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = ("torch", "fastapi", "uvicorn", "lancedb")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


if __name__ == "__main__":
    main()
