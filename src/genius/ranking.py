"""Nearest vectors for training, metrics of ranked lists, and their statistics.

`hit@k` is 1 if a positive is among the first k (M-BEIR and the paper call it "Recall@k"); `recall@k` is the share of positives
among the first k. Knows vectors, rows and positives; nothing of models. Scores are ranked by `genius.top_k`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.top_k import tensor_top_k

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PRODUCTS = 2**28  # inner products in memory at a time: a gigabyte


def nearest_rows(queries: Tensor, pool: Tensor, k: int, chunk: int = 2048) -> Tensor:
    """Rows of the vectors with the largest inner products: neighbours that training and its metrics read, on its own tensors.

    Args:
        queries: (Q, D).
        pool: (N, D).
        k: Rows per query.
        chunk: Queries per matrix product, at most.

    Returns:
        (Q, min(k, N)), best first.
    """
    chunk = max(1, min(chunk, PRODUCTS // max(pool.shape[0], 1)))
    return torch.cat([tensor_top_k(part @ pool.T, k)[1] for part in queries.split(chunk)])


# -- metrics -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """Which of the ranked rows are positives."""

    hits: npt.NDArray[np.bool_]  # (Q, k): the i-th of the list is a positive
    positives: Ints  # (Q,) number of positives of each query

    def __post_init__(self) -> None:
        if (self.hits.sum(1) > self.positives).any():
            raise GeniusError("a ranked list names a positive more than once")


def judge(rows: Ints, positives: Sequence[Sequence[int]]) -> Judged:
    """Compare ranked lists with the positives of each query.

    Args:
        rows: (Q, k) ranked rows, -1 after the end of a list. An empty list counts as a miss.
        positives: Positive rows of each query.
    """
    if len(rows) != len(positives):
        raise GeniusError(f"{len(rows)} ranked lists for {len(positives)} queries")
    sizes = np.array([len(set(p)) for p in positives], dtype=np.int64)
    if not sizes.any():
        return Judged(np.zeros(rows.shape, bool), sizes)
    # one sorted array of (query, row) keys: membership by binary search, no Python loop over hits
    owner = np.repeat(np.arange(len(positives)), [len(p) for p in positives])
    flat = np.fromiter((row for p in positives for row in p), np.int64, len(owner))
    span = int(max(flat.max(initial=0), rows.max(initial=0))) + 2
    keys = np.unique(owner * span + flat)
    ranked_keys = np.arange(len(rows))[:, None] * span + rows
    place = np.searchsorted(keys, ranked_keys).clip(max=len(keys) - 1)
    return Judged((keys[place] == ranked_keys) & (rows >= 0), sizes)


def hit_at(judged: Judged, k: int) -> Floats:
    """1 if any positive is among the first k (M-BEIR's "Recall@k"), per query."""
    out: Floats = np.asarray(judged.hits[:, :k].any(1), np.float64)
    return out


def recall_at(judged: Judged, k: int) -> Floats:
    """Share of the positives among the first k, per query; 0 for a query without positives."""
    recall: Floats = judged.hits[:, :k].sum(1) / np.maximum(judged.positives, 1)
    return recall


def ndcg_at(judged: Judged, k: int) -> Floats:
    """Discounted gain over its best possible value (binary relevance), per query."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    width = min(k, judged.hits.shape[1])
    gain = judged.hits[:, :width] @ discount[:width]
    best = np.concatenate([[0.0], discount.cumsum()])[np.minimum(judged.positives, k)]
    out: Floats = np.divide(gain, best, out=np.zeros(len(gain)), where=best > 0)
    return out


def reciprocal_rank_at(judged: Judged, k: int) -> Floats:
    """1 / rank of the first positive among the first k, else 0, per query."""
    first = judged.hits[:, :k]
    out: Floats = np.where(first.any(1), 1 / (first.argmax(1) + 1), 0.0)
    return out


Metric = Callable[[Judged, int], Floats]
"""Judged rankings and k -> (Q,) one number per query."""

_at_every_cutoff: dict[str, Metric] = {"hit": hit_at, "recall": recall_at}


def register_metric(name: str, metric: Metric) -> Metric:
    """Make a metric known: evaluations then report `name@k` for every k.

    Args:
        name: Not yet taken.
        metric: The function.

    Raises:
        GeniusError: If another metric has this name.
    """
    if _at_every_cutoff.get(name, metric) is not metric or name in ("ndcg", "mrr"):
        raise GeniusError(f"there is a metric {name!r} already")
    _at_every_cutoff[name] = metric
    return metric


def per_query(judged: Judged, cutoffs: Sequence[int]) -> dict[str, Floats]:
    """Every reported metric by name: hit@k, recall@k and registered ones for each k, ndcg@10, mrr@10.

    Args:
        judged: Rankings.
        cutoffs: The k of hit@k and recall@k.
    """
    out = {f"{name}@{k}": metric(judged, k) for name, metric in _at_every_cutoff.items() for k in cutoffs}
    out["ndcg@10"] = ndcg_at(judged, 10)
    out["mrr@10"] = reciprocal_rank_at(judged, 10)
    return out


# -- statistics --------------------------------------------------------------------------------------------------


def bootstrap_interval(groups: Sequence[Floats], *, samples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the unweighted average over tasks: percentiles over queries resampled within each task.

    Args:
        groups: For each task, one value per query.
        samples: Number of resamples.
        seed: Of the resampling.
    """
    groups = [g for g in groups if len(g)]
    if not groups:
        return (float("nan"), float("nan"))
    low, high = np.quantile(_resampled_means(groups, samples, seed), (0.025, 0.975))
    return float(low), float(high)


def _resampled_means(groups: Sequence[Floats], samples: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    total = np.zeros(samples)
    for values in groups:
        n = len(values)
        for start in range(0, samples, 64):  # 64 samples at a time: memory stays small for 50,000 queries
            stop = min(start + 64, samples)
            total[start:stop] += values[rng.integers(n, size=(stop - start, n))].mean(1)
    return total / len(groups)


def paired_p_value(a: Floats, b: Floats, *, samples: int = 10_000, seed: int = 0) -> float:
    """p-value of a two-sided paired randomisation test (Fisher) of `a` against `b`, one value per query each."""
    if len(a) != len(b):
        raise GeniusError(f"paired values of different queries: {len(a)} and {len(b)}")
    difference = a - b
    difference = difference[difference != 0]
    if len(difference) == 0:
        return 1.0
    observed = abs(difference.sum()) - 1e-12
    rng = np.random.default_rng(seed)
    as_large = 0
    for start in range(0, samples, 256):
        n = min(256, samples - start)
        signs = rng.integers(0, 2, size=(n, len(difference)), dtype=np.int8) * 2 - 1
        as_large += int((np.abs(signs @ difference) >= observed).sum())
    return (as_large + 1) / (samples + 1)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for several comparisons made at once."""
    out: dict[str, float] = {}
    running = 0.0
    for position, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        running = max(running, min(1.0, p * (len(p_values) - position)))
        out[name] = running
    return out
