"""CUDA graphs: one recorded search per shape, replayed for every batch. Knows streams and buckets, not search.

A graph is recorded the first time a (batch bucket, parameters) pair is asked for; the queries of a smaller batch are
padded to the bucket with copies of the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.search.cuda_search import Parts, Plan, Shape, StaticSearch, plan_budget, plan_full_depth
from genius.search.params import SearchParams, SearchResult

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
HASTY = 8  # up to this batch the course may leave out a step that few queries need
RARE = 0.05  # ... this share of them
MOST_GRAPHS = 24  # recorded searches kept; the oldest goes first


class GraphSearch:
    """Recorded searches over one trie on one device, in one precision."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.view, self.decoder = parts, parts.view, parts.decoder
        self.recorded: dict[Shape, tuple[StaticSearch, torch.cuda.CUDAGraph | None]] = {}
        self.plans: dict[tuple[int, int, bool], Plan] = {}

    def search(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None
    ) -> tuple[SearchResult, Tensor]:
        """Results, and which queries must be searched again without a plan (Q,)."""
        parts = [self._batch(z[at], dense[at], k, params, None if target is None else target[at]) for at in _batches(len(z))]
        rows, scores, touched, flags = parts[0] if len(parts) == 1 else (torch.cat(column) for column in zip(*parts, strict=True))
        return SearchResult(rows, scores, touched), flags

    def _batch(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None, careful: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Small batches take the shortest course that serves nearly all; the few others go again, carefully."""
        count = len(z)
        bucket = next(b for b in BUCKETS if b >= count)
        careful = careful or bucket > HASTY
        static, graph = self._get(bucket, k, params, target is not None, careful)
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
        results = static.rows, static.scores, static.touched, static.flags
        rows, scores, touched, flags = (tensor[:count].clone() for tensor in results)  # the next replay writes over them
        if not careful:
            again = flags.nonzero()[:, 0]  # waits for the device
            if len(again):
                some = self._batch(z[again], dense[again], k, params, None if target is None else target[again], True)
                rows[again], scores[again], touched[again], flags[again] = some
        return rows, scores, touched, flags

    def _get(
        self, bucket: int, k: int, params: SearchParams, targets: bool, careful: bool
    ) -> tuple[StaticSearch, torch.cuda.CUDAGraph | None]:
        budget = max(params.rerank, min(k, self.view.trie.items)) if params.rerank and params.reranker != "none" else 0
        key = (params.beams, budget, careful or budget > 0)
        if key not in self.plans:
            course = (
                plan_budget(self.view, params.beams, budget)
                if budget
                else plan_full_depth(self.view, params.beams, 0.0 if careful else RARE)
            )
            self.plans[key] = course
        plan = self.plans[key]
        shape = Shape(bucket, params.beams, k, plan, params.reranker, targets)
        if shape not in self.recorded:
            while len(self.recorded) >= MOST_GRAPHS:
                self.recorded.pop(next(iter(self.recorded)))
            static = StaticSearch(shape, self.parts)
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
