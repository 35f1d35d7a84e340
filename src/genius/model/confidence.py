"""Confidence: is this hit a positive of the query, and does the collection hold a positive at all?

Two logistic regressions over what a search returns. The first reads whether the query has an image, the modality of the
hit, its score, its rank and how far it is behind the first hit; the second the score of the first hit, how far it is ahead of
the others, and its item bias, with weights of their own for each direction. They are fitted on held-out queries over the
training pool and parts of it (`fit`); for the second one each query is searched twice, once with its positives taken out of the
pool. Probabilities hold for collections like that one; in a much larger pool, or with queries of another distribution, they are
a guide. Knows scores and modalities; nothing of models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genius.errors import GeniusError

if TYPE_CHECKING:
    from torch import Tensor

MODALITIES = 3
GROUPS = 2 * MODALITIES  # (query with an image or not) x (modality of the hit)
OF_HIT = 2 * GROUPS + 2  # weights of the first regression
OF_ANSWER = 5 * GROUPS  # weights of the second one
OF_ANSWER_BEFORE = 2 * GROUPS + 2  # of models that were calibrated before its gaps had weights by group; they stay as they are
DEPTH = 10  # hits that the second one reads
RIDGE = 1e-3
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Confidence:
    """The weights of both regressions, for one re-ranking."""

    hit: tuple[float, ...]
    answer: tuple[float, ...]

    @classmethod
    def read(cls, body: Any) -> Confidence:
        """From a model's config, which may be untrusted."""
        try:
            hit, answer = (tuple(float(x) for x in body[name]) for name in ("hit", "answer"))
        except (TypeError, KeyError, ValueError):
            raise GeniusError("the model's `confidence` is no pair of weights") from None
        fits = len(hit) == OF_HIT and len(answer) in (OF_ANSWER, OF_ANSWER_BEFORE)
        if not fits or not all(map(math.isfinite, hit + answer)):
            raise GeniusError("the model's `confidence` has weights that do not fit")
        return cls(hit, answer)

    def to_dict(self) -> dict[str, list[float]]:
        return {"hit": [round(x, 6) for x in self.hit], "answer": [round(x, 6) for x in self.answer]}

    def of_hits(self, has_image: bool, scores: npt.ArrayLike, modalities: npt.ArrayLike) -> Floats:
        """(k,) probability of each hit that it is a positive.

        Args:
            has_image: Whether the query has an image.
            scores: (k,) of the hits, best first.
            modalities: (k,) of the hits.
        """
        score = np.asarray(scores, np.float64)
        if not len(score):
            return np.zeros(0)
        modality = np.asarray(modalities, np.int64)
        features = _hit_features(np.full(len(score), has_image), score, modality)
        return _sigmoid(features @ np.array(self.hit))

    def of_answer(self, has_image: bool, scores: npt.ArrayLike, modalities: npt.ArrayLike, first_bias: float = 0.0) -> float:
        """Probability that the collection holds a positive of a query with these hits; 0 where nothing was found.

        Args:
            has_image: Whether the query has an image.
            scores: (k,) of the hits, best first.
            modalities: (k,) of the hits.
            first_bias: Item bias that was taken off the score of the first hit.
        """
        score = np.asarray(scores, np.float64)
        if not len(score):
            return 0.0
        modality = np.asarray(modalities, np.int64)
        features = _list_features(np.array([has_image]), score[None, :DEPTH], modality[None, :1], np.array([first_bias]))
        if len(self.answer) == OF_ANSWER_BEFORE:
            features = _ungrouped(features)
        return float(_sigmoid(features @ np.array(self.answer))[0])


