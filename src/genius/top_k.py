"""The k best of every row of scores: one function for numpy, one for torch.

Every ranking of the package calls these: re-ranked candidates, compared vectors, cells, beams, neighbours in training, the
exhaustive search of an evaluation. Both return best first and equal scores in the order of their positions, so that a device or
a block size never changes a result. NaN is not allowed. Knows arrays only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.features import as_numpy

if TYPE_CHECKING:  # flat search and scan run without torch
    from torch import Tensor

GROUP = 64  # scores whose maximum stands for them
SMALL_GROUP = 8  # likewise, where fewer are ranked
SORTED = 2_048  # on a GPU: scores of a row that are sorted as a whole
GROUPS = 4  # likewise: groups per wanted score from which their maxima are ranked first


def top_k(scores: NDArray[Any], k: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The k best of every row. Few are sorted: those from a lower bound of the k-th best on.

    Args:
        scores: (Q, n) floating point numbers.
        k: How many.

    Returns:
        Their scores and positions, (Q, min(k, n)) each, best first, contiguous.
    """
    queries, count = scores.shape
    if k >= count:
        order = np.argsort(-scores, axis=1, kind="stable")
        return np.take_along_axis(scores, order, 1), order
    bound = _lower_bound(scores, k)
    best_scores = np.empty((queries, k), scores.dtype)
    best = np.empty((queries, k), np.int64)
    for query in range(queries):
        row = scores[query]
        above = (row >= bound[query]).nonzero()[0]
        values = row.take(above)
        chosen = (-values).argsort(kind="stable")[:k]
        best_scores[query] = values.take(chosen)
        best[query] = above.take(chosen)
    return best_scores, best


def _lower_bound(scores: NDArray[Any], k: int) -> NDArray[Any]:
    """(Q,) numbers that at least k of each row of (Q, n) scores reach: the k-th best, or that of the maxima of groups."""
    queries, count = scores.shape
    groups = count // GROUP
    if groups > k:
        scores = scores[:, : groups * GROUP].reshape(queries, GROUP, groups).max(axis=1)
        count = groups
    bound: NDArray[Any] = np.partition(scores, count - k, axis=1)[:, count - k]
    return bound


def tensor_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same of a tensor on any device; in host memory it is `top_k`.

    Args:
        scores: (Q, n) floating point numbers.
        k: How many.

    Returns:
        Their scores and positions, (Q, min(k, n)) each, best first.
    """
    if scores.device.type != "cpu":
        return device_top_k(scores, k)
    import torch

    values, positions = top_k(as_numpy(scores), k)
    return torch.from_numpy(values), torch.from_numpy(positions)


def device_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What `tensor_top_k` does on a GPU. Few are sorted: the members of the k groups with the best maxima hold the k best.

    Args:
        scores: (Q, n) numbers.
        k: How many.

    Returns:
        Their scores and positions, (Q, min(k, n)) each, best first.
    """
    count = scores.shape[1]
    if count > SORTED:
        for size in (GROUP, SMALL_GROUP):
            if count > GROUPS * size * k:
                return _top_k_of_groups(scores, k, size)
    ordered = scores.sort(dim=1, descending=True, stable=True)
    return ordered.values[:, :k], ordered.indices[:, :k]


def _top_k_of_groups(scores: Tensor, k: int, size: int) -> tuple[Tensor, Tensor]:
    """Every score is read once. Groups of equal maxima are taken in their order, and so are their members, as in a full sort."""
    import torch

    queries, count = scores.shape
    groups = count // size
    grouped = groups * size
    maxima = scores[:, :grouped].unflatten(1, (groups, size)).amax(2)
    chosen = device_top_k(maxima, k)[1].sort(dim=1).values
    members = size * chosen[:, :, None] + torch.arange(size, device=scores.device)
    rest = torch.arange(grouped, count, device=scores.device).expand(queries, -1)
    places = torch.cat([members.flatten(1), rest], 1)
    values, best = device_top_k(scores.gather(1, places), k)
    return values, places.gather(1, best)
