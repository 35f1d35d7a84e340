"""Attacks on a running service: is a bystander answered, is /healthz, and how soon is all well again?

    python -m lab.trust.attacks [--index demo.genius] [--only NAME ...] [--seconds 10] [--out lab/trust/attacks.json]

The server, the attacker and the bystander are separate processes, the attacker with a lower priority (nice 5), since it would not
share the server's cores. The bystander has the attacker's own address, which is the harder case. It sends plain searches and
GET /healthz, each on a fresh connection, before, during and after an attack. Recovery is the time from the end of the attack
until both are answered within a second. Without --index a collection of generated texts is made with the bundled model.
Latencies are wall time on a machine that may do other work.
"""

from __future__ import annotations

import argparse
import base64
import io
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from PIL import Image

from lab import ROOT
from lab.trust.service import environment, serve, write_report

POST = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
WORDS = [
    "red", "blue", "green", "small", "large", "old", "new", "bright", "dark", "round", "square", "wooden", "paper",
    "metal", "glass",
]  # fmt: skip
THINGS = [
    "car", "boat", "house", "tree", "cat", "dog", "bird", "chair", "table", "lamp", "phone", "book", "cup", "shoe",
    "bag", "river", "road", "bridge", "train", "cloud",
]  # fmt: skip
Attack = Callable[[str], None]


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def stream(count: int, opening: bytes, block: bytes, pause: float = 0.0, nodelay: bool = False) -> Attack:
    """`count` connections that send `opening` and then `block` for ever; a closed one is opened again."""

    def one(url: str) -> None:
        while True:
            try:
                with connect(url) as open_socket:
                    if nodelay:
                        open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    open_socket.sendall(opening)
                    while True:
                        open_socket.sendall(block)
                        if pause:
                            time.sleep(pause)
            except OSError:
                time.sleep(0.01)

    return lambda url: in_threads(count, lambda number: one(url))


def requests(count: int, method: str, path: str, body: Callable[[int], Any] = lambda number: None) -> Attack:
    """`count` clients that send requests without pause."""

    def one(url: str, number: int) -> None:
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
            while True:
                try:
                    client.request(method, path, json=body(number))
                except httpx.HTTPError:
                    time.sleep(0.02)

    return lambda url: in_threads(count, lambda number: one(url, number))


def in_threads(count: int, work: Callable[[int], None]) -> None:
    for number in range(count):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    threading.Event().wait()


def churn(opening: bytes, reset: bool) -> Attack:
    """Connections that are opened and closed, or reset, at once."""

    def one(url: str) -> None:
        while True:
            try:
                with connect(url) as open_socket:
                    open_socket.sendall(opening)
                    if reset:
                        open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                time.sleep(0.01)

    return lambda url: in_threads(16, lambda number: one(url))


def crowd(url: str) -> None:
    """Ever new connections with half a request, 1,600 at a time."""

    def one(number: int) -> None:
        held: deque[socket.socket] = deque()
        while True:
            try:
                held.append(connect(url))
                held[-1].sendall(b"GET /v1/info HTTP/1.1\r\nHost: loc")
                if len(held) > 100:
                    held.popleft().close()
            except OSError:
                time.sleep(0.01)

    in_threads(16, one)


def unread(url: str) -> None:
    """Responses that nobody reads."""

    def one(number: int) -> None:
        while True:
            try:
                with connect(url) as open_socket:
                    open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    open_socket.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 32)
                    time.sleep(8)
            except OSError:
                time.sleep(0.05)

    in_threads(200, one)


def image(kind: str, width: int, height: int) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


def with_image(kind: str, side: int) -> Attack:
    sent = image(kind, side, side)
    return requests(16, "POST", "/v1/search", lambda number: {"image": sent, "text": f"attack {number}"})


MANY_HEADERS = b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(5000)) + b"\r\n"
ATTACKS: dict[str, Attack] = {
    "16 bodies in one-byte chunks": stream(16, CHUNKED, b"1\r\n \r\n" * 400, 0.02),
    "48 bodies in one-byte chunks": stream(48, CHUNKED, b"1\r\n \r\n" * 400, 0.02),
    "48 bodies in one-byte chunks, no pause": stream(48, CHUNKED, b"1\r\n \r\n" * 4000),
    "24 bodies in one-byte segments": stream(24, POST + b"Content-Length: 16000000\r\n\r\n", b" ", 0.001, nodelay=True),
    "24 chunk extensions without end": stream(24, CHUNKED + b"1;", b"x" * 8192),
    "24 trailers without end": stream(24, CHUNKED + b"0\r\n", b"X-Trailer: yyyyyyyyyyyyyyyy\r\n" * 300),
    "16 pipelines of requests": stream(16, GET, GET * 1000),
    "24 requests of 5,000 headers": stream(24, b"", MANY_HEADERS),
    "48 explanations with 100 beams": requests(48, "POST", "/v1/explain", lambda n: {"text": f"attack {n}", "beams": 100}),
    "48 diverse searches for 1,000": requests(
        48, "POST", "/v1/search", lambda n: {"text": f"attack {n}", "k": 1000, "diverse": True, "minus": "a road"}
    ),
    "24 code listings": requests(24, "GET", "/v1/codes/0"),
    "16 WebP images of 14 megapixels": with_image("WEBP", 3700),
    "16 PNG images of 31 megapixels": with_image("PNG", 5600),
    "24 JSON bodies of nested lists": requests(24, "POST", "/v1/search", lambda n: {"text": "x", "k": [[[0] * 1000] * 50] * 10}),
    "resets": churn(b"GET /v1/info HTTP/1.1\r\nHost: loc", reset=True),
    "connections closed at once": churn(b"GET /v1/info HTTP/1.1\r\nHost: loc", reset=False),
    "connections closed at once, nothing sent": churn(b"", reset=False),
    "ever new half-sent headers, 1,600 at a time": crowd,
    "200 connections that read nothing": unread,
    "600 half-sent headers": stream(600, b"GET /v1/info HTTP/1.1\r\nHost: local", b"", 1.0),
}


