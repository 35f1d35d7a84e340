"""Honest questions: training questions that no stage trains on, drawn group by group.

A question is honest only if its answer is new to the stages as well: while four captions of a photo are trained on, the fifth
says little about photos nobody has seen. So questions are kept out by *group*: everything linked by an answer or by the same
picture or text stays on one side. Most of what is held out gives the offsets from which the decoder learns how far real questions
stand from their answers, the rest is for validation. Knows features and pairs; nothing of stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.features import Features

LARGEST = 0.1  # a group with a larger share of the questions links too much to hold anything out by it
MOST = 20_000  # questions held out at most: more offsets teach nothing new
JUDGING = 0.25  # of the held-out groups are for validation


class Split(NamedTuple):
    """One training set in three parts over the same pool."""

    train: FeatureSet
    offsets: FeatureSet | None  # honest questions that show where questions stand; None: too few for that
    validation: FeatureSet | None  # honest questions to stop and to choose by
    linked_by: str  # what groups were made of, in words

    def map(self, change: Callable[[FeatureSet], FeatureSet]) -> Split:
        """The same split of changed features."""
        train, *held = (part if part is None else change(part) for part in self[:3])
        assert train is not None
        return Split(train, held[0], held[1], self.linked_by)


def split(data: FeatureSet, share: float, seed: int) -> Split:
    """Keep about `share` of the questions out, by group; which ones is a function of `seed`."""
    count = len(data.queries)
    wanted = min(int(count * share), MOST)
    if wanted < 2:
        return Split(data, None, None, "nothing is held out")
    train, offsets, judging, linked_by = _in_three(data, wanted, seed)
    if not len(train.queries):
        return Split(data, None, None, "all questions are of one group, so nothing is held out")
    return Split(train, offsets if len(offsets.queries) else None, judging if len(judging.queries) else None, linked_by)


def with_honest(train: FeatureSet, given: FeatureSet, seed: int) -> Split:
    """All of `train` to train on; of the questions `given`, which nothing has seen, most for offsets and the rest to judge by."""
    if not len(given.queries):
        raise GeniusError("the set of held-out questions is empty")
    rest, offsets, judging, linked_by = _in_three(given, min(len(given.queries), MOST), seed)
    if not len(offsets.queries):
        offsets = rest  # all of one group, or more than are needed
    return Split(train, offsets if len(offsets.queries) else None, judging if len(judging.queries) else None, linked_by)


def _in_three(data: FeatureSet, wanted: int, seed: int) -> tuple[FeatureSet, FeatureSet, FeatureSet, str]:
    """About `wanted` questions in whole groups, a part of them apart: the other ones, most of these, and that part."""
    group, linked_by = groups(data)
    order = torch.randperm(int(group.max()) + 1, generator=torch.Generator().manual_seed(seed))
    place = order.argsort()[group]  # (Q,) each question's group in random order
    size = torch.bincount(place)
    until = int((size.cumsum(0) <= wanted).sum())  # whole groups only
    until = max(until, min(2, len(size) - 1))
    judging = place < max(1, round(JUDGING * until)) if until else torch.zeros_like(place, dtype=torch.bool)
    held = place < until
    rest, offsets, judged = (data.take_queries(rows.nonzero()[:, 0]) for rows in (~held, held & ~judging, judging))
    return rest, offsets, judged, linked_by


def groups(data: FeatureSet) -> tuple[Tensor, str]:
    """(Q,) group number of each question, and what links them. Questions of different groups share no answer and no content,
    as far as that leaves groups small enough; where it does not, fewer links count and the words say which."""
    queries, nodes = len(data.queries), len(data.queries) + len(data.pool)
    answers = data.pairs + torch.tensor([0, queries])
    own_words = data.queries.text_mask & ~data.queries.image_mask  # beside a picture, a question's text is what is wanted of it
    content = _same_content(data, own_words)
    for edges, words in (
        (torch.cat([answers, content]), "answers, pictures and texts"),
        (answers, "answers"),
    ):
        label = components(int(max(nodes, int(edges.max()) + 1)) if len(edges) else nodes, edges)[:queries]
        group = torch.unique(label, return_inverse=True)[1]
        if int(torch.bincount(group).max()) <= max(LARGEST * queries, 1):
            return group, words
    return torch.arange(queries), "nothing: every question by itself, since answers link most of them"


def components(nodes: int, edges: Tensor) -> Tensor:
    """(nodes,) the smallest node number of each node's connected component; `edges` (E, 2)."""
    label = torch.arange(nodes)
    if not len(edges):
        return label
    left, right = edges[:, 0], edges[:, 1]
    while True:
        low = torch.minimum(label[left], label[right])
        new = label.scatter_reduce(0, left, low, "amin").scatter_reduce(0, right, low, "amin")
        new = new[new]  # follow pointers, so that long chains take few rounds
        if torch.equal(new, label):
            return label
        label = new


def _same_content(data: FeatureSet, own_words: Tensor) -> Tensor:
    """(E, 2) edges from questions and items to a node for each distinct picture and text they hold."""
    queries, pool = len(data.queries), len(data.pool)
    rows = (torch.arange(queries), queries + torch.arange(pool))
    start, edges = queries + pool, []
    for kind in ("image", "text"):
        keys, owners = [], []
        for features, nodes in zip((data.queries, data.pool), rows, strict=True):
            mask = features.image_mask if kind == "image" else features.text_mask
            if kind == "text" and features is data.queries:
                mask = own_words
            keys.append(digest(features, kind)[mask])
            owners.append(nodes[mask])
        unique, which = torch.unique(torch.cat(keys), return_inverse=True)
        edges.append(torch.stack([torch.cat(owners), start + which], 1))
        start += len(unique)
    return torch.cat(edges)


def digest(features: Features, kind: str, chunk: int = 8192) -> Tensor:
    """(N,) int64, equal for equal vectors: an exact sum of the vectors' bits times fixed odd numbers, modulo 2^64."""
    vectors = features.image if kind == "image" else features.text
    weight = torch.randint(2**62, (vectors.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    parts = [(part.float().contiguous().view(torch.int32).long() * weight).sum(1) for part in vectors.split(chunk)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def few_questions(data: FeatureSet, most: int) -> FeatureSet:
    """At most about `most` questions, as many of each task as there are or as fit, evenly spread."""
    tasks = [(data.tasks == task).nonzero()[:, 0] for task in data.tasks.unique()]
    each = max(most // max(len(tasks), 1), 1)
    picked = [rows[torch.linspace(0, len(rows) - 1, min(each, len(rows))).long()] for rows in tasks]
    return data.take_queries(torch.cat(picked).sort().values) if picked else data


def judged_pool(data: FeatureSet, most: int, seed: int) -> FeatureSet:
    """The same questions over at most about `most` candidates: all their answers, and others drawn at random."""
    if len(data.pool) <= most:
        return data
    keep = torch.zeros(len(data.pool), dtype=torch.bool)
    keep[torch.randperm(len(data.pool), generator=torch.Generator().manual_seed(seed))[:most]] = True
    keep[data.pairs[:, 1]] = True
    rows = keep.nonzero()[:, 0]
    place = torch.full((len(data.pool),), -1, dtype=torch.long)
    place[rows] = torch.arange(len(rows))
    pairs = torch.stack([data.pairs[:, 0], place[data.pairs[:, 1]]], 1)
    ids = [data.pool_ids[row] for row in rows.tolist()]
    return FeatureSet(data.queries, data.pool[rows], pairs, data.query_ids, ids, data.tasks, data.names)
