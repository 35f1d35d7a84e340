"""CUDA graphs: one recorded search per shape, replayed for every batch. Knows streams and buckets, not search.

A search of a shape (batch bucket, parameters) runs as it is the first time and is recorded the second time; the queries of a
smaller batch are padded to the bucket with copies of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

from genius.search.cuda_search import Parts, Shape, StaticDecoder, StaticSearch, steps_of
from genius.search.params import SearchParams, SearchResult

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
HASTY = 8  # up to this batch the course may leave out a step that few queries need
RARE = 0.05  # ... this share of them
MOST_GRAPHS = 24  # recorded searches kept; the oldest goes first

S = TypeVar("S")
Answers = tuple[Tensor, Tensor, Tensor, Tensor]  # rows, scores, touched, flags


class Recordings(Generic[S]):
    """Searches by their shape."""

    def __init__(self, make: Callable[[S], StaticDecoder]) -> None:
        self.make = make
        self.known: dict[S, tuple[StaticDecoder, torch.cuda.CUDAGraph | None]] = {}

    def run(self, shape: S, z: Tensor, dense: Tensor, target: Tensor | None, graph: bool = True) -> Answers:
        """z (n, D), n no more than the shape's queries. `graph`: whether it may be recorded."""
        static, recorded = self._get(shape, graph)
        count = len(z)
        static.z[:count], static.dense[:count] = z, dense
        static.z[count:], static.dense[count:] = z[0], dense[0]
        if target is not None:
            static.target[:count] = target
            static.target[count:] = target[0]
        if recorded is None:
            static.run()
        else:
            recorded.replay()
        results = static.rows, static.scores, static.touched, static.flags
        rows, scores, touched, flags = (tensor[:count].clone() for tensor in results)  # the next replay writes over them
        return rows, scores, touched, flags

    def _get(self, shape: S, graph: bool) -> tuple[StaticDecoder, torch.cuda.CUDAGraph | None]:
        if shape not in self.known:
            while len(self.known) >= MOST_GRAPHS:
                self.known.pop(next(iter(self.known)))
            self.known[shape] = self.make(shape), None
            return self.known[shape]
        static, recorded = self.known[shape]
        if recorded is None and graph and static.device.type == "cuda":
            self.known[shape] = static, record(static)
        return self.known[shape]


class GraphSearch:
    """Recorded searches that write every ID to its end, over one trie on one device, in one precision."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.recorded: Recordings[Shape] = Recordings(lambda shape: StaticSearch(shape, parts))
        self.steps: dict[tuple[int, bool], int] = {}

    def search(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None
    ) -> tuple[SearchResult, Tensor]:
        """Results, and which queries must be searched again step by step (Q,)."""
        parts = [self._batch(z[at], dense[at], k, params, None if target is None else target[at]) for at in batches(len(z))]
        rows, scores, touched, flags = parts[0] if len(parts) == 1 else (torch.cat(column) for column in zip(*parts, strict=True))
        return SearchResult(rows, scores, touched), flags

    def _batch(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None, careful: bool = False
    ) -> Answers:
        """Small batches take the shortest course that serves nearly all; the few others go again, carefully."""
        bucket = bucket_of(len(z))
        careful = careful or bucket > HASTY
        if (params.beams, careful) not in self.steps:
            self.steps[params.beams, careful] = steps_of(self.parts.view, params.beams, 0.0 if careful else RARE)
        shape = Shape(bucket, params.beams, k, self.steps[params.beams, careful], params.reranker, target is not None)
        rows, scores, touched, flags = self.recorded.run(shape, z, dense, target)
        if not careful:
            again = flags.nonzero()[:, 0]  # waits for the device
            if len(again):
                some = self._batch(z[again], dense[again], k, params, None if target is None else target[again], True)
                rows[again], scores[again], touched[again], flags[again] = some
        return rows, scores, touched, flags


def record(static: StaticDecoder) -> torch.cuda.CUDAGraph:
    """Run once more on a stream of its own, then capture."""
    stream = torch.cuda.Stream(static.device)
    stream.wait_stream(torch.cuda.current_stream(static.device))
    with torch.cuda.stream(stream):
        static.run()
    torch.cuda.current_stream(static.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.run()
    return graph


def bucket_of(queries: int) -> int:
    return next(b for b in BUCKETS if b >= queries)


def batches(queries: int, most: int = BUCKETS[-1]) -> Iterator[slice]:
    """Stretches of at most `most`."""
    return (slice(i, min(i + most, queries)) for i in range(0, queries, most))
