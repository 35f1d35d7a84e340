"""Gold-prefix survival: after each level, is a positive's prefix still in the beam?

A slow, plain beam search of its own, written from the paper (4.4) with the generator's public functions; only what a step
adds beyond log p is the search's own. It says at which level a search loses its targets, and it is a second opinion on
`genius.search.beam_search`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.evaluate.ids import IdTable
from genius.model.generator import START, Generator, KeysValues
from genius.model.quantizer import ResidualQuantizer
from genius.search.scores import geometric_term, modality_weight

Ints = npt.NDArray[np.int64]


class PlainBeam:
    """Beam search for one query at a time, level by level, over the children that exist."""

    def __init__(
        self, table: IdTable, generator: Generator | None, quantizer: ResidualQuantizer | None = None, geometry: float = 0.0
    ):
        self.table, self.generator, self.quantizer, self.geometry = table, generator, quantizer, geometry
        self.children = [_children(keys, size) for keys, size in zip(table.keys, table.level_sizes, strict=True)]

    @torch.inference_mode()
    def levels(self, z: Tensor, beams: int) -> list[tuple[Ints, Ints, npt.NDArray[np.float64]]]:
        """z (D,) -> for every level: prefix numbers (n,), codes (n, level + 1), score sums (n,), best first."""
        prefix, codes, scores = np.zeros(1, np.int64), np.zeros((1, 0), np.int64), np.zeros(1)
        cross = None if self.generator is None else self.generator.cross_memory(z[None])  # the same for every beam
        out = []
        for level in range(len(self.table.level_sizes)):
            worth = self._worth(z, codes, level, cross)  # (n, K)
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

    def _worth(self, z: Tensor, codes: Ints, level: int, cross: list[KeysValues] | None) -> npt.NDArray[np.float64]:
        """What each code of the level adds to each beam: log p, and the geometric term where it is asked for."""
        n, size = len(codes), self.table.level_sizes[level]
        total = torch.zeros(n, size, device=z.device)
        chosen = torch.from_numpy(codes).to(z.device)
        if self.generator is not None:
            offsets = torch.tensor(self.generator.config.offsets[:level], device=z.device, dtype=torch.long)
            tokens = torch.cat([torch.full((n, 1), START, device=z.device), chosen + offsets], 1)
            assert cross is not None
            shared = [KeysValues(*(part.expand(n, -1, -1, -1) for part in layer)) for layer in cross]
            hidden, _ = self.generator.hidden(tokens, shared)
            times = modality_weight(self.generator, self.quantizer, self.geometry) if level == 0 else 1.0
            total = total + times * self.generator.log_probs(hidden[:, -1], level)
        if self.quantizer is not None and (self.geometry > 0 or self.generator is None):
            residual = z[None].expand(n, -1)
            if level:
                residual = residual - self.quantizer.decode_prefix(chosen)
            weight = None if self.generator is None else self.geometry
            total = total + geometric_term(self.quantizer, weight, level, residual, chosen[:, 0] if level else None)
        return total.double().cpu().numpy()


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
