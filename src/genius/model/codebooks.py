"""The tables of code vectors, one a level: which row a code stands for, which code is nearest, what codes add up to.

Level 0 says the modality *by construction*: it is given, not guessed, so purity is 100 %; its three vectors are the running
means of each modality, and subtracting them leaves the semantics to the later levels. The published variant (an unsupervised
3-means at level 0) and the paper's ablations are `modality_code`s. Knows nothing of how tables are fitted (`fitting`) or moved by
training (`quantizer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from genius.errors import GeniusError

ModalityCode = Literal["given", "nearest", "classifier", "none"]
GradientEstimator = Literal["straight-through", "rotation"]


@dataclass(frozen=True, slots=True)
class QuantizerConfig:
    """Shape and update rule of the codebooks; the defaults are the paper's sizes."""

    width: int = 768  # of z
    level_sizes: tuple[int, ...] = (3,) + (4096,) * 8  # K_i of every level, modality first
    # given: level 0 is the item's modality. nearest: unsupervised, as published. classifier: a label that takes
    # no part in the residuals (supplement C.2). none: no modality code at all (Table 4).
    modality_code: ModalityCode = "given"
    shared: bool = False  # one codebook for all levels but the first (supplement C.5)
    gradient: GradientEstimator = "rotation"  # how L_mse reaches the fusion through the argmin
    decay: float = 0.9  # of the moving averages
    epsilon: float = 1e-5  # Laplace smoothing of cluster sizes
    # A code unused for `patience` times its expected interval is moved onto a random residual. The published
    # rule (moving-average size below 2, every step) is `published_revival`: it redraws most of a large codebook.
    patience: float = 4.0
    published_revival: bool = False
    encode_sweeps: int = 0  # how often later codes are chosen again in view of all the others (lower error; 0: as the paper)
    settled: int = 2  # the levels below are never chosen again, nor moved when levels are fitted to each other
    # > 0: from this level on every modality has codebooks of its own. A code is read after the modality's, so three tables
    # cost no bit of the ID, and texts do not share their codes with pictures. 0: one codebook a level, as the paper.
    own_books_from: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "level_sizes", tuple(int(k) for k in self.level_sizes))
        if len(self.level_sizes) < 2 or min(self.level_sizes) < 1:
            raise GeniusError(f"a quantizer needs at least two levels of positive size, got {self.level_sizes}")
        if self.modality_code != "none" and self.level_sizes[0] != 3:
            raise GeniusError(f"level 0 has one code per modality, so size 3, not {self.level_sizes[0]}")
        if self.shared and len(set(self.level_sizes[1:])) > 1:
            raise GeniusError("a shared codebook needs levels of equal size")
        if self.settled < 1:
            raise GeniusError(f"settled is {self.settled}; the modality at least is never chosen again")
        if self.own_books_from and (self.shared or not self.labelled):
            raise GeniusError("codebooks of each modality (own_books_from) need a modality code that is told, and are not shared")

    @property
    def levels(self) -> int:
        return len(self.level_sizes)

    @property
    def labelled(self) -> bool:
        """Whether level 0 is told rather than searched."""
        return self.modality_code in ("given", "classifier")

    def own_books(self, level: int) -> bool:
        """Whether every modality has a codebook of its own at this level."""
        return 0 < self.own_books_from <= level and level > 0


def nearest(vectors: Tensor, centres: Tensor, chunk: int = 16384) -> Tensor:
    """(N,) index of the centre of least squared distance (Eq. 5): argmax of 2 v.c - |c|^2."""
    half = centres.square().sum(1) / 2
    if vectors.shape[0] <= chunk:
        return (vectors @ centres.T - half).argmax(1)
    return torch.cat([(v @ centres.T - half).argmax(1) for v in vectors.split(chunk)])


def nearest_as_published(vectors: Tensor, centres: Tensor) -> Tensor:
    """`nearest` with the published order of operations, so that near-ties round the same way."""
    squared = vectors.square().sum(1, keepdim=True) + centres.square().sum(1) + vectors @ centres.T * -2
    return squared.clamp(min=0).sqrt().argmin(1)


