"""What a search is asked and what it answers. Plain data.

`SearchRequest` is what people ask for; the model's defaults and a filter turn it into `SearchParams`, how the engine searches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from genius.config import from_dict
from genius.errors import GeniusError
from genius.model.genius import Genius

Reranker = Literal["embeddings", "codes", "none"]
RETIRED = frozenset({"geometry", "finish", "leaves", "generator", "normalizer"})  # of models from before log p held nearness

SEARCHES: dict[str, dict[str, Any]] = {
    "genius": {"rerank": 0, "reranker": "none"},  # the paper's: IDs written to the end, ranked by log p
    "genius-r": {"rerank": 0, "reranker": "embeddings"},  # the paper's GENIUS^R: their items, re-ranked by stored vectors
    "genius-codes": {"rerank": 0, "reranker": "codes"},
    "default": {"reranker": "embeddings"},  # re-ranks what one decoder row, or beams that stop early, lead to
    "default-codes": {"reranker": "codes"},
}
"""The searches that tables and programs name. Beams, and the budget of those that stop early, are whatever they are."""

MAX_K = 10_000  # also of beams
MAX_RERANK = 100_000_000


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
    def of_model(cls, model: Genius) -> SearchParams:
        """A model's own defaults, from the `search` table of its config: what is not named there has the defaults above."""
        return cls.of_table(model.config.search)

    @classmethod
    def of_table(cls, table: dict[str, Any]) -> SearchParams:
        """The same from such a table itself."""
        kept = {name: value for name, value in table.items() if name not in RETIRED}
        return from_dict(cls, kept, where="the model's search defaults")

    def named(self, search: str) -> SearchParams:
        """These settings with what a search of `SEARCHES` is known by."""
        return replace(self, **SEARCHES[search])

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


def whole(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise GeniusError(f"{name} must be a whole number from {low:,} to {high:,}, got {value!r}")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What is asked of a search beside its questions. Built once, checked when it is built, and handed on as it is: by Python,
    the command line and HTTP to the index."""

    k: int = 10  # how many answers a question
    where: str | None = None  # an SQL condition on metadata
    min_score: float | None = None  # answers below it are left out
    beams: int | None = None  # these two take the place of those in `params`, and are obeyed under filters, too
    rerank: int | None = None
    params: SearchParams | None = None  # None: the model's own
    strict: bool = False  # a question's target is exactly the kind of item that is found, not all that people mean by it
    diverse: bool = False  # answers that differ: one a subtree of codes

    def __post_init__(self) -> None:
        whole("k", self.k, 1, MAX_K)
        low = self.min_score
        if low is not None and (isinstance(low, bool) or not isinstance(low, int | float) or math.isnan(low)):
            raise GeniusError(f"min_score is not a number: {low!r}")
        if self.beams is not None:
            whole("beams", self.beams, 1, MAX_K)
        if self.rerank is not None:
            whole("rerank", self.rerank, 0, MAX_RERANK)
        if self.params is not None and not isinstance(self.params, SearchParams):
            raise GeniusError(f"params must be SearchParams, got {type(self.params).__name__}")

    @property
    def adaptive(self) -> bool:
        """Whether a filter may widen the search: explicit settings are obeyed as they are."""
        return self.beams is None and self.rerank is None

    def settings(self, model: Genius) -> SearchParams:
        """How to search: the model's defaults, then `params`, then the two knobs."""
        chosen = self.params or SearchParams.of_model(model)
        if self.beams is not None:
            chosen = replace(chosen, beams=self.beams)
        if self.rerank is not None:
            chosen = replace(chosen, rerank=self.rerank)
        whole("beams", chosen.beams, 1, MAX_K)  # a model's defaults come out of a file
        whole("rerank", chosen.rerank, 0, MAX_RERANK)
        return chosen


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
