"""Held-out queries: training queries that no stage trains on.

A query is held out only if its positives are new to the stages too: while four captions of a photo are trained on, the
fifth says little about photos nobody has seen. Queries are therefore held out by *group*: everything linked by a
positive, or by the same image or text, stays on one side. Most held-out queries give the offsets from which the decoder
learns how far real queries stand from their positives; the others are for validation. Knows features and pairs; nothing
of losses or loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.features import Features

LARGEST_GROUP = 0.1  # a group with a larger share of the queries links too much to hold anything out by it
MOST_QUERIES = 20_000  # held out at most: more offsets teach nothing new
VALIDATION_SHARE = 0.25  # of the held-out groups


class Split(NamedTuple):
    """One training set in three parts over the same pool."""

    train: FeatureSet
    offsets: FeatureSet | None  # held-out queries that show how queries differ from positives; None: too few
    validation: FeatureSet | None  # held-out queries to stop and to choose weights by
    linked_by: str  # what groups were made of, in words

    def map(self, change: Callable[[FeatureSet], FeatureSet]) -> Split:
        """The same split of changed features."""
        offsets = self.offsets
        if offsets is not None:
            offsets = change(offsets)
        validation = self.validation
        if validation is not None:
            validation = change(validation)
        return Split(change(self.train), offsets, validation, self.linked_by)


def split(data: FeatureSet, share: float, seed: int) -> Split:
    """Hold about `share` of the queries out, by group; which ones is a function of `seed`."""
    count = len(data.queries)
    held_out_queries = min(int(count * share), MOST_QUERIES)
    if held_out_queries < 2:
        return Split(data, None, None, "nothing is held out")
    train, offsets, validation, linked_by = _in_three(data, held_out_queries, seed)
    if not len(train.queries):
        return Split(data, None, None, "all queries are of one group, so nothing is held out")
    return Split(train, _unless_empty(offsets), _unless_empty(validation), linked_by)


def split_given(train: FeatureSet, held_out: FeatureSet, seed: int) -> Split:
    """Train on all of `train`; of the `held_out` queries most give offsets and the others validate."""
    if not len(held_out.queries):
        raise GeniusError("the set of held-out queries is empty")
    held_out_queries = min(len(held_out.queries), MOST_QUERIES)
    others, offsets, validation, linked_by = _in_three(held_out, held_out_queries, seed)
    if not len(offsets.queries):
        offsets = others  # all of one group, or more than are needed
    return Split(train, _unless_empty(offsets), _unless_empty(validation), linked_by)


def _unless_empty(data: FeatureSet) -> FeatureSet | None:
    if len(data.queries):
        return data
    return None


def _in_three(data: FeatureSet, held_out_queries: int, seed: int) -> tuple[FeatureSet, FeatureSet, FeatureSet, str]:
    """Hold out about `held_out_queries` queries in whole groups: the other queries, those for offsets, those for validation."""
    group, linked_by = groups(data)
    order = torch.randperm(int(group.max()) + 1, generator=torch.Generator().manual_seed(seed))
    place = order.argsort()[group]  # (Q,) each query's group in random order
    size = torch.bincount(place)
    until = int((size.cumsum(0) <= held_out_queries).sum())  # whole groups only
    until = max(until, min(2, len(size) - 1))
    held_out = place < until
    validation = torch.zeros_like(held_out)
    if until:
        validation = place < max(1, round(VALIDATION_SHARE * until))
    others = data.take_queries((~held_out).nonzero()[:, 0])
    offsets = data.take_queries((held_out & ~validation).nonzero()[:, 0])
    return others, offsets, data.take_queries(validation.nonzero()[:, 0]), linked_by


def groups(data: FeatureSet) -> tuple[Tensor, str]:
    """(Q,) group number of each query, and what links them.

    Queries of different groups share no positive and no content, as far as that leaves groups small enough. Where it
    does not, fewer links count, and the returned words say which.
    """
    queries = len(data.queries)
    nodes = queries + len(data.pool)
    positives = data.pairs + torch.tensor([0, queries])
    text_only = data.queries.text_mask & ~data.queries.image_mask  # next to an image, a text is an instruction
    content = _same_content(data, text_only)
    for edges, words in (
        (torch.cat([positives, content]), "positives, images and texts"),
        (positives, "positives"),
    ):
        if len(edges):
            nodes = max(nodes, int(edges.max()) + 1)
        label = components(nodes, edges)[:queries]
        group = torch.unique(label, return_inverse=True)[1]
        if int(torch.bincount(group).max()) <= max(LARGEST_GROUP * queries, 1):
            return group, words
    return torch.arange(queries), "nothing: every query by itself, since positives link most of them"


def components(nodes: int, edges: Tensor) -> Tensor:
    """(nodes,) the smallest node number of each node's connected component; `edges` (E, 2)."""
    label = torch.arange(nodes)
    if not len(edges):
        return label
    left = edges[:, 0]
    right = edges[:, 1]
    while True:
        low = torch.minimum(label[left], label[right])
        new = label.scatter_reduce(0, left, low, "amin").scatter_reduce(0, right, low, "amin")
        new = new[new]  # follow pointers, so that long chains take few rounds
        if torch.equal(new, label):
            return label
        label = new


