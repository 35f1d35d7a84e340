"""One client attacks, another one searches: is the bystander answered, and how soon?

    genius demo && python -m lab.trust.bystander --index demo.genius [--out lab/trust/bystander.json] [--quick]

The server, the attacker and the bystander are processes of their own. The bystander sends a plain search on a fresh
connection five times a second and looks at `/healthz` beside; it has the attacker's address, which is the harder case:
nothing but time limits and fair turns tells them apart. `other address` repeats the attacks that a server can
also tell apart by address. Seconds are wall time on a machine that does other work, too.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from PIL import Image

from lab.trust.service import ROOT, environment, serve, write_report

HEADERS = "Host: localhost\r\nContent-Type: application/json\r\n"


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def keep_open(url: str, count: int, opening: bytes, trickle: bytes, pause: float) -> None:
    """`count` connections that begin a request and go on with it as slowly as `pause`; closed ones are opened again."""
    held: list[socket.socket] = []
    while True:
        while len(held) < count:
            try:
                one = connect(url)
                one.sendall(opening)
                one.setblocking(False)
                held.append(one)
            except OSError:
                time.sleep(0.05)
        time.sleep(pause)
        kept = []
        for one in held:
            try:
                if one.recv(65536) == b"":
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                one.close()
                continue
            try:
                one.sendall(trickle)
                kept.append(one)
            except OSError:
                one.close()
        held = kept


def half_headers(url: str) -> None:
    keep_open(url, 520, b"GET /v1/info HTTP/1.1\r\nHost: local", b"", 1.0)


def trickled_headers(url: str) -> None:
    keep_open(url, 520, b"GET /v1/info HTTP/1.1\r\nX: ", b"x", 1.0)


def slow_bodies(url: str) -> None:
    declared = f"POST /v1/search HTTP/1.1\r\n{HEADERS}Content-Length: 16000000\r\n\r\n{{"
    keep_open(url, 16, declared.encode(), b" ", 1.0)


def slow_chunked_bodies(url: str) -> None:
    keep_open(url, 16, f"POST /v1/search HTTP/1.1\r\n{HEADERS}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n \r\n", 1.0)


def large_bodies(url: str) -> None:
    """Bodies of 15 MB that are really sent, all but the end."""
    declared = f"POST /v1/search HTTP/1.1\r\n{HEADERS}Content-Length: 16000000\r\n\r\n{{".encode() + b" " * 15_000_000
    keep_open(url, 24, declared, b" ", 2.0)


def slow_readers(url: str) -> None:
    """Many pages asked for, none of them read."""
    keep_open(url, 520, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8, b"", 2.0)


def many(count: int, body: Callable[[int], dict[str, Any]]) -> Callable[[str], None]:
    """`count` clients that search without pause."""

    def attack(url: str) -> None:
        def one(number: int) -> None:
            with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
                while True:
                    try:
                        client.post("/v1/search", json=body(number))
                    except httpx.HTTPError:
                        time.sleep(0.05)

        for number in range(count):
            threading.Thread(target=one, args=(number,), daemon=True).start()
        threading.Event().wait()

    return attack


ATTACKS: dict[str, Callable[[str], None]] = {
    "520 half-sent headers": half_headers,
    "520 headers, a byte a second": trickled_headers,
    "16 slow bodies": slow_bodies,
    "16 slow chunked bodies": slow_chunked_bodies,
    "24 bodies of 15 MB without an end": large_bodies,
    "520 answers that nobody reads": slow_readers,
    "48 searches with beams of their own": many(48, lambda n: {"text": f"attack {n}", "beams": 1000 - n, "rerank": 0}),
    "48 searches with filters of their own": many(48, lambda n: {"text": f"attack {n}", "where": f"name <> 'x{n}'"}),
    "48 searches for 1000 results": many(48, lambda n: {"text": f"attack {n}", "k": 1000}),
    "40 like requests of 31 megapixels": many(40, lambda n: {"like": "large", "text": f"attack {n}"}),
}
MUST = ("520 half-sent headers", "16 slow bodies", "48 searches with beams of their own")
BY_ADDRESS = (*MUST, "24 bodies of 15 MB without an end", "48 searches with filters of their own")


def quantile(values: list[float], share: float) -> float | None:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 3) if values else None


def bystander(url: str, address: str, searches: int, pause: float) -> dict[str, Any]:
    """Searches and looks at /healthz, one after the other, each on a fresh connection."""
    statuses: Counter[str] = Counter()
    taken: dict[str, list[float]] = {"search": [], "health": []}
    shapes = 0
    draw = random.Random(1)
    for number in range(searches):
        for name in ("search", "health"):
            transport = httpx.HTTPTransport(local_address=address, retries=0)
            with httpx.Client(base_url=url, timeout=60, transport=transport, trust_env=False) as client:
                started = time.perf_counter()
                try:
                    if name == "search":
                        answer = client.post("/v1/search", json={"text": f"{draw.choice(['a car', 'rain', 'music'])} {number}"})
                    else:
                        answer = client.get("/healthz")
                    statuses[f"{name} {answer.status_code}"] += 1
                    if answer.status_code != 200 and "error" not in answer.json():
                        shapes += 1
                except (httpx.HTTPError, ValueError) as error:
                    statuses[f"{name} {type(error).__name__}"] += 1
                taken[name].append(time.perf_counter() - started)
        time.sleep(pause)
    return {
        "statuses": dict(sorted(statuses.items())),
        "answers in another shape": shapes,
        "search p50 s": quantile(taken["search"], 0.5),
        "search p99 s": quantile(taken["search"], 0.99),
        "search max s": round(max(taken["search"]), 3),
        "healthz p99 s": quantile(taken["health"], 0.99),
        "passes": set(statuses) == {"search 200", "health 200"} and (quantile(taken["search"], 0.99) or 9) <= 2,
    }


def under(attack: str | None, url: str, address: str, searches: int, pause: float) -> dict[str, Any]:
    if attack is None:
        return bystander(url, address, searches, pause)
    command = [sys.executable, "-m", "lab.trust.bystander", "--attack", attack, "--url", url]
    process = subprocess.Popen(command, env=environment())
    try:
        time.sleep(4)  # let it unfold
        return bystander(url, address, searches, pause)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, default=Path("demo.genius"))
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "trust" / "bystander.json")
    parser.add_argument("--quick", action="store_true", help="fewer searches, only the attacks that must pass")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        ATTACKS[args.attack](args.url)
        return
    searches, pause = (30, 0.05) if args.quick else (150, 0.1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, serve(Path(name), str(args.index), "--log-level", "warning") as server:
        if not args.quick:
            picture = io.BytesIO()
            Image.new("RGB", (5600, 5600), (200, 30, 30)).save(picture, "PNG")
            with server.client() as client:
                sent = {"image": base64.b64encode(picture.getvalue()).decode()}
                client.put("/v1/items/large", json=sent).raise_for_status()
        for attack in (None, *(MUST if args.quick else ATTACKS)):
            results[attack or "no attack"] = under(attack, server.url, "127.0.0.1", searches, pause)
            print(attack, json.dumps(results[attack or "no attack"]), flush=True)
            time.sleep(3)
        for attack in () if args.quick else BY_ADDRESS:
            results[f"{attack}, other address"] = under(attack, server.url, "127.0.0.2", searches, pause)
            print(attack, json.dumps(results[f"{attack}, other address"]), flush=True)
            time.sleep(3)
        mistakes = server.mistakes()
        if not args.quick:
            with server.client() as client:
                client.delete("/v1/items/large")
    write_report(
        args.out,
        index=args.index.name,
        searches_under_each=searches,
        seed=1,
        results=results,
        mistakes_in_the_log=mistakes,
        median_p99_s=statistics.median(result["search p99 s"] for result in results.values()),
    )


if __name__ == "__main__":
    main()
