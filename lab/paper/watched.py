"""Stage 3 with its curves, for a number of steps or until they are flat.

Knows `GeneratorStage`; nothing of rows or results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from genius.train import loop
from genius.train.config import Schedule
from genius.train.generator import GeneratorStage

RATE = loop.learning_rate
CONSTANT_WARM_UP = 100  # steps, where the rate is constant until the curves are flat
FLAT_LOOKS = 3  # looks whose mean is compared with that of as many before
FLAT_ACCURACY = 0.01  # a curve is flat if the share of codes that are right moves by less
FLAT_NATS = 0.02  # and the log loss, on what is trained on, by a smaller share of itself
LEAST_NATS = 0.01  # or by less than this: what is memorised has a log loss near zero
DECAY_LOOKS = 2  # looks in which the rate comes down to zero, once the curves are flat


class CurvesAreFlat(Exception):
    """Stage 3 has nothing more to learn."""


def content(values: list[float]) -> float:
    """The mean over content codes: all but the first, where there are several."""
    rest = values[1:] or values
    return sum(rest) / len(rest)


def flat(curve: list[dict[str, Any]]) -> bool:
    """Whether accuracy and log loss have stopped moving: the last looks against as many before.

    The log loss of unseen queries does not count: it rises while their accuracy stays.
    """
    if len(curve) < 2 * FLAT_LOOKS:
        return False
    last = curve[-FLAT_LOOKS:]
    before = curve[-2 * FLAT_LOOKS : -FLAT_LOOKS]
    for name in curve[-1]:
        right = [sum(content(point[name]["right"]) for point in part) / FLAT_LOOKS for part in (before, last)]
        if abs(right[1] - right[0]) > FLAT_ACCURACY:
            return False
        nats = [sum(content(point[name]["nats"]) for point in part) / FLAT_LOOKS for part in (before, last)]
        if name != UNSEEN and abs(nats[1] - nats[0]) > max(FLAT_NATS * nats[0], LEAST_NATS):
            return False
    return True


UNSEEN = "unseen queries"


class WatchedGenerator(GeneratorStage):
    """Stage 3 with a curve: nats and accuracy of every code on several samples, at every look.

    With `until_flat` the learning rate is constant until `flat` says so, or until `limit` seconds have passed. Then it comes
    down to zero within a few looks, and the stage ends.
    """

    samples: dict[str, tuple[Tensor, Tensor]]  # name -> z (n, D), codes (n, M)
    until_flat = False
    limit = math.inf  # seconds with a constant rate
    step = 0
    begun: float | None = None  # time of the first step
    flat_at: int | None = None  # the step at which the curves were flat
    late_at: int | None = None  # the step at which the time was up, where that came first

    def watch(self, samples: dict[str, tuple[Tensor, Tensor]]) -> None:
        self.samples = samples
        self.curve: list[dict[str, Any]] = []
        self.looks: list[int] = []
        self.values: list[float] = []
        self.best: dict[str, Tensor] = {}

    def quick(self) -> float | None:
        """Look at the weights. They are judged by the mean accuracy of the content codes on unseen queries, which starts at
        chance and rises when codes are learned. The last weights stay; the best ones are kept beside them."""
        point: dict[str, Any] = {}
        for name, (z, codes) in self.samples.items():
            nats, right = self._code_metrics(z, codes)
            point[name] = {"nats": rounded(nats), "right": rounded(right)}
        value = content(point[UNSEEN]["right"])
        if value > max(self.values, default=-1.0):
            self.best = {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}
        self.curve.append(point)
        self.looks.append(self.step + 1)
        self.values.append(value)
        if self.until_flat and self.decay_from is None and flat(self.curve):
            self.flat_at = self.step + 1
        return None

    @property
    def decay_steps(self) -> int:
        return max(1, DECAY_LOOKS * self.config.steps // loop.LOOKS)

    @property
    def decay_from(self) -> int | None:
        """The step from which the rate comes down, once that is known."""
        if self.flat_at is None:
            return self.late_at
        return self.flat_at

    def before_step(self, step: int) -> None:
        if self.begun is None:
            self.begun = time.monotonic()
        if self.decay_from is None and time.monotonic() - self.begun > self.limit:
            self.late_at = step
        if self.decay_from is not None and step >= self.decay_from + self.decay_steps:
            raise CurvesAreFlat
        self.step = step

    def learning_rate(self, schedule: Schedule, steps: int, step: int) -> float:
        """Constant until the curves are flat, or until the steps that are left are those of the decay."""
        if not self.until_flat:
            return RATE(schedule, steps, step)
        start = self.decay_from
        if start is None:
            start = steps - self.decay_steps
        falling = 1 - (step - start + 1) / self.decay_steps
        return min((step + 1) / CONSTANT_WARM_UP, 1.0, max(falling, 0.0))

    @contextmanager
    def own_rate(self) -> Iterator[None]:
        """Inside, the loop takes the learning rate from this stage."""
        loop.learning_rate = self.learning_rate
        try:
            yield
        finally:
            loop.learning_rate = RATE


def rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