def fit(
    has_image: npt.ArrayLike,
    scores: npt.ArrayLike,
    modalities: npt.ArrayLike,
    positive: npt.ArrayLike,
    negative_scores: npt.ArrayLike,
    negative_modalities: npt.ArrayLike,
    first_bias: npt.ArrayLike | None = None,
    negative_first_bias: npt.ArrayLike | None = None,
) -> Confidence:
    """Fit both regressions on Q queries.

    Args:
        has_image: (Q,) bool.
        scores: (Q, k) of the hits.
        modalities: (Q, k) of the hits.
        positive: (Q, k) which hits are positives.
        negative_scores: (Q, k) of the hits without positives in the pool.
        negative_modalities: (Q, k) of those hits.
        first_bias: (Q,) item bias of the first hit; None: no item has one.
        negative_first_bias: (Q,) of the first hit without positives in the pool.
    """
    image = np.asarray(has_image, bool)
    score = np.asarray(scores, np.float64)
    modality = np.asarray(modalities, np.int64)
    rows = [_hit_features(np.full(len(s), i), s, m) for i, s, m in zip(image, score, modality, strict=True)]
    hit = _logistic(np.concatenate(rows), np.asarray(positive, np.float64).flatten())
    both_scores = np.concatenate([score, np.asarray(negative_scores, np.float64)])[:, :DEPTH]
    both_modalities = np.concatenate([modality, np.asarray(negative_modalities, np.int64)])
    labels = np.concatenate([np.ones(len(image)), np.zeros(len(image))])
    biases = np.zeros(len(labels))
    if first_bias is not None and negative_first_bias is not None:
        biases = np.concatenate([np.asarray(first_bias, np.float64), np.asarray(negative_first_bias, np.float64)])
    answer = _logistic(_list_features(np.concatenate([image, image]), both_scores, both_modalities, biases), labels)
    return Confidence(hit, answer)


def auroc(values: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Probability that a positive has a higher value than a negative; ties count half."""
    value = np.asarray(values, np.float64)
    label = np.asarray(labels, bool)
    if label.all() or not label.any():
        return float("nan")
    ordered = np.sort(value)
    low = np.searchsorted(ordered, value)
    high = np.searchsorted(ordered, value, side="right")
    ranks = (low + high + 1) / 2
    positives = int(label.sum())
    return float((ranks[label].sum() - positives * (positives + 1) / 2) / (positives * (len(label) - positives)))


def _grouped(has_image: Bools, modality: Ints, values: Floats) -> Floats:
    """(n, (1 + F) * GROUPS): for each group of queries and modalities, one and the values (n, F)."""
    group = has_image.astype(np.int64) * MODALITIES + modality
    one_hot = np.eye(GROUPS)[group]
    return np.concatenate([one_hot, *(one_hot * column[:, None] for column in values.T)], 1)


def _list_features(has_image: Bools, scores: Floats, modalities: Ints, first_bias: Floats) -> Floats:
    """Of hits (Q, k), by the group of the first one: its score, how far it is ahead of the second and of all others, its bias."""
    others = scores[:, 1:]
    ahead = np.zeros((len(scores), 2))
    if others.shape[1]:
        ahead = np.stack([scores[:, 0] - others[:, 0], scores[:, 0] - others.mean(1)], 1)
    values = np.concatenate([scores[:, :1], ahead, first_bias[:, None]], 1)
    return _grouped(has_image, modalities[:, 0], values)


def _ungrouped(features: Floats) -> Floats:
    """(n, `OF_ANSWER`) -> (n, `OF_ANSWER_BEFORE`): one weight of each gap for all groups, none of the bias."""
    gaps = features[:, 2 * GROUPS : 4 * GROUPS].reshape(len(features), 2, GROUPS).sum(2)
    return np.concatenate([features[:, : 2 * GROUPS], gaps], 1)


def _hit_features(has_image: Bools, score: Floats, modality: Ints) -> Floats:
    """Of the hits (k,) of one query, best first: group and score, distance to the first, reciprocal rank."""
    reciprocal_rank = 1 / (1.0 + np.arange(len(score)))
    grouped = _grouped(has_image, modality, score[:, None])
    return np.concatenate([grouped, np.stack([score - score[0], reciprocal_rank], 1)], 1)


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))  # type: ignore[no-any-return]


def _logistic(features: Floats, labels: Floats) -> tuple[float, ...]:
    """Weights of a logistic regression with a little shrinkage, so that an empty group stays finite."""
    import torch  # here, so that what applies the weights needs no torch
    import torch.nn.functional as F

    x = torch.from_numpy(features)
    y = torch.from_numpy(labels)
    weights = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(x @ weights, y) + RIDGE / len(y) * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return tuple(weights.tolist())