def _same_content(data: FeatureSet, text_only: Tensor) -> Tensor:
    """(E, 2) edges from queries and items to a node for each distinct image and text they hold."""
    query_nodes = torch.arange(len(data.queries))
    pool_nodes = len(data.queries) + torch.arange(len(data.pool))
    start = len(data.queries) + len(data.pool)
    edges = []
    for content in ("image", "text"):
        query_mask = text_only
        pool_mask = data.pool.text_mask
        if content == "image":
            query_mask = data.queries.image_mask
            pool_mask = data.pool.image_mask
        keys = [digest(data.queries, content)[query_mask], digest(data.pool, content)[pool_mask]]
        owners = [query_nodes[query_mask], pool_nodes[pool_mask]]
        unique, which = torch.unique(torch.cat(keys), return_inverse=True)
        edges.append(torch.stack([torch.cat(owners), start + which], 1))
        start += len(unique)
    return torch.cat(edges)


def digest(features: Features, content: str, chunk: int = 8192) -> Tensor:
    """(N,) int64, equal for equal vectors: an exact sum of the vectors' bits times fixed odd numbers, modulo 2^64."""
    vectors = features.text
    if content == "image":
        vectors = features.image
    weight = torch.randint(2**62, (vectors.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    parts = [(part.float().contiguous().view(torch.int32).long() * weight).sum(1) for part in vectors.split(chunk)]
    return torch.cat([torch.empty(0, dtype=torch.long), *parts])


def sample_queries(data: FeatureSet, most: int) -> FeatureSet:
    """At most about `most` queries, equally many of each task if there are enough, evenly spread."""
    tasks = [(data.tasks == task).nonzero()[:, 0] for task in data.tasks.unique()]
    per_task = max(most // max(len(tasks), 1), 1)
    picked = [rows[torch.linspace(0, len(rows) - 1, min(per_task, len(rows))).long()] for rows in tasks]
    if not picked:
        return data
    return data.take_queries(torch.cat(picked).sort().values)


def sample_pool(data: FeatureSet, most: int, seed: int) -> FeatureSet:
    """The same queries over at most about `most` candidates: all their positives, and others drawn at random."""
    if len(data.pool) <= most:
        return data
    keep = torch.zeros(len(data.pool), dtype=torch.bool)
    keep[torch.randperm(len(data.pool), generator=torch.Generator().manual_seed(seed))[:most]] = True
    keep[data.pairs[:, 1]] = True
    return data.take_pool(keep.nonzero()[:, 0])
