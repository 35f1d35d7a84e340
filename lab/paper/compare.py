"""Whether two rows differ: hits of the same queries under several seeds, and the interval of their difference.

Knows arrays of hits; nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

Hits = Mapping[int, Mapping[str, np.ndarray]]
"""seed -> task -> (Q,) 1 where the question was answered."""
SAMPLES = 1000


@dataclass(frozen=True)
class Difference:
    """One row against another, averaged over tasks and seeds."""

    mine: float
    other: float
    low: float  # 95 % of mine - other: queries resampled within tasks, seeds resampled too
    high: float
    by_seed: tuple[float, ...]

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def words(self) -> str:
        """In points."""
        return f"{100 * (self.mine - self.other):+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"

    @property
    def finding(self) -> str:
        """The paper finds every row below the first one."""
        if self.high < 0 and max(self.by_seed) < 0:
            return "holds"
        return "does not hold" if self.low > 0 and min(self.by_seed) > 0 else "cannot be told"

    def to_dict(self) -> dict[str, Any]:
        values = {"mine": self.mine, "first_row": self.other, "low": self.low, "high": self.high}
        rounded = {name: round(value, 5) for name, value in values.items()}
        return {**rounded, "by_seed": [round(value, 5) for value in self.by_seed], "finding": self.finding}


def difference(mine: Hits, other: Hits, seed: int = 0) -> Difference:
    """Averages over tasks of the seeds that both have."""
    seeds = sorted(mine.keys() & other.keys())
    tasks = sorted(next(iter(other.values())))
    average = {who: np.mean([[rows[s][t].mean() for t in tasks] for s in seeds]) for who, rows in (("a", mine), ("b", other))}
    drawn, weights = _samples(seed, len(seeds), tuple(len(other[seeds[0]][task]) for task in tasks))
    total, by_seed = np.zeros(SAMPLES), np.zeros(len(seeds))
    for task, weight in zip(tasks, weights, strict=True):
        gap = np.stack([mine[s][task] - other[s][task] for s in seeds])  # (S, Q)
        by_seed += gap.mean(1)
        resampled = weight @ gap.T  # (samples, S)
        total += np.take_along_axis(resampled, drawn, 1).mean(1)
    low, high = np.quantile(total / len(tasks), [0.025, 0.975])
    gaps = tuple(float(value) for value in by_seed / len(tasks))
    return Difference(float(average["a"]), float(average["b"]), float(low), float(high), gaps)


@lru_cache(maxsize=3)  # rows of one table are compared on the same samples, and drawing takes longer than comparing
def _samples(seed: int, seeds: int, questions: tuple[int, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    """(samples, S) which seeds a sample consists of, and for every task (samples, Q) how much each query weighs in it."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, seeds, (SAMPLES, seeds))
    return drawn, [random.multinomial(count, np.full(count, 1 / count), SAMPLES) / count for count in questions]
