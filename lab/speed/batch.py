"""`POST /v1/search/batch` with 100 queries against 100 single searches, over HTTP.

    python -m lab.speed.batch [--items 5000] [--rounds 7] [--out lab/results/serve_batch.json]

One client, one kept connection. Rounds alternate between the two; medians are reported. Queries are generated, and new in every
round, so nothing is answered from a cache.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from lab.trust.attacks import THINGS, WORDS, make_index
from lab.trust.service import ROOT, serve, write_report

QUERIES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "results" / "serve_batch.json")
    args = parser.parse_args()
    draw = random.Random(3)
    seconds: dict[str, list[float]] = {"single": [], "single_16_at_once": [], "batch": []}

    def queries() -> list[dict[str, object]]:
        words = [" ".join(draw.choices(WORDS + THINGS, k=4)) for _ in range(QUERIES)]
        return [{"text": text, "k": 10} for text in words]

    with tempfile.TemporaryDirectory() as name:
        index = make_index(Path(name), args.items)
        with serve(Path(name), str(index), "--log-level", "warning") as server, server.client() as client:

            def single(body: dict[str, object]) -> httpx.Response:
                return client.post("/v1/search", json=body).raise_for_status()

            def one_by_one() -> None:
                for body in queries():
                    single(body)

            def at_once() -> None:
                with ThreadPoolExecutor(16) as pool:
                    list(pool.map(single, queries()))

            def batch() -> None:
                found = client.post("/v1/search/batch", json={"queries": queries()}).raise_for_status().json()
                assert len(found["results"]) == QUERIES

            ways: dict[str, Callable[[], None]] = {"single": one_by_one, "single_16_at_once": at_once, "batch": batch}
            for turn in range(args.rounds + 1):
                for way, run in ways.items():
                    started = time.perf_counter()
                    run()
                    if turn:  # the first warms up
                        seconds[way].append(time.perf_counter() - started)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    write_report(
        args.out,
        command="python -m lab.speed.batch " + " ".join(sys.argv[1:]),
        collection=f"{args.items} generated texts, bundled:mini",
        queries=QUERIES,
        rounds=args.rounds,
        queries_per_second={way: round(QUERIES / median, 1) for way, median in medians.items()},
        batch_against_single=round(medians["single"] / medians["batch"], 2),
        batch_against_16_at_once=round(medians["single_16_at_once"] / medians["batch"], 2),
    )


if __name__ == "__main__":
    main()
