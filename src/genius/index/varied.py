"""Answers that differ from each other, and questions that say what is not wanted.

Both come from what the index has anyway: the codes say which answers are alike, the vectors which way a question points. Knows
hits, vectors and codes; nothing of how hits are found.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from genius.errors import GeniusError
from genius.index.results import Hits

WIDER = 8  # times as many answers are looked at for varied ones


def apart(hits: Hits, k: int) -> Hits:
    """The best hit of each of k subtrees: those of the shortest prefix of codes that tells at least k of them apart."""
    if len(hits) <= k:
        return hits
    chosen: list[int] = []
    for depth in range(1, len(hits[0].codes) + 1):
        firsts: dict[tuple[int, ...], int] = {}
        for place, hit in enumerate(hits):
            firsts.setdefault(hit.codes[:depth], place)
        chosen = sorted(firsts.values())
        if len(chosen) >= k:
            break
    rest = [place for place in range(len(hits)) if place not in set(chosen)]  # where there are too few subtrees
    out = Hits(hits[place] for place in sorted((chosen + rest)[:k]))
    out.answerable = hits.answerable
    return out


def away(wanted: Tensor, unwanted: Tensor) -> Tensor:
    """(Q, D) unit vectors without what they share with an unwanted one (1, D)."""
    left = wanted - (wanted @ unwanted.T).clamp(min=0) * unwanted
    if bool((left.norm(dim=1) < 1e-3).any()):
        raise GeniusError("what is wanted and what is not are the same: nothing is left to look for")
    return F.normalize(left, dim=1)
