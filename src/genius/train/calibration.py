"""What a model's scores mean: probabilities fitted on held-out queries over the training pool (`genius.model.confidence`).

How well they hold is measured on queries they were not fitted on: half of the queries fit, the other half measures;
then all of them fit. Knows models and held-out queries; nothing of training loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.data.features import FeatureSet
from genius.model.confidence import DEPTH, Confidence, auroc, fit
from genius.model.genius import Genius
from genius.search import CodeTrie, SearchEngine, SearchParams

FEWEST_QUERIES = 40  # below that nothing can be calibrated
MOST_QUERIES = 4000  # that are searched for it
POOL_SHARES = (1.0, 0.3, 0.1)  # of the pool that is searched: an index may be smaller than what the model was trained on


class ResultLists(NamedTuple):
    """What the default search returns for each query, with its positives in the pool and without them."""

    has_image: NDArray[Any]  # (Q,) bool: the query has an image
    scores: NDArray[Any]  # (Q, k)
    modalities: NDArray[Any]  # (Q, k)
    positive: NDArray[Any]  # (Q, k) bool
    negative_scores: NDArray[Any]  # (Q, k) without the positives
    negative_modalities: NDArray[Any]  # (Q, k)
    first_bias: NDArray[Any]  # (Q,) item bias of the first hit
    negative_first_bias: NDArray[Any]  # (Q,)

    def take(self, rows: NDArray[np.int64]) -> ResultLists:
        return ResultLists(*(part[rows] for part in self))

    @classmethod
    def cat(cls, lists: Sequence[ResultLists]) -> ResultLists:
        return cls(*(np.concatenate(parts) for parts in zip(*lists, strict=True)))


def calibrate(
    model: Genius, held_out: FeatureSet | None, further: FeatureSet | None = None
) -> tuple[dict[str, Any], dict[str, float]]:
    """Fit probabilities for each re-ranking.

    Args:
        model: The trained model, with its query bank.
        held_out: Queries that no stage trained on and that are not in the bank; None or too few: nothing is fitted.
        further: More held-out queries over the same pool, which may be in the bank: one of thousands moves no bias by much.

    Returns:
        Weights per re-ranking, as a model's config keeps them, and how well they do on the whole pool.
    """
    if held_out is None or len(held_out.queries) < FEWEST_QUERIES or len(held_out.pool) <= DEPTH:
        return {}, {}
    queries = Searched.of(model, held_out)
    if further is not None and further.pool_ids == held_out.pool_ids:
        queries = queries.joined(Searched.of(model, further), MOST_QUERIES)
    pool, dense = model.embed(held_out.pool)
    codes = model.quantizer.encode(pool, held_out.pool.modality.to(model.device)).cpu().numpy()
    modality = held_out.pool.modality.cpu().numpy()
    vectors = dense.half().cpu().numpy()
    bank = None
    if model.config.rerank_embedding == "fused":
        bank = model.queries
    weights: dict[str, Any] = {}
    values: dict[str, float] = {}
    lists: dict[str, list[ResultLists]] = {"embeddings": [], "codes": []}
    for share in POOL_SHARES:
        rows = part_of_pool(len(vectors), queries.positives, share)
        if len(rows) <= DEPTH:
            continue
        trie = CodeTrie.build(codes[rows], model.config.quantizer.level_sizes)
        engine = SearchEngine(model.generator, model.quantizer, trie, vectors[rows], str(model.device), bank=bank)
        for name, own in lists.items():
            own.append(result_lists(engine, queries, rows, modality[rows], SearchParams(plan="flat", reranker=name)))
    for name, own in lists.items():
        weights[name] = fit(*ResultLists.cat(own)).to_dict()
        values |= {f"{name}_{key}": value for key, value in measure(own).items()}
    return weights, values


class Searched(NamedTuple):
    """Queries with known positives, as a search gets them."""

    z: NDArray[np.float32]  # (Q, D)
    dense: NDArray[np.float32]  # (Q, D)
    modality: NDArray[np.int64]  # (Q,) what each consists of
    has_image: NDArray[np.bool_]  # (Q,)
    positives: list[list[int]]  # rows of the pool

    @classmethod
    def of(cls, model: Genius, data: FeatureSet) -> Searched:
        """Queries of a set in feature form."""
        z, dense = model.embed(data.queries)
        modality = data.queries.modality.cpu().numpy()
        has_image = data.queries.image_mask.cpu().numpy()
        return cls(z.float().cpu().numpy(), dense.float().cpu().numpy(), modality, has_image, data.positives())

    def joined(self, others: Searched, most: int) -> Searched:
        """These and the first of the others, at most so many in all."""
        count = max(0, most - len(self.z))
        return Searched(
            z=np.concatenate([self.z, others.z[:count]]),
            dense=np.concatenate([self.dense, others.dense[:count]]),
            modality=np.concatenate([self.modality, others.modality[:count]]),
            has_image=np.concatenate([self.has_image, others.has_image[:count]]),
            positives=[*self.positives, *others.positives[:count]],
        )


def part_of_pool(count: int, positives: Sequence[Sequence[int]], share: float) -> NDArray[np.int64]:
    """Rows of a random share of a pool, and all positives."""
    kept = np.zeros(count, bool)
    kept[np.random.default_rng(0).permutation(count)[: round(share * count)]] = True
    kept[np.array([row for own in positives for row in own], np.int64)] = True
    return np.flatnonzero(kept)


def result_lists(
    engine: SearchEngine, queries: Searched, rows: NDArray[np.int64], modality: NDArray[np.int64], params: SearchParams
) -> ResultLists:
    """Search with all queries, the target unknown.

    Args:
        engine: Of the rows `rows` of the pool, all alive.
        queries: With their positives.
        rows: (n,) of the pool.
        modality: (n,) of those items.
        params: How to search.
    """
    most_positives = max(map(len, queries.positives))
    depth = min(DEPTH + most_positives, len(rows))
    found = engine.search(queries.z, k=depth, params=params, dense=queries.dense, modality=queries.modality)
    modalities = modality[found.rows]
    positives = [set(own) for own in queries.positives]
    hits = rows[found.rows].tolist()
    positive = np.array([[row in own for row in line] for line, own in zip(hits, positives, strict=True)])
    bias = np.zeros(found.rows.shape, np.float32)
    taken_off = engine.bias_for(params)
    if taken_off is not None:
        bias = taken_off.take(queries.modality, found.rows)
    negatives_first = np.argsort(positive, axis=1, kind="stable")[:, :DEPTH]

    def negative(values: NDArray[Any]) -> NDArray[Any]:
        return np.take_along_axis(values, negatives_first, 1)

    return ResultLists(
        has_image=queries.has_image,
        scores=found.scores[:, :DEPTH],
        modalities=modalities[:, :DEPTH],
        positive=positive[:, :DEPTH],
        negative_scores=negative(found.scores),
        negative_modalities=negative(modalities),
        first_bias=bias[:, 0],
        negative_first_bias=negative(bias)[:, 0],
    )


def measure(lists: Sequence[ResultLists]) -> dict[str, float]:
    """AUROC of answerable or not, and the calibration error of hits, on queries that are not fitted on.

    Args:
        lists: Of the whole pool, and of parts of it.
    """
    count = len(lists[0].has_image)
    order = np.random.default_rng(0).permutation(count)
    fitted = fit(*ResultLists.cat([own.take(order[: count // 2]) for own in lists]))
    measured = lists[0].take(order[count // 2 :])
    answerable, unanswerable = answer_probabilities(fitted, measured)
    hits = zip(measured.has_image.tolist(), measured.scores, measured.modalities, strict=True)
    probabilities = np.concatenate([fitted.of_hits(image, scores, modalities) for image, scores, modalities in hits])
    positive = measured.positive.flatten()
    values = np.concatenate([answerable, unanswerable])
    return {
        "answerable_auroc": auroc(values, np.arange(len(values)) < len(answerable)),
        "hit_auroc": auroc(probabilities, positive),
        "hit_calibration_error": calibration_error(probabilities, positive),
    }


def answer_probabilities(fitted: Confidence, lists: ResultLists) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(Q,) probability that an answer exists, for lists with positives and for those without."""
    there = (lists.scores, lists.modalities, lists.first_bias)
    gone = (lists.negative_scores, lists.negative_modalities, lists.negative_first_bias)
    out = []
    for columns in (there, gone):
        rows = zip(lists.has_image.tolist(), *columns, strict=True)
        out.append(np.array([fitted.of_answer(image, scores, modalities, bias) for image, scores, modalities, bias in rows]))
    return out[0], out[1]


def calibration_error(probability: np.ndarray, positive: np.ndarray, bins: int = 10) -> float:
    """Mean distance between probability and frequency, over ten groups of like probability."""
    parts = np.array_split(np.argsort(probability), bins)
    return float(np.mean([abs(probability[part].mean() - positive[part].mean()) for part in parts if len(part)]))
