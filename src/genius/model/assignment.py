"""z -> codes: the nearest code on residuals, level after level (Eq. 4-6), and choosing later codes again given the others.

Written over what numpy arrays and tensors have in common, so that items get the same codes by the same lines with torch, on any
device, and without it. Knows codebooks as arrays; nothing of how they are stored or fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from genius.features import module_of
from genius.model.config import QuantizerConfig

Array = Any
"""A tensor or a numpy array; all arrays of a call are of one sort, on one device."""

CodebookOf = Callable[[int, int | None], Array]
"""(level, modality) -> (K, D) code vectors of one modality's items; modality None: of all."""

SCORES_AT_ONCE = 2**21  # code scores that are held at a time, on a CPU
SCORES_AT_ONCE_GPU = 32 * SCORES_AT_ONCE
LARGEST_TABLES = 2**24  # inner products of codes with codes that are computed beforehand, at most: 64 MB


def similarity(vectors: Array, centroids: Array, halves: Array) -> Array:
    """(N, K) v.c - |c|^2 / 2, largest for the centroid of least squared distance (Eq. 5).

    Args:
        vectors: (N, D).
        centroids: (K, D).
        halves: (K,) |c|^2 / 2.
    """
    scores = vectors @ centroids.T
    scores -= halves
    return scores


def half_squares(centroids: Array) -> Array:
    """(K,) |c|^2 / 2 of centroids (K, D)."""
    return (centroids * centroids).sum(1) / 2


def row_argmax(scores: Array) -> Array:
    """(N,) index of each row's largest number. On a CPU numpy takes a tenth of torch's time."""
    if isinstance(scores, np.ndarray) or scores.device.type != "cpu":
        return scores.argmax(1)
    return module_of(scores).from_numpy(scores.float().numpy().argmax(1))


def nearest_as_published(vectors: Array, centroids: Array) -> Array:
    """(N,) index of the nearest centroid, with the published order of operations, so that near-ties round the same way."""
    squares = (vectors * vectors).sum(1)[:, None]
    squared = squares + (centroids * centroids).sum(1) + vectors @ centroids.T * -2
    return (squared.clip(0) ** 0.5).argmin(1)


def fill_codes(config: QuantizerConfig, codebook_of: CodebookOf, z: Array, modality: Array | None, codes: Array) -> None:
    """Assign codes to vectors.

    Args:
        config: Of the quantizer.
        codebook_of: Its codebooks.
        z: (N, D) unit vectors.
        modality: (N,) int64, required where level 0 is the modality.
        codes: (N, M) int64, which are filled.
    """
    if not config.modality_codebooks_from or modality is None:
        _fill_rows(config, codebook_of, None, z, modality, codes)
        return
    for value in range(3):
        rows = module_of(z).where(modality == value)[0]
        if not len(rows):
            continue
        row_codes = codes[rows]
        _fill_rows(config, codebook_of, value, z[rows], modality[rows], row_codes)
        codes[rows] = row_codes


def _fill_rows(
    config: QuantizerConfig, codebook_of: CodebookOf, codebooks_of: int | None, z: Array, modality: Array | None, codes: Array
) -> None:
    """Fill the codes of rows that share their codebooks: those of one modality (None: of all)."""
    if not len(z):
        return
    codebooks = [codebook_of(level, codebooks_of) for level in range(config.levels)]
    assigner = _CodeAssigner(config, codebooks, len(z))
    for start in range(0, len(z), assigner.rows_at_once):
        part = slice(start, start + assigner.rows_at_once)
        modality_of_part = None
        if modality is not None:
            modality_of_part = modality[part]
        codes[part] = assigner(_float32(z[part]), modality_of_part)


def _float32(vectors: Array) -> Array:
    if isinstance(vectors, np.ndarray):
        return vectors.astype(np.float32, copy=False)
    return vectors.float()


