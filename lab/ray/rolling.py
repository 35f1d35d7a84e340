"""Requests to `genius serve --ray` while the index gets a new version, a replica is killed, and another index is rolled out.

Every answer must be whole: ten hits of one index, never of a half-loaded one; and nothing may fail but with 503 and Retry-After.

    python -m lab.ray.rolling --requests 1000
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from genius import Item
from genius.index import Index
from genius.scale import connected
from genius.scale.serving import ReplicaConfig, deploy
from genius.serve.settings import ServeConfig
from lab.ray.compare import WORDS
from lab.ray.processes import keep, mark, marked

RESULT = Path(__file__).parent / "rolling.json"
K = 10


def make_index(path: Path, mark: str, count: int, seed: int) -> Index:
    chance = random.Random(seed)
    index = Index(path, "bundled:mini")
    index.add((Item(f"{mark}-{i}", text=" ".join(chance.choices(WORDS, k=6))) for i in range(count)), batch_size=1000)
    return index


class Callers:
    """A few connections that ask one question after the other, and keep what came."""

    def __init__(self, url: str, total: int, callers: int) -> None:
        self.url, self.left, self.lock = url, total, threading.Lock()
        self.statuses: Counter[str] = Counter()
        self.failed: list[str] = []
        self.marks: list[str] = []
        self.threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(callers)]

    def done(self) -> int:
        return sum(self.statuses.values())

    def _ask(self, seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(timeout=120, trust_env=False) as client:
            while True:
                with self.lock:
                    if self.left == 0:
                        return
                    self.left -= 1
                try:
                    reply = client.post(f"{self.url}/v1/search", json={"text": " ".join(chance.choices(WORDS, k=3)), "k": K})
                    self._judge(reply)
                except httpx.HTTPError as error:
                    self.statuses["broken"] += 1
                    self.failed.append(repr(error)[:200])

    def _judge(self, reply: httpx.Response) -> None:
        if reply.status_code == 503 and "retry-after" in reply.headers:
            self.statuses["503 with Retry-After"] += 1
            time.sleep(0.5)
            return
        if reply.status_code != 200:
            self.statuses[str(reply.status_code)] += 1
            self.failed.append(reply.text[:200])
            return
        marks = {hit["id"].partition("-")[0] for hit in reply.json()["hits"]}
        whole = len(reply.json()["hits"]) == K and len(marks) == 1
        self.statuses["200" if whole else "200 but not whole"] += 1
        self.marks.append(marks.pop())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--items", type=int, default=2500)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="genius-rolling-"))
    mark()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ServeConfig(port=port, read_only=True, timeout_s=100)
    config = ReplicaConfig(least=2, most=2)
    events: list[dict[str, Any]] = []
    try:
        with connected("local", 3):
            first, second = make_index(folder / "a.genius", "a", options.items, 0), folder / "b.genius"
            make_index(second, "b", options.items, 1)
            deploy(first.path, settings, None, {}, config)
            started = time.monotonic()
            callers = Callers(f"http://127.0.0.1:{port}", options.requests, options.callers)
            for thread in callers.threads:
                thread.start()

            def after(share: float, what: str) -> None:
                while callers.done() < share * options.requests and any(thread.is_alive() for thread in callers.threads):
                    time.sleep(0.02)
                events.append({"after_requests": callers.done(), "what": what})

            after(0.15, "new version: 500 items added")
            first.add([Item(f"a-new{i}", text=" ".join(random.Random(i).choices(WORDS, k=6))) for i in range(500)])
            after(0.3, "kill -9 of one replica of two")
            victims = marked("ServeReplica:genius:replica")
            os.kill(victims[0], signal.SIGKILL)
            after(0.5, "another index rolled out")
            deploy(second, settings, None, {}, config)
            events.append({"after_requests": callers.done(), "what": "roll-out done"})
            for thread in callers.threads:
                thread.join()
            seconds = time.monotonic() - started
            from ray import serve

            serve.shutdown()
        body = {
            "what": "requests to genius serve --ray (2 replicas) over a new version, a killed replica and a new index",
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "settings": {**vars(options), "replicas": 2, "model": "bundled:mini"},
            "replicas_seen_before_the_kill": len(victims),
            "answers": dict(callers.statuses),
            "failed": callers.failed[:5],
            "answered_by_index": dict(Counter(callers.marks)),
            "events": events,
            "seconds": round(seconds, 1),
            "load_average": [round(value, 1) for value in os.getloadavg()],
        }
        keep(RESULT, body)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
