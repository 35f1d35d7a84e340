"""Methods that write IDs: the paper's GENIUS and GENIUS^R, the early-stopping default, and both without a decoder.

The paper's methods go to full depth with exactly B beams and never look further, so they use `beam_search`; the
default is the engine as users get it. Methods with the same beams share one decoding and say what it cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.evaluate.ids import Candidates, IdTable, PlainBeam, items_of, prefix_survival, ranked
from genius.evaluate.methods import Answer, Ints, Pool, Space
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams, beam_search
from genius.search.decoder import Memory, Writer

WARM = 32  # queries that a GPU answers before the clock runs: its first search loads and compiles


class NoDecoder:
    """A `genius.search.decoder.Writer` without a decoder: nearness alone writes, 2 r.c - |c|^2 with r what is left of z.

    The row a generator must beat. Summed over all levels this is |z|^2 - |z - reconstruction|^2, so with beams for everything it
    ranks by the distance to the reconstruction. Nothing is near a modality, so all three compete equally.
    """

    def __init__(self, quantizer: ResidualQuantizer) -> None:
        self.quantizer = quantizer
        self.level_sizes = quantizer.config.level_sizes

    def start(self, z: Tensor) -> Memory:
        return Memory(z, [], [])

    def run(self, codes: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        queries, beams, length = codes.shape
        return memory.z.new_zeros(queries, beams, length + 1, 0), memory

    def mass(self, hidden: Tensor) -> None:
        return None

    def log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor, mass: Tensor | None = None) -> Tensor:
        """Not a probability: how near every next code is."""
        rest = memory.z.float().repeat_interleave(codes.shape[1], 0)
        flat = codes.flatten(0, 1)
        if level:
            rest = rest - self.quantizer.decode_prefix(flat)
        return self.quantizer.closeness(level, rest, flat[:, 0] if level else None)

    def path_log_p(self, level: int, hidden: Tensor, memory: Memory, codes: Tensor) -> Tensor:
        total = torch.zeros(codes.shape[:2], device=codes.device)
        for now in range(level, codes.shape[2]):
            near = self.log_p(now, hidden, memory, codes[:, :, :now])
            total += near.gather(1, codes[:, :, now].reshape(-1, 1)).view(codes.shape[:2])
        return total


@dataclass(frozen=True, slots=True)
class Author:
    """What writes IDs, and of what: the model's own parts, or a baseline's."""

    generator: Generator
    quantizer: ResidualQuantizer | None
    codes: Ints  # (N, M) of the whole pool
    level_sizes: tuple[int, ...]
    queries: Tensor  # (Q, D) what the generator reads
    modal: bool = True  # whether the first code says the modality
    instead: Writer | None = None  # what writes in the generator's place

    @classmethod
    def of(cls, space: Space, *, decoder: bool = True) -> Author:
        model = space.model
        sizes = model.config.quantizer.level_sizes
        instead = None if decoder else NoDecoder(model.quantizer)
        return cls(model.generator, model.quantizer, space.codes, sizes, space.query_z, instead=instead)


@dataclass(frozen=True, slots=True)
class Found:
    """IDs that one decoding wrote for some queries over one pool."""

    ids: Ints  # (Q, B) numbers of `table`
    table: IdTable
    trie_bytes: float  # per item
    seconds: float


@dataclass
class Decodings:
    """Decodings of one harness run, so that GENIUS and GENIUS^R do not decode twice.

    The key holds the *contents* of pool and queries, never a name: a local pool cannot be answered from the beams of
    the union, which is how the published code's local results went wrong.
    """

    batch: int = 128  # queries decoded at once
    kept: dict[tuple[str, str, int, bool, bool, int], Found] = field(default_factory=dict)

    def get(self, space: Space, writer: Author, pool: Pool, queries: Ints, beams: int) -> Found:
        digest = Pool("queries", queries).digest
        key = (pool.digest, digest, beams, writer.instead is None, space.target is not None, id(writer.generator))
        if key not in self.kept:
            self.kept[key] = self._decode(space, writer, pool, queries, beams)
        return self.kept[key]

    def _decode(self, space: Space, writer: Author, pool: Pool, queries: Ints, beams: int) -> Found:
        codes = writer.codes[pool.rows]
        trie = CodeTrie.build(codes, writer.level_sizes)
        table = IdTable(codes, writer.level_sizes)
        asked = torch.from_numpy(queries).to(space.device)
        out = np.full((len(queries), beams), -1, np.int64)
        seconds = 0.0

        def write(part: Tensor) -> Ints:
            result = beam_search(
                writer.generator,
                trie,
                writer.queries[part],
                beams,
                target=None if space.target is None or not writer.modal else space.target[part],
                writer=writer.instead,
            )
            return result.codes.cpu().numpy()

        if space.device.type == "cuda":
            write(asked[:WARM])
        for i in range(0, len(queries), self.batch):
            part = asked[i : i + self.batch]
            start = time.perf_counter()
            written = write(part)
            seconds += time.perf_counter() - start
            out[i : i + self.batch] = table.lookup(written)
            if ((written[:, :, 0] >= 0) & (out[i : i + self.batch] < 0)).any():
                raise GeniusError(f"the search wrote an ID that no item of the pool {pool.name!r} has")
        return Found(out, table, trie.nbytes / max(len(pool), 1), seconds)


@dataclass
class BeamMethod:
    """Full depth with B beams: plain (`rerank="none"`), or re-ranked by the embeddings or codes of what the beams hold."""

    label: str
    decodings: Decodings
    beams: int = 50
    rerank: Literal["none", "embeddings", "codes"] = "none"
    decoder: bool = True  # False: nearness alone writes
    sample: int = 0  # queries on which the survival of gold prefixes in the beams is followed level by level
    most: int = 0  # items that are re-ranked, those of the likeliest beams; 0: of all
    writer: Author | None = None  # None: the model under test

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> Answer:
        writer = self.writer or Author.of(space, decoder=self.decoder)
        found = self.decodings.get(space, writer, pool, queries, self.beams)
        start = time.perf_counter()
        candidates = items_of(found.table, found.ids)
        if self.most:
            candidates = candidates.first(self.most)
        rows, scores = ranked(candidates, k, self._scores(space, writer, pool, queries, candidates))
        seconds = found.seconds + time.perf_counter() - start
        stored = found.trie_bytes
        if self.rerank == "embeddings":
            stored += space.dense.shape[1] * space.dense.element_size()
        positives = space.local_positives(pool, queries)
        answer = Answer(rows, scores, candidates.counts, seconds, stored, _reached(candidates, positives))
        if self.sample:
            answer.survival = self._survival(space, writer, pool, queries, found.table, positives)
        return answer

    def _scores(
        self, space: Space, writer: Author, pool: Pool, queries: Ints, candidates: Candidates
    ) -> npt.NDArray[np.float64] | None:
        if self.rerank == "none":
            return None
        out = np.empty(len(candidates.rows))
        asked = torch.from_numpy(queries).to(space.device)
        for i in range(0, len(out), 65_536):
            owner = asked[torch.from_numpy(candidates.owner[i : i + 65_536]).to(space.device)]
            local = pool.rows[candidates.rows[i : i + 65_536]]
            if self.rerank == "embeddings":
                vectors = space.vectors(local).float()
                values = (space.query_dense[owner] * vectors).sum(1)
            else:
                assert writer.quantizer is not None
                vectors = writer.quantizer.decode(torch.from_numpy(writer.codes[local]).to(space.device)).float()
                values = (writer.queries[owner] * torch.nn.functional.normalize(vectors, dim=1)).sum(1)
            out[i : i + 65_536] = values.double().cpu().numpy()
        return out

    def _survival(
        self, space: Space, writer: Author, pool: Pool, queries: Ints, table: IdTable, positives: Sequence[Sequence[int]]
    ) -> list[float]:
        step = max(1, len(queries) // self.sample)
        picked = np.arange(0, len(queries), step)[: self.sample]
        beam = PlainBeam(table, writer.generator, writer.instead)
        codes = writer.codes[pool.rows]
        gold = [codes[np.array(positives[i], dtype=np.int64)] for i in picked]
        z = writer.queries[torch.from_numpy(queries[picked]).to(space.device)]
        return [float(value) for value in prefix_survival(beam, z, gold, self.beams)]


def _reached(candidates: Candidates, positives: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """(Q,) 1 where any candidate is a positive: what no re-ranking can repair."""
    span = int(candidates.rows.max(initial=0)) + 1
    wanted = np.fromiter((query * span + row for query, rows in enumerate(positives) for row in rows if row < span), np.int64)
    hit = np.isin(candidates.owner * span + candidates.rows, wanted)
    return (np.bincount(candidates.owner[hit], minlength=len(positives)) > 0).astype(np.float64)


@dataclass
class EngineMethod:
    """The search engine as users get it."""

    label: str
    params: SearchParams
    batch: int = 128
    decoder: bool = True  # False: nearness alone writes
    sample: int = 200  # queries on which all candidates are asked for, to see whether a positive was among them

    def answer(self, space: Space, pool: Pool, queries: Ints, k: int) -> Answer:
        model = space.model
        trie = CodeTrie.build(space.codes[pool.rows], model.config.quantizer.level_sizes)
        vectors = space.stored(pool) if self.params.reranker == "embeddings" else None
        writer = None if self.decoder else NoDecoder(model.quantizer)
        engine = SearchEngine(
            model.generator, model.quantizer, trie, vectors, str(space.device), writer=writer, beside=space.place != space.device
        )
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf)
        touched = np.zeros(len(queries), np.int64)
        seconds = 0.0
        if space.device.type == "cuda":  # a search is recorded once for every size of a batch
            for size in {min(self.batch, len(queries)), len(queries) % self.batch} - {0}:
                self._search(engine, space, queries[:size], k)
        for i in range(0, len(queries), self.batch):
            start = time.perf_counter()
            found = self._search(engine, space, queries[i : i + self.batch], k)
            part = slice(i, i + self.batch)
            rows[part], scores[part], touched[part] = found
            seconds += time.perf_counter() - start
        stored = trie.nbytes / max(len(pool), 1)
        if vectors is not None:
            stored += vectors.shape[1] * vectors.element_size()
        answer = Answer(rows, scores, touched, seconds, stored)
        answer.reached = self._reached(engine, space, pool, queries, touched)
        return answer

    def _search(self, engine: SearchEngine, space: Space, queries: Ints, k: int) -> tuple[Ints, npt.NDArray[np.float64], Ints]:
        asked = torch.from_numpy(queries).to(space.device)
        found = engine.search(
            space.query_z[asked],
            k=k,
            params=self.params,
            dense=space.query_dense[asked],
            target=None if space.target is None else space.target[asked],
        )
        return found.rows.cpu().numpy(), found.scores.double().cpu().numpy(), found.touched.cpu().numpy()

    def _reached(
        self, engine: SearchEngine, space: Space, pool: Pool, queries: Ints, touched: Ints
    ) -> npt.NDArray[np.float64] | None:
        """Candidate recall on a sample, untimed: ask for exactly as many items as were touched.

        For one more, the engine would search further until it has them, and the answer would be about another search.
        """
        if not self.sample or not len(queries):
            return None
        picked = np.unique(np.linspace(0, len(queries) - 1, min(self.sample, len(queries))).astype(np.int64))
        out = np.full(len(queries), np.nan)
        for count in np.unique(touched[picked]):
            same = picked[touched[picked] == count]
            for i in range(0, len(same), self.batch):
                part = same[i : i + self.batch]
                positives = space.local_positives(pool, queries[part])
                rows = self._search(engine, space, queries[part], max(int(count), 1))[0]
                out[part] = [float(np.isin(row, own).any()) for row, own in zip(rows, positives, strict=True)]
        return out
