"""The state of a beam search between two levels. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from genius.search.decoder import Memory


@dataclass(slots=True)
class Beams:
    """The beams of some queries at one depth; best first in what `decode` yields. n differs from depth to depth."""

    queries: Tensor  # (G,) positions in the batch
    level: int  # codes chosen so far = the space that lo and hi are ranges of
    codes: Tensor  # (G, n, level) int64
    scores: Tensor  # (G, n) sums; -inf: no beam here
    lo: Tensor  # (tries, G, n)
    hi: Tensor  # (tries, G, n)
    items: Tensor  # (G, n) allowed items below each beam, 0 where there is none
    memory: Memory | None  # None: nothing is decoded after this
    hidden: Tensor | None = None  # (G, n, d) states for the next level, where they are known already
    mass: Tensor | None = None  # (G, n) log of what their logits are divided by, where it is known already

    def select(self, keep: Tensor) -> Beams:
        """Some of the queries."""
        return Beams(
            self.queries[keep],
            self.level,
            self.codes[keep],
            self.scores[keep],
            self.lo[:, keep],
            self.hi[:, keep],
            self.items[keep],
            None if self.memory is None else self.memory.select(keep),
            None if self.hidden is None else self.hidden[keep],
            None if self.mass is None else self.mass[keep],
        )
