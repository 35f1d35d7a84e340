"""What passes through a search: queries in, candidates between, items out; and what a plan is.

    queries -> QueryBatch -> Plan.run -> Candidates -> Reranker -> SearchResult

Plain data over item rows (0..N-1 of one collection). Knows nothing of models, files or how a plan works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.search.params import SearchParams

if TYPE_CHECKING:  # it knows collections, which know nothing of these types
    from genius.search.item_bias import ItemBias


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries of one call, checked, on the engine's device."""

    z: Tensor  # (Q, D) float32 fused query embeddings: what the decoder reads
    dense: Tensor  # (Q, D) float32 compared with stored vectors
    target: Tensor  # (Q,) int64 given modality, -1 unknown
    modality_log_probs: Tensor | None = None  # (Q, 3) log p(modality | query), added to scores where target is -1
    allowed: Tensor | None = None  # (N,) or (Q, N) bool over item rows: passes the filter and is not deleted; None: all
    modality: Tensor | None = None  # (Q,) int64 what each query consists of, -1 unknown; None: unknown
    item_bias: ItemBias | None = None  # taken off similarities, by the query's modality; None: no correction

    def __len__(self) -> int:
        return len(self.z)

    def select(self, queries: Tensor) -> QueryBatch:
        """Some of the queries, by position (n,)."""
        own_masks = self.allowed is not None and self.allowed.ndim == 2
        return replace(
            self,
            z=self.z[queries],
            dense=self.dense[queries],
            target=self.target[queries],
            modality_log_probs=None if self.modality_log_probs is None else self.modality_log_probs[queries],
            allowed=self.allowed[queries] if own_masks and self.allowed is not None else self.allowed,
            modality=None if self.modality is None else self.modality[queries],
        )

    def prior(self, rows: Tensor | slice, item_modality: Tensor | None) -> Tensor | None:
        """What is added to the similarities of items: log p(modality) where the target is unknown, less the item bias.

        Args:
            rows: (n,) or a slice, the same for all queries, or (Q, C) of each query; -1 is padding.
            item_modality: (N,) modality of each row of the collection; None: codes do not say it.

        Returns:
            (Q, n) or (Q, C); None: nothing is added.
        """
        total = None
        if self.modality_log_probs is not None and item_modality is not None:
            log_probs = self.modality_log_probs.masked_fill(self.target[:, None] >= 0, 0)
            if isinstance(rows, Tensor) and rows.ndim == 2:
                total = log_probs.gather(1, item_modality[rows.clamp(min=0)].clamp(min=0))
            else:
                total = log_probs[:, item_modality[rows].clamp(min=0)]
        if self.item_bias is None or self.modality is None:
            return total
        bias = self.item_bias.take(self.modality, rows)
        return -bias if total is None else total - bias

    def allowed_for(self, query: int) -> Tensor | None:
        """(N,) rows that one query may find; None: all."""
        if self.allowed is None or self.allowed.ndim == 1:
            return self.allowed
        return self.allowed[query]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Item rows that a plan found, with its own scores; no row twice for a query, in any order."""

    rows: Tensor  # (Q, C) int64, -1 where there are fewer
    scores: Tensor  # (Q, C) float32, -inf where rows is -1
    considered: Tensor  # (Q,) int64 items that were scored in any way to find them

    @classmethod
    def empty(cls, queries: int, device: torch.device) -> Candidates:
        """No candidates for any query."""
        return cls(
            torch.empty(queries, 0, dtype=torch.long, device=device),
            torch.empty(queries, 0, device=device),
            torch.zeros(queries, dtype=torch.long, device=device),
        )

    @classmethod
    def cat(cls, parts: Sequence[Candidates]) -> Candidates:
        """The candidates of several batches, one after the other; at least one batch."""
        most = max(part.rows.shape[1] for part in parts)
        return cls(
            torch.cat([_pad(part.rows, most, -1) for part in parts]),
            torch.cat([_pad(part.scores, most, -torch.inf) for part in parts]),
            torch.cat([part.considered for part in parts]),
        )


def _pad(values: Tensor, width: int, value: float) -> Tensor:
    """(Q, C) -> (Q, width)."""
    return F.pad(values, (0, width - values.shape[1]), value=value)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Items, best first."""

    rows: Tensor  # (Q, k) int64 item rows, -1 where fewer exist
    scores: Tensor  # (Q, k) float32 of the re-ranker, or of the plan where there is none; -inf where rows is -1
    considered: Tensor  # (Q,) int64 items that were scored in any way
    plan: str = ""  # name of the plan that ran


@dataclass(frozen=True, slots=True)
class BeamResult:
    """IDs, best first."""

    codes: Tensor  # (Q, B, M) int64, -1 where fewer IDs than beams exist
    scores: Tensor  # (Q, B) sum of log-probabilities / M (as published), -inf where codes are -1
    ids: Tensor  # (Q, B) int64 their numbers in the trie, -1 where codes are -1


class Plan(Protocol):
    """One way to find candidates. Every plan obeys targets and `allowed`, and returns k items while k exist."""

    @property
    def name(self) -> str:
        """What `SearchParams.plan` and reports call it."""
        ...

    def suits(self, batch: QueryBatch, k: int, params: SearchParams) -> bool:
        """Whether it can serve this request at all."""
        ...

    def cost(self, batch: QueryBatch, k: int, params: SearchParams) -> float:
        """Rough milliseconds of this batch; the engine takes the cheapest plan that suits."""
        ...

    def run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        """At least k candidates of every query, while k exist."""
        ...
