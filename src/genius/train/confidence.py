"""Calibrates a model's scores on honest questions at the end of a training (`genius.model.confidence`), and says how well.

The figures are honest: fitted on one half of the questions, judged on the other, then fitted on all.
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
from genius.nearest import nearest_scored
from genius.train.selection import answer_mask

LEAST = 40  # questions below which nothing can be calibrated


class Lists(NamedTuple):
    """What exhaustive search shows for each question, with its answers in the pool and without them."""

    pictured: Tensor  # (Q,)
    scores: Tensor  # (Q, k)
    kinds: Tensor  # (Q, k)
    right: Tensor  # (Q, k)
    bare: Tensor  # (Q, k) scores without the answers
    bare_kinds: Tensor  # (Q, k)

    def take(self, rows: Tensor) -> Lists:
        return Lists(*(part[rows] for part in self))


def calibrate(model: Genius, honest: FeatureSet | None) -> tuple[dict[str, Any], dict[str, float]]:
    """Weights for each way of re-ranking, as a model's config keeps them, and how well they do."""
    if honest is None or len(honest.queries) < LEAST or len(honest.pool) <= DEPTH:
        return {}, {}
    device = model.device
    z, dense = model.embed(honest.queries)
    pool, vectors = model.embed(honest.pool)
    kinds = honest.pool.modality.to(device)
    codes = model.quantizer.encode(pool, kinds)
    parts = [F.normalize(model.quantizer.decode(part), dim=1) for part in codes.split(65_536)]
    ways = {"embeddings": (dense, vectors), "codes": (z, torch.cat(parts))}
    out: dict[str, Any] = {}
    values: dict[str, float] = {}
    for name, (asked, items) in ways.items():
        shown = lists(asked, items, kinds, honest)
        out[name] = fit(*shown).to_dict()
        values |= {f"{name}_{key}": value for key, value in judged(shown).items()}
    return out, values


@torch.no_grad()
def lists(asked: Tensor, items: Tensor, kinds: Tensor, data: FeatureSet) -> Lists:
    most = int(torch.bincount(data.pairs[:, 0]).max())
    depth = min(DEPTH + most, len(items))
    score, row = nearest_scored(asked, items, depth)
    right = answer_mask(row, data).to(score.device)
    other = right.float().sort(dim=1, stable=True).indices[:, :DEPTH]  # the best hits that are no answers
    pictured = data.queries.image_mask.to(score.device)
    kind = kinds[row]
    bare, bare_kinds = score.gather(1, other), kind.gather(1, other)
    return Lists(pictured, score[:, :DEPTH], kind[:, :DEPTH], right[:, :DEPTH], bare, bare_kinds)


def judged(shown: Lists) -> dict[str, float]:
    """AUROC of answerable or not, and how far probabilities of hits are from what happens, on questions not fitted on."""
    count = len(shown.pictured)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(shown.pictured.device)
    fitted = fit(*shown.take(order[: count // 2]))
    rest = shown.take(order[count // 2 :])
    asked = rest.pictured.cpu().numpy()
    score, kind, right = (t.double().cpu().numpy() for t in (rest.scores, rest.kinds, rest.right))
    there = [fitted.of_answer(bool(a), s, k) for a, s, k in zip(asked, score, kind, strict=True)]
    gone = zip(asked, rest.bare.cpu().numpy(), rest.bare_kinds.cpu().numpy(), strict=True)
    missing = [fitted.of_answer(bool(a), s, k) for a, s, k in gone]
    sure = np.stack([fitted.of_hits(bool(a), s, k) for a, s, k in zip(asked, score, kind, strict=True)])
    return {
        "answerable_auroc": auroc(there + missing, [True] * len(there) + [False] * len(missing)),
        "hit_auroc": auroc(sure.flatten(), right.flatten()),
        "hit_calibration_error": calibration_error(sure.flatten(), right.flatten()),
    }


def calibration_error(probability: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Mean distance between what is said and what happens, over ten groups of like probability."""
    parts = np.array_split(np.argsort(probability), bins)
    return float(np.mean([abs(probability[p].mean() - right[p].mean()) for p in parts if len(p)]))
