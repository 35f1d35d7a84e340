"""How many replicas a load needs: service times in, latency out. A simulation that runs with your own numbers.

Questions arrive at random (Poisson) and go to the replica with the shorter line of two drawn at random, as Ray Serve does it. A
replica takes what waits, at most `--batch` of it, as one pass of `fixed + n * each` milliseconds: both are measured by
`python -m lab.speed.serve` (a single caller waits fixed + each; many get batch / (fixed + batch * each) answers a second).
Beyond `--queue` waiting questions the answer is 503.

    python -m lab.ray.replicas --load 400 --fixed 26 --each 6.2
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Service:
    """What one replica does."""

    fixed_ms: float  # of a pass, however many share it
    each_ms: float  # of every question in it
    batch: int = 32
    queue: int = 256

    def most(self) -> float:
        """Questions a second that a replica can keep up with."""
        return 1000 * self.batch / (self.fixed_ms + self.batch * self.each_ms)


@dataclass(frozen=True, slots=True)
class Outcome:
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    refused: float  # share
    busy: float  # share of the time


def simulate(service: Service, load: float, replicas: int, questions: int = 20_000, seed: int = 0) -> Outcome:
    """`load`: questions a second. The first tenth is left out: it finds the replicas empty."""
    chance = random.Random(seed)
    waiting: list[deque[float]] = [deque() for _ in range(replicas)]
    serving = [0] * replicas
    ends: list[tuple[float, int, list[float]]] = []
    took: list[float] = []
    now = refused = spent = 0.0

    def begin(replica: int) -> None:
        nonlocal spent
        line = waiting[replica]
        taken = [line.popleft() for _ in range(min(service.batch, len(line)))]
        serving[replica] = len(taken)
        if taken:
            length = (service.fixed_ms + service.each_ms * len(taken)) / 1000
            spent += length
            heapq.heappush(ends, (now + length, replica, taken))

    for number in range(questions):
        arrival = now + chance.expovariate(load)
        while ends and ends[0][0] <= arrival:
            now, replica, taken = heapq.heappop(ends)
            took += [now - came for came in taken]
            begin(replica)
        now = arrival
        one, other = chance.randrange(replicas), chance.randrange(replicas)
        chosen = min(one, other, key=lambda r: len(waiting[r]) + serving[r])
        if len(waiting[chosen]) >= service.queue:
            refused += number >= questions // 10
            continue
        waiting[chosen].append(now)
        if not serving[chosen]:
            begin(chosen)
    busy = min(1.0, spent / (now * replicas))
    late = np.array(took[len(took) // 10 :]) * 1000 if took else np.zeros(1)
    p50, p95, p99 = np.percentile(late, [50, 95, 99]).tolist()
    return Outcome(p50, p95, p99, float(late.mean()), refused / (questions * 0.9), busy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, nargs="+", default=[100.0, 400.0, 1600.0], help="questions a second")
    parser.add_argument("--fixed", type=float, default=26.6, help="milliseconds of a pass")
    parser.add_argument("--each", type=float, default=5.4, help="milliseconds of each question in it")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--queue", type=int, default=256)
    parser.add_argument("--p95", type=float, default=500.0, help="milliseconds that 95 of 100 answers may take")
    options = parser.parse_args()
    service = Service(options.fixed, options.each, options.batch, options.queue)
    print(f"one replica keeps up with {service.most():,.0f} questions a second")
    print("| load | replicas | busy | p50 | p95 | p99 | refused |\n|---|---|---|---|---|---|---|")
    for load in options.load:
        replicas = max(1, int(load / service.most()))
        while True:
            found = simulate(service, load, replicas)
            print(
                f"| {load:,.0f}/s | {replicas} | {found.busy:.0%} | {found.p50_ms:,.0f} ms | {found.p95_ms:,.0f} ms | "
                f"{found.p99_ms:,.0f} ms | {found.refused:.1%} |"
            )
            if found.p95_ms <= options.p95 and not found.refused:
                break
            replicas += max(1, replicas // 8)


if __name__ == "__main__":
    main()
