"""CUDA graphs: one recorded search per shape, replayed for every batch. Knows streams and buckets, not search.

A graph is recorded the first time a (batch bucket, parameters) pair is asked for; the queries of a smaller batch are
padded to the bucket with copies of the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.search.decoder import Decoder
from genius.search.params import SearchParams, SearchResult
from genius.search.plan import Plan, plan_budget, plan_full_depth
from genius.search.static import Ops, Shape, StaticSearch
from genius.search.views import TrieView

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_GRAPHS = 24  # recorded searches kept; the oldest goes first


class GraphSearch:
    """Recorded searches over one trie on one device, in one precision."""

    def __init__(
        self, decoder: Decoder, view: TrieView, ops: Ops, vectors: Tensor | None = None, scales: Tensor | None = None
    ) -> None:
        self.decoder, self.view, self.ops, self.vectors, self.scales = decoder, view, ops, vectors, scales
        self.recorded: dict[Shape, tuple[StaticSearch, torch.cuda.CUDAGraph | None]] = {}
        self.plans: dict[tuple[int, int], Plan] = {}

    def search(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None
    ) -> tuple[SearchResult, Tensor]:
        """Results, and which queries must be searched again without a plan (Q,)."""
        parts = [self._batch(z[at], dense[at], k, params, None if target is None else target[at]) for at in _batches(len(z))]
        rows, scores, touched, flags = (torch.cat(column) for column in zip(*parts, strict=True))
        return SearchResult(rows, scores, touched), flags

    def _batch(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        bucket = next(b for b in BUCKETS if b >= len(z))
        static, graph = self._get(bucket, k, params, target is not None)
        count = len(z)
        static.z[:count], static.dense[:count] = z, dense
        if count < bucket:
            static.z[count:], static.dense[count:] = z[0], dense[0]
        if target is not None:
            static.target[:count] = target
            static.target[count:] = target[0]
        if graph is None:
            static.run()
        else:
            graph.replay()
        return (
            static.rows[:count].clone(),
            static.scores[:count].clone(),
            static.touched[:count].clone(),
            static.flags[:count].clone(),
        )

    def _get(self, bucket: int, k: int, params: SearchParams, targets: bool) -> tuple[StaticSearch, torch.cuda.CUDAGraph | None]:
        budget = max(params.rerank, min(k, self.view.trie.items)) if params.rerank and params.reranker != "none" else 0
        plan = self.plans.get((params.beams, budget))
        if plan is None:
            plan = plan_budget(self.view, params.beams, budget) if budget else plan_full_depth(self.view)
            self.plans[params.beams, budget] = plan
        normalizer = self.decoder.config.normalizer if params.normalizer == "model" else params.normalizer
        shape = Shape(bucket, params.beams, k, plan, params.reranker, normalizer, targets)
        if shape not in self.recorded:
            while len(self.recorded) >= MOST_GRAPHS:
                self.recorded.pop(next(iter(self.recorded)))
            static = StaticSearch(shape, self.decoder, self.view, self.ops, self.vectors, self.scales)
            self.recorded[shape] = (static, record(static) if self.decoder.device.type == "cuda" else None)
        return self.recorded[shape]


def record(static: StaticSearch) -> torch.cuda.CUDAGraph:
    """Run twice to compile and warm up, then capture."""
    stream = torch.cuda.Stream(static.device)
    stream.wait_stream(torch.cuda.current_stream(static.device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            static.run()
    torch.cuda.current_stream(static.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.run()
    return graph


def _batches(queries: int) -> list[slice]:
    largest = BUCKETS[-1]
    return [slice(i, min(i + largest, queries)) for i in range(0, queries, largest)]