class _CodeAssigner:
    """Encodes items that share their codebooks: level after level, then again given the other levels (`encode_sweeps`).

    A code that is chosen again changes the residual of the other levels, and so the score of every code there: by its
    inner product with the old code less that with the new one. So scores are kept and updated, and most items, which
    change no code, cost one comparison per level. For many items these products are computed beforehand.
    """

    def __init__(self, config: QuantizerConfig, codebooks: list[Array], items: int) -> None:
        levels = range(config.levels)
        self.config = config
        self.codebooks = codebooks
        self.module = module_of(codebooks[0])
        self.halves = [half_squares(codebook) for codebook in codebooks]
        self.again = levels[:0]  # levels that are chosen again
        if config.encode_sweeps:
            self.again = levels[config.settled :]
        self.starts: dict[int, int] = {}  # level -> first row of it in the joined codebooks
        codes_again = 0
        for level in self.again:
            self.starts[level] = codes_again
            codes_again += len(codebooks[level])
        most_codes = max(codes_again, *map(len, codebooks))
        scores_at_once = SCORES_AT_ONCE
        if self.module is not np and codebooks[0].device.type != "cpu":
            scores_at_once = SCORES_AT_ONCE_GPU
        self.rows_at_once = max(1, scores_at_once // most_codes)
        self.tables: dict[int, Array] = {}  # level -> (codes of all levels, K) inner products
        # computing them takes as long as one sweep over as many items takes without
        if 0 < codes_again <= items and codes_again**2 <= LARGEST_TABLES:
            joined = self.module.concatenate([codebooks[level] for level in self.again])
            self.tables = {level: joined @ codebooks[level].T for level in self.again}

    def __call__(self, z: Array, modality: Array | None) -> Array:
        """Codes (n, M) of vectors (n, D)."""
        residual = z
        codes: list[Array] = []
        scores: dict[int, Array] = {}  # level -> (n, K)
        residuals: dict[int, Array] = {}  # level -> (n, D) what is left after it
        for level, codebook in enumerate(self.codebooks):
            if level in self.again:
                scores[level] = similarity(residual, codebook, self.halves[level])
            if level == 0 and self.config.labelled:
                code = modality
            elif self.config.modality_code == "nearest":
                code = nearest_as_published(residual, codebook)
            elif level in scores:
                code = row_argmax(scores[level])
            else:
                code = row_argmax(similarity(residual, codebook, self.halves[level]))
            residual = residual - codebook[code]  # Eq. 6
            codes.append(code)
            residuals[level] = residual
        for level in self.again[:-1]:  # so far the scores of a level take only those before it into account
            scores[level] -= self._later(level, codes, residuals[level], residual)
        self._choose_again(codes, scores)
        return self.module.stack(codes, 1)

    def _choose_again(self, codes: list[Array], scores: dict[int, Array]) -> None:
        """Change codes (n,) of the levels that have scores (n, K)."""
        for _ in range(self.config.encode_sweeps):
            final = True
            for level in self.again:
                best = row_argmax(scores[level])
                every = self.module.where(best >= 0)[0]  # 0..n-1, where the scores are
                better = scores[level][every, best] > scores[level][every, codes[level]]
                rows = self.module.where(better)[0]
                if not len(rows):
                    continue
                final = False
                old = codes[level][rows]
                new = best[rows]
                codes[level][rows] = new
                for other in self.again:
                    if other != level:
                        scores[other][rows] += self._change(level, old, new, other)
            if final:
                break

    def _later(self, level: int, codes: list[Array], residual: Array, last: Array) -> Array:
        """(n, K) inner products of the level's codes with the sum of the later ones.

        That sum is the residual after the level (n, D) less the residual after the last level (n, D).
        """
        if not self.tables:
            return (residual - last) @ self.codebooks[level].T
        table = self.tables[level]
        return sum(table[codes[other] + self.starts[other]] for other in self.again if other > level)

    def _change(self, level: int, old: Array, new: Array, other: int) -> Array:
        """(n, K) by how much another level's scores grow when codes (n,) of a level become new ones."""
        if not self.tables:
            codebook = self.codebooks[level]
            return (codebook[old] - codebook[new]) @ self.codebooks[other].T
        start = self.starts[level]
        table = self.tables[other]
        return table[old + start] - table[new + start]
