"""Stage 3 against the clock: it ends at a time, its learning rate has come down by then, and its loss is one product.

Knows `GeneratorStage`; nothing of rows or results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.train import loop
from genius.train.config import Schedule
from genius.train.generator import Batch, GeneratorStage

RATE = loop.learning_rate
WARM_UP = 500  # steps of the published schedule in which the rate grows
SAMPLE = 64  # examples of a batch whose accuracy is logged


class TimeUp(Exception):
    """Stage 3 has reached the deadline."""


class TimedGenerator(GeneratorStage):
    """`started` and `deadline` are of `time.time`."""

    started: float = 0.0
    deadline: float = math.inf
    step = 0

    def before_step(self, step: int) -> None:
        self.step = step
        if time.time() > self.deadline:
            raise TimeUp

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 10, all levels in one product: on a GPU hundreds of small kernels would cost more than the work."""
        decoder = self.generator
        if decoder.config.normalizer != "vocabulary" or self.recipe.reduction != "mean":
            return super().forward(batch)
        states = decoder.states(batch.z, batch.codes) * decoder.config.d_model**-0.5  # (B, M, d_model)
        targets = batch.codes.clone()
        for level, start in enumerate(decoder.config.offsets):
            targets[:, level] += start
        logits = (states.flatten(0, 1) @ decoder.tokens.weight.T).float()  # (B M, V)
        nats = F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape).mean(0)
        with torch.no_grad():
            known = targets[:SAMPLE]
            right = (logits[: known.numel()].argmax(1) == known.flatten()).view(known.shape).float().mean(0)
        first = min(1, len(nats) - 1)
        loss = nats.mean()
        return loss, {"ce": loss, "code1": right[first], "codes": right.mean(), "nats": nats[first:].mean()}

    def learning_rate(self, schedule: Schedule, steps: int, step: int) -> float:
        """As in `genius.train.loop`, but by time where that is ahead of the steps."""
        if step <= WARM_UP or math.isinf(self.deadline):
            return RATE(schedule, steps, step)
        share = (time.time() - self.started) / (self.deadline - self.started)
        return RATE(schedule, steps, max(step, min(round(share * steps), steps)))

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Inside, the loop takes the learning rate from this stage."""
        self.started = time.time()
        loop.learning_rate = self.learning_rate
        try:
            yield
        finally:
            loop.learning_rate = RATE
