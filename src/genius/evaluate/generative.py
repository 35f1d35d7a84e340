"""Methods that generate IDs: the paper's GENIUS and GENIUS^R, the engine's default, and the same without a decoder.

The paper's methods generate complete IDs with exactly B beams and never look further: the plan `Beam` without widening, then a
re-ranker of the engine's registry. The default is the engine as users get it. Methods with the same beams share one decoding and
report what it cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.evaluate.methods import Ints, MethodResult, Pool, Space
from genius.features import as_numpy
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams, rerank
from genius.search.beam import Beam
from genius.search.collection import Collection
from genius.search.decoder import CodeScorer, DecoderState
from genius.search.engine import placed
from genius.search.types import Candidates, QueryBatch

WARM = 32  # queries that a GPU searches before the clock runs: its first search loads and compiles


class NoDecoder:
    """A `CodeScorer` without a decoder: similarity alone, 2 r.c - |c|^2 with r the residual of z.

    The row that a generator must beat. Summed over all levels this is |z|^2 - |z - reconstruction|^2, so with beams for
    everything it ranks by the distance to the reconstruction. No vector is similar to a modality, so all three compete equally.
    """

    def __init__(self, quantizer: ResidualQuantizer) -> None:
        self.quantizer = quantizer
        self.level_sizes = quantizer.config.level_sizes

    def start(self, z: Tensor) -> DecoderState:
        return DecoderState(z, [], [])

    def next_log_probs(self, codes: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Not probabilities: how similar the residual is to every next code."""
        queries, beams, level = codes.shape
        residual = state.z.float().repeat_interleave(beams, 0)
        rows = codes.flatten(0, 1)
        modality = None
        if level:
            residual = residual - self.quantizer.decode_prefix(rows)
            modality = rows[:, 0]
        return self.quantizer.code_scores(level, residual, modality).view(queries, beams, -1), state

    def path_log_probs(self, codes: Tensor, state: DecoderState, level: int) -> Tensor:
        out = []
        for now in range(level, codes.shape[2]):
            scores, _ = self.next_log_probs(codes[:, :, :now], state)
            out.append(scores.gather(2, codes[:, :, now : now + 1]))
        return torch.cat(out, 2)


@dataclass(frozen=True, slots=True)
class Decoding:
    """What one beam search found for some queries over one pool."""

    trie: CodeTrie
    candidates: Candidates  # rows of the pool, best beams first
    seconds: float


@dataclass
class IdSource:
    """What generates IDs, and of which items: the model's own parts, or a baseline's.

    Its decodings are kept, so that GENIUS and GENIUS^R do not decode twice. Their key holds the *contents* of pool and queries,
    never a name: a local pool cannot be served from the beams of the union, which is how the published code's local results went
    wrong.
    """

    scorer: Generator | CodeScorer
    quantizer: ResidualQuantizer | None
    codes: Ints  # (N, M) of the whole pool
    level_sizes: tuple[int, ...]
    queries: Tensor  # (Q, D) what the scorer reads
    labelled: bool = True  # whether the first code is the modality
    at_once: int = 128  # queries decoded at once
    kept: dict[tuple[str, str, int, bool], Decoding] = field(default_factory=dict)

    @classmethod
    def of(cls, space: Space, *, decoder: bool = True, at_once: int = 128) -> IdSource:
        """The model under test; `decoder=False`: similarity alone scores codes."""
        model = space.model
        scorer: Generator | CodeScorer = model.generator
        if not decoder:
            scorer = NoDecoder(model.quantizer)
        sizes = model.config.quantizer.level_sizes
        return cls(scorer, model.quantizer, space.codes, sizes, space.query_z, at_once=at_once)

    def batch(self, space: Space, queries: Tensor) -> QueryBatch:
        """Some of the queries, by row (n,)."""
        target = np.full(len(queries), -1)
        if space.target is not None and self.labelled:
            target = as_numpy(space.target[queries])
        z = as_numpy(self.queries[queries].float())
        return QueryBatch(z, as_numpy(space.query_dense[queries].float()), target)

    def decode(self, space: Space, pool: Pool, queries: Ints, beams: int) -> Decoding:
        """The beams of some queries over a pool, from an earlier method where it had the same."""
        key = (pool.digest, Pool("queries", queries).digest, beams, space.target is not None)
        if key not in self.kept:
            self.kept[key] = self._decode(space, pool, queries, beams)
        return self.kept[key]

    def _decode(self, space: Space, pool: Pool, queries: Ints, beams: int) -> Decoding:
        trie = CodeTrie.build(self.codes[pool.rows], self.level_sizes)
        plan = Beam(self.scorer, trie, widen=False, device=space.device)
        params = SearchParams(beams=beams)
        chosen = torch.from_numpy(queries).to(space.device)
        if space.device.type == "cuda":
            plan.run(self.batch(space, chosen[:WARM]), 1, params)
        start = time.perf_counter()
        parts = [plan.run(self.batch(space, part), 1, params) for part in chosen.split(self.at_once)]
        candidates = Candidates.cat(parts)
        return Decoding(trie, candidates, time.perf_counter() - start)


