"""Re-rankers: score the candidates of any plan against their queries. A registry, called by name in one place, the engine.

A re-ranker is a function of a batch of queries, their candidates and the collection; it returns one score per candidate, and the
engine sorts. Three are built in: "embeddings" (stored vectors), "codes" (what IDs stand for) and "none" (the plan's scores).
Another is added by `register`, or by a package that names it in the entry point group `genius.rerankers`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from genius.errors import GeniusError
from genius.features import as_numpy
from genius.search.arrays import HOST, Array, Arrays, Floats, Ints
from genius.search.collection import Collection
from genius.search.types import Candidates, QueryBatch, padded
from genius.search.vectors import StoredVectors, Vectors

GROUP = "genius.rerankers"  # entry points of packages that bring a re-ranker
BUILT_IN = ("embeddings", "codes", "none")  # re-rankers that rank as plans do; others are given `rerank` candidates
NUMBERS = 1 << 22  # of candidate vectors held at a time: 16 MB
NUMBERS_ON_DEVICE = 1 << 27  # likewise, on a GPU: half a gigabyte

Reranker = Callable[[QueryBatch, Candidates, Collection], Any]
"""-> (Q, C) float32 scores, an array or a tensor. Those of padding (row -1) are ignored."""

_registry: dict[str, Reranker] = {}


def register(name: str, reranker: Reranker) -> Reranker:
    """Make a re-ranker known by a name, which `SearchParams.reranker` may then have.

    Args:
        name: Not yet taken.
        reranker: The function.

    Raises:
        GeniusError: If another re-ranker has this name.
    """
    if _registry.get(name, reranker) is not reranker:
        raise GeniusError(f"there is a re-ranker {name!r} already")
    _registry[name] = reranker
    return reranker


def names() -> list[str]:
    """All re-rankers that can be named, those of installed packages included."""
    return sorted({*_registry, *(entry.name for entry in entry_points(group=GROUP))})


def check_name(name: object) -> None:
    """Refuse a name that nobody registered.

    Raises:
        GeniusError: With the names there are.
    """
    if not isinstance(name, str) or (name not in _registry and name not in names()):
        raise GeniusError(f"reranker must be one of {', '.join(map(repr, names()))}, got {name!r}")


def find(name: str) -> Reranker:
    """The re-ranker of a name; one of an installed package is imported when it is first needed.

    Raises:
        GeniusError: If there is none, or it cannot be imported.
    """
    check_name(name)
    if name not in _registry:
        (entry, *_) = entry_points(group=GROUP, name=name)
        try:
            _registry[name] = entry.load()
        except Exception as error:  # whatever importing another package raises
            raise GeniusError(f"the re-ranker {name!r} of {entry.value} cannot be imported: {error}") from None
    return _registry[name]


# -- built in ------------------------------------------------------------------------------------------------------


def embeddings(batch: QueryBatch, candidates: Candidates, collection: Collection) -> Array:
    """Inner products with stored vectors, in float32."""
    if collection.stored is None:
        raise GeniusError("this collection stores no embeddings: use reranker 'codes' or 'none'")
    return _products(batch.dense, candidates.rows, collection.stored)


def codes(batch: QueryBatch, candidates: Candidates, collection: Collection) -> Array:
    """Cosine of queries and what the IDs of candidates stand for."""
    if collection.reconstructed is None:
        raise GeniusError("re-ranking by codes needs the quantizer")
    return _products(batch.z, candidates.rows, collection.reconstructed)


def none(batch: QueryBatch, candidates: Candidates, collection: Collection) -> Floats:
    """The plan's own scores."""
    return candidates.scores


def top_k(rows: Ints, scores: Array, k: int, arrays: Arrays = HOST) -> tuple[Ints, Floats]:
    """The k best candidates by score; equal scores keep their order.

    Args:
        rows: (Q, C), -1 for padding.
        scores: (Q, C) on the device of `arrays`; those of padding are ignored.
        k: How many.
        arrays: Operations on scores.

    Returns:
        Rows (Q, k), -1 beyond the end, and their scores (Q, k), -inf there.
    """
    if rows.min(initial=0) < 0:
        scores = arrays.where(arrays.put(rows < 0), -np.inf, scores)
    best_scores, best = arrays.top_k(scores, k)
    top_rows = rows[np.arange(len(rows))[:, None], arrays.host(best)]
    top_scores = arrays.host(best_scores).astype(np.float32, copy=False)
    return padded(top_rows, k, -1), padded(top_scores, k, -np.inf)


def _products(queries: Floats, rows: Ints, vectors: Vectors) -> Array:
    """queries (Q, D), rows (Q, C) -> (Q, C) inner products with the vectors of rows; those of padding have no meaning."""
    if isinstance(vectors, StoredVectors):
        return vectors.products(queries, rows)
    count, width = rows.shape
    arrays = vectors.arrays
    numbers = NUMBERS
    if arrays is not HOST:
        numbers = NUMBERS_ON_DEVICE
    out = []
    at_once = max(1, numbers // max(width * queries.shape[1], 1))
    products = getattr(vectors, "products", None)  # of vectors on a device
    for first in range(0, max(count, 1), at_once):
        part = rows[first : first + at_once]
        if products is not None:
            out.append(products(arrays.put(queries[first : first + at_once]), part))
            continue
        taken = vectors.take(np.maximum(part, 0).reshape(-1)).reshape(len(part), width, vectors.width)
        own = arrays.put(queries[first : first + at_once, :, None])
        out.append((taken @ own)[:, :, 0])
    if len(out) == 1:
        return out[0]
    return arrays.concatenate(out)


class Reconstructions:
    """Unit vectors that IDs stand for: the sum of their codes, normalized.

    Args:
        quantizer: With codebooks, a list of (K, D) or, where each modality has its own, (3 K, D) arrays or tensors.
    """

    def __init__(self, quantizer: Any) -> None:
        self.codebooks: list[Floats] = [as_numpy(codebook).astype(np.float32) for codebook in quantizer.codebooks]
        config = quantizer.config
        # rows between the codebook of one modality and that of the next
        self.steps = [size * config.has_modality_codebooks(level) for level, size in enumerate(config.level_sizes)]

    def __call__(self, codes: Ints) -> Floats:
        """codes (n, M) -> (n, D) unit vectors."""
        total = np.zeros((len(codes), self.codebooks[0].shape[1]), np.float32)
        for level, codebook in enumerate(self.codebooks):
            total += codebook[codes[:, level] + codes[:, 0] * self.steps[level]]
        norms = np.linalg.norm(total, axis=1, keepdims=True)
        unit: Floats = total / np.maximum(norms, 1e-12)
        return unit


register("embeddings", embeddings)
register("codes", codes)
register("none", none)
