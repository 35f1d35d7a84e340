"""The published beam search (4.4), one query at a time by Python sets: what the harness is compared with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from genius.model.generator import Generator, by_modality
from genius.search.decoder import CodeScorer

Ids = list[tuple[int, ...]]


def next_log_probs(generator: Generator, z: Tensor, codes: Tensor) -> Tensor:
    """log p of every next code after codes (B, l): (B, K_l). Reads all from the start; a search keeps what it has read."""
    hidden, _ = generator.hidden(generator.inputs(codes), generator.cross_memory(z))
    rows = by_modality(codes[:, 0]) if codes.shape[1] else ()
    return generator.log_probs(codes.shape[1], hidden[:, -1], generator.residual(z, codes), rows)


class PlainBeam:
    """Beam search over the IDs of codes (N, M), by a generator or another scorer."""

    def __init__(self, codes: np.ndarray, generator: Generator, scorer: CodeScorer | None = None) -> None:
        self.codes, self.generator, self.scorer = codes, generator, scorer
        self.ids = [tuple(row) for row in codes.tolist()]

    @torch.inference_mode()
    def levels(self, z: Tensor, beams: int) -> list[tuple[Ids, list[float]]]:
        """z (D,) -> for every level: the prefixes of the beams and their scores, best first."""
        states: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        out = []
        for level in range(self.codes.shape[1]):
            log_probs = self._log_probs(z, [prefix for prefix, _ in states])
            grown = [
                ((*prefix, code), score + log_probs[row][code])
                for row, (prefix, score) in enumerate(states)
                for code in sorted({ids[level] for ids in self.ids if ids[:level] == prefix})
            ]
            states = sorted(grown, key=lambda state: -state[1])[:beams]
            out.append(([prefix for prefix, _ in states], [score for _, score in states]))
        return out

    def _log_probs(self, z: Tensor, prefixes: Ids) -> list[list[float]]:
        chosen = torch.tensor(prefixes, dtype=torch.long).view(len(prefixes), -1)
        if self.scorer is None:
            return next_log_probs(self.generator, z.expand(len(chosen), -1), chosen).double().tolist()
        return self.scorer.next_log_probs(chosen[None], self.scorer.start(z[None]))[0][0].double().tolist()

    def rows(self, ids: Ids) -> list[int]:
        """Items of these IDs, IDs in order, rows ascending within one."""
        return [row for one in ids for row, own in enumerate(self.ids) if own == one]
