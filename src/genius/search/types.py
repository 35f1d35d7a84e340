"""What passes through a search: queries in, candidates between, items out.

    queries -> QueryBatch -> Plan.run -> Candidates -> Reranker -> SearchResult

Arrays over item rows (0..N-1 of one collection). Knows nothing of models, files or how a plan works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Floats, Ints

if TYPE_CHECKING:  # it knows collections, which know nothing of these types
    from torch import Tensor

    from genius.search.item_bias import ItemBias

MODALITIES = 3
MINUS_ONE_AT = -np.eye(MODALITIES + 1, MODALITIES, dtype=np.float32)  # by query modality; the last: of an unknown one


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries of one call, checked."""

    z: Floats  # (Q, D) fused query embeddings: what the decoder reads
    dense: Floats  # (Q, D) compared with stored vectors
    target: Ints  # (Q,) given modality, -1 unknown
    modality_log_probs: Floats | None = None  # (Q, 3) log p(modality | query), added to scores where target is -1
    allowed: NDArray[np.bool_] | None = None  # (N,) or (Q, N) over rows: passes the filter and is not deleted; None: all
    modality: Ints | None = None  # (Q,) what each query consists of, -1 unknown; None: unknown
    item_bias: ItemBias | None = None  # taken off similarities, by the query's modality; None: no correction

    def __len__(self) -> int:
        return len(self.z)

    def select(self, queries: Ints) -> QueryBatch:
        """Some of the queries, by position (n,).

        Args:
            queries: (n,) positions.
        """
        chosen: dict[str, Any] = {"z": self.z[queries], "dense": self.dense[queries], "target": self.target[queries]}
        if self.modality_log_probs is not None:
            chosen["modality_log_probs"] = self.modality_log_probs[queries]
        if self.modality is not None:
            chosen["modality"] = self.modality[queries]
        if self.allowed is not None and self.allowed.ndim == 2:
            chosen["allowed"] = self.allowed[queries]
        return replace(self, **chosen)

    def prior(self, rows: Ints, item_modality: Ints | None) -> Floats | None:
        """What is added to the similarities of candidates: log p(modality) where the target is unknown, less the item bias.

        Args:
            rows: (Q, C) of each query; what is returned for padding (-1) is without meaning.
            item_modality: (N,) modality of each row of the collection; None: codes do not say it.

        Returns:
            (Q, C); None: nothing is added.
        """
        if item_modality is None or not self.has_prior:
            return None
        total = None
        if self.modality_log_probs is not None:
            of_item = item_modality.take(rows)
            of_query = np.where(self.target[:, None] >= 0, np.float32(0), self.modality_log_probs)  # (Q, 3)
            total = of_query[np.arange(len(self))[:, None], of_item]
        bias = self.bias(rows)
        if bias is None:
            return total
        if total is None:
            return -bias
        return total - bias

    def bias(self, rows: Ints) -> Floats | None:
        """What is taken off the scores of candidates; None: nothing.

        Args:
            rows: (Q, C) of each query; what is returned for padding (-1) is without meaning.
        """
        if self.item_bias is None or self.modality is None:
            return None
        return self.item_bias.take(self.modality, rows)

    @property
    def has_prior(self) -> bool:
        """Whether anything is added to similarities."""
        return self.modality_log_probs is not None or (self.item_bias is not None and self.modality is not None)

    def prior_dimensions(self) -> Floats:
        """(Q, 6) what queries have in the dimensions that `Flat` adds: log p(modality), and minus one at their own modality."""
        out = np.zeros((len(self), 2 * MODALITIES), np.float32)
        if self.modality_log_probs is not None:
            out[:, :MODALITIES] = np.where(self.target[:, None] >= 0, np.float32(0), self.modality_log_probs)
        if self.item_bias is not None and self.modality is not None:
            out[:, MODALITIES:] = MINUS_ONE_AT[self.modality]
        return out

    def allowed_for(self, query: int) -> NDArray[np.bool_] | None:
        """(N,) rows that one query may find; None: all.

        Args:
            query: Its position.
        """
        if self.allowed is None or self.allowed.ndim == 1:
            return self.allowed
        own: NDArray[np.bool_] = self.allowed[query]
        return own


@dataclass(frozen=True, slots=True)
class Candidates:
    """Item rows that a plan found, with its own scores; no row twice for a query, in any order."""

    rows: Ints  # (Q, C), -1 where there are fewer
    scores: Floats  # (Q, C), -inf where rows is -1
    considered: Ints  # (Q,) items that were scored in any way to find them

    @classmethod
    def empty(cls, queries: int) -> Candidates:
        """No candidates for any query.

        Args:
            queries: Number of queries.
        """
        return cls(np.empty((queries, 0), np.int64), np.empty((queries, 0), np.float32), np.zeros(queries, np.int64))

    @classmethod
    def cat(cls, parts: Sequence[Candidates]) -> Candidates:
        """The candidates of several batches, one after the other; at least one batch.

        Args:
            parts: At least one.
        """
        if len(parts) == 1:
            return parts[0]
        width = max(part.rows.shape[1] for part in parts)
        return cls(
            np.concatenate([padded(part.rows, width, -1) for part in parts]),
            np.concatenate([padded(part.scores, width, -np.inf) for part in parts]),
            np.concatenate([part.considered for part in parts]),
        )

    @classmethod
    def scattered(cls, queries: int, parts: Sequence[tuple[Ints, Candidates]]) -> Candidates:
        """The candidates of groups of a batch, at their places in it.

        Args:
            queries: In the batch.
            parts: Positions of a group's queries in the batch, and its candidates; no query is in two groups.
        """
        width = max((found.rows.shape[1] for _, found in parts), default=0)
        rows = np.full((queries, width), -1, np.int64)
        scores = np.full((queries, width), -np.inf, np.float32)
        considered = np.zeros(queries, np.int64)
        for own, found in parts:
            rows[own] = padded(found.rows, width, -1)
            scores[own] = padded(found.scores, width, -np.inf)
            considered[own] = found.considered
        return cls(rows, scores, considered)

    def beside(self, more: Candidates) -> Candidates:
        """These and others of the same queries.

        Args:
            more: Of other items.
        """
        return Candidates(
            np.concatenate([self.rows, more.rows], 1),
            np.concatenate([self.scores, more.scores], 1),
            self.considered + more.considered,
        )


def padded(values: NDArray[Any], width: int, value: float) -> NDArray[Any]:
    """(Q, C) -> (Q, width).

    Args:
        values: At most `width` of each query.
        width: Columns of the result.
        value: What fills the others.
    """
    if values.shape[1] == width:
        return values
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=value)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Items, best first."""

    rows: Ints  # (Q, k) item rows, -1 where fewer exist
    scores: Floats  # (Q, k) of the re-ranker, or of the plan where there is none; -inf where rows is -1
    considered: Ints  # (Q,) items that were scored in any way
    plan: str = ""  # name of the plan that ran


@dataclass(frozen=True, slots=True)
class BeamResult:
    """IDs, best first."""

    codes: Tensor  # (Q, B, M) int64, -1 where fewer IDs than beams exist
    scores: Tensor  # (Q, B) sum of log-probabilities / M (as published), -inf where codes are -1
    ids: Tensor  # (Q, B) int64 their numbers in the trie, -1 where codes are -1
