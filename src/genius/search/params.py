"""How to search: settings, checked when they are built.

`SearchRequest` is what people ask for; the model's defaults and a filter turn it into `SearchParams`, how the engine searches.
What passes through a search (queries, candidates, results) is in `genius.search.types`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from genius.config import from_dict
from genius.errors import GeniusError
from genius.search.rerank import check_name

if TYPE_CHECKING:  # settings are read where no model is loaded
    from genius.model.genius import Genius

PLANS = ("auto", "flat", "scan", "beam")
RETIRED = frozenset({"geometry", "finish", "leaves", "generator", "normalizer"})  # settings of old models, read and ignored

SEARCHES: dict[str, dict[str, Any]] = {
    "genius": {"rerank": 0, "reranker": "none", "item_bias": False},  # the paper's: beam search, ranked by log-probability
    # the paper's GENIUS^R: its items, re-ranked by stored vectors
    "genius-r": {"rerank": 0, "reranker": "embeddings", "item_bias": False},
    "genius-codes": {"rerank": 0, "reranker": "codes"},
    "default": {"reranker": "embeddings"},  # flat or scan, re-ranked by stored vectors
    "default-codes": {"reranker": "codes"},
    "codes-only": {"plan": "scan", "reranker": "none"},  # a scan ranked by its product codes: reads no vectors
}
"""The searches that tables and programs name."""

MODES = ("similarity", "words", "hybrid")
WORDS_WEIGHT = 4.0  # chosen with the rank constant (`genius.index.words`)
MAX_K = 10_000  # also of beams
MAX_RERANK = 100_000_000


@dataclass(frozen=True, slots=True)
class SearchParams:
    """How to search.

    By default the engine picks the cheaper one of an exact and an approximate plan and re-ranks its candidates. `rerank=0` or
    `reranker="none"` asks for the paper's beam search: with `"none"` that is GENIUS, with `"embeddings"` GENIUS^R.

    Args:
        beams: B, prefixes kept at every level of a beam search.
        rerank: R, the effort of a scan: 2,000 is the one that the index chose for its own items and queries (about 640 vectors
            compared for ten hits, or more), 4,000 compares twice as many in twice the cells; a larger k needs more. A re-ranker
            of your own is given R candidates. 0: beam search, as in the paper.
        reranker: Name of a registered re-ranker: "embeddings" (stored vectors), "codes" (reconstructions of IDs), "none"
            (the plan's own scores) or one of your own (`genius.search.rerank.register`).
        plan: "auto", "flat", "scan" or "beam".
        item_bias: Take off each score how similar the item is to queries in general, where the model has a bank of queries.

    Examples:
        >>> SearchParams(plan="beam", beams=10).beams
        10
    """

    beams: int = 50
    rerank: int = 2000
    reranker: str = "embeddings"
    plan: str = "auto"
    item_bias: bool = True

    @classmethod
    def of_model(cls, model: Genius) -> SearchParams:
        """A model's own defaults, from the `search` table of its config: what is not named there has the defaults above.

        Args:
            model: The model.
        """
        return cls.of_table(model.config.search)

    @classmethod
    def of_table(cls, table: dict[str, Any]) -> SearchParams:
        """The same from such a table itself.

        Args:
            table: Field -> value.
        """
        kept = {name: value for name, value in table.items() if name not in RETIRED}
        return from_dict(cls, kept, where="the model's search defaults")

    def named(self, search: str) -> SearchParams:
        """These settings with what a search of `SEARCHES` is known by.

        Args:
            search: A name of `SEARCHES`.
        """
        return replace(self, **SEARCHES[search])

    @property
    def generates(self) -> bool:
        """Whether a beam search is wanted, by name or as the paper's search."""
        return self.plan == "beam" or (self.plan == "auto" and (self.rerank == 0 or self.reranker == "none"))

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise GeniusError(f"beams must be at least 1, got {self.beams}")
        if self.rerank < 0:
            raise GeniusError(f"rerank must not be negative, got {self.rerank}")
        if self.plan not in PLANS:
            raise GeniusError(f"plan must be one of {', '.join(PLANS)}, got {self.plan!r}")
        check_name(self.reranker)


def whole(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise GeniusError(f"{name} must be a whole number from {low:,} to {high:,}, got {value!r}")


def number(name: str, value: object, low: float, high: float) -> None:
    """Refuse what is not a number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise GeniusError(f"{name} must be a number from {low:,} to {high:,}, got {value!r}")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a search is to return, for any queries. Built once, checked when it is built, and handed on as it is: by Python,
    the command line and HTTP to the index.

    Examples:
        >>> SearchRequest(k=5, where="price < 50").k
        5
    """

    k: int = 10  # hits per query
    where: str | None = None  # SQL filter over metadata
    min_score: float | None = None  # drop hits with a lower score
    beams: int | None = None  # these two take the place of those in `params`
    rerank: int | None = None
    params: SearchParams | None = None  # None: the model's own
    strict: bool = False  # the target is exactly the modality of the items, not everything that contains it
    diverse: bool = False  # at most one hit per code prefix
    mode: str = "similarity"  # or "words" (full text), or "hybrid" (both, fused by reciprocal ranks)
    words_weight: float = WORDS_WEIGHT  # of the ranking by words in a hybrid search; similarity has the weight 1
    item_bias: bool | None = None  # in place of that in `params`
    min_probability: float | None = None  # no hits where an answer exists with a lower probability
    any_modality: bool = False  # a query without a target looks for items of every modality, not for the default target

    def __post_init__(self) -> None:
        whole("k", self.k, 1, MAX_K)
        if self.where is not None and not isinstance(self.where, str):
            raise GeniusError(f"where must be a condition such as 'price < 50', got {type(self.where).__name__}")
        low = self.min_score
        if low is not None and (isinstance(low, bool) or not isinstance(low, int | float) or math.isnan(low)):
            raise GeniusError(f"min_score is not a number: {low!r}")
        if self.mode not in MODES:
            raise GeniusError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        number("words_weight", self.words_weight, 0, 1000)
        if self.min_probability is not None:
            number("min_probability", self.min_probability, 0, 1)
        if self.item_bias is not None and not isinstance(self.item_bias, bool):
            raise GeniusError(f"item_bias must be True or False, got {self.item_bias!r}")
        if self.beams is not None:
            whole("beams", self.beams, 1, MAX_K)
        if self.rerank is not None:
            whole("rerank", self.rerank, 0, MAX_RERANK)
        if self.params is not None and not isinstance(self.params, SearchParams):
            raise GeniusError(f"params must be SearchParams, got {type(self.params).__name__}")

    @property
    def adaptive(self) -> bool:
        """Whether the effort is left to the model: no explicit beams or rerank."""
        return self.beams is None and self.rerank is None

    def settings(self, model: Genius, vectors: bool = True) -> SearchParams:
        """How to search: the model's defaults, then `params`, then the two knobs; by codes where no vectors are stored.

        Args:
            model: Its config has the defaults.
            vectors: Whether vectors are stored.
        """
        chosen = self.params or SearchParams.of_model(model)
        if self.params is None and not vectors and chosen.reranker == "embeddings":
            chosen = replace(chosen, reranker="codes")
        if self.beams is not None:
            chosen = replace(chosen, beams=self.beams)
        if self.rerank is not None:
            chosen = replace(chosen, rerank=self.rerank)
        if self.item_bias is not None:
            chosen = replace(chosen, item_bias=self.item_bias)
        whole("beams", chosen.beams, 1, MAX_K)  # a model's defaults come out of a file
        whole("rerank", chosen.rerank, 0, MAX_RERANK)
        return chosen