class Bystander:
    """Searches and checks /healthz in a thread, from `start` to `stop`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.search: list[float] = []
        self.health: list[float] = []
        self.statuses: Counter[str] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in ("search", "health")]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str) -> None:
        draw = random.Random(1)
        while not self._stop.is_set():
            taken, status = once(self.url, name, draw.choice(THINGS))
            (self.search if name == "search" else self.health).append(taken)
            self.statuses[f"{name} {status}"] += 1
            time.sleep(0.1)

    def stop(self) -> dict[str, Any]:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
        return {
            "search_p50_s": quantile(self.search, 0.5),
            "search_p99_s": quantile(self.search, 0.99),
            "healthz_p50_s": quantile(self.health, 0.5),
            "healthz_p99_s": quantile(self.health, 0.99),
            "statuses": dict(sorted(self.statuses.items())),
        }


def once(url: str, name: str, word: str) -> tuple[float, str]:
    """Seconds and status of one search or health check on a fresh connection."""
    started = time.perf_counter()
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            if name == "search":
                answer = client.post("/v1/search", json={"text": f"a {word}"})
            else:
                answer = client.get("/healthz")
            status = str(answer.status_code)
    except httpx.HTTPError as error:
        status = type(error).__name__
    return time.perf_counter() - started, status


def quantile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 3)


def recovery(url: str) -> float:
    """Seconds until a search and a health check are each answered within a second."""
    started = time.perf_counter()
    while time.perf_counter() - started < 120:
        begun = time.perf_counter()
        results = [once(url, name, "car") for name in ("search", "health")]
        if all(status == "200" and taken <= 1.0 for taken, status in results):
            return round(begun - started, 2)
    return 120.0


def observe(url: str, seconds: float) -> dict[str, Any]:
    bystander = Bystander(url)
    time.sleep(seconds)
    return bystander.stop()


def under(name: str, url: str, seconds: float) -> dict[str, Any]:
    """One attack: before, during, after."""
    before = observe(url, seconds / 2)
    command = ["nice", "-n", "5", sys.executable, "-m", "lab.trust.attacks", "--attack", name, "--url", url]
    process = subprocess.Popen(command, env=environment())
    try:
        time.sleep(3)  # let it unfold
        during = observe(url, seconds)
    finally:
        process.kill()
        process.wait()
    recovered = recovery(url)
    after = observe(url, seconds / 2)
    limit = round(2 * max(before["search_p99_s"], after["search_p99_s"]) + 1, 3)
    answered = set(during["statuses"]) == {"search 200", "health 200"}
    passes = answered and during["search_p99_s"] <= limit and recovered <= 2
    return {"before": before, "during": during, "after": after, "recovery_s": recovered, "limit_s": limit, "passes": passes}


def make_index(folder: Path, items: int) -> Path:
    """Generated texts, indexed with the bundled model."""
    from genius import Index, Item

    draw = random.Random(7)
    with Index(folder / "attacked.genius", "bundled:mini") as index:
        texts = (
            Item(str(n), text=f"a {draw.choice(WORDS)} {draw.choice(THINGS)} near a {draw.choice(WORDS)} {draw.choice(THINGS)}")
            for n in range(items)
        )
        index.add(texts)
    return folder / "attacked.genius"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--items", type=int, default=5000, help="of the generated collection")
    parser.add_argument("--seconds", type=float, default=10.0, help="of bystander traffic during each attack")
    parser.add_argument("--only", nargs="*", default=None, choices=list(ATTACKS))
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "trust" / "attacks.json")
    parser.add_argument("--attack", choices=list(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        ATTACKS[args.attack](args.url)
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        index = args.index or make_index(Path(name), args.items)
        with serve(Path(name), str(index), "--log-level", "warning") as server:
            for attack in args.only or ATTACKS:
                results[attack] = result = under(attack, server.url, args.seconds)
                during = result["during"]
                print(
                    f"{attack}: p50 {during['search_p50_s']} p99 {during['search_p99_s']} (limit {result['limit_s']}), "
                    f"healthz p99 {during['healthz_p99_s']}, recovery {result['recovery_s']} s, {during['statuses']}",
                    flush=True,
                )
            mistakes = server.mistakes()
    write_report(
        args.out,
        command="python -m lab.trust.attacks " + " ".join(sys.argv[1:]),
        collection=args.index.name if args.index else f"{args.items} generated texts, bundled:mini",
        seconds_each=args.seconds,
        results=results,
        passed=sum(result["passes"] for result in results.values()),
        attacks=len(results),
        median_p99_s=statistics.median(result["during"]["search_p99_s"] for result in results.values()),
        mistakes_in_the_log=mistakes,
    )


if __name__ == "__main__":
    main()
