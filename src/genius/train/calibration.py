"""What a model's scores mean: probabilities fitted on held-out queries over the training pool (`genius.model.confidence`).

How well they hold is measured on queries they were not fitted on: half of the queries fit, the other half measures;
then all of them fit. Knows models and held-out queries; nothing of training loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.confidence import DEPTH, auroc, fit
from genius.model.genius import Genius
from genius.ranking import nearest_scored
from genius.train.metrics import positive_mask

FEWEST_QUERIES = 40  # below that nothing can be calibrated
DECODED_AT_ONCE = 65_536  # codes -> vectors


class ResultLists(NamedTuple):
    """What exhaustive search returns for each query, with its positives in the pool and without them."""

    has_image: Tensor  # (Q,) bool: the query has an image
    scores: Tensor  # (Q, k)
    modalities: Tensor  # (Q, k)
    positive: Tensor  # (Q, k) bool
    negative_scores: Tensor  # (Q, k) without the positives
    negative_modalities: Tensor  # (Q, k)

    def take(self, rows: Tensor) -> ResultLists:
        return ResultLists(*(part[rows] for part in self))


def calibrate(model: Genius, held_out: FeatureSet | None) -> tuple[dict[str, Any], dict[str, float]]:
    """Fit probabilities for each re-ranking.

    Args:
        model: The trained model.
        held_out: Queries that no stage trained on; None or too few: nothing is fitted.

    Returns:
        Weights per re-ranking, as a model's config keeps them, and how well they do.
    """
    if held_out is None or len(held_out.queries) < FEWEST_QUERIES or len(held_out.pool) <= DEPTH:
        return {}, {}
    z, dense = model.embed(held_out.queries)
    pool, vectors = model.embed(held_out.pool)
    modalities = held_out.pool.modality.to(model.device)
    codes = model.quantizer.encode(pool, modalities)
    decoded = [F.normalize(model.quantizer.decode(part), dim=1) for part in codes.split(DECODED_AT_ONCE)]
    rerankings = {"embeddings": (dense, vectors), "codes": (z, torch.cat(decoded))}
    weights: dict[str, Any] = {}
    values: dict[str, float] = {}
    for name, (queries, items) in rerankings.items():
        lists = result_lists(queries, items, modalities, held_out)
        weights[name] = fit(*lists).to_dict()
        values |= {f"{name}_{key}": value for key, value in measure(lists).items()}
    return weights, values


@torch.no_grad()
def result_lists(queries: Tensor, items: Tensor, modalities: Tensor, data: FeatureSet) -> ResultLists:
    """Search `items` (N, D) of `modalities` (N,) exhaustively with `queries` (Q, D)."""
    most_positives = int(torch.bincount(data.pairs[:, 0]).max())
    depth = min(DEPTH + most_positives, len(items))
    scores, rows = nearest_scored(queries, items, depth)
    positive = positive_mask(rows, data).to(scores.device)
    negatives_first = positive.float().sort(dim=1, stable=True).indices[:, :DEPTH]
    result_modalities = modalities[rows]
    return ResultLists(
        has_image=data.queries.image_mask.to(scores.device),
        scores=scores[:, :DEPTH],
        modalities=result_modalities[:, :DEPTH],
        positive=positive[:, :DEPTH],
        negative_scores=scores.gather(1, negatives_first),
        negative_modalities=result_modalities.gather(1, negatives_first),
    )


def measure(lists: ResultLists) -> dict[str, float]:
    """AUROC of answerable or not, and the calibration error of hits, on queries that are not fitted on."""
    count = len(lists.has_image)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(lists.has_image.device)
    fitted = fit(*lists.take(order[: count // 2]))
    measured = lists.take(order[count // 2 :])
    has_image = measured.has_image.cpu().numpy()
    scores = measured.scores.double().cpu().numpy()
    modalities = measured.modalities.double().cpu().numpy()
    positive = measured.positive.double().cpu().numpy()
    negative_scores = measured.negative_scores.cpu().numpy()
    negative_modalities = measured.negative_modalities.cpu().numpy()
    answerable = []
    unanswerable = []
    hit_probabilities = []
    for row, image in enumerate(has_image.tolist()):
        answerable.append(fitted.of_answer(image, scores[row], modalities[row]))
        unanswerable.append(fitted.of_answer(image, negative_scores[row], negative_modalities[row]))
        hit_probabilities.append(fitted.of_hits(image, scores[row], modalities[row]))
    probabilities = np.concatenate(hit_probabilities)
    return {
        "answerable_auroc": auroc(answerable + unanswerable, [True] * len(answerable) + [False] * len(unanswerable)),
        "hit_auroc": auroc(probabilities, positive.flatten()),
        "hit_calibration_error": calibration_error(probabilities, positive.flatten()),
    }


def calibration_error(probability: np.ndarray, positive: np.ndarray, bins: int = 10) -> float:
    """Mean distance between probability and frequency, over ten groups of like probability."""
    parts = np.array_split(np.argsort(probability), bins)
    return float(np.mean([abs(probability[part].mean() - positive[part].mean()) for part in parts if len(part)]))
