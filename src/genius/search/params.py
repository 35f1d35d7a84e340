"""What a search is asked and what it answers. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from genius.config import from_dict
from genius.errors import GeniusError

Reranker = Literal["embeddings", "codes", "none"]
RETIRED = frozenset({"geometry", "finish", "leaves", "generator", "normalizer"})  # of models from before log p held nearness


@dataclass(frozen=True, slots=True)
class SearchParams:
    """How to search. Beams are always ranked by log p; what is below them by `reranker`.

    The defaults stop early and re-rank. `rerank=0` writes every ID to its end: with `reranker="none"` that is the paper's plain
    GENIUS, with `"embeddings"` its GENIUS^R.
    """

    beams: int = 50  # B: prefixes kept at every level
    rerank: int = 2000  # R: stop once at most R items are below the beams and re-rank up to R; 0: full depth, as the paper
    reranker: Reranker = "embeddings"  # stored vectors, the codes' reconstruction, or log p alone (full depth)

    @classmethod
    def of_model(cls, defaults: Mapping[str, Any]) -> SearchParams:
        """From the `search` table of a model's config: what is not named there has the defaults above."""
        kept = {name: value for name, value in defaults.items() if name not in RETIRED}
        return from_dict(cls, kept, where="the model's search defaults")

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
