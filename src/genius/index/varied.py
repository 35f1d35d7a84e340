"""Answers that differ from each other: the codes say which are alike. Knows hits; nothing of how they are found."""

from __future__ import annotations

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