@dataclass
class BeamMethod:
    """Complete IDs with B beams: ranked by log-probability (`reranker="none"`), or re-ranked by embeddings or codes."""

    label: str
    source: IdSource
    beams: int = 50
    reranker: str = "none"
    most: int = 0  # items that are re-ranked, those of the likeliest beams; 0: all

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        found = self.source.decode(space, pool, queries, self.beams)
        collection = self._collection(space, pool, found.trie)
        batch = self.source.batch(space, torch.from_numpy(queries).to(space.device))
        start = time.perf_counter()
        candidates = found.candidates
        if self.most:
            considered = np.minimum(candidates.considered, self.most)
            candidates = Candidates(candidates.rows[:, : self.most], candidates.scores[:, : self.most], considered)
        scores = as_numpy(rerank.find(self.reranker)(batch, candidates, collection))
        ranked, ranked_scores = rerank.top_k(candidates.rows, scores, k)
        seconds = found.seconds + time.perf_counter() - start
        stored = found.trie.nbytes / max(len(pool), 1)
        if self.reranker == "embeddings":
            stored += space.dense.shape[1] * space.dense.element_size()
        reached = _reached(candidates.rows, space.local_positives(pool, queries))
        return MethodResult(ranked, ranked_scores.astype(np.float64), candidates.considered, seconds, stored, reached)

    def _collection(self, space: Space, pool: Pool, trie: CodeTrie) -> Collection:
        vectors = None
        if self.reranker == "embeddings":
            vectors = placed(space.stored(pool), str(space.device), space.place != space.device)
        reconstruct = None
        if self.reranker == "codes" and self.source.quantizer is not None:
            reconstruct = rerank.Reconstructions(self.source.quantizer)
        return Collection.of(trie, vectors, device=str(space.device), labelled=self.source.labelled, reconstruct=reconstruct)


def _reached(rows: Ints, positives: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """(Q,) 1 where any candidate of rows (Q, C) is a positive: what no re-ranking can repair."""
    return np.array(
        [float(np.isin(positive_rows, candidates).any()) for candidates, positive_rows in zip(rows, positives, strict=True)]
    )


@dataclass
class EngineMethod:
    """The search engine as users get it."""

    label: str
    params: SearchParams
    batch: int = 128
    decoder: bool = True  # False: similarity alone scores codes
    sample: int = 200  # queries on which all candidates are returned, to see whether a positive was among them

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> MethodResult:
        model = space.model
        trie = CodeTrie.build(space.codes[pool.rows], model.config.quantizer.level_sizes)
        vectors = None
        if self.params.reranker == "embeddings":
            vectors = space.stored(pool)
        scorer = None
        bank = model.queries
        if not self.decoder:
            scorer = NoDecoder(model.quantizer)
            bank = None
        engine = SearchEngine(
            model.generator,
            model.quantizer,
            trie,
            vectors,
            space.device,
            on_host=space.place != space.device,
            scorer=scorer,
            bank=bank,
        )
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf)
        considered = np.zeros(len(queries), np.int64)
        seconds = 0.0
        engine.prepare()
        if space.device.type == "cuda":
            self._search(engine, space, queries[:WARM], k)
        for i in range(0, len(queries), self.batch):
            part = slice(i, i + self.batch)
            start = time.perf_counter()
            rows[part], scores[part], considered[part] = self._search(engine, space, queries[part], k)
            seconds += time.perf_counter() - start
        stored = trie.nbytes / max(len(pool), 1)
        if vectors is not None:
            stored += vectors.shape[1] * vectors.element_size()
        answer = MethodResult(rows, scores, considered, seconds, stored)
        answer.reached = self._reached(engine, space, pool, queries, considered)
        return answer

    def _search(self, engine: SearchEngine, space: Space, queries: Ints, k: int) -> tuple[Ints, npt.NDArray[np.float64], Ints]:
        chosen = torch.from_numpy(queries).to(space.device)
        target = None
        if space.target is not None:
            target = space.target[chosen]
        result = engine.search(
            space.query_z[chosen],
            k=k,
            params=self.params,
            dense=space.query_dense[chosen],
            target=target,
            modality=space.data.queries.modality.to(space.device)[chosen],
        )
        return result.rows, result.scores.astype(np.float64), result.considered

    def _reached(
        self, engine: SearchEngine, space: Space, pool: Pool, queries: Ints, considered: Ints
    ) -> npt.NDArray[np.float64] | None:
        """Candidate recall on a sample, untimed: ask for exactly as many items as were considered.

        For one more, the engine would search further until it has them, and the figure would be about another search.
        """
        if not self.sample or not len(queries):
            return None
        picked = np.unique(np.linspace(0, len(queries) - 1, min(self.sample, len(queries))).astype(np.int64))
        out = np.full(len(queries), np.nan)
        for count in np.unique(considered[picked]):
            same = picked[considered[picked] == count]
            for i in range(0, len(same), self.batch):
                part = same[i : i + self.batch]
                positives = space.local_positives(pool, queries[part])
                rows = self._search(engine, space, queries[part], max(int(count), 1))[0]
                out[part] = _reached(rows, positives)
        return out
