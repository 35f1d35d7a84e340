"""What a search is asked and what it answers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from genius.errors import GeniusError

Reranker = Literal["embeddings", "codes", "none"]
Normalizer = Literal["model", "vocabulary", "level", "children"]


@dataclass(frozen=True, slots=True)
class SearchParams:
    """How to search. The defaults stop early and re-rank; `rerank=0, reranker="none"` is the paper's plain GENIUS."""

    beams: int = 50  # B: prefixes kept at every level
    rerank: int = 2000  # R: stop once at most R items are below the beams and re-rank up to R; 0: full depth, as the paper
    reranker: Reranker = "embeddings"  # stored vectors, the codes' reconstruction, or the order of the beams (full depth)
    # w of the term w * zscore(2 r.c - |c|^2 / 2) beside log p, r = z minus the codes so far; a modality's log p counts 1 + w
    geometry: float = 0.0
    generator: bool = True  # False: geometry alone, no decoder
    normalizer: Normalizer = "model"  # log p over the whole table, the level, or the valid children; "model": as trained
    # w > 0, at full depth only: the decoder writes the first codes; once at most `leaves` items are below the beams, the rest
    # is written by nearness: every ID there competes with log p so far + w * cosine(z, its reconstruction), B are kept
    finish: float = 0.0
    leaves: int = 2000

    @property
    def full_depth(self) -> bool:
        """Whether the beams' IDs are written to the end; otherwise what is below them is re-ranked."""
        return self.rerank == 0 or self.reranker == "none"

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise GeniusError(f"beams must be at least 1, got {self.beams}")
        if self.rerank < 0:
            raise GeniusError(f"rerank must not be negative, got {self.rerank}")
        if self.reranker not in ("embeddings", "codes", "none"):
            raise GeniusError(f"reranker must be 'embeddings', 'codes' or 'none', got {self.reranker!r}")
        if self.normalizer not in ("model", "vocabulary", "level", "children"):
            raise GeniusError(f"normalizer must be 'model', 'vocabulary', 'level' or 'children', got {self.normalizer!r}")
        if self.geometry < 0:
            raise GeniusError(f"geometry must not be negative, got {self.geometry}")
        if self.finish < 0:
            raise GeniusError(f"finish must not be negative, got {self.finish}")
        if self.leaves < 1:
            raise GeniusError(f"leaves must be at least 1, got {self.leaves}")


@dataclass(slots=True)
class SearchResult:
    """Items, best first."""

    rows: Tensor  # (Q, k) int64 item rows, -1 where fewer exist
    scores: Tensor  # (Q, k) of the re-ranker, or the beams' log p / M; -inf where rows is -1
    touched: Tensor  # (Q,) int64 items re-ranked (or reached)


@dataclass(slots=True)
class BeamResult:
    """IDs, best first."""

    codes: Tensor  # (Q, B, M) int64, -1 where fewer IDs than beams exist
    scores: Tensor  # (Q, B) sum of log p / M (as published), -inf where codes are -1