class Codebooks(nn.Module):
    """M tables and the moving averages that they are made from."""

    def __init__(self, config: QuantizerConfig) -> None:
        super().__init__()
        self.config = config
        for level in range(self.books):
            size = config.level_sizes[level] * (3 if config.own_books(level) else 1)
            # distinct, tiny, reproducible: an untrained quantizer still gives valid codes
            start = torch.randn(size, config.width, generator=torch.Generator().manual_seed(level)) * config.width**-0.5
            if level == 0 and config.modality_code == "classifier":
                start = torch.zeros_like(start)
            self.register_buffer(f"codes_{level}", start)
            self.register_buffer(f"sizes_{level}", torch.ones(size))
            self.register_buffer(f"sums_{level}", start.clone())
            self.register_buffer(f"unused_{level}", torch.zeros(size))

    @property
    def books(self) -> int:
        return min(2, self.config.levels) if self.config.shared else self.config.levels

    def _book(self, level: int) -> int:
        return min(level, self.books - 1)

    def codebook(self, level: int) -> Tensor:
        """(K_level, D) code vectors; (3 K_level, D), one modality after the other, where each has its own."""
        return self.get_buffer(f"codes_{self._book(level)}")

    def book_of(self, level: int, modality: int) -> Tensor:
        """(K_level, D) code vectors of one modality's items."""
        return self.codebook(level)[self._block(level, modality)] if self.config.own_books(level) else self.codebook(level)

    def rows_of(self, level: int, code: Tensor, modality: Tensor) -> Tensor:
        """Rows of `codebook(level)` that codes (N,) of items with these modalities (N,) stand for."""
        return code + modality * self.config.level_sizes[level] if self.config.own_books(level) else code

    def _block(self, level: int, modality: int) -> slice:
        size = self.config.level_sizes[level]
        return slice(modality * size, (modality + 1) * size)

    @property
    def codebooks(self) -> list[Tensor]:
        """Every level's table, by `rows_of`."""
        return [self.codebook(level) for level in range(self.config.levels)]

    def pick(self, residual: Tensor, level: int, modality: Tensor | None) -> Tensor:
        """Nearest codes (N,) of the level to residuals (N, D)."""
        if level == 0 and self.config.labelled:
            assert modality is not None
            return modality.long()
        search = nearest_as_published if self.config.modality_code == "nearest" else nearest
        if not self.config.own_books(level):
            return search(residual, self.codebook(level))  # Eq. 5
        assert modality is not None
        code = torch.empty(len(residual), dtype=torch.long, device=residual.device)
        for kind in range(3):
            own = (modality == kind).nonzero()[:, 0]
            code[own] = search(residual[own], self.book_of(level, kind))
        return code

    def vectors(self, level: int, code: Tensor, modality: Tensor | None) -> Tensor:
        """Code vectors (..., D) of codes (...) whose first codes are `modality` (...; None: level 0, or no modality)."""
        return self.codebook(level)[code if modality is None else self.rows_of(level, code, modality)]

    def decode(self, codes: Tensor, levels: int | None = None) -> Tensor:
        """Sum of the code vectors of the first `levels` levels: (N, D), not normalised."""
        self.check_codes(codes)
        return self.decode_prefix(codes[:, : self.config.levels if levels is None else levels])

    def decode_prefix(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors of the first codes (N, l), l at least 1: (N, D). Codes are not checked."""
        out = self.codebook(0)[codes[:, 0]]
        for level in range(1, codes.shape[1]):
            out = out + self.vectors(level, codes[:, level], codes[:, 0])
        return out

    def closeness(self, level: int, residual: Tensor, modality: Tensor | None) -> Tensor:
        """2 r.c - |c|^2 for every code of the level: (N, K). `modality` (N,) is the first code, None at level 0.
        It is |r|^2 - |r - c|^2, which summed over levels is |z|^2 - |z - reconstruction|^2."""
        if level == 0 and self.config.labelled:
            return residual.new_zeros(len(residual), self.config.level_sizes[0])  # the modality is told, not near
        if modality is None or not self.config.own_books(level):
            book = self.codebook(level)
            return 2 * residual @ book.T - book.square().sum(1)
        out = residual.new_empty(len(residual), self.config.level_sizes[level])
        for kind in range(3):
            own, book = (modality == kind).nonzero()[:, 0], self.book_of(level, kind)
            out[own] = 2 * residual[own] @ book.T - book.square().sum(1)
        return out

    def check_codes(self, codes: Tensor) -> None:
        """Raise one clear line unless `codes` (N, M) are of this quantizer's shape and range."""
        if codes.ndim != 2 or codes.shape[1] != self.config.levels:
            raise GeniusError(f"codes have shape {tuple(codes.shape)}, expected (N, {self.config.levels})")
        sizes = torch.tensor(self.config.level_sizes, device=codes.device)
        if codes.numel() and ((codes < 0) | (codes >= sizes)).any():
            raise GeniusError(f"codes out of range for levels of sizes {self.config.level_sizes}")

    def set_codebook(self, level: int, centres: Tensor, counts: Tensor) -> None:
        """Take code vectors (K, D) and how many vectors each stands for (K,) as where the moving averages start."""
        weight = (counts * (1.0 / max(counts.mean().item(), 1e-6))).clamp(min=1e-3)  # sizes relative to an average code
        self.get_buffer(f"codes_{level}").copy_(centres)
        self.get_buffer(f"sizes_{level}").copy_(weight)
        self.get_buffer(f"sums_{level}").copy_(centres * weight[:, None])
        self.get_buffer(f"unused_{level}").zero_()
