"""From scores to probabilities: does this hit answer the question, and is there an answer in the collection at all?

Two logistic models over what a search shows: whether the question has a picture, the kind of the hit, its score, its place and
how far it is behind the first; for the second one, how far the first is ahead of the others. They are fitted on honest questions
over the training pool (`fit`): for the second one each question is asked twice, once with its answers taken out of the pool.
Probabilities hold for collections like that one; in a much larger pool, or with questions of another sort, they are a guide.
Knows numbers; nothing of models or indexes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import GeniusError

KINDS = 3
GROUPS = 2 * KINDS  # (question with a picture or not) x (kind of the hit)
OF_HIT, OF_ANSWER = 2 * GROUPS + 2, 2 * GROUPS + 2  # weights
DEPTH = 10  # hits that the second one looks at
RIDGE = 1e-3
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Confidence:
    """The weights of both models, for one way of scoring."""

    hit: tuple[float, ...]
    answer: tuple[float, ...]

    @classmethod
    def read(cls, body: Any) -> Confidence:
        """From a model's config, which may be a stranger's."""
        try:
            hit, answer = (tuple(float(x) for x in body[name]) for name in ("hit", "answer"))
        except (TypeError, KeyError, ValueError):
            raise GeniusError("the model's `confidence` is no pair of weights") from None
        if (len(hit), len(answer)) != (OF_HIT, OF_ANSWER) or not all(map(math.isfinite, hit + answer)):
            raise GeniusError("the model's `confidence` has weights that do not fit")
        return cls(hit, answer)

    def to_dict(self) -> dict[str, list[float]]:
        return {"hit": [round(x, 6) for x in self.hit], "answer": [round(x, 6) for x in self.answer]}

    def of_hits(self, pictured: bool, scores: npt.ArrayLike, kinds: npt.ArrayLike) -> Floats:
        """(k,) probability of each hit of one question, best first, that it is an answer."""
        score, kind = np.asarray(scores, np.float64), np.asarray(kinds, np.int64)
        if not len(score):
            return np.zeros(0)
        features = _hit_features(np.full(len(score), pictured), score, kind, np.arange(len(score)), score[0])
        return _sigmoid(features @ np.array(self.hit))

    def of_answer(self, pictured: bool, scores: npt.ArrayLike, kinds: npt.ArrayLike) -> float:
        """Probability that the collection holds an answer to a question with these hits; 0 where nothing was found."""
        score, kind = np.asarray(scores, np.float64), np.asarray(kinds, np.int64)
        if not len(score):
            return 0.0
        return float(
            _sigmoid(_list_features(np.array([pictured]), score[None, :DEPTH], kind[None, :1]) @ np.array(self.answer))[0]
        )


def fit(pictured: Tensor, scores: Tensor, kinds: Tensor, right: Tensor, bare: Tensor, bare_kinds: Tensor) -> Confidence:
    """Of Q questions: their hits' scores, kinds and correctness (Q, k); scores and kinds (Q, k) without the answers."""
    asked = pictured.bool().cpu().numpy()
    score, kind, good = (t.double().cpu().numpy() for t in (scores, kinds, right))
    place = np.arange(score.shape[1])
    each = zip(asked, score, kind.astype(np.int64), strict=True)
    rows = [_hit_features(np.full(len(place), a), s, k, place, s[0]) for a, s, k in each]
    hit = _logistic(np.concatenate(rows), good.flatten())
    both = np.concatenate([score, bare.double().cpu().numpy()])[:, :DEPTH]
    both_kinds = np.concatenate([kind, bare_kinds.double().cpu().numpy()]).astype(np.int64)
    labels = np.concatenate([np.ones(len(asked)), np.zeros(len(asked))])
    answer = _logistic(_list_features(np.concatenate([asked, asked]), both, both_kinds), labels)
    return Confidence(hit, answer)


def auroc(values: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Probability that a positive has a higher value than a negative; ties count half."""
    value, label = np.asarray(values, np.float64), np.asarray(labels, bool)
    if label.all() or not label.any():
        return float("nan")
    ordered = np.sort(value)
    low, high = np.searchsorted(ordered, value), np.searchsorted(ordered, value, side="right")
    ranks = (low + high + 1) / 2
    positives = int(label.sum())
    return float((ranks[label].sum() - positives * (positives + 1) / 2) / (positives * (len(label) - positives)))


def _grouped(pictured: npt.NDArray[np.bool_], score: Floats, kind: npt.NDArray[np.int64]) -> Floats:
    """(n, 2 * GROUPS): for each group of questions and kinds, one and the score."""
    group = pictured.astype(np.int64) * KINDS + kind
    one = np.eye(GROUPS)[group]
    return np.concatenate([one, one * score[:, None]], 1)


def _list_features(pictured: npt.NDArray[np.bool_], scores: Floats, kinds: npt.NDArray[np.int64]) -> Floats:
    """Of lists of hits (Q, k): the first one's group and score, and how far it is ahead of the second and of all others."""
    others = scores[:, 1:]
    ahead = np.zeros((len(scores), 2))
    if others.shape[1]:
        ahead = np.stack([scores[:, 0] - others[:, 0], scores[:, 0] - others.mean(1)], 1)
    return np.concatenate([_grouped(pictured, scores[:, 0], kinds[:, 0]), ahead], 1)


def _hit_features(
    pictured: npt.NDArray[np.bool_], score: Floats, kind: npt.NDArray[np.int64], place: npt.NDArray[np.int64], first: float
) -> Floats:
    behind = np.stack([score - first, 1 / (1.0 + place)], 1)
    return np.concatenate([_grouped(pictured, score, kind), behind], 1)


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))  # type: ignore[no-any-return]


def _logistic(features: Floats, labels: Floats) -> tuple[float, ...]:
    """Weights of a logistic regression with a little shrinkage, so that an empty group stays finite."""
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    weights = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(x @ weights, y) + RIDGE / len(y) * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return tuple(weights.tolist())
