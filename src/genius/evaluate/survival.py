"""Gold-prefix survival: after each level, is a positive's prefix still in the beam?

A slow, plain beam search of its own, written from the paper (4.4) with the generator's public functions. It says at which level
a search loses its targets, and it is a second opinion on `genius.search.beam_search`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.evaluate.ids import IdTable
from genius.model.generator import Generator
from genius.search.decoder import Writer

Ints = npt.NDArray[np.int64]


class PlainBeam:
    """Beam search for one query at a time, level by level, over the children that exist."""

    def __init__(self, table: IdTable, generator: Generator, instead: Writer | None = None) -> None:
        """`instead` writes in the generator's place."""
        self.table, self.generator, self.instead = table, generator, instead
        self.children = [_children(keys, size) for keys, size in zip(table.keys, table.level_sizes, strict=True)]

    @torch.inference_mode()
    def levels(self, z: Tensor, beams: int) -> list[tuple[Ints, Ints, npt.NDArray[np.float64]]]:
        """z (D,) -> for every level: prefix numbers (n,), codes (n, level + 1), score sums (n,), best first."""
        prefix, codes, scores = np.zeros(1, np.int64), np.zeros((1, 0), np.int64), np.zeros(1)
        out = []
        for level in range(len(self.table.level_sizes)):
            worth = self._worth(z, codes, level)  # (n, K)
            first, last, child_codes = self.children[level]
            parent = np.repeat(np.arange(len(prefix)), last[prefix] - first[prefix])
            child = np.concatenate([np.arange(first[p], last[p]) for p in prefix])
            code = child_codes[child]
            total = scores[parent] + worth[parent, code]
            best = np.argsort(-total, kind="stable")[:beams]
            prefix, scores = child[best], total[best]
            codes = np.concatenate([codes[parent[best]], code[best, None]], 1)
            out.append((prefix, codes, scores))
        return out

    def _worth(self, z: Tensor, codes: Ints, level: int) -> npt.NDArray[np.float64]:
        """What each code of the level adds to each beam."""
        chosen = torch.from_numpy(codes).to(z.device)
        if self.instead is None:
            return self.generator.next_log_probs(z.expand(len(codes), -1), chosen).double().cpu().numpy()
        memory = self.instead.start(z[None])
        hidden, memory = self.instead.run(chosen[None], memory)
        return self.instead.log_p(level, hidden[:, :, -1], memory, chosen[None]).double().cpu().numpy()


def _children(keys: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """Children of every prefix are contiguous in the sorted keys: (first, last) per parent, and the codes."""
    parents = keys // size
    count = int(parents.max()) + 1 if len(keys) else 0
    numbers = np.arange(count)
    return np.searchsorted(parents, numbers), np.searchsorted(parents, numbers, side="right"), keys % size


def prefix_survival(beam: PlainBeam, z: Tensor, positive_codes: Sequence[Ints], beams: int) -> npt.NDArray[np.float64]:
    """(M,) share of the queries z (Q, D) with some positive's prefix among the beams after each level.

    `positive_codes[q]` is (positives, M). Queries without positives do not count.
    """
    kept = []
    for query, codes in zip(z, positive_codes, strict=True):
        if len(codes) == 0:
            continue
        gold = beam.table.prefixes(codes)  # (positives, M)
        kept.append([bool(np.isin(gold[:, level], found[0]).any()) for level, found in enumerate(beam.levels(query, beams))])
    return np.mean(kept, axis=0) if kept else np.full(len(beam.table.level_sizes), np.nan)
